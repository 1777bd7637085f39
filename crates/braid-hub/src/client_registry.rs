//! Registry of clients: invitations, the keys that used them, and revocations. It decides, and has
//! the store save each decision before anybody acts on it; it has no sockets and no clock.
//!
//! - A name and an address belong to one client at a time, from the invitation on.
//! - A token is bound to the first key that names its invitation. The same key may try again at any
//!   time; another key is refused and reported to the operator, since either the token was copied
//!   or a machine was reinstalled.
//! - A machine is one client: its earlier one is revoked when its key joins by another token.
//! - A client without quota left is still served, at a low rate: its operator can see the reason on
//!   it.
//! - A client that was revoked, or whose invitation has expired, stays in the registry until [`MAX_ENDED_CLIENTS`] others
//!   have ended after it: a refusal with a reason is better than silence. Then its token and its key are unknown.
//! - The clock may be wrong, for a minute or for days, and an invitation that has expired by it may be open by the right
//!   one. So the clock alone refuses a token for as long as it says so, and nothing more: an invitation is forgotten, and
//!   makes room for others that do not ask for its name or address, only once the hub has run for as long as the token
//!   was valid. That takes as long by the right clock, or longer. Until then it counts among the clients.
//! - A revocation and the end of a key are in force also if they cannot be saved, and are saved as soon as that is
//!   possible: a full disk keeps nobody in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_bond::proto::handshake::terms::{Refusal, Terms};
use braid_bond::proto::handshake::{EpochKeys, Options, Psk, PublicKey};
use braid_bond::token::{InvitationId, Secret};
use braid_core::{Bytes, Rate};
use braid_host::config::Quota;
use braid_host::quota::Used;

use crate::client::{Client, Name, Seconds, State};
use crate::config::{ClientConfig, Reach};
use crate::pool::{AddressPool, PoolError};
use crate::store::{Store, StoreError, StoredIdentity};

mod storage;

use storage::Storage;

/// Most clients that are invited or have joined, with invitations that may have expired by a wrong clock alone.
pub const MAX_CLIENTS: usize = 10_000;

/// Most clients that are kept although they were revoked or their invitation has expired.
pub const MAX_ENDED_CLIENTS: usize = 1_000;

/// Rate in each direction for a client whose quota is used up.
pub const SPENT_RATE: Rate = Rate::from_bits_per_sec(128_000);

/// Refused keys that are told the reason at a time; a newer one replaces the oldest.
const MAX_REFUSED_KEYS: usize = 64;

/// Time for which a refused key is told the reason, seconds: it repeats its request within four.
const REFUSAL_MEMORY_S: Seconds = 20;

/// Invitation of a client.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Name of the client.
    pub name: Name,
    /// Wanted inner addresses; in other networks the client gets the next free one.
    pub addresses: Vec<IpAddr>,
    /// Most that the hub forwards for it in each direction.
    pub cap: Option<Rate>,
    /// Expiry of its token.
    pub until: Seconds,
    /// The hub's key in its token.
    pub hub_key: PublicKey,
}

/// Error of a change to the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name is in use.
    #[error("{0} has been invited or has joined already")]
    Named(Name),
    /// The name is unknown.
    #[error("there is no client {0}")]
    Nobody(Name),
    /// The client is revoked already.
    #[error("{0} is revoked already")]
    Revoked(Name),
    /// There are too many clients.
    #[error(
        "there are {MAX_CLIENTS} clients, the maximum of one hub, with invitations that have expired and count until the \
         hub has run for as long as they were valid"
    )]
    Many,
    /// A wanted address belongs to another client.
    #[error("inner address {0} belongs to {1}")]
    Taken(IpAddr, Name),
    /// No address is available.
    #[error(transparent)]
    AddressPool(#[from] PoolError),
    /// The change could not be saved.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A key, and the terms of its handshakes.
#[derive(Clone, Debug)]
pub struct HandshakeTerms {
    /// The key.
    pub key: PublicKey,
    /// The pre-shared key of its handshakes.
    pub psk: Psk,
    /// Options for it.
    pub options: Options,
    /// Its inner addresses; none if it is refused.
    pub addresses: Vec<IpAddr>,
    /// Most that the hub forwards for it.
    pub cap: Option<Rate>,
}

/// Result for a key that named an invitation.
#[derive(Clone, Debug)]
pub enum EnrolOutcome {
    /// The key is this client's.
    Joined(HandshakeTerms),
    /// The key is refused, and told the reason.
    Refused(HandshakeTerms, Refusal),
    /// The invitation does not exist: without its secret the hub cannot write a reply that the key
    /// could read.
    Unknown,
}

/// Use of a token by further machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenMisuse {
    /// Number of attempts.
    pub times: u64,
    /// Time of the last one.
    pub last: Seconds,
}

/// A revocation, which is in force.
#[derive(Debug)]
pub struct Revocation {
    /// Key of the machine that had joined as the client, if one had.
    pub key: Option<PublicKey>,
    /// The reason that it is not on disk yet, so that a restart before it is would let the client in.
    pub unsaved: Option<String>,
}

/// Registry of clients.
pub struct ClientRegistry {
    store: Storage,
    pool: AddressPool,
    clients: BTreeMap<u64, Client>,
    by_key: BTreeMap<PublicKey, u64>,
    by_invitation: BTreeMap<InvitationId, u64>,
    /// Uptime of the hub at the invitations that this run has made.
    invited_at: BTreeMap<u64, Duration>,
    misuses: BTreeMap<u64, TokenMisuse>,
    /// Keys that are being refused, and the start of that.
    refused_keys: Vec<(PublicKey, Seconds)>,
    /// Clients with unsaved counters or an unsaved revocation.
    unsaved: BTreeSet<u64>,
    /// Those of them whose revocation could not be saved.
    unsaved_revocations: BTreeSet<u64>,
    /// The hub's identity without a key that has ended, if it could not be saved.
    unsaved_identity: Option<StoredIdentity>,
    /// Configuration of single clients.
    configured: BTreeMap<Name, ClientConfig>,
    /// Clients without quota left, as of the last review.
    spent: BTreeSet<u64>,
}

impl ClientRegistry {
    /// Opens the registry of a store.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(store: Box<dyn Store>, pool: AddressPool) -> Result<Self, StoreError> {
        let mut registry = ClientRegistry {
            pool,
            clients: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_invitation: BTreeMap::new(),
            invited_at: BTreeMap::new(),
            misuses: BTreeMap::new(),
            refused_keys: Vec::new(),
            unsaved: BTreeSet::new(),
            unsaved_revocations: BTreeSet::new(),
            unsaved_identity: None,
            configured: BTreeMap::new(),
            spent: BTreeSet::new(),
            store: Storage::new(store),
        };
        for client in registry.store.load()? {
            registry.index(client);
        }
        Ok(registry)
    }

    fn index(&mut self, client: Client) {
        let key = match client.state {
            State::Joined { key, .. } => Some(key),
            State::Revoked { key, .. } => key,
            State::Invited { .. } => None,
        };
        let is_other = |id: &u64| *id != client.id && self.clients[id].served_key().is_some();
        let is_displaced = client.served_key().is_none();
        if let Some(key) = key
            && !(is_displaced && self.by_key.get(&key).is_some_and(is_other))
        {
            self.by_key.insert(key, client.id);
        }
        self.by_invitation.insert(client.invitation, client.id);
        self.clients.insert(client.id, client);
    }

    /// Forgets a client that has ended.
    fn remove(&mut self, id: u64) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.by_invitation.remove(&client.invitation);
        if let State::Revoked { key: Some(key), .. } = client.state
            && self.by_key.get(&key) == Some(&id)
        {
            self.by_key.remove(&key);
        }
        self.invited_at.remove(&id);
        self.misuses.remove(&id);
        self.forget_unsaved(&[id]);
    }

    /// Time at which a client has ended, whatever is wrong with the clock that says so; none if it may be served or may
    /// still join.
    fn surely_ended(&self, client: &Client, now: Seconds, uptime: Duration) -> Option<Seconds> {
        let ended = client.ended(now)?;
        let State::Invited { until } = client.state else {
            return Some(ended);
        };
        // Both times were read at once.
        let validity = Duration::from_secs(until.saturating_sub(client.created));
        let invited_at = self.invited_at.get(&client.id);
        let since = uptime.saturating_sub(invited_at.copied().unwrap_or_default());
        (since >= validity).then_some(ended)
    }

    /// Clients that have surely ended, beyond [`MAX_ENDED_CLIENTS`]: those that ended first.
    fn surplus(&self, now: Seconds, uptime: Duration) -> Vec<u64> {
        let ended = self.clients.values();
        let ended =
            ended.filter_map(|client| Some((self.surely_ended(client, now, uptime)?, client.id)));
        let mut ended: Vec<(Seconds, u64)> = ended.collect();
        ended.sort_unstable();
        ended.truncate(ended.len().saturating_sub(MAX_ENDED_CLIENTS));
        ended.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns true if the store is sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.store.is_sealed()
    }

    /// Error of the last write to the store. It stands until one succeeds.
    #[must_use]
    pub fn persist_error(&self) -> Option<&str> {
        self.store.error()
    }

    /// The pool of inner addresses.
    #[must_use]
    pub fn pool(&self) -> &AddressPool {
        &self.pool
    }

    /// Sets the configuration of single clients, which overrides their invitations.
    pub fn configure(&mut self, clients: BTreeMap<Name, ClientConfig>, now: Seconds) {
        self.configured = clients;
        self.review_quotas(now);
    }

    /// Names in the configuration that no client has.
    pub fn unknown_names(&self, now: Seconds) -> impl Iterator<Item = &Name> {
        let current = self.current(now);
        let names: BTreeSet<&Name> = current.map(|client| &client.name).collect();
        let configured = self.configured.keys();
        configured.filter(move |name| !names.contains(name))
    }

    /// Most that the hub forwards for a client in each direction; no limit if none.
    #[must_use]
    pub fn cap(&self, client: &Client) -> Option<Rate> {
        let own = self.configured.get(&client.name).and_then(|own| own.rate);
        let cap = own.or(client.cap);
        match self.is_spent(client) {
            true => Some(cap.map_or(SPENT_RATE, |cap| cap.min(SPENT_RATE))),
            false => cap,
        }
    }

    /// Volume after which a client gets [`SPENT_RATE`]; none without a quota, or if the client is
    /// revoked.
    #[must_use]
    pub fn quota(&self, client: &Client) -> Option<Quota> {
        let own = self.configured.get(&client.name)?;
        own.quota.filter(|_| !client.is_revoked())
    }

    /// Used part of a client's quota, if it has one.
    #[must_use]
    pub fn used(&self, client: &Client, now: Seconds) -> Option<Bytes> {
        Some(client.used.at(time(now), self.quota(client)?.period))
    }

    /// Returns true if a client's quota is used up, as of the last [review](Self::review_quotas).
    #[must_use]
    pub fn is_spent(&self, client: &Client) -> bool {
        self.spent.contains(&client.id)
    }

    /// Returns the exceptions of single clients (`[[client]]` `reach`), by their inner addresses.
    #[must_use]
    pub fn reach(&self, now: Seconds) -> Vec<(IpAddr, Reach)> {
        if self.configured.values().all(|own| own.reach.is_empty()) {
            return Vec::new();
        }
        let reach = self.current(now).flat_map(|client| {
            let own = self.configured.get(&client.name);
            let own = own.into_iter().flat_map(|own| &own.reach);
            own.flat_map(|reach| client.addresses.iter().map(|address| (*address, *reach)))
        });
        reach.collect()
    }

    /// Checks all quotas; returns the new terms of clients for whom that has changed.
    pub fn review_quotas(&mut self, now: Seconds) -> Vec<HandshakeTerms> {
        let spent = self.clients.values().filter(|client| {
            let quota = self.quota(client);
            let used = self.used(client, now);
            quota
                .zip(used)
                .is_some_and(|(quota, used)| used >= quota.volume)
        });
        let spent: BTreeSet<u64> = spent.map(|client| client.id).collect();
        let before = std::mem::replace(&mut self.spent, spent);
        let changed = before.symmetric_difference(&self.spent);
        let changed = changed.filter_map(|id| {
            let client = self.clients.get(id)?;
            Some(self.terms_for(client, client.served_key()?))
        });
        changed.collect()
    }

    /// Clients that are served or may still join.
    fn current(&self, now: Seconds) -> impl Iterator<Item = &Client> {
        let clients = self.clients.values();
        clients.filter(move |client| client.is_current(now))
    }

    /// All clients, the oldest first.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// Use of a client's token by other machines.
    #[must_use]
    pub fn misuse(&self, id: u64) -> Option<TokenMisuse> {
        self.misuses.get(&id).copied()
    }

    /// Clients with an address that is not in the pool (any more), with that address.
    pub fn outside_pool(&self, now: Seconds) -> impl Iterator<Item = (&Client, IpAddr)> {
        self.current(now).flat_map(|client| {
            let outside = client.addresses.iter().filter(|a| !self.pool.has(**a));
            outside.map(move |address| (client, *address))
        })
    }

    /// Terms of the joined clients, for the start of the hub. Other keys name an invitation, and
    /// get their terms then.
    #[must_use]
    pub fn joined_terms(&self) -> Vec<HandshakeTerms> {
        let joined = self.clients.values().filter_map(|client| {
            let key = client.served_key()?;
            Some(self.terms_for(client, key))
        });
        joined.collect()
    }

    /// Invites a client whose token has this secret, and forgets those that ended long ago if they are too many. `uptime`
    /// is the time since the registry was opened, by a clock that nobody sets.
    ///
    /// # Errors
    /// See [`RegistryError`]; nothing has changed then.
    pub fn invite(
        &mut self,
        invitation: Invitation,
        secret: &Secret,
        now: Seconds,
        uptime: Duration,
    ) -> Result<&Client, RegistryError> {
        // The next start must not find two clients of one name or address.
        self.persist_if(|registry, client| registry.unsaved_revocations.contains(&client.id))?;
        let current = || self.current(now);
        if current().any(|client| client.name == invitation.name) {
            return Err(RegistryError::Named(invitation.name));
        }
        let counted = || {
            let clients = self.clients.values();
            clients.filter(|client| self.surely_ended(client, now, uptime).is_none())
        };
        if counted().count() >= MAX_CLIENTS {
            return Err(RegistryError::Many);
        }
        let address_set = |clients: &mut dyn Iterator<Item = &Client>| -> BTreeSet<IpAddr> {
            clients
                .flat_map(|client| client.addresses.iter().copied())
                .collect()
        };
        let taken = address_set(&mut current());
        let reserved = address_set(&mut counted());
        let newest = self.clients.last_key_value();
        let after = newest.map_or(&[][..], |(_, client)| &client.addresses);
        let addresses = self
            .pool
            .wanted(&invitation.addresses, &taken, &reserved, after);
        let addresses = addresses.map_err(|error| match error {
            PoolError::Taken(address) => {
                let holder = current().find(|client| client.addresses.contains(&address));
                let holder =
                    holder.map(|client| RegistryError::Taken(address, client.name.clone()));
                holder.unwrap_or(error.into())
            }
            error => error.into(),
        })?;
        let id = newest.map_or(1, |(id, _)| id + 1);
        let client = Client {
            id,
            name: invitation.name,
            invitation: secret.id(),
            psk: secret.psk(),
            addresses,
            cap: invitation.cap,
            created: now,
            state: State::Invited {
                until: invitation.until,
            },
            seen: None,
            received: 0,
            sent: 0,
            used: Used::default(),
            hub_key: Some(invitation.hub_key),
        };
        // The newest number stays in use, so none is given twice: this client has a higher one.
        let removed = self.surplus(now, uptime);
        // Nobody can join by an invitation that has made room for this one, also if the clock goes back.
        let displaced = self.clients.values().filter(|earlier| {
            matches!(earlier.state, State::Invited { .. })
                && (earlier.name == client.name
                    || earlier
                        .addresses
                        .iter()
                        .any(|a| client.addresses.contains(a)))
                && !removed.contains(&earlier.id)
        });
        let displaced: Vec<Client> = displaced
            .map(|earlier| earlier.revoked(None, now))
            .collect();
        let changed: Vec<&Client> = displaced.iter().chain([&client]).collect();
        self.store.put(&changed, &removed)?;
        for id in removed {
            self.remove(id);
        }
        for changed in displaced.into_iter().chain([client]) {
            self.index(changed);
        }
        self.invited_at.insert(id, uptime);
        Ok(&self.clients[&id])
    }

    /// Admits a client by its token: binds the token's invitation to this key, or refuses the key.
    ///
    /// # Errors
    /// The change could not be saved. Nothing has changed then, and the key may try again.
    pub fn enrol(
        &mut self,
        key: PublicKey,
        invitation: InvitationId,
        now: Seconds,
    ) -> Result<EnrolOutcome, StoreError> {
        let Some(id) = self.by_invitation.get(&invitation).copied() else {
            return Ok(EnrolOutcome::Unknown);
        };
        let client = &self.clients[&id];
        let refusal = match client.state {
            State::Joined { key: known, .. } if known == key => {
                return Ok(EnrolOutcome::Joined(self.terms_for(client, key)));
            }
            State::Invited { until } if now < until => {
                let mut joined = client.clone();
                joined.state = State::Joined { key, since: now };
                joined.seen = Some(now);
                // A machine is one client: revoking that ends all that it has.
                let mut earlier = self.served(key).cloned();
                if let Some(earlier) = &mut earlier {
                    *earlier = earlier.revoked(Some(key), now);
                }
                let changed: Vec<&Client> = earlier.iter().chain([&joined]).collect();
                self.store.put(&changed, &[])?;
                earlier.into_iter().for_each(|earlier| self.index(earlier));
                self.index(joined);
                self.refused_keys.retain(|(stranger, _)| *stranger != key);
                return Ok(EnrolOutcome::Joined(
                    self.terms_for(&self.clients[&id], key),
                ));
            }
            State::Invited { .. } => Refusal::Expired,
            State::Joined { .. } => Refusal::Used,
            State::Revoked { key: known, .. } if known.is_none_or(|known| known == key) => {
                Refusal::Revoked
            }
            State::Revoked { .. } => Refusal::Used,
        };
        let answer = refuse(client, key, refusal);
        if refusal == Refusal::Used {
            let misuse = self.misuses.entry(id).or_insert(TokenMisuse {
                times: 0,
                last: now,
            });
            misuse.times += 1;
            misuse.last = now;
        }
        Ok(EnrolOutcome::Refused(answer, refusal))
    }

    /// Records that a key is being refused.
    pub fn remember_refused(&mut self, key: PublicKey, now: Seconds) {
        self.refused_keys.retain(|(known, _)| *known != key);
        self.refused_keys.push((key, now));
    }

    /// Forgets and returns keys that were refused for long enough, or are too many, so that nobody
    /// can fill the hub's memory with made-up keys.
    pub fn forget_refused(&mut self, now: Seconds) -> Vec<PublicKey> {
        let spare = self.refused_keys.len().saturating_sub(MAX_REFUSED_KEYS);
        let old =
            |(_, since): &&(PublicKey, Seconds)| now.saturating_sub(*since) >= REFUSAL_MEMORY_S;
        let old = self.refused_keys.iter().take_while(old).count();
        let forgotten = self.refused_keys.drain(..old.max(spare));
        forgotten.map(|(key, _)| key).collect()
    }

    /// Revokes a client, also if that cannot be saved; [`ClientRegistry::persist`] saves it then.
    ///
    /// # Errors
    /// There is no such client, or it is revoked already. A revocation that could not be saved may be repeated.
    pub fn revoke(&mut self, name: &Name, now: Seconds) -> Result<Revocation, RegistryError> {
        // The newest client of that name: earlier ones are revoked or have expired.
        let named = self
            .clients
            .values()
            .rev()
            .find(|client| client.name == *name);
        let client = named.ok_or_else(|| RegistryError::Nobody(name.clone()))?;
        let key = match client.state {
            State::Revoked { key, .. } if self.unsaved_revocations.contains(&client.id) => key,
            State::Revoked { .. } => return Err(RegistryError::Revoked(name.clone())),
            State::Joined { key, .. } => Some(key),
            State::Invited { .. } => None,
        };
        let revoked = client.revoked(key, now);
        let id = revoked.id;
        let saved = self.store.put(&[&revoked], &[]);
        self.misuses.remove(&id);
        self.index(revoked);
        match &saved {
            Ok(()) => self.forget_unsaved(&[id]),
            Err(_) => {
                self.unsaved.insert(id);
                self.unsaved_revocations.insert(id);
            }
        }
        Ok(Revocation {
            key,
            unsaved: saved.err().map(|error| error.to_string()),
        })
    }

    /// The client of a served key.
    #[must_use]
    pub fn served(&self, key: PublicKey) -> Option<&Client> {
        let client = &self.clients[self.by_key.get(&key)?];
        client.served_key().is_some().then_some(client)
    }

    /// Records inner bytes from a key and to it since the last call, and the time of its last
    /// packet. They count against its quota.
    pub fn record_traffic(
        &mut self,
        key: PublicKey,
        (received, sent): (u64, u64),
        seen: Option<Seconds>,
        now: Seconds,
    ) {
        let known = self.by_key.get(&key).and_then(|id| self.clients.get(id));
        let quota = known.and_then(|client| self.quota(client));
        let Some(client) = self
            .by_key
            .get(&key)
            .and_then(|id| self.clients.get_mut(id))
        else {
            return;
        };
        if let Some(quota) = quota {
            client.used.add(time(now), quota.period, received + sent);
        }
        let newer = seen.filter(|seen| client.seen.is_none_or(|known| *seen > known));
        if received + sent > 0 || newer.is_some() {
            client.received += received;
            client.sent += sent;
            client.seen = newer.or(client.seen);
            self.unsaved.insert(client.id);
        }
    }

    /// Records that a client came by this key of the hub.
    pub fn record_hub_key(&mut self, key: PublicKey, hub_key: PublicKey) {
        let known = self.by_key.get(&key);
        let client = known.and_then(|id| self.clients.get_mut(id));
        if let Some(client) = client.filter(|client| client.hub_key != Some(hub_key)) {
            client.hub_key = Some(hub_key);
            self.unsaved.insert(client.id);
        }
    }

    /// Clients that are served or may still join, and are not known to have this key of the hub.
    pub fn without_hub_key(&self, key: PublicKey, now: Seconds) -> impl Iterator<Item = &Client> {
        let current = self.current(now);
        current.filter(move |client| client.hub_key != Some(key))
    }

    /// Replaces the hub's key `old` by that of `identity`. It is on disk before this returns.
    ///
    /// # Errors
    /// See [`StoreError`]; the key stays as it was then.
    pub fn rotate_key(
        &mut self,
        old: PublicKey,
        identity: &StoredIdentity,
    ) -> Result<(), StoreError> {
        // Records from before the first replacement name no key.
        for client in self.clients.values_mut() {
            if client.hub_key.is_none() {
                client.hub_key = Some(old);
                self.unsaved.insert(client.id);
            }
        }
        self.persist()?;
        self.store.put_identity(identity)
    }

    /// Stores the keys of the hub's epochs. Without them a later run cannot reset sessions of now.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put_epochs(&mut self, epochs: &EpochKeys) -> Result<(), StoreError> {
        self.store.put_epochs(epochs)
    }

    /// Stores an identity whose previous key has ended.
    ///
    /// # Errors
    /// See [`StoreError`]; [`ClientRegistry::persist`] stores it then.
    pub fn retire_key(&mut self, retired: StoredIdentity) -> Result<(), StoreError> {
        self.unsaved_identity = Some(retired);
        self.persist_identity()
    }

    /// Saves recorded counters, and what could not be saved before.
    ///
    /// # Errors
    /// See [`StoreError`]; the next call saves them.
    pub fn persist(&mut self) -> Result<(), StoreError> {
        self.persist_if(|_, _| true)
    }

    /// Saves the counters of clients with a quota, and what could not be saved before.
    ///
    /// # Errors
    /// Same as [`ClientRegistry::persist`].
    pub fn persist_quotas(&mut self) -> Result<(), StoreError> {
        self.persist_if(|registry, client| {
            registry.quota(client).is_some() || registry.unsaved_revocations.contains(&client.id)
        })
    }

    fn persist_identity(&mut self) -> Result<(), StoreError> {
        if let Some(identity) = &self.unsaved_identity {
            self.store.put_identity(identity)?;
            self.unsaved_identity = None;
        }
        Ok(())
    }

    fn persist_if(
        &mut self,
        which: impl Fn(&ClientRegistry, &Client) -> bool,
    ) -> Result<(), StoreError> {
        self.persist_identity()?;
        let changed = self.unsaved.iter().map(|id| &self.clients[id]);
        let changed: Vec<&Client> = changed.filter(|client| which(self, client)).collect();
        // An earlier error stands until a write succeeds, be it an empty one.
        if !changed.is_empty() || self.store.error().is_some() {
            self.store.put(&changed, &[])?;
            let saved: Vec<u64> = changed.iter().map(|client| client.id).collect();
            self.forget_unsaved(&saved);
        }
        Ok(())
    }

    fn forget_unsaved(&mut self, saved: &[u64]) {
        for id in saved {
            self.unsaved.remove(id);
            self.unsaved_revocations.remove(id);
        }
    }

    fn terms_for(&self, client: &Client, key: PublicKey) -> HandshakeTerms {
        let network = |address: &IpAddr| {
            let most = if address.is_ipv4() { 32 } else { 128 };
            (*address, self.pool.length(*address).unwrap_or(most))
        };
        let terms = Terms {
            addresses: client.addresses.iter().map(network).collect(),
            hub: self
                .pool
                .hub()
                .into_iter()
                .map(|(address, _)| address)
                .collect(),
            name: Some(client.name.to_string()),
            cap: self.cap(client),
        };
        HandshakeTerms {
            key,
            psk: client.psk.clone(),
            options: terms.to_options(),
            addresses: client.addresses.clone(),
            cap: self.cap(client),
        }
    }
}

fn time(seconds: Seconds) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn refuse(client: &Client, key: PublicKey, refusal: Refusal) -> HandshakeTerms {
    HandshakeTerms {
        key,
        psk: client.psk.clone(),
        options: refusal.to_options(),
        addresses: Vec::new(),
        cap: None,
    }
}

#[cfg(test)]
mod tests;
