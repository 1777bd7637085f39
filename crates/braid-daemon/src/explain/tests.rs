//! Golden texts of explanations: a question, a snapshot, and every step.

mod race;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use braid_balance::{ClassId, KernelTime, PathCacheEntry, Site, Sticky};
use braid_core::UplinkId;
use braid_core::forecast::UplinkLoad;

use super::{Explanation, OtherFlow, Snapshot, explain};
use crate::classes::{Classes, UplinkStatus};
use crate::config::Settings;
use crate::dns_snoop::{NameCache, site};
use crate::report::ExplainQuestion;
use crate::rules::{CompiledRules, SystemIds};
use crate::test_fixtures::{settings, status};
use crate::uplinks::uplink_forecasts::Reservation;

const RULES: &str = "
    policy = 'hash-source'
    sticky = '10 min'
    [[uplink]]
    name = 'dsl'
    device = 'eth0'
    [[uplink]]
    name = 'lte'
    device = 'wwan0'
    [[rule]]
    name = 'office'
    destination = '198.51.100.0/24'
    use = 'none'
    [[rule]]
    name = 'bank'
    domain = ['bank.example', '*.bank.example']
    use = 'lte'
    [[rule]]
    name = 'backup'
    port = 873
    user = 'backup'
    use = 'lte'
    on_down = 'block'
    [[rule]]
    name = 'rsync'
    port = 873
    use = 'rr'
    sticky = 'off'
    [[rule]]
    name = 'tv'
    source = '192.168.1.80'
    use = 'block'
";

/// The parts of the snapshot that tests set.
struct Scene {
    settings: Settings,
    statuses: Vec<UplinkStatus>,
    path: Option<PathCacheEntry>,
    loads: Vec<UplinkLoad>,
    reservations: Vec<Option<Reservation>>,
    sticky: Vec<Sticky>,
    names: NameCache,
    route: Option<&'static str>,
    neighbour: Option<UplinkId>,
    refused: Option<&'static str>,
    other_flows: Vec<OtherFlow>,
}

fn scene(text: &str) -> Scene {
    let settings = settings(text);
    let lte = UplinkStatus {
        v6: false,
        ..status(1, "lte")
    };
    Scene {
        names: NameCache::new(&settings),
        settings,
        statuses: vec![status(0, "dsl"), lte],
        path: None,
        loads: Vec::new(),
        reservations: Vec::new(),
        sticky: Vec::new(),
        route: None,
        neighbour: None,
        refused: None,
        other_flows: Vec::new(),
    }
}

fn now() -> KernelTime {
    KernelTime::from_nanos(1_000_000_000_000)
}

fn ask(destination: &str) -> ExplainQuestion {
    let server: SocketAddr = destination.parse().unwrap();
    ExplainQuestion {
        destination: server.ip(),
        port: Some(server.port()),
        protocol: 6,
        source: None,
        source_port: None,
        domain: None,
        uid: None,
        dscp: None,
    }
}

/// Returns the explanation of a scene.
fn explanation(scene: &Scene, question: &ExplainQuestion) -> Explanation {
    let mut classes = Classes::default();
    classes.update(Instant::now(), &scene.settings, &scene.statuses);
    let system = SystemIds {
        users: [("backup".to_owned(), 34)].into(),
        ..SystemIds::default()
    };
    let rules = CompiledRules::compile(&scene.settings, &classes, &system);
    let evidence = |id: UplinkId| match scene.statuses[usize::from(id.0)].up {
        true => "up, 20 ms".to_owned(),
        false => "dead: 12 packets out and nothing back for 240 ms".to_owned(),
    };
    let snapshot = Snapshot {
        now: now(),
        settings: &scene.settings,
        rules: &rules,
        classes: &classes,
        sticky: &scene.sticky,
        path: scene.path.as_ref(),
        load: &|id| scene.loads.get(id.index()).copied(),
        reservation: &|id| scene.reservations.get(id.index()).copied().flatten(),
        names: &scene.names,
        statuses: &scene.statuses,
        evidence: &evidence,
        route: scene.route,
        neighbour: scene.neighbour,
        refused: scene.refused.map(str::to_owned),
        other_flows: &scene.other_flows,
    };
    explain(question, &snapshot)
}

/// Returns it as text.
fn told(scene: &Scene, question: &ExplainQuestion) -> String {
    let explanation = explanation(scene, question);
    let mut text = String::new();
    for step in &explanation.steps {
        writeln!(text, "{:?}: {}", step.stage, step.text).unwrap();
    }
    let uplink = explanation.uplink.as_deref().unwrap_or("-");
    let candidates = explanation.candidates.iter();
    let candidates: Vec<String> = candidates
        .map(|c| match c.share {
            Some(share) => format!("{} {share:.2}", c.uplink),
            None => c.uplink.clone(),
        })
        .collect();
    writeln!(
        text,
        "=> {:?} {uplink} [{}]",
        explanation.outcome,
        candidates.join(", ")
    )
    .unwrap();
    text
}

#[test]
fn without_rules_it_is_the_next_slot() {
    let scene = scene("");
    assert_eq!(
        told(&scene, &ask("203.0.113.5:443")),
        "\
Route: no route but the default one: Braid's
Rule: there are no rules
Policy: shared out by rr
Slot: the next of 1024 slots
Uplink: dsl: up, 20 ms
Uplink: lte: up, 20 ms
=> Shared - [dsl 0.50, lte 0.50]
"
    );
}

#[test]
fn a_rule_that_is_switched_off_is_named_and_decides_nothing() {
    let mut scene = scene(RULES);
    scene.settings.paused_rules = ["office".to_owned(), "bank".to_owned()].into();
    scene.names = NameCache::new(&scene.settings);
    let text = told(&scene, &ask("198.51.100.7:443"));
    let rules: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("Rule: "))
        .collect();
    assert_eq!(
        rules[0],
        "Rule: rule office is paused, so it decides nothing"
    );
    assert_eq!(rules.last(), Some(&"Rule: no rule matches"));
    let mut question = ask("203.0.113.5:443");
    question.domain = Some("www.bank.example".into());
    let text = told(&scene, &question);
    assert!(text.contains("rule bank is paused"), "{text}");
    assert!(!text.contains("rule office"), "{text}");
    assert!(text.contains("no rule matches"), "{text}");
}

#[test]
fn what_cannot_be_translated_is_refused_and_said() {
    let scene = scene("");
    let mut question = ask("203.0.113.5:0");
    question.protocol = 136;
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: there are no rules
Protocol: IP protocol 136 cannot be translated: reason out_protocol; its sender hears \
\"administratively prohibited\" by ICMP
=> Refused - []
"
    );
    question.protocol = 89;
    let ospf = told(&scene, &question);
    assert!(
        ospf.contains("its sender hears nothing\n=> Refused"),
        "{ospf}"
    );
}

#[test]
fn without_ports_a_remote_serves_one_client_by_each_uplink() {
    let mut scene = scene("");
    let mut question = ask("203.0.113.5:0");
    question.protocol = 47;
    question.source = Some([10, 0, 0, 7].into());
    let holder = |uplink, client: u8| OtherFlow {
        client: [10, 0, 0, client].into(),
        uplink: UplinkId(uplink),
    };
    scene.other_flows = vec![holder(0, 8), holder(1, 7)];
    let text = told(&scene, &question);
    let taken = "Protocol: dsl: 10.0.0.8 has it to 203.0.113.5 already";
    assert!(text.contains(taken), "{text}");
    assert!(text.contains("=> Shared"), "{text}");
    scene.other_flows = vec![holder(0, 8), holder(1, 9)];
    let text = told(&scene, &question);
    assert!(text.contains("=> Refused"), "{text}");
    question.protocol = 17;
    assert!(told(&scene, &question).contains("=> Shared"));
}

#[test]
fn active_ftp_is_warned_of() {
    let text = told(&scene(""), &ask("203.0.113.5:21"));
    assert!(text.contains("Protocol: passive FTP works;"), "{text}");
    assert!(text.contains("=> Shared"), "{text}");
    let text = told(&scene(""), &ask("203.0.113.5:443"));
    assert!(!text.contains("FTP"), "{text}");
}

#[test]
fn what_may_be_data_of_ftp_keeps_the_uplink_of_its_control_connection() {
    let mut scene = scene("");
    let client: IpAddr = "192.168.1.7".parse().unwrap();
    let mut question = ask("203.0.113.5:50000");
    question.source = Some(client);
    assert!(told(&scene, &question).contains("=> Shared"));
    scene.sticky = vec![Sticky {
        client,
        site: Site::of("203.0.113.5".parse().unwrap()),
        class: ClassId(0),
        uplink: UplinkId(1),
        used: KernelTime::from_nanos(940_000_000_000),
    }];
    let text = told(&scene, &question);
    assert!(text.contains("keeps to lte"), "{text}");
    assert!(text.contains("=> Uplink lte"), "{text}");
    for (port, end) in [
        (21, "=> Uplink lte"),
        (990, "=> Uplink lte"),
        (443, "=> Shared"),
    ] {
        question.port = Some(port);
        assert!(told(&scene, &question).contains(end), "{port}");
    }
}

#[test]
fn a_family_that_one_uplink_has_leaves_no_choice() {
    let scene = scene("");
    assert_eq!(
        told(&scene, &ask("[2a00::5]:443")),
        "\
Route: no route but the default one: Braid's
Rule: there are no rules
Policy: shared out by rr
Slot: the next of 1024 slots
Uplink: dsl: up, 20 ms
Uplink: lte has no IPv6
=> Uplink dsl [dsl 1.00]
"
    );
}

#[test]
fn a_route_of_its_own_never_comes_here() {
    let mut scene = scene(RULES);
    scene.route = Some("192.168.1.0/24 dev eth1");
    assert_eq!(
        told(&scene, &ask("192.168.1.7:22")),
        "\
Route: the main table has a route of its own: 192.168.1.0/24 dev eth1
=> Untouched - []
"
    );
}

#[test]
fn a_client_that_may_not_opens_nothing() {
    let mut scene = scene(RULES);
    scene.refused = Some("192.168.1.7 holds more than its share");
    assert_eq!(
        told(&scene, &ask("203.0.113.5:443")),
        "\
Route: no route but the default one: Braid's
Client: 192.168.1.7 holds more than its share
=> Refused - []
"
    );
}

#[test]
fn none_is_the_kernels_affair() {
    assert_eq!(
        told(&scene(RULES), &ask("198.51.100.9:443")),
        "\
Route: no route but the default one: Braid's
Rule: rule office: use = \"none\", by the kernel's routing
=> Untouched - []
"
    );
}

#[test]
fn a_rule_by_name_and_its_uplink_dead() {
    let mut scene = scene(RULES);
    let mut question = ask("203.0.113.5:443");
    question.domain = Some("WWW.bank.example.".to_owned());
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: rule bank: use = \"lte\", for WWW.bank.example.
Policy: only lte
Uplink: lte: up, 20 ms
=> Uplink lte [lte 1.00]
"
    );
    scene.statuses[1].up = false;
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: rule bank: use = \"lte\", for WWW.bank.example.
Policy: only lte, which takes no new flows: the others take over meanwhile
Slot: slot 0 of 1024, by the hash of 192.0.0.8
Uplink: dsl: up, 20 ms
Uplink: lte takes no new flows: dead: 12 packets out and nothing back for 240 ms
=> Uplink dsl [dsl 1.00]
"
        .replace("slot 0 of", &slot_of_host())
    );
}

/// The uplink that the hash of the host's own address selects.
fn slot_of_host() -> String {
    let host = crate::plumbing::INNER_V4.into();
    let dest = IpAddr::from([203, 0, 113, 5]);
    let slot = braid_balance::LbMethod::HashSource
        .slot(host, dest, 1024)
        .unwrap();
    format!("slot {slot} of")
}

#[test]
fn what_the_question_leaves_open_is_said() {
    let scene = scene(RULES);
    assert_eq!(
        told(&scene, &ask("203.0.113.5:873")),
        "\
Route: no route but the default one: Braid's
Rule: rule bank could match: it asks for the name, which is not known here
Rule: rule backup could match: it asks for the user, which is not known here
Rule: rule rsync: use = \"rr\"
Policy: shared out by rr
Slot: the next of 1024 slots
Uplink: dsl: up, 20 ms
Uplink: lte: up, 20 ms
=> Shared - [dsl 0.50, lte 0.50]
"
    );
}

#[test]
fn blocked_by_a_rule_and_blocked_meanwhile() {
    let mut scene = scene(RULES);
    let mut question = ask("203.0.113.5:443");
    question.source = Some("192.168.1.80".parse().unwrap());
    question.domain = Some("shop.example".to_owned());
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: rule tv: use = \"block\"
Policy: blocked
=> Blocked - []
"
    );
    scene.statuses[1].up = false;
    let mut question = ask("203.0.113.5:873");
    question.uid = Some(34);
    question.domain = Some("shop.example".to_owned());
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: rule backup: use = \"lte\"
Policy: only lte, which takes no new flows: blocked meanwhile
Uplink: lte takes no new flows: dead: 12 packets out and nothing back for 240 ms
=> Blocked - []
"
    );
}

#[test]
fn a_client_keeps_to_its_uplink() {
    let mut scene = scene(RULES);
    let client: IpAddr = "192.168.1.7".parse().unwrap();
    let used = KernelTime::from_nanos(940_000_000_000);
    scene.sticky = vec![Sticky {
        client,
        site: Site::of("203.0.113.5".parse().unwrap()),
        class: ClassId(0),
        uplink: UplinkId(1),
        used,
    }];
    let mut question = ask("203.0.113.5:443");
    question.source = Some(client);
    question.domain = Some("shop.example".to_owned());
    assert_eq!(
        told(&scene, &question),
        "\
Route: no route but the default one: Braid's
Rule: no rule matches
Policy: shared out by hash-source, a client keeps to a site for 10 min
Sticky: 192.168.1.7 keeps to lte for the network of 203.0.113.5, last used 1 min ago
Uplink: lte: up, 20 ms
=> Uplink lte [lte 1.00]
"
    );
    scene.statuses[1].up = false;
    let text = told(&scene, &question);
    assert!(
        text.contains("1 min ago, but lte takes no new flows\nSlot: "),
        "{text}"
    );
    assert!(text.ends_with("=> Uplink dsl [dsl 1.00]\n"), "{text}");
    scene.sticky[0].used = KernelTime::from_nanos(400_000_000_000);
    let text = told(&scene, &question);
    let none = "Sticky: 192.168.1.7 has no uplink for the network of 203.0.113.5 yet\n";
    assert!(text.contains(none), "ten minutes are over: {text}");
}

#[test]
fn a_learned_name_is_evidence() {
    let mut scene = scene(RULES);
    // Header, question and answer: www.bank.example is 203.0.113.5 for 600 s.
    let mut answer = b"\x00\x01\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00".to_vec();
    answer.extend(b"\x03www\x04bank\x07example\x00\x00\x01\x00\x01");
    answer.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x02\x58\x00\x04\xcb\x00\x71\x05");
    let server = "9.9.9.9:53".parse().unwrap();
    let own = "192.0.0.8".parse().unwrap();
    scene.names.set_own([own]);
    let heard = scene.names.handle_answer(now(), server, own, &answer);
    heard.unwrap();
    let text = told(&scene, &ask("203.0.113.5:443"));
    let rule =
        "Rule: rule bank: use = \"lte\", since 203.0.113.5 was asked for as www.bank.example\n";
    assert!(text.contains(rule), "{text}");

    let known = scene
        .names
        .get(now(), "203.0.113.5".parse().unwrap())
        .unwrap();
    assert_eq!(known.facts.site, site("bank.example"));
    assert_eq!(known.facts.expires, now().after(Duration::from_secs(600)));
}

/// The same two uplinks, and the bond over them, which has only IPv4.
fn bonded(text: &str, up: bool) -> Scene {
    let mut scene = scene(text);
    scene.settings.bonded = true;
    scene.statuses.push(UplinkStatus {
        id: UplinkId(2),
        name: "bond".to_owned(),
        bond: true,
        up,
        v6: false,
        ..scene.statuses[0].clone()
    });
    scene
}

#[test]
fn flows_take_the_bond() {
    let said = told(&bonded("", true), &ask("192.0.2.1:443"));
    let expected = "\
Route: no route but the default one: Braid's
Rule: there are no rules
Policy: the bond
Uplink: bond: up, 20 ms
=> Uplink bond [bond 1.00]
";
    assert_eq!(said, expected);
}

#[test]
fn without_the_bond_they_are_shared_out_or_blocked() {
    let said = told(&bonded("", false), &ask("192.0.2.1:443"));
    let meanwhile = "Policy: the bond, which carries nothing: policy rr meanwhile\n";
    assert!(said.contains(meanwhile), "{said}");
    assert!(
        said.ends_with("=> Shared - [dsl 0.50, lte 0.50]\n"),
        "{said}"
    );
    let said = told(&bonded("", true), &ask("[2001:db8::1]:443"));
    assert!(
        said.contains("the bond, which has no address of this family"),
        "{said}"
    );
    let blocked = bonded("[bond]\nfallback = 'block'\n", false);
    let said = told(&blocked, &ask("192.0.2.1:443"));
    assert!(
        said.contains("the bond, which carries nothing: blocked meanwhile\n"),
        "{said}"
    );
    assert!(said.ends_with("=> Blocked - []\n"), "{said}");
}
