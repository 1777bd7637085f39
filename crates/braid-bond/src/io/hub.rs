//! The end that is called.

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
use crate::proto::handshake::{Ciphers, Identity, Options, Psk, PublicKey};
use crate::proto::pool::Packet;
use crate::proto::server::Server;
use crate::proto::tunnel::{self, TunnelSettings};
use braid_core::{Rate, Time};

/// Asked about an unknown key that shook hands, with what it said: whom to serve from now on. It is
/// asked on the thread that carries packets, behind MAC, cookies and rate limits.
pub type Enrol = Box<dyn FnMut(PublicKey, &Options) -> Option<Peer> + Send>;

/// What a hub is, and where it listens.
pub struct HubConfig {
    /// The inner device.
    pub tun: Tun,
    /// Who it is.
    pub identity: Identity,
    /// How often it has started before: clients are told that their sessions of earlier starts are over.
    pub epoch: u64,
    /// Where it listens; answers leave from the address that was asked.
    pub listen: Vec<SocketAddr>,
    /// SO_MARK of its sockets.
    pub mark: Option<u32>,
    /// Whom it serves to begin with.
    pub peers: Vec<Peer>,
    /// Whether what a peer sends reaches other peers. The kernel passes it on between the two: here it is
    /// known by its source whatever the kernel's filter says.
    pub between_peers: bool,
    /// Whom it may serve beside those.
    pub enrol: Option<Enrol>,
    /// Told what becomes known, on the thread that carries packets: it must not block.
    pub events: Box<dyn FnMut(HubEvent) + Send>,
}

impl fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConfig")
            .field("tun", &self.tun)
            .field("identity", &self.identity)
            .field("listen", &self.listen)
            .field("mark", &self.mark)
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

/// Somebody that a hub serves.
#[derive(Clone)]
pub struct Peer {
    /// Who.
    pub key: PublicKey,
    /// What both were given beforehand; the default is none.
    pub psk: Psk,
    /// What to tell it.
    pub options: Options,
    /// What it may send from, and what is sent to it.
    pub inner: Vec<Prefix>,
    /// Most that it may send, and get; no limit if none.
    pub cap: Option<Rate>,
    /// Whether its data may go in the clear, as GRE, if it wants that too.
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

/// What has become known at a hub.
#[derive(Debug)]
pub enum HubEvent {
    /// By a peer's tunnel.
    Peer(PublicKey, tunnel::Event),
    /// The end has stopped by itself.
    Failed(BondError),
}

/// A running hub. It stops when this is dropped.
#[derive(Debug)]
pub struct HubHandle {
    control: ThreadHandle<Command>,
}

/// What a hub is told.
#[derive(Debug)]
enum Command {
    Insert(Box<Peer>),
    Cap(PublicKey, Options, Option<Rate>),
    Revoke(PublicKey),
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
    let mut server = Server::new(now, config.identity, ciphers, settings, entropy()?);
    server.set_clock(clock.unix_micros());
    server.set_epoch(config.epoch);
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
    config.peers.into_iter().for_each(|peer| hub.insert(peer));
    let control = spawn("braid-hub", move |commands| {
        if let Err(error) = hub.run(&commands) {
            (hub.events)(HubEvent::Failed(error));
        }
    })?;
    Ok(HubHandle { control })
}

impl HubHandle {
    /// Serves a peer from now on, or by these terms; a session that it has goes on.
    pub fn insert(&self, peer: Peer) {
        self.control.send(Command::Insert(Box::new(peer)));
    }

    /// Limits a peer to another rate from now on, and tells it by these options at its next handshake;
    /// nothing if it is not served.
    pub fn set_cap(&self, peer: PublicKey, options: Options, cap: Option<Rate>) {
        self.control.send(Command::Cap(peer, options, cap));
    }

    /// Serves a peer no more, and tells it.
    pub fn revoke(&self, peer: PublicKey) {
        self.control.send(Command::Revoke(peer));
    }

    /// How it is going.
    ///
    /// # Errors
    /// The end has stopped.
    pub fn status(&self) -> Result<HubStatus, Stopped> {
        self.control.request(Command::Status)
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.control.is_alive()
    }

    /// Tells the peers, and ends.
    pub fn stop(self) {}
}

impl Drop for HubHandle {
    fn drop(&mut self) {
        self.control.stop(Command::Stop);
    }
}

/// What runs on the thread.
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
            }
            if is_ready(0) && self.handle_commands(commands) {
                return self.stop();
            }
            more_pending = false;
            // Others may be opened meanwhile: they are waited for from the next turn on.
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

    /// Waits until there is something to do; not at all in a hurry.
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

    /// Does what was ordered; says whether to stop.
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
                // Whoever asked may have gone.
                Command::Status(answer) => _ = answer.try_send(self.status()),
                Command::Stop => return true,
            }
        }
        false
    }

    fn insert(&mut self, peer: Peer) {
        self.server.insert(peer.key, peer.psk.clone());
        self.server.set_options(peer.key, peer.options.clone());
        let gre = peer.gre && self.open_gre_sockets();
        self.server.set_gre(peer.key, gre);
        self.peers.insert(peer);
    }

    /// Opens the sockets for GRE, if that was not done; says whether they are there.
    fn open_gre_sockets(&mut self) -> bool {
        let opened = self.listeners.open_gre();
        let opened = opened.inspect_err(|error| tracing::warn!(%error, "cannot hear GRE"));
        opened.is_ok()
    }

    /// Takes what has come from outside. Says whether there may be more.
    fn receive(&mut self, listener: usize) -> bool {
        let now = self.clock.now();
        let (server, peers) = (&mut self.server, &mut self.peers);
        let more = self.listeners.receive(listener, |from, datagram| {
            let bytes = datagram.len() as u64
                + match gre::is_gre(datagram) {
                    true => gre_headers(from),
                    false => udp_headers(from),
                };
            // What is refused is counted by the server, or by the peer's tunnel.
            let (peer, link) = server.handle_datagram(now, from, datagram).ok()??;
            peers.handle_received(peer, link, bytes);
            Some(peer)
        });
        self.admit(now);
        more
    }

    /// Has strangers judged.
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
                // Why not is counted by the server.
                let _ = self.server.admit(now, pending);
            }
        }
    }

    /// Takes what the kernel has for peers. Says whether there may be more.
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

    /// Passes on what tunnels return: inner packets, and what has become known.
    fn deliver(&mut self, now: Time) -> Result<(), BondError> {
        let (peers, device, events) = (&mut self.peers, &mut self.device, &mut self.events);
        let mut result = Ok(());
        self.server.for_each_ready(|key, tunnel| {
            while let Some(packet) = tunnel.poll_inner() {
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
