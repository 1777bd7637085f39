//! Replies of name servers.

use std::net::{IpAddr, SocketAddr};

use braid_balance::KernelTime;
use braid_daemon::config::{Config, Overrides, Settings};
use braid_daemon::dns_snoop::{DnsReject, MAX_TTL, MIN_TTL, NameCache};

const RULES: &str = "
    name_servers = 'any'
    sticky = '1 min'
    [[rule]]
    domain = ['bank.example', '*.bank.example']
    use = 'block'
";

/// A learned name is known for a bounded time, a rejected reply is counted, and the same reply has
/// the same result again.
pub fn names(data: &[u8]) {
    let config = Config::parse("fuzz.toml", RULES).expect("good rules");
    let settings = Settings::new(config, &Overrides::default()).expect("good settings");
    let mut names = NameCache::new(&settings);
    let now = KernelTime::from_nanos(1);
    let server = SocketAddr::from(([192, 0, 2, 53], 53));
    let client = IpAddr::from([192, 168, 1, 7]);
    let first = names.handle_answer(now, server, client, data);
    match &first {
        Ok(learned) => {
            assert!(learned.forget.is_empty(), "there is room");
            for (address, facts) in &learned.learn {
                let known = names.get(now, *address).expect("it was learned");
                assert_eq!(facts.rules, names.marks_of(&known.name), "{known:?}");
                let time = facts.expires.since(now);
                assert!((MIN_TTL..=MAX_TTL).contains(&time), "{time:?}");
            }
        }
        Err(reject) => {
            assert_eq!(names.rejects().of(*reject), 1);
            assert!(names.rejects().last().is_some() && DnsReject::ALL.contains(reject));
        }
    }
    assert_eq!(names.handle_answer(now, server, client, data), first);
}
