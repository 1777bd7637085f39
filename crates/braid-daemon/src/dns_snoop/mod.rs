//! DNS snooping: names of remote addresses, learned from the answers of name servers to clients.
//!
//! Pure: takes answers as bytes and the time, returns the entries for the datapath.
//!
//! Rules, and why:
//! - Only names that a rule asks for are learned: those that a rule with `domain` matches, and with `sticky` all
//!   names, so that the flows to a site stay together.
//! - Anyone can run a name server. Replies to this machine's own queries are always trusted; replies to a
//!   client's queries are trusted if the server is listed in `name_servers`, by default the servers that this
//!   machine uses. Otherwise a client with a server of its own could assign any address to any name, for all.
//!   The remaining risk is a client with an accomplice who can send from a listed server's address.
//! - An answer is trusted for the queried name, along its chain of aliases, and for nothing else (RFC 5452 §6:
//!   data that was not asked for).
//! - An address that no public server can have (private, local, the machine's own) is not learned: such an
//!   answer could turn a rule on the network behind it (DNS rebinding).
//! - A name is kept for the answer's TTL, but at least for [`MIN_TTL`], because clients use an address longer,
//!   and at most for [`MAX_TTL`], because the address will be another host's one day.
//! - At most [`MAX_ADDRESSES`] are kept; the one that expires first is replaced. A hostile client can thus
//!   evict names of others, who learn them again with their next query.
//! - Rejected answers are counted by reason.

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
use braid_core::ShortHash;

pub use reject::{DnsReject, RejectCounts};
pub use servers::system_servers;

use crate::config::{DomainPattern, NameServers, Settings, Sticky};
use crate::rules::name_bits;

/// Shortest time for which a name is kept.
pub const MIN_TTL: Duration = Duration::from_secs(30);
/// Longest time for which a name is kept.
pub const MAX_TTL: Duration = Duration::from_secs(60 * 60);
/// Most addresses kept.
pub const MAX_ADDRESSES: usize = 4096;

/// The names of remote addresses.
#[derive(Debug, Default)]
pub struct NameCache {
    rules: Vec<(NameBit, Vec<DomainPattern>)>,
    /// True if some class keeps sites together, so that every name counts.
    sites: bool,
    own: BTreeSet<IpAddr>,
    trusted: NameServers,
    /// Name servers that the machine itself uses.
    system: BTreeSet<IpAddr>,
    known: BTreeMap<IpAddr, CachedName>,
    rejects: RejectCounts,
}

/// Cached name of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedName {
    /// The last name that a rule matches; without one the first name, whose site it is.
    pub name: String,
    /// The datapath's entry.
    pub facts: Name,
}

/// Changes of the cache by an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheUpdate {
    /// For [`braid_balance::Datapath::learn_names`].
    pub learn: Vec<(IpAddr, Name)>,
    /// For [`braid_balance::Datapath::forget_names`]: evicted addresses.
    pub forget: Vec<IpAddr>,
}

impl NameCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(settings: &Settings) -> NameCache {
        let mut names = NameCache::default();
        names.set_rules(settings);
        names
    }

    /// Applies new settings. Marks of other rules are invalid then: returns the entries that replace the
    /// datapath's.
    pub fn set_rules(&mut self, settings: &Settings) -> Vec<(IpAddr, Name)> {
        let rules = name_bits(settings).map(|(bit, rule)| (bit, rule.domain.clone()));
        let rules: Vec<_> = rules.collect();
        // Marks cover all names that an address had, but only the last name is kept.
        let same = rules == self.rules;
        self.rules = rules;
        let trusted = &settings.config.name_servers;
        if self.trusted != *trusted {
            // The servers of the cached answers are unknown by now.
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

    /// Returns a number that changes with the meaning of the marks or with the trusted servers, for
    /// [`braid_balance::Datapath::keep_names`].
    #[must_use]
    pub fn rules_hash(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        (&self.rules, &self.trusted).hash(&mut hasher);
        let [.., a, b, c, d] = hasher.finish().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Sets the addresses of this machine and of its inside, which no public name has.
    pub fn set_own(&mut self, own: impl IntoIterator<Item = IpAddr>) {
        self.own = own.into_iter().collect();
    }

    /// Sets the name servers that this machine itself uses; see [`system_servers`].
    pub fn set_system(&mut self, servers: BTreeSet<IpAddr>) {
        self.system = servers;
    }

    /// Returns true if answers have to be inspected.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.sites || !self.rules.is_empty()
    }

    /// Learns addresses from a DNS answer that `server` sent to `client` (possibly this machine), through one of
    /// our mappings.
    ///
    /// # Errors
    /// The reason that it is rejected; it is counted.
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
            // An unknown site does no harm; a rule that misses its flows does.
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
            // Inside names may well have private addresses; a rule's name should not.
            Some(reject) if update.learn.is_empty() && marks != 0 => Err(reject),
            _ => Ok(update),
        }
    }

    /// An address may have several names. Marks add up until the old ones expire, and the site is that of the
    /// first one, so that no later answer takes an address away from it.
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
                // Keep the name that a rule matches, not another one of the same server.
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

    /// Removes expired entries. Returns the addresses, for [`braid_balance::Datapath::forget_names`].
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

    /// Returns the cached name of an address.
    #[must_use]
    pub fn get(&self, now: KernelTime, address: IpAddr) -> Option<&CachedName> {
        self.known
            .get(&address)
            .filter(|known| known.facts.expires > now)
    }

    /// Returns the marks for the addresses of a name.
    #[must_use]
    pub fn marks_of(&self, name: &str) -> u64 {
        marks(&self.rules, name)
    }

    /// Returns the number of cached addresses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the counts of rejected answers.
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

/// Returns the number of a name's site. The site is the registered part of the name: `www` and `login` of one
/// company are one site, two companies below `co.uk` are not.
#[must_use]
pub fn site(name: &str) -> u32 {
    let registered = psl::domain_str(name).unwrap_or(name);
    // The same number in every run, with few collisions among the sites of a household.
    let mut hash = ShortHash::default();
    hash.write(registered.as_bytes());
    // 0 stands for an unknown site.
    hash.finish().max(1)
}

/// Returns true if a public server can have this address: it is in none of the RFC 6890 registries' blocks that
/// are not globally reachable.
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

/// Returns true for the local-use translation prefix of RFC 8215, which has the host's own inner address.
fn is_braid_prefix(address: std::net::Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    [first, second, third] == [0x64, 0xff9b, 1]
}
