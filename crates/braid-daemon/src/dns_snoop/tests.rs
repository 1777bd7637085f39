//! Answers as bytes, and what is believed of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_balance::KernelTime;
use proptest::prelude::*;

use super::{CacheUpdate, DnsReject, MAX_ADDRESSES, MAX_TTL, MIN_TTL, NameCache, site};
use crate::config::{Config, Overrides, Settings};

const A: u16 = 1;
const CNAME: u16 = 5;
const TXT: u16 = 16;
const AAAA: u16 = 28;

/// Settings that believe every name server.
fn settings(text: &str) -> Settings {
    believing("any", text)
}

fn believing(servers: &str, text: &str) -> Settings {
    let text = format!("name_servers = '{servers}'\n{text}");
    let config = Config::parse("test", &text).unwrap();
    Settings::new(config, &Overrides::default()).unwrap()
}

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 7));

const BANK: &str = "
    [[rule]]
    domain = ['bank.example', '*.bank.example']
    use = 'hash-source'
    [[rule]]
    domain = '*.cdn.example'
    use = 'block'
";

fn server() -> SocketAddr {
    "9.9.9.9:53".parse().unwrap()
}

fn seconds(n: u64) -> KernelTime {
    KernelTime::from_nanos(n * 1_000_000_000)
}

fn name(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in text.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// One answer record: owner, type, time in seconds, data.
type Record<'a> = (&'a str, u16, u32, Vec<u8>);

fn message(flags: u16, question: (&str, u16), records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34];
    for word in [flags, 1, records.len() as u16, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(name(question.0));
    for word in [question.1, 1] {
        bytes.extend(word.to_be_bytes());
    }
    for (owner, kind, ttl, data) in records {
        bytes.extend(name(owner));
        for word in [*kind, 1] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(ttl.to_be_bytes());
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

/// Response, recursion desired and available, no error.
const ANSWER: u16 = 0x8180;

fn answer(question: &str, records: &[Record<'_>]) -> Vec<u8> {
    message(ANSWER, (question, A), records)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn data(address: &str) -> Vec<u8> {
    match ip(address) {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// The addresses that are learned, with their marks, or the lie.
fn learn(names: &mut NameCache, now: u64, payload: &[u8]) -> Result<Vec<(String, u64)>, DnsReject> {
    let learned = names.handle_answer(seconds(now), server(), CLIENT, payload)?;
    let learned = learned.learn.into_iter();
    Ok(learned
        .map(|(address, facts)| (address.to_string(), facts.rules))
        .collect())
}

#[test]
fn a_name_that_a_rule_means_marks_its_addresses() {
    let mut names = NameCache::new(&settings(BANK));
    let records = [("WWW.Bank.example", A, 300, data("198.51.100.7"))];
    let learned = learn(&mut names, 0, &answer("www.bank.EXAMPLE", &records));
    assert_eq!(learned, Ok(vec![("198.51.100.7".into(), 1)]));
    let known = names.get(seconds(299), ip("198.51.100.7")).unwrap();
    assert_eq!(known.name, "www.bank.example");
    assert_eq!(
        names.get(seconds(300), ip("198.51.100.7")),
        None,
        "its time is over"
    );

    let six = message(
        ANSWER,
        ("bank.example", AAAA),
        &[("bank.example", AAAA, 60, data("2a00::7"))],
    );
    assert_eq!(learn(&mut names, 0, &six), Ok(vec![("2a00::7".into(), 1)]));

    let other = answer(
        "shop.example",
        &[("shop.example", A, 60, data("198.51.100.8"))],
    );
    assert_eq!(learn(&mut names, 0, &other), Ok(vec![]), "no rule means it");
}

#[test]
fn aliases_are_followed_and_only_they() {
    let mut names = NameCache::new(&settings(BANK));
    let chain = [
        ("www.bank.example", CNAME, 3600, name("edge.cdn.example")),
        ("edge.cdn.example", CNAME, 40, name("node7.far.example")),
        ("node7.far.example", A, 600, data("198.51.100.7")),
        ("bank.example.evil.example", A, 600, data("198.51.100.66")),
    ];
    let learned = learn(&mut names, 0, &answer("www.bank.example", &chain));
    assert_eq!(
        learned,
        Ok(vec![("198.51.100.7".into(), 1)]),
        "marked by what was asked alone"
    );
    let known = names.get(seconds(0), ip("198.51.100.7")).unwrap();
    assert_eq!(
        known.facts.expires,
        seconds(40),
        "the least time of the chain"
    );
    assert_eq!(names.get(seconds(0), ip("198.51.100.66")), None);
}

#[test]
fn times_are_bounded() {
    let mut names = NameCache::new(&settings(BANK));
    for (ttl, address, time) in [
        (0, "198.51.100.1", MIN_TTL),
        (u32::MAX, "198.51.100.2", MAX_TTL),
        (100, "198.51.100.3", Duration::from_secs(100)),
    ] {
        let records = [("bank.example", A, ttl, data(address))];
        learn(&mut names, 7, &answer("bank.example", &records)).unwrap();
        let known = names.get(seconds(7), ip(address)).unwrap();
        assert_eq!(known.facts.expires, seconds(7).after(time), "{ttl} s");
    }
}

#[test]
fn lies_are_named_and_counted() {
    let mut names = NameCache::new(&settings(BANK));
    names.set_own([ip("203.0.113.9")]);
    let bank = |records: &[Record<'_>]| answer("bank.example", records);
    let rejects: [(&str, Vec<u8>, DnsReject); 10] = [
        ("nothing", Vec::new(), DnsReject::Malformed),
        (
            "a question",
            message(0x0100, ("bank.example", A), &[]),
            DnsReject::Malformed,
        ),
        (
            "cut short",
            bank(&[("bank.example", A, 9, vec![198, 51])]),
            DnsReject::Malformed,
        ),
        (
            "another name",
            bank(&[("evil.example", A, 9, data("198.51.100.66"))]),
            DnsReject::NotAsked,
        ),
        (
            "a circle",
            bank(&[
                ("bank.example", CNAME, 9, name("a.example")),
                ("a.example", CNAME, 9, name("bank.example")),
                ("bank.example", A, 9, data("198.51.100.66")),
            ]),
            DnsReject::AliasLoop,
        ),
        (
            "private",
            bank(&[("bank.example", A, 9, data("192.168.1.1"))]),
            DnsReject::NotPublic,
        ),
        (
            "loopback",
            bank(&[("bank.example", A, 9, data("127.0.0.1"))]),
            DnsReject::NotPublic,
        ),
        (
            "multicast",
            bank(&[("bank.example", A, 9, data("224.0.0.1"))]),
            DnsReject::NotPublic,
        ),
        (
            "its own",
            bank(&[("bank.example", A, 9, data("203.0.113.9"))]),
            DnsReject::NotPublic,
        ),
        (
            "unique local",
            message(
                ANSWER,
                ("bank.example", AAAA),
                &[("bank.example", AAAA, 9, data("fd00::1"))],
            ),
            DnsReject::NotPublic,
        ),
    ];
    for (what, payload, reject) in &rejects {
        assert_eq!(learn(&mut names, 0, payload), Err(*reject), "{what}");
    }
    assert!(names.is_empty());
    assert_eq!(names.rejects().of(DnsReject::NotPublic), 5);
    assert_eq!(
        names.rejects().last(),
        Some((DnsReject::NotPublic, server(), seconds(0)))
    );

    let both = [
        ("bank.example", A, 9, data("10.0.0.1")),
        ("bank.example", A, 9, data("198.51.100.7")),
    ];
    let learned = learn(&mut names, 0, &bank(&both));
    assert_eq!(
        learned,
        Ok(vec![("198.51.100.7".into(), 1)]),
        "the rest of it may be true"
    );
}

#[test]
fn a_name_that_points_to_itself_in_the_packet_is_malformed() {
    let mut names = NameCache::new(&settings(BANK));
    let mut payload = answer("bank.example", &[]);
    let end = payload.len();
    payload[7] = 1;
    payload.extend([
        0xc0, end as u8, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 198, 51, 100, 7,
    ]);
    assert_eq!(learn(&mut names, 0, &payload), Err(DnsReject::Malformed));
}

#[test]
fn answers_that_say_nothing_of_addresses_are_no_lies() {
    let mut names = NameCache::new(&settings(BANK));
    let records = [("bank.example", A, 60, data("198.51.100.7"))];
    let (nxdomain, truncated) = (ANSWER | 3, ANSWER | 0x0200);
    for payload in [
        message(nxdomain, ("bank.example", A), &[]),
        message(truncated, ("bank.example", A), &records),
        message(
            ANSWER,
            ("bank.example", TXT),
            &[("bank.example", TXT, 9, vec![1, b'x'])],
        ),
        answer("bank.example", &[]),
    ] {
        assert_eq!(learn(&mut names, 0, &payload), Ok(vec![]));
    }
}

#[test]
fn with_sticky_every_name_has_its_site() {
    let names_of = |text: &str| NameCache::new(&settings(text));
    assert!(!names_of("").is_active());
    assert!(names_of(BANK).is_active());
    let mut names = names_of("sticky = '10 min'");
    assert!(names.is_active());
    let shop = answer(
        "www.shop.example",
        &[("www.shop.example", A, 60, data("198.51.100.8"))],
    );
    learn(&mut names, 0, &shop).unwrap();
    let known = names.get(seconds(0), ip("198.51.100.8")).unwrap();
    assert_eq!(
        (known.facts.rules, known.facts.site),
        (0, site("login.shop.example"))
    );
    assert_ne!(site("a.co.uk"), site("b.co.uk"), "those are two owners");
    assert_eq!(site("x.a.co.uk"), site("a.co.uk"));

    let inside = answer(
        "nas.home.test",
        &[("nas.home.test", A, 60, data("192.168.1.9"))],
    );
    assert_eq!(
        learn(&mut names, 0, &inside),
        Ok(vec![]),
        "no lie, and nothing to learn"
    );

    // A later answer does not take an address to another site.
    let evil = answer("evil.test", &[("evil.test", A, 60, data("198.51.100.8"))]);
    learn(&mut names, 1, &evil).unwrap();
    let known = names.get(seconds(1), ip("198.51.100.8")).unwrap();
    assert_eq!(known.facts.site, site("shop.example"));
}

#[test]
fn marks_add_up_and_follow_the_rules() {
    let mut names = NameCache::new(&settings(BANK));
    let address = data("198.51.100.7");
    let bank = answer("bank.example", &[("bank.example", A, 100, address.clone())]);
    let cdn = answer("x.cdn.example", &[("x.cdn.example", A, 50, address)]);
    learn(&mut names, 0, &bank).unwrap();
    assert_eq!(
        learn(&mut names, 0, &cdn),
        Ok(vec![("198.51.100.7".into(), 0b11)])
    );
    let known = names.get(seconds(99), ip("198.51.100.7")).unwrap();
    assert_eq!(known.facts.rules, 0b11);
    let same = names.set_rules(&settings(BANK));
    assert_eq!(
        same[0].1.rules, 0b11,
        "a reload without other rules changes nothing"
    );
    let renamed = names.set_rules(&settings("[[rule]]\ndomain='x.cdn.example'\nuse='block'\n"));
    assert_eq!(renamed[0].1.rules, 1, "the new rule's mark");
    assert_eq!(names.expire(seconds(100)), [ip("198.51.100.7")]);
    assert!(names.is_empty());
}

#[test]
fn marks_mean_the_same_to_the_next_daemon_if_its_rules_are_the_same() {
    let meaning = |text: &str| NameCache::new(&settings(text)).rules_hash();
    let other = "[[rule]]\ndomain='x.cdn.example'\nuse='block'\n";
    assert_eq!(meaning(BANK), meaning(BANK));
    assert_ne!(meaning(BANK), meaning(other));
    assert_ne!(meaning(BANK), meaning(""));
}

#[test]
fn there_is_room_for_so_many() {
    let mut names = NameCache::new(&settings(BANK));
    let mut forgotten = 0;
    for i in 0..MAX_ADDRESSES as u32 + 500 {
        let address = (0x0800_0000 + i).to_be_bytes().to_vec();
        let payload = answer("bank.example", &[("bank.example", A, 100 + i, address)]);
        let learned = names
            .handle_answer(seconds(0), server(), CLIENT, &payload)
            .unwrap();
        forgotten += learned.forget.len();
    }
    assert_eq!((names.len(), forgotten), (MAX_ADDRESSES, 500));
    assert_eq!(
        names.get(seconds(0), ip("8.0.0.0")),
        None,
        "what ended first gave way"
    );
}

#[test]
fn a_client_is_believed_where_its_server_is() {
    let answer = |name: &str| answer(name, &[(name, A, 60, data("198.51.100.7"))]);
    let told = |names: &mut NameCache, client: IpAddr| {
        names.handle_answer(seconds(0), server(), client, &answer("www.bank.example"))
    };
    let own = ip("192.168.1.1");
    let mut names = NameCache::new(&believing("system", BANK));
    names.set_own([own]);
    assert_eq!(told(&mut names, CLIENT), Err(DnsReject::NotTrusted));
    assert_eq!(names.rejects().of(DnsReject::NotTrusted), 1);
    assert!(
        told(&mut names, own).is_ok(),
        "what the machine asked itself"
    );
    assert_eq!(names.len(), 1);
    names.expire(seconds(1000));
    names.set_system([server().ip()].into());
    assert!(told(&mut names, CLIENT).is_ok(), "the machine asks it too");
    for (servers, trusted) in [("192.0.2.1", false), ("9.9.9.9", true), ("any", true)] {
        let mut names = NameCache::new(&believing(servers, BANK));
        names.set_system([ip("192.0.2.53")].into());
        assert_eq!(told(&mut names, CLIENT).is_ok(), trusted, "{servers}");
    }
}

#[test]
fn nobody_speaks_of_a_strange_server_that_no_rule_is_about() {
    let rules = format!("sticky = '1 min'\n{BANK}");
    let mut names = NameCache::new(&believing("system", &rules));
    let shop = answer(
        "shop.example",
        &[("shop.example", A, 60, data("198.51.100.8"))],
    );
    let learned = names.handle_answer(seconds(0), server(), CLIENT, &shop);
    assert_eq!(learned, Ok(CacheUpdate::default()), "not even its site");
    assert_eq!(names.rejects().last(), None);
}

#[test]
fn what_servers_said_that_are_believed_no_more_is_forgotten() {
    let mut names = NameCache::new(&settings(BANK));
    let before = names.rules_hash();
    let records = [("bank.example", A, 60, data("198.51.100.7"))];
    learn(&mut names, 0, &answer("bank.example", &records)).unwrap();
    assert_eq!(names.set_rules(&believing("system", BANK)), []);
    assert!(names.is_empty());
    assert_ne!(names.rules_hash(), before, "nor does the datapath keep it");
}

proptest! {
    #[test]
    fn whatever_comes_is_borne(payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut names = NameCache::new(&settings("sticky = '1 min'"));
        let _ = names.handle_answer(seconds(0), server(), CLIENT, &payload);
    }

    #[test]
    fn a_damaged_answer_is_borne(at in 0usize..200, to in any::<u8>(), cut in 0usize..200) {
        let mut payload = answer("bank.example", &[
            ("bank.example", CNAME, 9, name("edge.cdn.example")),
            ("edge.cdn.example", A, 9, data("198.51.100.7")),
        ]);
        let length = payload.len();
        payload[at % length] = to;
        payload.truncate(cut.min(length));
        let mut names = NameCache::new(&settings("sticky = '1 min'"));
        let _ = names.handle_answer(seconds(0), server(), CLIENT, &payload);
    }
}
