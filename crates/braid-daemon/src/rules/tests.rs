//! Rules of a configuration, and what becomes of them: golden texts.

use std::fmt::Write as _;
use std::time::Instant;

use braid_balance::RuleEntry;

use super::{CompiledRules, SystemIds, without_uplink};
use crate::classes::Classes;
use crate::config::Settings;
use crate::test_fixtures::{settings, status};

fn compiled(settings: &Settings, system: &SystemIds) -> CompiledRules {
    let mut classes = Classes::default();
    classes.update(Instant::now(), settings, &[status(0, "dsl")]);
    CompiledRules::compile(settings, &classes, system)
}

fn text(book: &CompiledRules) -> String {
    let mut text = String::new();
    for (number, entry) in book.entries().iter().enumerate() {
        let name = book.name_of(number).unwrap();
        writeln!(text, "{name}:{} -> class {}", asked(entry), entry.class.0).unwrap();
    }
    for (name, why) in &book.idle {
        writeln!(text, "{name} is idle: {why}").unwrap();
    }
    text
}

fn asked(entry: &RuleEntry) -> String {
    let mut text = String::new();
    let mut say = |what: &str, value: Option<String>| {
        text.extend(value.map(|value| format!(" {what} {value}")));
    };
    say(
        "from",
        entry.source.map(|(ip, length)| format!("{ip}/{length}")),
    );
    say(
        "to",
        entry.dest.map(|(ip, length)| format!("{ip}/{length}")),
    );
    say("protocol", entry.protocol.map(|number| number.to_string()));
    say(
        "sport",
        entry
            .source_ports
            .as_ref()
            .map(|ports| format!("{ports:?}")),
    );
    say(
        "dport",
        entry.dest_ports.as_ref().map(|ports| format!("{ports:?}")),
    );
    say("dscp", entry.dscp.map(|number| number.to_string()));
    say("mac", entry.mac.map(|mac| format!("{mac:02x?}")));
    say("uid", entry.uid.as_ref().map(|uids| format!("{uids:?}")));
    say("cgroup", entry.cgroup.map(|id| id.to_string()));
    say("name", entry.name.map(|bit| format!("{:#b}", bit.mask())));
    say("family", entry.family.map(|family| format!("{family:?}")));
    text
}

#[test]
fn lists_become_combinations() {
    let settings = settings(
        "[[rule]]
         name = 'two-by-two'
         source = ['192.168.1.0/24', '2001:db8::/32']
         destination = ['203.0.113.0/24', '2a00::/16']
         port = ['443', '8000-8100']
         use = 'block'
         [[rule]]
         name = 'pings'
         protocol = 'icmp'
         use = 'block'
         [[rule]]
         name = 'calls'
         dscp = 'ef'
         family = 'ipv6'
         mac = '02:00:5e:10:00:01'
         use = 'hash-pair'",
    );
    assert_eq!(
        text(&compiled(&settings, &SystemIds::default())),
        "\
two-by-two: from 192.168.1.0/24 to 203.0.113.0/24 dport 443..=443 -> class 1
two-by-two: from 192.168.1.0/24 to 203.0.113.0/24 dport 8000..=8100 -> class 1
two-by-two: from 2001:db8::/32 to 2a00::/16 dport 443..=443 -> class 1
two-by-two: from 2001:db8::/32 to 2a00::/16 dport 8000..=8100 -> class 1
pings: protocol 1 family V4 -> class 1
pings: protocol 58 family V6 -> class 1
calls: dscp 46 mac [02, 00, 5e, 10, 00, 01] family V6 -> class 2
"
    );
}

#[test]
fn what_the_machine_knows_is_filled_in() {
    let settings = settings(
        "[[rule]]
         domain = ['bank.example', '*.bank.example']
         use = 'dsl'
         [[rule]]
         name = 'backup'
         user = 'backup'
         use = 'rr'
         [[rule]]
         name = 'range'
         uid = ['1000-1999', '7']
         use = 'rr'
         [[rule]]
         name = 'batch'
         cgroup = '/batch.slice'
         use = 'block'
         [[rule]]
         name = 'nobody'
         user = 'gone'
         use = 'block'
         [[rule]]
         name = 'video'
         domain = '*.video.example'
         use = 'block'
         [[rule]]
         name = 'office'
         destination = '198.51.100.0/24'
         use = 'none'",
    );
    let system = SystemIds {
        users: [("backup".to_owned(), 34)].into(),
        cgroups: [("/batch.slice".parse().unwrap(), 4711)].into(),
    };
    assert_eq!(
        text(&compiled(&settings, &system)),
        "\
rule-1: name 0b1 -> class 1
backup: uid 34..=34 -> class 0
range: uid 1000..=1999 -> class 0
range: uid 7..=7 -> class 0
batch: cgroup 4711 -> class 2
video: name 0b10 -> class 2
nobody is idle: there is no user \"gone\"
"
    );
}

#[test]
fn an_uplink_that_is_not_there_is_named() {
    let settings = settings("[[rule]]\nname = 'calls'\ndscp = 'ef'\nuse = 'lte'\n");
    let missing = |known: &[&str]| {
        let missing = without_uplink(&settings, known);
        missing
            .map(|(rule, name)| format!("{} {name}", rule.name))
            .collect::<Vec<_>>()
    };
    assert_eq!(missing(&["dsl"]), ["calls lte"]);
    assert!(missing(&["dsl", "lte"]).is_empty());
}
