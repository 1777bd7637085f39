//! The hub itself: the client registry, and the packet thread.
//!
//! Decisions are saved first and applied then, but for those that shut somebody out: they are applied also if they
//! cannot be saved. Packets never wait for that: an unknown key is handed over, and answered when it asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use braid_bond::io::{HubHandle, HubStatus, Peer, PeerStatus, Stopped};
use braid_bond::proto::handshake::{HubKeys, KeyBytes, PublicKey};
use braid_bond::proto::tunnel::Event;
use braid_bond::token::{Host, HubAddress, InvitationId, MAX_ADDRESSES, Secret, Token};
use braid_host::config::{ConfigError, Paint};
use braid_host::quota::STORE_INTERVAL;
use braid_host::user_error::UserError;
use qrcode::{EcLevel, QrCode};
use ring::rand::{SecureRandom, SystemRandom};

use crate::client::{Client, InvalidName, Name, Seconds};
use crate::client_registry::{
    ClientRegistry, EnrolOutcome, HandshakeTerms, Invitation, RegistryError,
};
use crate::config::HubConfig;
use crate::host_setup;
use crate::key_rotation::OverlapEnd;
use crate::nftables::Filter;
use crate::report::{InviteReport, InviteRequest, RevokeReport};
use crate::store::{StoreError, StoredIdentity};

/// State of a hub.
pub struct Hub {
    pub(crate) config: HubConfig,
    pub(crate) identity: StoredIdentity,
    /// Those keys of `identity` that are valid now.
    pub(crate) keys: HubKeys,
    pub(crate) overlap_end: OverlapEnd,
    pub(crate) registry: ClientRegistry,
    started: Instant,
    pub(crate) handle: HubHandle,
    /// Status of the packet thread, once it was read in this turn of the loop.
    snapshot: Option<Rc<HubStatus>>,
    /// Inner bytes of each key when they were last recorded: received, sent.
    recorded: BTreeMap<PublicKey, (u64, u64)>,
    /// Error of the last reload of the configuration.
    pub(crate) reload_error: Option<String>,
    /// The installed filter; none if the hub does not filter.
    filter: Option<Filter>,
    /// Error of the last update of the filter.
    pub(crate) filter_error: Option<String>,
    /// The reason that GRE, which the configuration allows, cannot be used.
    pub(crate) gre_error: Option<String>,
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> Seconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Unpredictable bytes.
///
/// # Errors
/// The system has none.
pub fn random<const N: usize>() -> Result<[u8; N], UserError> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| no_random())?;
    Ok(bytes)
}

/// An unpredictable key.
///
/// # Errors
/// The system has none.
pub fn random_key() -> Result<KeyBytes, UserError> {
    let key = KeyBytes::try_fill(|bytes| SystemRandom::new().fill(bytes));
    key.map_err(|_| no_random())
}

fn no_random() -> UserError {
    UserError::new("random", "the system gives no random bytes")
}

/// The packet thread's peer for these terms.
pub(crate) fn peer(answer: HandshakeTerms, gre: bool) -> Peer {
    Peer {
        key: answer.key,
        psk: answer.psk,
        options: answer.options,
        inner: answer.addresses.into_iter().map(Into::into).collect(),
        cap: answer.cap,
        gre,
    }
}

/// Returns the rows of a QR code; none if the text is too long for one.
fn qr_code(text: &str) -> Vec<String> {
    let Ok(code) = QrCode::with_error_correction_level(text, EcLevel::L) else {
        return Vec::new();
    };
    let squares = code.to_colors();
    let rows = squares.chunks(code.width());
    rows.map(|row| row.iter().map(|square| square.select('1', '0')).collect())
        .collect()
}

impl Hub {
    pub(crate) fn new(
        config: HubConfig,
        identity: StoredIdentity,
        keys: HubKeys,
        registry: ClientRegistry,
        filter: Option<Filter>,
        handle: HubHandle,
    ) -> Self {
        Hub {
            config,
            identity,
            keys,
            overlap_end: OverlapEnd::default(),
            registry,
            started: Instant::now(),
            handle,
            snapshot: None,
            recorded: BTreeMap::new(),
            reload_error: None,
            filter,
            filter_error: None,
            gre_error: None,
        }
    }

    /// Its public key.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.keys.current.public()
    }

    /// Replaces the keys. A new key is on disk.
    pub(crate) fn set_identity(&mut self, identity: StoredIdentity) {
        self.identity = identity;
        self.set_keys(now());
    }

    /// Serves the keys that are valid at `at`.
    pub(crate) fn set_keys(&mut self, at: Seconds) {
        self.keys = self.identity.keys_at(at);
        self.handle.set_keys(self.keys.clone());
    }

    /// Invites a client.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn invite(&mut self, request: InviteRequest) -> Result<InviteReport, UserError> {
        let checked = request.check(self.config.port())?;
        let (addresses, warnings) = self.addresses(checked.addresses)?;
        let at = now();
        let until = at + checked.valid_s;
        let secret = Secret::new(random_key()?);
        let invitation = Invitation {
            name: checked.name,
            addresses: request.inner,
            cap: request.rate.or(self.config.client_rate),
            until,
            hub_key: self.key(),
        };
        let uptime = self.started.elapsed();
        let client = self.registry.invite(invitation, &secret, at, uptime)?;
        tracing::info!(client = %client.name, "invited");
        let report = InviteReport {
            name: client.name.to_string(),
            addresses: client.addresses.clone(),
            hub: addresses.iter().map(ToString::to_string).collect(),
            expires_unix_ms: millis(until),
            warnings,
            token: String::new(),
            qr_code: Vec::new(),
        };
        let token = Token {
            hub: self.key(),
            secret,
            addresses,
        };
        let token = token.to_string();
        Ok(InviteReport {
            qr_code: qr_code(&token),
            token,
            ..report
        })
    }

    /// Addresses of the hub for a token, and warnings about them.
    fn addresses(
        &self,
        mut addresses: Vec<HubAddress>,
    ) -> Result<(Vec<HubAddress>, Vec<String>), UserError> {
        let port = self.config.port();
        if addresses.is_empty() {
            addresses = self.config.address.clone();
        }
        if !addresses.is_empty() {
            return Ok((addresses, Vec::new()));
        }
        let own = host_setup::own_addresses(&self.config.device)?;
        let host = |address| HubAddress {
            host: Host::Address(address),
            port,
        };
        let mut warnings = Vec::new();
        if !own.iter().any(host_setup::is_public) {
            warnings.push(
                "this machine has no public address of its own: where it is reached from the \
                 internet, have its router pass the port on and name that address by --address"
                    .to_owned(),
            );
        }
        let addresses: Vec<HubAddress> = own.into_iter().map(host).take(MAX_ADDRESSES).collect();
        if addresses.is_empty() {
            let failure = UserError::new("no-address", "this machine has no address");
            return Err(failure.fix("name where clients find it by --address HOST[:PORT]"));
        }
        Ok((addresses, warnings))
    }

    /// Applies a reloaded configuration, as a whole or not at all.
    pub fn reload(&mut self, read: Result<HubConfig, ConfigError>) {
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                let why = error.render(Paint::Plain);
                tracing::error!("configuration rejected, the old one stays in force\n{why}");
                self.reload_error = Some(error.in_a_line());
                return;
            }
        };
        self.reload_error = None;
        let later = self.config.apply(read);
        if !later.is_empty() {
            let keys = later.join(", ");
            tracing::warn!(keys, "takes effect at the next start");
        }
        self.registry.configure(self.config.clients.clone(), now());
        for answer in self.registry.joined_terms() {
            self.handle.set_cap(answer.key, answer.options, answer.cap);
        }
        tracing::info!("configuration reloaded");
    }

    /// Updates the kernel's filter to the current clients' destinations.
    pub async fn update_filter(&mut self) {
        let wanted = host_setup::filter(&self.config, &self.registry, now());
        let Some(filter) = wanted.filter(|wanted| self.filter.as_ref() != Some(wanted)) else {
            return;
        };
        match filter.install().await {
            Ok(()) => {
                self.filter = Some(filter);
                self.filter_error = None;
            }
            Err(failure) => {
                tracing::warn!(%failure, "cannot update the filter, the old one stays in force");
                self.filter_error = Some(failure.to_string());
            }
        }
    }

    /// Revokes a client, also if that cannot be saved.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn revoke(&mut self, name: &str) -> Result<RevokeReport, UserError> {
        let name: Name = name.parse()?;
        let revocation = match self.registry.revoke(&name, now()) {
            Err(RegistryError::Revoked(name)) => {
                return Ok(RevokeReport {
                    name: name.to_string(),
                    was_revoked: true,
                    had_joined: false,
                    warnings: Vec::new(),
                });
            }
            revocation => revocation?,
        };
        if let Some(key) = revocation.key {
            self.handle.revoke(key);
        }
        tracing::info!(client = %name, "revoked");
        let warning = |why: String| {
            format!(
                "{name}: it is out now, but that is not on disk yet ({why}), and a restart of the hub before it is \
                 would let it in again; the hub tries again every {STORE_INTERVAL:?}"
            )
        };
        Ok(RevokeReport {
            warnings: revocation.unsaved.map(warning).into_iter().collect(),
            name: name.to_string(),
            was_revoked: false,
            had_joined: revocation.key.is_some(),
        })
    }

    /// Admits a client by its token: binds the token's invitation to this key, or refuses the key.
    pub fn enrol(&mut self, key: PublicKey, invitation: InvitationId) {
        match self.registry.enrol(key, invitation, now()) {
            Ok(EnrolOutcome::Joined(answer)) => {
                let client = self
                    .registry
                    .served(key)
                    .map(|client| client.name.to_string());
                tracing::info!(client, "joined");
                self.handle.insert(peer(answer, self.config.gre));
            }
            Ok(EnrolOutcome::Refused(answer, refusal)) => {
                tracing::warn!(%refusal, "a machine with a token is refused");
                self.registry.remember_refused(key, now());
                self.handle.insert(peer(answer, self.config.gre));
            }
            Ok(EnrolOutcome::Unknown) => {
                tracing::debug!("a handshake names an unknown invitation")
            }
            // The registry has noted it, and the key asks again.
            Err(_) => {}
        }
    }

    /// Logs an event of a client's tunnel.
    pub fn handle_event(&mut self, key: PublicKey, event: &Event) {
        let Some(client) = self.registry.served(key) else {
            return;
        };
        let client = client.name.to_string();
        match event {
            Event::Established {
                continued: false, ..
            } => tracing::info!(client, "connected"),
            Event::Closed(reason) => tracing::info!(client, ?reason, "disconnected"),
            Event::PathMigrated { link, .. } => tracing::debug!(client, link = link.0, "moved"),
            event => tracing::trace!(client, ?event, "tunnel"),
        }
    }

    /// Status of the packet thread, which it has to take for all peers while packets wait. All that read it in one turn
    /// of the loop share it.
    ///
    /// # Errors
    /// The packet thread has stopped.
    pub fn io_status(&mut self) -> Result<Rc<HubStatus>, UserError> {
        if let Some(snapshot) = &self.snapshot {
            return Ok(Rc::clone(snapshot));
        }
        let status = self.handle.status();
        let status = status.map_err(|Stopped| UserError::new("ending", "the hub is ending"))?;
        Ok(Rc::clone(self.snapshot.insert(Rc::new(status))))
    }

    /// Forgets the status of the packet thread: a turn of the loop begins.
    pub(crate) fn forget_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Records traffic in the registry, applies quotas, and forgets keys that have been refused for
    /// long enough.
    ///
    /// # Errors
    /// Same as [`Hub::io_status`].
    pub fn record(&mut self) -> Result<(), UserError> {
        let status = self.io_status()?;
        let at = now();
        for peer in &status.peers {
            self.record_peer(peer, at);
        }
        let served: BTreeSet<PublicKey> = status.peers.iter().map(|peer| peer.key).collect();
        self.recorded.retain(|key, _| served.contains(key));
        for answer in self.registry.review_quotas(at) {
            if let Some(client) = self.registry.served(answer.key) {
                let is_spent = self.registry.is_spent(client);
                tracing::info!(client = %client.name, is_spent, "quota");
            }
            self.handle.set_cap(answer.key, answer.options, answer.cap);
        }
        for key in self.registry.forget_refused(at) {
            self.handle.revoke(key);
        }
        self.review_key(at);
        Ok(())
    }

    fn record_peer(&mut self, peer: &PeerStatus, at: Seconds) {
        let total = (peer.received.bytes.get(), peer.sent.bytes.get());
        let known = self.recorded.insert(peer.key, total).unwrap_or_default();
        let since = |total: u64, known: u64| total.checked_sub(known).unwrap_or(total);
        let seen = peer
            .session
            .map(|session| at - session.since_received.as_secs().min(at));
        let carried = (since(total.0, known.0), since(total.1, known.1));
        self.registry.record_traffic(peer.key, carried, seen, at);
        if let Some(hub_key) = peer.came_by {
            self.registry.record_hub_key(peer.key, hub_key);
        }
    }

    /// Saves recorded counters, and what could not be saved before. The registry notes an error.
    pub fn persist(&mut self) {
        let _ = self.registry.persist();
    }

    /// Saves the used part of quotas, and what could not be saved before.
    pub fn persist_quotas(&mut self) {
        let _ = self.registry.persist_quotas();
    }
}

/// Milliseconds since 1970, as in the API.
pub(crate) fn millis(at: Seconds) -> u64 {
    at.saturating_mul(1000)
}

/// Time since then, as words for a health line.
pub(crate) fn ago(then: Seconds) -> String {
    format!("{} ago", span(now().saturating_sub(then)))
}

/// A span as words for a health line.
pub(crate) fn span(seconds: Seconds) -> String {
    match seconds {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Returns true if a client is served or may still join.
pub(crate) fn is_alive(client: &Client) -> bool {
    client.is_current(now())
}

impl From<InvalidName> for UserError {
    fn from(error: InvalidName) -> UserError {
        UserError::new("usage", error.to_string())
    }
}

impl From<RegistryError> for UserError {
    fn from(error: RegistryError) -> UserError {
        use crate::pool::PoolError as P;
        let (code, fix) = match &error {
            RegistryError::Named(name) => (
                "name-taken",
                format!("choose another name, or `braid hub revoke {name}` first"),
            ),
            RegistryError::Nobody(_) => ("usage", "braid hub clients lists them".to_owned()),
            RegistryError::Revoked(name) => (
                "revoked",
                format!("`braid hub invite {name}` lets it in again"),
            ),
            RegistryError::Many => ("many-clients", "revoke some, or run another hub".to_owned()),
            RegistryError::AddressPool(P::Full(_)) => (
                "pool-full",
                "revoke clients that are not needed any more, and invitations that have expired (braid hub clients), \
                 or name a larger network in pool = [\"…\"]"
                    .to_owned(),
            ),
            RegistryError::Taken(..) | RegistryError::AddressPool(P::Taken(_) | P::Outside(..)) => {
                (
                    "inner-address",
                    "leave the address out to have the next free one".to_owned(),
                )
            }
            RegistryError::AddressPool(P::Again(..)) => (
                "inner-address",
                "name one per IP version, or none to have the next free ones".to_owned(),
            ),
            RegistryError::AddressPool(_) => ("pool", "correct pool = [\"…\"]".to_owned()),
            RegistryError::Store(error) => return UserError::new("store", error.to_string()),
        };
        UserError::new(code, error.to_string()).fix(fix)
    }
}

impl From<StoreError> for UserError {
    fn from(error: StoreError) -> UserError {
        let failure = UserError::new("store", error.to_string());
        match &error {
            StoreError::InUse(_) => {
                failure.fix("another hub uses it: braid hub status shows what that does")
            }
            StoreError::Io { source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                failure.fix("run it as root, for example with sudo")
            }
            StoreError::Exposed { path, .. } => failure.fix(format!(
                "chmod 600 {}, and braid hub rotate-key if somebody may have read it",
                path.display()
            )),
            StoreError::Later { .. } => failure.fix("run the version that wrote it"),
            StoreError::Seal { source, .. } => match source.fix() {
                Some(fix) => failure.fix(fix),
                None => failure,
            },
            StoreError::Engine { .. } | StoreError::Record { .. } => failure.fix(
                "put the file aside and start anew, or restore a copy: clients must be invited \
                 again if it is lost",
            ),
            StoreError::Io { .. } => failure,
        }
    }
}
