//! The responding end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::inner_device::InnerDevice;
use super::link_sockets::{gre_headers, udp_headers};
use super::listeners::Listeners;
use super::mss_clamp::clamp_mss;
use super::peers::Peers;
use super::suspend::SuspendMonitor;
use super::thread::{
    Clock, CommandReceiver, ThreadHandle, entropy, preferred_cipher, spawn, time_until,
};
use super::{BondError, HubStatus, Prefix, Stopped, Tun};
use crate::proto::frame::Reason;
use crate::proto::gre;
use crate::proto::handshake::{Ciphers, EpochKeys, HubKeys, Options, Psk, PublicKey};
use crate::proto::pool::Packet;
use crate::proto::server::Server;
use crate::proto::tunnel::{self, TunnelSettings};
use braid_core::{Rate, Time};

/// Decides about an unknown key that completed message 1, by its options: returns the peer to
/// serve. It runs on the packet thread, behind MAC, cookies and rate limits.
pub type Enrol = Box<dyn FnMut(PublicKey, &Options) -> Option<Peer> + Send>;

/// Configuration of a hub.
pub struct HubConfig {
    /// The inner device.
    pub tun: Tun,
    /// The hub's keys.
    pub keys: HubKeys,
    /// Keys of its epochs: clients are told that their sessions of earlier ones are over.
    pub epochs: EpochKeys,
    /// Addresses to listen on; replies leave from the address that the client used.
    pub listen: Vec<SocketAddr>,
    /// SO_MARK of its sockets.
    pub mark: Option<u32>,
    /// True if data of peers may be in the clear, as GRE. Its sockets are opened at the start: later the packet
    /// thread may open none.
    pub gre: bool,
    /// Initial peers.
    pub peers: Vec<Peer>,
    /// True if peers reach each other. The kernel forwards such packets; the hub recognises them by
    /// their source address, whatever the kernel's filter says.
    pub between_peers: bool,
    /// Decides about unknown keys; without it they are refused.
    pub enrol: Option<Enrol>,
    /// Receives events on the packet thread: it must not block.
    pub events: Box<dyn FnMut(HubEvent) + Send>,
}

impl fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConfig")
            .field("tun", &self.tun)
            .field("keys", &self.keys)
            .field("listen", &self.listen)
            .field("mark", &self.mark)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// A peer of a hub.
#[derive(Clone)]
pub struct Peer {
    /// Its public key.
    pub key: PublicKey,
    /// Pre-shared key; the default is none.
    pub psk: Psk,
    /// Options for its handshakes.
    pub options: Options,
    /// Its inner networks: sources that it may use, destinations that are routed to it.
    pub inner: Vec<Prefix>,
    /// Largest rate in each direction; no limit if none.
    pub cap: Option<Rate>,
    /// True if its data may be sent in cleartext, as GRE, provided that it wants that too.
    pub gre: bool,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("key", &self.key)
            .field("inner", &self.inner)
            .field("cap", &self.cap)
            .field("gre", &self.gre)
            .finish_non_exhaustive()
    }
}

/// Event of a hub.
#[derive(Debug)]
pub enum HubEvent {
    /// Event of a peer's tunnel.
    Peer(PublicKey, tunnel::Event),
    /// The keys of its epochs have changed. They are to be stored for later runs: sessions of an epoch
    /// whose key is lost cannot be reset.
    Epochs(EpochKeys),
    /// Sockets for GRE cannot be opened, for this reason: all clients' packets stay sealed.
    NoGre(String),
    /// The packet thread has failed.
    Failed(BondError),
}

/// A running hub. It stops when this is dropped.
#[derive(Debug)]
pub struct HubHandle {
    control: ThreadHandle<Command>,
}

/// Commands for the packet thread.
#[derive(Debug)]
enum Command {
    Insert(Box<Peer>),
    Cap(PublicKey, Options, Option<Rate>),
    Revoke(PublicKey),
    Keys(Box<HubKeys>),
    Status(SyncSender<HubStatus>),
    Stop,
}

/// Starts a hub on a thread of its own.
///
/// # Errors
/// See [`BondError`].
pub fn start(config: HubConfig) -> Result<HubHandle, BondError> {
    let clock = Clock::start();
    let ciphers = Ciphers::preferring(preferred_cipher());
    let settings = TunnelSettings::default();
    let now = clock.now();
    let own = config.keys.current.clone();
    let mut server = Server::new(now, own, ciphers, settings, entropy()?);
    server.set_clock(clock.unix_micros());
    server.set_epochs(config.epochs);
    server.set_keys(config.keys);
    server.offer_unknown_peers(config.enrol.is_some());
    let mut hub = Hub {
        clock,
        server,
        peers: Peers::new(config.between_peers),
        device: InnerDevice::new(config.tun),
        listeners: Listeners::open(&config.listen, config.mark)?,
        enrol: config.enrol,
        events: config.events,
        suspend: SuspendMonitor::new(),
        datagram: Vec::with_capacity(2048),
    };
    if config.gre
        && let Err(error) = hub.listeners.open_gre()
    {
        tracing::warn!(%error, "cannot open GRE sockets, packets stay sealed");
        (hub.events)(HubEvent::NoGre(error.to_string()));
    }
    config.peers.into_iter().for_each(|peer| hub.insert(peer));
    // All sockets are open.
    let control = spawn("braid-hub", &[], move |commands| {
        if let Err(error) = hub.run(&commands) {
            (hub.events)(HubEvent::Failed(error));
        }
    })?;
    Ok(HubHandle { control })
}

impl HubHandle {
    /// Serves a peer, or changes its terms; its session continues.
    pub fn insert(&self, peer: Peer) {
        self.control.send(Command::Insert(Box::new(peer)));
    }

    /// Changes a peer's rate, and sends it these options at its next handshake. An unknown peer is
    /// ignored.
    pub fn set_cap(&self, peer: PublicKey, options: Options, cap: Option<Rate>) {
        self.control.send(Command::Cap(peer, options, cap));
    }

    /// Stops serving a peer, and tells it.
    pub fn revoke(&self, peer: PublicKey) {
        self.control.send(Command::Revoke(peer));
    }

    /// Replaces the hub's keys; sessions go on. Resets of later ones have another key.
    pub fn set_keys(&self, keys: HubKeys) {
        self.control.send(Command::Keys(Box::new(keys)));
    }

    /// Current state.
    ///
    /// # Errors
    /// The hub has stopped.
    pub fn status(&self) -> Result<HubStatus, Stopped> {
        self.control.request(Command::Status)
    }

    /// Returns true if it runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.control.is_alive()
    }

    /// Tells the peers, and stops.
    pub fn stop(self) {}
}

impl Drop for HubHandle {
    fn drop(&mut self) {
        self.control.stop(Command::Stop);
    }
}

/// State of the packet thread.
struct Hub {
    clock: Clock,
    server: Server,
    peers: Peers,
    device: InnerDevice<Packet>,
    listeners: Listeners,
    enrol: Option<Enrol>,
    events: Box<dyn FnMut(HubEvent) + Send>,
    suspend: SuspendMonitor,
    /// The datagram that is being sent.
    datagram: Vec<u8>,
}

impl Hub {
    fn run(&mut self, commands: &CommandReceiver<Command>) -> Result<(), BondError> {
        let mut watched = Vec::new();
        let mut more_pending = false;
        loop {
            self.wait(commands, &mut watched, more_pending)?;
            let is_ready = |index: usize| watched[index].revents != 0;
            let listeners = self.listeners.fds().count();
            let announced = watched[2 + listeners..].iter().any(|fd| fd.revents != 0);
            if self.suspend.poll(announced) {
                self.server.forget_keys();
                self.announce_epochs();
            }
            if is_ready(0) && self.handle_commands(commands) {
                return self.stop();
            }
            more_pending = false;
            // Sockets opened meanwhile are waited for from the next iteration on.
            for listener in 0..listeners {
                if is_ready(listener + 2) {
                    more_pending |= self.receive(listener);
                }
            }
            if is_ready(1) {
                more_pending |= self.read()?;
            }
            let now = self.clock.now();
            if self.server.poll_timeout().is_some_and(|at| now >= at) {
                self.server.handle_timeout(now);
            }
            self.deliver(now)?;
            self.transmit(now);
        }
    }

    /// Waits until there is work; returns at once if more work is pending.
    fn wait(
        &self,
        commands: &CommandReceiver<Command>,
        watched: &mut Vec<libc::pollfd>,
        more_pending: bool,
    ) -> Result<(), BondError> {
        watched.clear();
        watched.push(braid_device::watch(commands.fd()));
        watched.push(braid_device::watch(self.device.fd()));
        watched.extend(self.listeners.fds().map(braid_device::watch));
        watched.extend(self.suspend.fd().map(braid_device::watch));
        let timeout = match more_pending {
            true => Some(Duration::ZERO),
            false => time_until(self.clock.now(), self.server.poll_timeout()),
        };
        braid_device::wait(watched, timeout).map_err(|source| {
            let step = "wait for packets";
            BondError::System { step, source }
        })
    }

    /// Handles pending commands. Returns true if the hub is to stop.
    fn handle_commands(&mut self, commands: &CommandReceiver<Command>) -> bool {
        commands.clear();
        while let Some(command) = commands.poll() {
            match command {
                Command::Insert(peer) => self.insert(*peer),
                Command::Cap(peer, options, cap) => {
                    if self.peers.set_cap(peer, cap) {
                        self.server.set_options(peer, options);
                    }
                }
                Command::Revoke(peer) => {
                    self.peers.remove(peer);
                    self.listeners.forget(peer);
                    self.server.revoke(peer);
                }
                Command::Keys(keys) => {
                    self.server.set_keys(*keys);
                    self.server.renew_epoch();
                    self.announce_epochs();
                }
                // The caller may have given up.
                Command::Status(answer) => _ = answer.try_send(self.status()),
                Command::Stop => return true,
            }
        }
        false
    }

    fn announce_epochs(&mut self) {
        let epochs = self.server.listener().epochs().clone();
        (self.events)(HubEvent::Epochs(epochs));
    }

    fn insert(&mut self, peer: Peer) {
        self.server.insert(peer.key, peer.psk.clone());
        self.server.set_options(peer.key, peer.options.clone());
        let gre = peer.gre && self.listeners.has_gre();
        self.server.set_gre(peer.key, gre);
        self.peers.insert(peer);
    }

    /// Handles datagrams of one socket. Returns true if there may be more.
    fn receive(&mut self, listener: usize) -> bool {
        let now = self.clock.now();
        let (server, peers) = (&mut self.server, &mut self.peers);
        let more = self.listeners.receive(now, listener, |source, datagram| {
            let from = source.1;
            let bytes = datagram.len() as u64
                + match gre::is_gre(datagram) {
                    true => gre_headers(from),
                    false => udp_headers(from),
                };
            // The server, or the peer's tunnel, counts refused datagrams.
            let (peer, link) = server.handle_datagram(now, source, datagram).ok()??;
            peers.handle_received(peer, link, bytes);
            Some(peer)
        });
        self.admit(now);
        more
    }

    /// Decides about pending peers.
    fn admit(&mut self, now: Time) {
        while let Some(pending) = self.server.poll_pending_peer() {
            let Some(enrol) = &mut self.enrol else {
                continue;
            };
            let Some(peer) = enrol(pending.peer(), pending.options()) else {
                continue;
            };
            if peer.key == pending.peer() {
                self.insert(peer);
                // The server counts the reason.
                let _ = self.server.admit(now, pending);
            }
        }
    }

    /// Reads inner packets for peers from the device. Returns true if there may be more.
    fn read(&mut self) -> Result<bool, BondError> {
        let now = self.clock.now();
        let (server, peers) = (&mut self.server, &mut self.peers);
        self.device.read(|packet| {
            let Some(key) = peers.route(packet) else {
                return;
            };
            match server
                .tunnel(key)
                .filter(|tunnel| tunnel.session().is_some())
            {
                None => peers.count_unrouted(),
                Some(tunnel) => {
                    if peers.allows_to(now, key, packet.len()) {
                        clamp_mss(packet, || tunnel.max_whole_packet());
                        tunnel.handle_inner(now, packet);
                    }
                }
            }
        })
    }

    /// Delivers the tunnels' inner packets and events.
    fn deliver(&mut self, now: Time) -> Result<(), BondError> {
        let (peers, device, events) = (&mut self.peers, &mut self.device, &mut self.events);
        let mut result = Ok(());
        self.server.for_each_ready(|key, tunnel| {
            while let Some(packet) = tunnel.poll_inner(now) {
                if peers.allows_from(now, key, &packet) && result.is_ok() {
                    result = device.write(packet);
                }
            }
            while let Some(event) = tunnel.poll_event() {
                events(HubEvent::Peer(key, event));
            }
        });
        result.and(self.device.flush())
    }

    fn transmit(&mut self, now: Time) {
        while let Some(to) = self.server.poll_transmit(now, &mut self.datagram) {
            self.listeners.send(to, &self.datagram);
        }
        self.listeners.flush();
    }

    fn status(&mut self) -> HubStatus {
        let now = self.clock.now();
        let listener = self.server.listener().counters();
        let rejects = *self.server.rejects();
        HubStatus {
            peers: self.peers.status(now, &mut self.server),
            listener,
            rejects,
            tun: self.device.status(),
            unrouted: self.peers.unrouted(),
        }
    }

    fn stop(&mut self) -> Result<(), BondError> {
        for (_, tunnel) in self.server.tunnels() {
            tunnel.close(Reason::Stopped);
        }
        self.transmit(self.clock.now());
        Ok(())
    }
}
