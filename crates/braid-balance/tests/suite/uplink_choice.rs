//! The choice of an uplink for a new flow, by packet tables: classes, clients that keep to their uplink, and
//! those that get none.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use Verdict::{Dropped, Passed, Sent};
use braid_balance::{
    Choice, ClassEntry, ClassId, Family, KernelTime, LbMethod, Name, NameBit, RuleEntry, Site,
    UplinkEntry,
};
use braid_core::UplinkId;
use braid_packet::build;

use crate::support::choose::{class, flow_of, ip, open, set_classes, set_rules, sticky, uplink};
use crate::support::probe::{Probe, Verdict};
use crate::support::talk::{ACK, CLIENT, INNER, INNER6, SERVER, SYN, answer, handshake, tcp};
use crate::support::world::{OUTSIDE, SERVER_V4, SERVER_V6};

#[test]
fn a_class_takes_its_own_turns() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0, 1]), class(1, &[0, 1])]);
    let to = |dest| RuleEntry {
        dest: Some((dest, 32)),
        class: ClassId(1),
        ..RuleEntry::default()
    };
    set_rules(&probe, &[to(ip("192.0.2.81"))]);
    let mut ways = [Vec::new(), Vec::new()];
    for turn in 0..6 {
        ways[0].push(open(&probe, 4100 + turn, SERVER_V4));
        ways[1].push(open(&probe, 4100 + turn, ip("192.0.2.81")));
    }
    for way in ways {
        assert!(way == [0, 1, 0, 1, 0, 1] || way == [1, 0, 1, 0, 1, 0]);
    }
}

#[test]
fn hashes_are_the_same_in_rust() {
    let probe = Probe::new();
    let slots = [0, 1, 1, 0, 1, 0, 0];
    for method in [LbMethod::HashSource, LbMethod::HashPair] {
        let entry = ClassEntry {
            lb_method: method,
            ..class(0, &slots)
        };
        set_classes(&probe, &[entry]);
        for host in 2..42_u8 {
            let client = IpAddr::from([10, 1, 0, host]);
            let remote = IpAddr::from([192, 0, 2, host.wrapping_mul(97)]);
            let client6 = IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, host.into()]);
            let remote6 = IpAddr::from([0x2001, 0xdb8, host.into(), 9, 0, 0, 0, 1]);
            for (client, remote) in [(client, remote), (client6, remote6)] {
                let port = 7000 + u16::from(method == LbMethod::HashPair);
                let syn = build::tcp((client, port), (remote, 80), SYN, b"");
                let slot = method.slot(client, remote, slots.len()).expect("a slot");
                let sent = probe.forwarded(&syn).is(Sent, "out_new");
                assert_eq!(uplink(&sent), usize::from(slots[slot]), "{client} {remote}");
            }
        }
    }
    assert_eq!(LbMethod::HashPair.slot(INNER, SERVER_V4, 0), None);
    assert_eq!(LbMethod::RoundRobin.slot(INNER, SERVER_V4, 2), None);
}

#[test]
fn a_class_without_a_usable_uplink_is_blocked_and_nobody_else() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0, 1]), class(1, &[1]), class(2, &[])]);
    let by_port = |port, class| RuleEntry {
        dest_ports: Some(port..=port),
        class: ClassId(class),
        ..RuleEntry::default()
    };
    set_rules(&probe, &[by_port(81, 1), by_port(82, 2)]);
    let mut uplinks = probe.world.uplinks();
    uplinks[1].accepts_new = false;
    probe
        .datapath
        .borrow_mut()
        .set_uplinks(&uplinks)
        .expect("uplinks");
    for (port, verdict, reason) in [
        (80, Sent, "out_new"),
        (81, Dropped, "class_blocked"),
        (82, Dropped, "class_blocked"),
    ] {
        let syn = build::tcp((INNER, 4200), (SERVER_V4, port), SYN, b"");
        probe.out(&syn).is(verdict, reason);
    }
    set_classes(&probe, &[]);
    let syn = build::tcp((INNER, 4201), SERVER, SYN, b"");
    probe.out(&syn).is(Dropped, "no_uplink");
}

#[test]
fn tables_read_as_they_were_written_and_nonsense_changes_nothing() {
    let probe = Probe::new();
    let slots = |class, family| {
        let datapath = probe.datapath.borrow();
        datapath.class_slots(class, family).expect("slots")
    };
    let last = ClassEntry {
        v6: Vec::new(),
        ..class(63, &[1, 0, 1])
    };
    set_classes(&probe, &[class(0, &[0]), last.clone()]);
    assert_eq!(slots(ClassId(63), Family::V4), last.v4);
    assert_eq!(slots(ClassId(63), Family::V6), []);
    for wrong in [
        vec![class(64, &[0])],
        vec![class(1, &[0]), class(1, &[1])],
        vec![class(1, &[9])],
        vec![class(1, &[77])],
        vec![class(1, &[0; 1025])],
    ] {
        let mut datapath = probe.datapath.borrow_mut();
        assert!(datapath.set_classes(&wrong).is_err());
    }
    assert_eq!(slots(ClassId::default(), Family::V6), [UplinkId(0)]);
    set_classes(&probe, &[class(0, &[1])]);
    assert_eq!(slots(ClassId(63), Family::V4), []);
    let many = vec![RuleEntry::default(); 256];
    assert!(probe.datapath.borrow_mut().set_rules(&many).is_err());
}

// --- clients that keep to their uplink --------------------------------------------------------

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_client_keeps_its_uplink_for_a_site() {
    let probe = Probe::new();
    set_classes(&probe, &[sticky(0, &[0, 1], LONG)]);
    for (local, peer) in [
        ("192.0.2.1", "192.0.2.254"),
        ("2001:db8:80:a00::1", "2001:db8:80:aff::9"),
    ] {
        let first = open(&probe, 5000, ip(local));
        for port in 5001..5006 {
            assert_eq!(open(&probe, port, ip(peer)), first, "{local} and {peer}");
        }
        let inner = if ip(local).is_ipv4() { INNER } else { INNER6 };
        assert_eq!(flow_of(&probe, inner, 5005).choice, Choice::Sticky);
    }
    // Other sites, other clients: their own turns.
    let ways = |remotes: [&str; 2]| remotes.map(|remote| open(&probe, 5100, ip(remote)));
    let [one, other] = ways(["192.0.3.1", "192.0.4.1"]);
    assert_ne!(one, other);
    let [one, other] = ways(["2001:db8:80:b00::1", "2001:db8:80:c00::1"]);
    assert_ne!(one, other);
    let client = |host: u8| {
        let syn = build::tcp((IpAddr::from([10, 1, 0, host]), 5200), SERVER, SYN, b"");
        uplink(&probe.forwarded(&syn).is(Sent, "out_new"))
    };
    assert_ne!(client(2), client(3));
}

#[test]
fn names_make_one_site_of_many_addresses() {
    let probe = Probe::new();
    set_classes(&probe, &[sticky(0, &[0, 1], LONG)]);
    let later = KernelTime::now().after(LONG);
    let bank = |expires| Name {
        rules: 0,
        site: 7,
        expires,
    };
    let addresses = ["192.0.2.1", "198.18.5.5", "100.64.0.1", "203.0.113.9"];
    let mut names = addresses.map(|address| (ip(address), bank(later)));
    names[3].1.expires = KernelTime::from_nanos(1);
    probe
        .datapath
        .borrow_mut()
        .learn_names(&names)
        .expect("names");
    let first = open(&probe, 5300, ip(addresses[0]));
    assert_eq!(open(&probe, 5301, ip(addresses[1])), first);
    assert_eq!(open(&probe, 5302, ip(addresses[2])), first);
    assert_ne!(
        open(&probe, 5303, ip(addresses[3])),
        first,
        "a name that has expired"
    );
    let datapath = probe.datapath.borrow();
    let named = datapath.sticky().expect("sticky");
    let named = named
        .iter()
        .find(|entry| entry.site == Site::Named(7))
        .expect("an entry");
    assert_eq!((named.client, usize::from(named.uplink.0)), (INNER, first));
    let now = KernelTime::now();
    assert_eq!(
        datapath.name(ip(addresses[0]), now).expect("readable"),
        Some(bank(later))
    );
    assert_eq!(
        datapath.name(ip(addresses[3]), now).expect("readable"),
        None
    );
    let known = datapath.names().expect("names");
    assert_eq!(known.len(), 4);
    let all = known.iter().map(|(address, _)| *address);
    let all: Vec<_> = all.collect();
    drop(datapath);
    let mut datapath = probe.datapath.borrow_mut();
    datapath.forget_names(&all).expect("names");
    datapath
        .forget_names(&all)
        .expect("nothing to forget is fine");
    for (meaning, forgets) in [(7, true), (7, false), (8, true), (8, false)] {
        datapath.learn_names(&names).expect("names");
        assert_eq!(datapath.keep_names(meaning).expect("names"), forgets);
        let left = datapath.names().expect("names").len();
        assert_eq!(left, if forgets { 0 } else { 4 });
    }
    datapath.keep_names(7).expect("names");
    drop(datapath);
    assert_ne!(
        open(&probe, 5304, ip(addresses[1])),
        open(&probe, 5305, ip(addresses[2]))
    );
}

#[test]
fn what_a_client_keeps_to_ends_with_time_death_or_command() {
    let probe = Probe::new();
    let second = Duration::from_secs(1);
    set_classes(&probe, &[sticky(0, &[0, 1], second)]);
    let first = open(&probe, 5400, SERVER_V4);
    assert_eq!(open(&probe, 5401, SERVER_V4), first);
    let entry = probe.datapath.borrow().sticky().expect("sticky")[0];
    assert_eq!(entry.site, Site::of(SERVER_V4));
    // The time that it is about must really pass.
    thread::sleep(second.saturating_sub(KernelTime::now().since(entry.used)));
    assert_ne!(open(&probe, 5402, SERVER_V4), first, "too long ago");

    set_classes(&probe, &[sticky(0, &[0, 1], LONG)]);
    let before = open(&probe, 5403, SERVER_V4);
    let mut uplinks = probe.world.uplinks();
    uplinks[before].accepts_new = false;
    let set_uplinks = |uplinks: &[UplinkEntry]| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.set_uplinks(uplinks).expect("uplinks");
    };
    set_uplinks(&uplinks);
    assert_ne!(open(&probe, 5404, SERVER_V4), before, "its uplink is dead");
    set_uplinks(&probe.world.uplinks());
    for port in 5405..5409 {
        assert_ne!(
            open(&probe, port, SERVER_V4),
            before,
            "and stays where it went"
        );
    }

    let forgotten = probe
        .datapath
        .borrow_mut()
        .forget_sticky(|entry| usize::from(entry.uplink.0) != before)
        .expect("forgetting");
    assert_eq!(forgotten, 1);
    assert_eq!(probe.datapath.borrow().sticky().expect("sticky"), []);
}

#[test]
fn flows_that_nobody_answers_push_out_nothing_that_was_answered() {
    let probe = Probe::new();
    set_classes(&probe, &[sticky(0, &[0, 1], LONG)]);
    let (uplink, _) = handshake(&probe, 5600);
    let quic = build::udp((INNER, 5600), (ip("192.0.3.1"), 443), b"");
    let sent = probe.out(&quic).is(Sent, "out_new");
    let back = usize::from(sent.read().ip.source == OUTSIDE[1][0]);
    let outer = (sent.read().ip.source, 5600);
    probe.back(back, &build::udp((ip("192.0.3.1"), 443), outer, b""));
    let network = u32::from_be_bytes([11, 0, 0, 1]);
    for site in 0..20_000 {
        let remote = IpAddr::V4((network + site * 256).into());
        let syn = build::tcp((INNER, 5601), (remote, 80), SYN, b"");
        probe.nanoseconds(0, &syn, 1);
    }
    assert_eq!(open(&probe, 5602, SERVER_V4), uplink);
    assert_eq!(open(&probe, 5602, ip("192.0.3.9")), back);
    let flows = probe.datapath.borrow().flows().expect("flows");
    let again: Vec<_> = flows
        .iter()
        .filter(|flow| flow.inner.port() == 5602)
        .map(|flow| flow.choice)
        .collect();
    assert_eq!(again, [Choice::Sticky; 2]);
}

#[test]
fn what_was_answered_first_is_kept() {
    let probe = Probe::new();
    // Opened before stickiness was asked for, by different uplinks.
    let sent = [5700, 5701].map(|port| probe.out(&tcp(port, SYN)).is(Sent, "out_new"));
    let answers = sent.map(|sent| answer(&sent, SYN | ACK));
    assert_ne!(answers[0].0, answers[1].0);
    set_classes(&probe, &[sticky(0, &[0, 1], LONG)]);
    // The one whose turn it is not.
    for index in [1, 0] {
        let (uplink, syn_ack) = &answers[index];
        probe.back(*uplink, syn_ack);
        let port = [5700, 5701][index];
        probe.out(&tcp(port, ACK)).is(Sent, "out_flow");
    }
    assert_eq!(open(&probe, 5702, SERVER_V4), answers[1].0);
    assert_eq!(open(&probe, 5703, SERVER_V4), answers[1].0);
}

/// A server refuses a data connection from another address than its control connection's.
#[test]
fn data_of_ftp_keeps_to_the_uplink_of_its_control_connection() {
    for control in [21, 990] {
        let probe = Probe::new();
        set_classes(&probe, &[class(0, &[0, 1])]);
        let to = |local: u16, peer: u16, flags| {
            build::tcp((INNER, local), (SERVER_V4, peer), flags, b"")
        };
        let opened = |local, peer| uplink(&probe.out(&to(local, peer, SYN)).is(Sent, "out_new"));
        let turns = |peer| [5800, 5801].map(|local| opened(local, peer));
        let [one, other] = turns(50_000);
        assert_ne!(one, other, "nothing is known of FTP");
        let sent = probe.out(&to(5802, control, SYN)).is(Sent, "out_new");
        let (by, syn_ack) = answer(&sent, SYN | ACK);
        probe.back(by, &syn_ack);
        probe.out(&to(5802, control, ACK)).is(Sent, "out_flow");
        assert!((5803..5809).all(|local| opened(local, 40_000 + local) == by));
        assert_eq!(flow_of(&probe, INNER, 5808).choice, Choice::Sticky);
        let [one, other] = [5810, 5811].map(|local| opened(local, 443));
        assert_ne!(one, other, "not what cannot be its data");
        // Its line dies.
        let mut uplinks = probe.world.uplinks();
        uplinks[by].accepts_new = false;
        let mut datapath = probe.datapath.borrow_mut();
        datapath.set_uplinks(&uplinks).expect("uplinks");
        drop(datapath);
        let other = opened(5812, control);
        assert_ne!(opened(5813, 40_000), by);
        let mut datapath = probe.datapath.borrow_mut();
        datapath
            .set_uplinks(&probe.world.uplinks())
            .expect("uplinks");
        drop(datapath);
        // It is back: later sessions' data would go where an earlier one's control connection was.
        assert_ne!(other, by);
        for local in 5820..5830 {
            assert_eq!(opened(local, control), opened(local, 40_000));
        }
    }
}

/// Whichever session was first, the client's next ones at the same server share its uplink with their data.
#[test]
fn sessions_of_ftp_at_one_server_keep_to_one_uplink() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0, 1])]);
    let to =
        |local: u16, peer: u16, flags| build::tcp((INNER, local), (SERVER_V4, peer), flags, b"");
    for local in (5900..5920).step_by(2) {
        let sent = probe.out(&to(local, 21, SYN)).is(Sent, "out_new");
        let (by, syn_ack) = answer(&sent, SYN | ACK);
        probe.back(by, &syn_ack);
        probe.out(&to(local, 21, ACK)).is(Sent, "out_flow");
        let data = probe.out(&to(local + 1, 40_000, SYN)).is(Sent, "out_new");
        assert_eq!(uplink(&data), by, "session from port {local}");
    }
}

#[test]
fn a_flow_that_moves_stays_in_its_class() {
    let probe = Probe::new();
    set_classes(&probe, &[class(0, &[0]), class(1, &[0])]);
    let mark = NameBit::new(3).expect("a mark");
    let named = RuleEntry {
        name: Some(mark),
        class: ClassId(1),
        ..RuleEntry::default()
    };
    set_rules(&probe, &[named]);
    let name = Name {
        rules: mark.mask(),
        site: 0,
        expires: KernelTime::now().after(LONG),
    };
    let mut datapath = probe.datapath.borrow_mut();
    datapath.learn_names(&[(SERVER_V4, name)]).expect("names");
    drop(datapath);
    let quic = build::udp((CLIENT, 5500), (SERVER_V4, 443), b"x");
    probe.forwarded(&quic).is(Sent, "out_new");
    // By now the rule would not know it, and its client may open nothing.
    let mut uplinks = probe.world.uplinks();
    uplinks[0].accepts_new = false;
    let mut datapath = probe.datapath.borrow_mut();
    datapath.forget_names(&[SERVER_V4]).expect("names");
    datapath.limit_clients(&[CLIENT]).expect("limits");
    datapath.set_uplinks(&uplinks).expect("uplinks");
    drop(datapath);
    set_classes(&probe, &[class(1, &[1])]);
    let moved = probe.forwarded(&quic).is(Sent, "out_new");
    assert_eq!(uplink(&moved), 1);
    let flow = flow_of(&probe, CLIENT, 5500);
    assert_eq!((flow.class, flow.rule), (ClassId(1), Some(0)));
    assert_eq!(flow.choice, Choice::Moved);
}

// --- who may not ------------------------------------------------------------------------------

#[test]
fn a_client_over_its_limit_opens_nothing_and_keeps_what_it_has() {
    let probe = Probe::new();
    let from = |client, port| probe.forwarded(&build::tcp((client, port), SERVER, SYN, b""));
    let limit = |clients: &[IpAddr]| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.limit_clients(clients).expect("limits");
    };
    let neighbour = ip("10.1.0.3");
    from(CLIENT, 6000).is(Sent, "out_new");
    limit(&[CLIENT, ip("fd00:1::2")]);
    from(CLIENT, 6001).is(Dropped, "client_over_limit");
    from(CLIENT, 6000).is(Sent, "out_flow");
    from(neighbour, 6001).is(Sent, "out_new");
    let six = build::tcp((ip("fd00:1::2"), 6002), (SERVER_V6, 80), SYN, b"");
    probe.forwarded(&six).is(Dropped, "client_over_limit");
    // A limit on a whole network holds for every address that a host makes up in it.
    let from_six = |client: &str, port| {
        let six = build::tcp((ip(client), port), (SERVER_V6, 80), SYN, b"");
        probe.forwarded(&six)
    };
    from_six("fd00:1::77", 6003).is(Sent, "out_new");
    limit(&[ip("fd00:1::")]);
    from_six("fd00:1::78", 6003).is(Dropped, "client_over_limit");
    // A host of another /64 is not over that limit: only its address, which the LAN does not have, is refused.
    from_six("fd00:1:0:1::78", 6003).is(Dropped, "lan_spoofed");
    limit(&[neighbour]);
    from(CLIENT, 6001).is(Sent, "out_new");
    from(neighbour, 6002).is(Dropped, "client_over_limit");
    let many: Vec<_> = (0..1025_u32).map(|host| IpAddr::V4(host.into())).collect();
    assert!(probe.datapath.borrow_mut().limit_clients(&many).is_err());
}

#[test]
fn a_source_that_the_lan_does_not_have_opens_nothing() {
    let probe = Probe::new();
    let host = &probe.world.host;
    host.ip("route add blackhole 10.66.0.0/16");
    host.ip("route add unreachable fd00:66::/32");
    host.ip("route add 10.2.0.0/16 via 10.1.0.2");
    for (source, is_there) in [
        ("10.1.0.77", true),
        ("10.2.3.4", true),
        ("fd00:1::77", true),
        ("10.9.9.9", false),      // by default
        ("203.0.113.77", false),  // an uplink's network
        ("10.66.0.1", false),     // nowhere
        ("2001:db8:7::7", false), // by default
        ("2001:db8:1::7", false), // an uplink's network
        ("fd00:66::1", false),    // nowhere
        ("192.0.0.8", true),      // a masqueraded client
        ("64:ff9b:1:6272::8", false),
    ] {
        let source = ip(source);
        let server = if source.is_ipv4() {
            SERVER_V4
        } else {
            SERVER_V6
        };
        let echo = if source.is_ipv4() { 8 } else { 128 };
        for packet in [
            build::tcp((source, 6100), (server, 80), SYN, b""),
            build::udp((source, 6101), (server, 443), b""),
            build::icmp(source, server, echo, 0, 6102, b""),
        ] {
            let outcome = probe.forwarded(&packet);
            match is_there {
                true => outcome.is(Sent, "out_new"),
                false => outcome.is(Dropped, "lan_spoofed"),
            };
        }
    }
    // Nothing of it is remembered, and the host's own packets have no LAN to come from.
    let flows = probe.datapath.borrow().flows().expect("flows");
    assert_eq!(flows.len(), 12);
    let own = build::tcp((ip("10.9.9.9"), 6103), SERVER, SYN, b"");
    probe.out(&own).is(Sent, "out_new");
}

#[test]
fn a_preferred_uplink_takes_all_for_as_long_as_its_carrier_lives() {
    let probe = Probe::new();
    let renew = |until| {
        let mut lease = probe.datapath.borrow().lease().expect("the lease");
        lease.set(until).expect("renewed");
    };
    let now = KernelTime::now();
    let mut uplinks = probe.world.uplinks();
    uplinks[1].leased = true;
    let set = |uplinks: &[UplinkEntry]| {
        let mut datapath = probe.datapath.borrow_mut();
        datapath.set_uplinks(uplinks).expect("uplinks");
    };
    set(&uplinks);
    let prefers = |id, slots: &[u8]| ClassEntry {
        prefers: Some(UplinkId(1)),
        ..sticky(id, slots, Duration::from_secs(60))
    };
    set_classes(&probe, &[prefers(0, &[0]), prefers(1, &[])]);
    set_rules(
        &probe,
        &[RuleEntry {
            dest: Some((ip("192.0.2.81"), 32)),
            class: ClassId(1),
            ..RuleEntry::default()
        }],
    );
    let blocked = |port| {
        let syn = build::tcp((INNER, port), (ip("192.0.2.81"), 80), SYN, b"");
        probe.out(&syn).is(Dropped, "class_blocked");
    };

    // Nobody has said yet that he carries anything.
    assert_eq!(open(&probe, 4300, SERVER_V4), 0);
    blocked(4301);
    renew(now.after(Duration::from_secs(3600)));
    // Clients that kept to the other uplink meanwhile do so no longer.
    for remote in [SERVER_V4, SERVER_V6, ip("192.0.2.81")] {
        assert_eq!(open(&probe, 4302, remote), 1);
    }
    let chosen = flow_of(&probe, INNER, 4302);
    assert_eq!(chosen.choice, Choice::Preferred);

    renew(now);
    assert_eq!(open(&probe, 4303, SERVER_V4), 0);
    blocked(4304);
    // An open connection waits for its carrier; what can begin anew does so elsewhere.
    let (_, port) = (INNER, 4302);
    let ack = build::tcp((INNER, port), (SERVER_V4, 443), ACK, b"");
    assert_eq!(uplink(&probe.out(&ack).is(Sent, "out_flow")), 1);
    assert_eq!(open(&probe, port, SERVER_V4), 0);

    // So do datagrams that nobody has answered. What was answered waits, for some time or as long as is said.
    renew(KernelTime::now().after(Duration::from_secs(3600)));
    let datagram = |port| build::udp((INNER, port), (SERVER_V4, 4500), b"x");
    let by = |port, reason| uplink(&probe.out(&datagram(port)).is(Sent, reason));
    for port in [4310, 4311] {
        assert_eq!(by(port, "out_new"), 1);
    }
    let outer = (OUTSIDE[1][0], 4311);
    let back = build::udp((SERVER_V4, 4500), outer, b"x");
    probe.back(1, &back).is(Passed, "in_stack");
    renew(KernelTime::now());
    assert_eq!(by(4310, "out_new"), 0);
    assert_eq!(by(4311, "out_flow"), 1);
    let long_ago = KernelTime::from_nanos(1);
    renew(long_ago);
    uplinks[1].waits = true;
    set(&uplinks);
    assert_eq!(by(4311, "out_flow"), 1);
    uplinks[1].waits = false;
    set(&uplinks);
    assert_eq!(by(4311, "out_new"), 0);

    renew(now.after(Duration::from_secs(3600)));
    uplinks[1].accepts_new = false;
    set(&uplinks);
    assert_eq!(open(&probe, 4305, SERVER_V4), 0, "its word is not all");
}
