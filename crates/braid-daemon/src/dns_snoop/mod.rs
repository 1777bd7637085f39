//! What remote addresses are called: learnt from the answers that name servers give to clients.
//!
//! Pure: answers as bytes and the time go in, what the datapath should know of addresses comes out.
//!
//! Rules, and why:
//! - Only what a rule asks for is learnt: names that a rule with `domain` means, and with `sticky`
//!   all names, whose sites then stay together.
//! - Anybody can run a name server. What this machine has asked itself is believed; what a client has
//!   asked is believed of the servers that `name_servers` lists, by default those that this machine
//!   asks. Else a client could have a server of its own put any address under any name, for all.
//!   What is left is a client with an accomplice who can send by a listed server's address.
//! - An answer is believed for the name that was asked, along its chain of aliases, and for nothing
//!   else that it says (RFC 5452 §6: data that was not asked for).
//! - An address that no server elsewhere can have (private, local, the machine's own) is not
//!   learnt: with it an answer could turn a rule upon the network behind it (DNS rebinding).
//! - A name is known for the time that its answer gives, but not less than [`MIN_TTL`], since
//!   clients keep using an address after its time, and not more than [`MAX_TTL`], since the
//!   address will be another's one day.
//! - There is room for [`MAX_ADDRESSES`]; the one that ends first gives way. A hostile client can
//!   so push out what others learnt, and they learn it again with their next question.
//! - What is refused has a name and is counted.

mod message;
mod reject;
mod servers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_balance::{KernelTime, Name, NameBit};

pub use reject::{DnsReject, RejectCounts};
pub use servers::system_servers;

use crate::config::{DomainPattern, NameServers, Sticky};
use crate::rules::name_bits;
use crate::settings::Settings;

/// Least time that a name is known.
pub const MIN_TTL: Duration = Duration::from_secs(30);
/// Most time that a name is known.
pub const MAX_TTL: Duration = Duration::from_secs(60 * 60);
/// Most addresses that are known by name.
pub const MAX_ADDRESSES: usize = 4096;

/// What is known by name.
#[derive(Debug, Default)]
pub struct NameCache {
    rules: Vec<(NameBit, Vec<DomainPattern>)>,
    /// Some class keeps sites together: every name says something.
    sites: bool,
    own: BTreeSet<IpAddr>,
    trusted: NameServers,
    /// Those that the machine asks itself.
    system: BTreeSet<IpAddr>,
    known: BTreeMap<IpAddr, CachedName>,
    rejects: RejectCounts,
}

/// What is known of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedName {
    /// The last name that a rule means; without one the first, whose site it is.
    pub name: String,
    /// What the datapath knows.
    pub facts: Name,
}

/// What an answer changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUpdate {
    /// For [`braid_balance::Datapath::learn_names`].
    pub learn: Vec<(IpAddr, Name)>,
    /// For [`braid_balance::Datapath::forget_names`]: they made room.
    pub forget: Vec<IpAddr>,
}

impl NameCache {
    /// Nothing is known.
    #[must_use]
    pub fn new(settings: &Settings) -> NameCache {
        let mut names = NameCache::default();
        names.set_rules(settings);
        names
    }

    /// Goes by these settings from now on, and by `own` addresses of this machine. Marks of other
    /// rules mean nothing any more: returns what the datapath should know instead of what it knows.
    pub fn set_rules(&mut self, settings: &Settings) -> Vec<(IpAddr, Name)> {
        let rules = name_bits(settings).map(|(bit, rule)| (bit, rule.domain.clone()));
        let rules: Vec<_> = rules.collect();
        // Marks of all names that an address had: only the last name is remembered.
        let same = rules == self.rules;
        self.rules = rules;
        let trusted = &settings.config.name_servers;
        if self.trusted != *trusted {
            // Nobody knows any more who said what.
            self.known.clear();
            self.trusted.clone_from(trusted);
        }
        let sticks = |sticky: Sticky| sticky != Sticky::Off;
        self.sites = sticks(settings.config.sticky)
            || settings.rules().any(|rule| rule.sticky.is_some_and(sticks));
        let rules = &self.rules;
        let known = self.known.iter_mut().map(|(address, known)| {
            if !same {
                known.facts.rules = marks(rules, &known.name);
            }
            (*address, known.facts)
        });
        known.collect()
    }

    /// A number that is another one where the marks stand for other rules, or for what other name
    /// servers said, for
    /// [`braid_balance::Datapath::keep_names`].
    #[must_use]
    pub fn rules_hash(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        (&self.rules, &self.trusted).hash(&mut hasher);
        let [.., a, b, c, d] = hasher.finish().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Addresses of this machine and of its inside, which no name elsewhere has.
    pub fn set_own(&mut self, own: impl IntoIterator<Item = IpAddr>) {
        self.own = own.into_iter().collect();
    }

    /// The name servers that this machine asks itself; see [`system_servers`].
    pub fn set_system(&mut self, servers: BTreeSet<IpAddr>) {
        self.system = servers;
    }

    /// Whether answers say anything that matters. `false`: nobody needs to look at them.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.sites || !self.rules.is_empty()
    }

    /// Takes an answer that came to `client`, which may be this machine, through a mapping of ours,
    /// from the server that it asked.
    ///
    /// # Errors
    /// Why it is not believed; it is counted.
    pub fn handle_answer(
        &mut self,
        now: KernelTime,
        server: SocketAddr,
        client: IpAddr,
        payload: &[u8],
    ) -> Result<CacheUpdate, DnsReject> {
        let trusted = self.own.contains(&client)
            || self
                .trusted
                .include(server.ip(), |server| self.system.contains(&server));
        let outcome = self.judge(now, trusted, payload);
        if let Err(reject) = outcome {
            self.rejects.count(reject, server, now);
        }
        outcome
    }

    fn judge(
        &mut self,
        now: KernelTime,
        trusted: bool,
        payload: &[u8],
    ) -> Result<CacheUpdate, DnsReject> {
        let Some(answer) = message::read(payload)? else {
            return Ok(CacheUpdate::default());
        };
        let marks = marks(&self.rules, &answer.question);
        if marks == 0 && !self.sites {
            return Ok(CacheUpdate::default());
        }
        if !trusted {
            // That a site stays unknown is nothing to speak of; that a rule misses its flows is.
            return match marks {
                0 => Ok(CacheUpdate::default()),
                _ => Err(DnsReject::NotTrusted),
            };
        }
        let site = site(&answer.question);
        let mut update = CacheUpdate::default();
        let mut strange = None;
        for (address, ttl) in answer.addresses {
            if !is_public(address) || self.own.contains(&address) {
                strange = Some(DnsReject::NotPublic);
                continue;
            }
            let time = ttl.clamp(MIN_TTL, MAX_TTL);
            let facts = self.note(now, address, &answer.question, marks, site, time);
            update.learn.push((address, facts));
        }
        update.forget = self.make_room(now);
        let forget = &update.forget;
        update
            .learn
            .retain(|(address, _)| !forget.contains(address));
        match strange {
            // NameCache inside may well have private addresses; a rule's name should not.
            Some(reject) if update.learn.is_empty() && marks != 0 => Err(reject),
            _ => Ok(update),
        }
    }

    /// An address may have several names: marks add up while the old ones last, and the site is
    /// the first one's, so that no later answer takes an address away from it.
    fn note(
        &mut self,
        now: KernelTime,
        address: IpAddr,
        name: &str,
        marks: u64,
        site: u32,
        time: Duration,
    ) -> Name {
        let expires = now.after(time);
        let fresh = Name {
            rules: marks,
            site,
            expires,
        };
        let before = self
            .known
            .get(&address)
            .filter(|known| known.facts.expires > now);
        let facts = before.map_or(fresh, |before| Name {
            rules: before.facts.rules | marks,
            site: before.facts.site,
            expires: before.facts.expires.max(expires),
        });
        let known = CachedName {
            name: match before {
                // The name that rules mean, not another one of the same server.
                Some(before) if marks == 0 => before.name.clone(),
                _ => name.to_owned(),
            },
            facts,
        };
        self.known.insert(address, known);
        facts
    }

    fn make_room(&mut self, now: KernelTime) -> Vec<IpAddr> {
        if self.known.len() <= MAX_ADDRESSES {
            return Vec::new();
        }
        let mut gone = self.expire(now);
        let mut by_end: Vec<(KernelTime, IpAddr)> = self
            .known
            .iter()
            .map(|(address, known)| (known.facts.expires, *address))
            .collect();
        by_end.sort_unstable();
        let surplus = self.known.len().saturating_sub(MAX_ADDRESSES);
        for (_, address) in by_end.into_iter().take(surplus) {
            self.known.remove(&address);
            gone.push(address);
        }
        gone
    }

    /// Forgets what has ended. Returns the addresses, for
    /// [`braid_balance::Datapath::forget_names`].
    pub fn expire(&mut self, now: KernelTime) -> Vec<IpAddr> {
        let ended = |known: &CachedName| known.facts.expires <= now;
        let gone: Vec<IpAddr> = self
            .known
            .iter()
            .filter(|(_, known)| ended(known))
            .map(|(a, _)| *a)
            .collect();
        self.known.retain(|_, known| !ended(known));
        gone
    }

    /// What is known of an address.
    #[must_use]
    pub fn get(&self, now: KernelTime, address: IpAddr) -> Option<&CachedName> {
        self.known
            .get(&address)
            .filter(|known| known.facts.expires > now)
    }

    /// The marks that a name's addresses would bear.
    #[must_use]
    pub fn marks_of(&self, name: &str) -> u64 {
        marks(&self.rules, name)
    }

    /// How many addresses are known by name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What was refused.
    #[must_use]
    pub fn rejects(&self) -> &RejectCounts {
        &self.rejects
    }
}

fn marks(rules: &[(NameBit, Vec<DomainPattern>)], name: &str) -> u64 {
    let meant = rules
        .iter()
        .filter(|(_, patterns)| patterns.iter().any(|p| p.matches(name)));
    meant.fold(0, |marks, (bit, _)| marks | bit.mask())
}

/// The number of a name's site: of the part of it that someone registered, so that `www` and
/// `login` of one company are one site, and two companies below `co.uk` are not.
#[must_use]
pub fn site(name: &str) -> u32 {
    let registered = psl::domain_str(name).unwrap_or(name);
    // FNV-1a: the same number in every run, and no two sites of a household alike.
    let hash = registered.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // 0 means that nothing is known.
    hash.max(1)
}

/// Whether an address can be a server's on the Internet (RFC 6890's registries, those parts that
/// are not reachable globally).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            let [first, second, third, _] = a.octets();
            let shared = first == 100 && (64..128).contains(&second);
            let reserved = first == 0 || first >= 240 || [first, second, third] == [192, 0, 0];
            !(shared
                || reserved
                || a.is_private()
                || a.is_loopback()
                || a.is_link_local()
                || a.is_multicast())
        }
        IpAddr::V6(a) => {
            let [first, second, ..] = a.segments();
            let global = first & 0xe000 == 0x2000;
            let translated = first == 0x64 && second == 0xff9b;
            (global || translated) && !is_braid_prefix(a)
        }
    }
}

/// The local-use translation prefix of RFC 8215, where the host's own inner address is.
fn is_braid_prefix(address: std::net::Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    [first, second, third] == [0x64, 0xff9b, 1]
}
