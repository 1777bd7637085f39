//! The initiating end.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::LinkId;
use caps::Capability;

use super::inner_device::InnerDevice;
use super::link_sockets::LinkSockets;
use super::mss_clamp::clamp_mss;
use super::suspend::SuspendMonitor;
use super::thread::{
    Clock, CommandReceiver, ThreadHandle, entropy, preferred_cipher, spawn, time_until,
};
use super::{BondError, ClientStatus, LinkError, Policy, Stopped, Tun, snapshot};
use crate::proto::flow::FlowInfo;
use crate::proto::frame::Reason;
use crate::proto::handshake::{Ciphers, Identity, Options, Psk, PublicKey};
use crate::proto::pool::Packet;
use crate::proto::tunnel::{self, ClientSettings, FlowLinks, Tunnel, TunnelSettings};

/// The packet thread needs these to open links' sockets, which come and go: a device of theirs, a mark, larger buffers,
/// GRE.
const LINK_CAPABILITIES: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// Configuration of a client.
pub struct ClientConfig {
    /// The inner device.
    pub tun: Tun,
    /// The client's key pair.
    pub identity: Identity,
    /// The hub's public key.
    pub hub: PublicKey,
    /// Pre-shared key; the default is none.
    pub psk: Psk,
    /// Options for the hub.
    pub options: Options,
    /// Policy for inner packets.
    pub policy: Policy,
    /// True if data is to be sent in cleartext, as GRE, provided that the hub wants that too.
    pub gre: bool,
    /// Initial links.
    pub links: Vec<LinkSpec>,
    /// SO_MARK of the links' sockets.
    pub mark: Option<u32>,
    /// Receives events on the packet thread: it must not block.
    pub events: Box<dyn FnMut(ClientEvent) + Send>,
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("tun", &self.tun)
            .field("identity", &self.identity)
            .field("hub", &self.hub)
            .field("policy", &self.policy)
            .field("gre", &self.gre)
            .field("links", &self.links)
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}

/// A link to the hub.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Its id, which stays the same as long as device and hub address do.
    pub id: LinkId,
    /// Device that its packets leave by; any, if empty.
    pub device: String,
    /// Their source address; the kernel's choice, if unspecified.
    pub source: IpAddr,
    /// The hub's address, of the same family.
    pub hub: SocketAddr,
    /// Its cost: dearer links carry what cheaper ones cannot.
    pub tier: u8,
    /// Largest send rate; no limit if none.
    pub cap: Option<Rate>,
    /// Bytes left of its quota; no limit if none.
    pub quota: Option<Bytes>,
}

/// Event of a client.
#[derive(Debug)]
pub enum ClientEvent {
    /// Event of the tunnel.
    Tunnel(tunnel::Event),
    /// A link has no working socket. The client tries again every few seconds, and whenever links
    /// are set.
    LinkFailed {
        /// The link.
        id: LinkId,
        /// Its device.
        device: String,
        /// The error.
        error: LinkError,
    },
    /// A link has a working socket again.
    LinkRecovered {
        /// The link.
        id: LinkId,
    },
    /// The packet thread has failed.
    Failed(BondError),
}

/// A running client. It stops when this is dropped.
#[derive(Debug)]
pub struct ClientHandle {
    control: ThreadHandle<Command>,
}

/// Commands for the packet thread.
#[derive(Debug)]
enum Command {
    Links(Vec<LinkSpec>),
    Policy(Box<Policy>),
    Hub(PublicKey),
    Status(SyncSender<ClientStatus>),
    FlowLinks(Vec<[FlowInfo; 2]>, SyncSender<Vec<FlowLinks>>),
    Stop,
}

/// Starts a client on a thread of its own.
///
/// # Errors
/// See [`BondError`]. Links that cannot be used are reported by an event.
pub fn start(config: ClientConfig) -> Result<ClientHandle, BondError> {
    let clock = Clock::start();
    let now = clock.now();
    let client = ClientSettings {
        identity: config.identity,
        hub: config.hub,
        psk: config.psk,
        ciphers: Ciphers::preferring(preferred_cipher()),
        options: config.options,
        gre: config.gre,
        unix_micros: clock.unix_micros(),
    };
    let settings = TunnelSettings {
        policy: config.policy,
        ..TunnelSettings::default()
    };
    let mut client = Client {
        clock,
        tunnel: Tunnel::connect(now, client, settings, entropy()?),
        device: InnerDevice::new(config.tun),
        link_sockets: LinkSockets::new(config.mark, config.gre),
        events: config.events,
        suspend: SuspendMonitor::new(),
        datagram: Vec::with_capacity(2048),
    };
    let control = spawn("braid-bond", &LINK_CAPABILITIES, move |commands| {
        let events = &mut client.events;
        let tunnel = &mut client.tunnel;
        client.link_sockets.set(now, config.links, tunnel, events);
        if let Err(error) = client.run(&commands) {
            (client.events)(ClientEvent::Failed(error));
        }
    })?;
    Ok(ClientHandle { control })
}

impl ClientHandle {
    /// Replaces the links; unchanged ones are not interrupted.
    pub fn set_links(&self, links: Vec<LinkSpec>) {
        self.control.send(Command::Links(links));
    }

    /// Replaces the policy; the session continues.
    pub fn set_policy(&self, policy: Policy) {
        self.control.send(Command::Policy(Box::new(policy)));
    }

    /// Uses this key of the hub from now on; the session continues. The caller has stored it.
    pub fn set_hub(&self, key: PublicKey) {
        self.control.send(Command::Hub(key));
    }

    /// Current state.
    ///
    /// # Errors
    /// The client has stopped.
    pub fn status(&self) -> Result<ClientStatus, Stopped> {
        self.control.request(Command::Status)
    }

    /// The links of flows, each given by its packets as they are sent and as they are received. None if
    /// the client has stopped or does not answer in time.
    #[must_use]
    pub fn flow_links(
        &self,
        flows: Vec<[FlowInfo; 2]>,
        timeout: Duration,
    ) -> Option<Vec<FlowLinks>> {
        self.control
            .request_within(timeout, |answer| Command::FlowLinks(flows, answer))
    }

    /// Returns true if it runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.control.is_alive()
    }

    /// Tells the hub, and stops.
    pub fn stop(self) {}
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.control.stop(Command::Stop);
    }
}

/// State of the packet thread.
struct Client {
    clock: Clock,
    tunnel: Tunnel,
    device: InnerDevice<Packet>,
    link_sockets: LinkSockets,
    events: Box<dyn FnMut(ClientEvent) + Send>,
    suspend: SuspendMonitor,
    /// The datagram that is being sent.
    datagram: Vec<u8>,
}

impl Client {
    fn run(&mut self, commands: &CommandReceiver<Command>) -> Result<(), BondError> {
        let mut watched = Vec::new();
        let mut more_pending = false;
        loop {
            let ready = self.wait(commands, &mut watched, more_pending)?;
            if self.suspend.poll(ready.suspend) {
                self.tunnel.forget_keys(self.clock.now());
            }
            if ready.commands && self.handle_commands(commands) {
                return self.stop();
            }
            more_pending = self.receive(&ready)?;
            let now = self.clock.now();
            self.link_sockets
                .open(now, false, &mut self.tunnel, &mut self.events);
            if self.tunnel.poll_timeout().is_some_and(|at| now >= at) {
                self.tunnel.handle_timeout(now);
            }
            self.deliver(now)?;
            self.link_sockets.shares.rotate(now);
        }
    }

    /// Waits until there is work; returns at once if more work is pending.
    fn wait(
        &self,
        commands: &CommandReceiver<Command>,
        watched: &mut Vec<libc::pollfd>,
        more_pending: bool,
    ) -> Result<Ready, BondError> {
        watched.clear();
        watched.push(braid_device::watch(commands.fd()));
        watched.push(braid_device::watch(self.device.fd()));
        watched.extend(
            self.link_sockets
                .fds()
                .map(|(_, fd)| braid_device::watch(fd)),
        );
        let link_sockets = watched.len();
        watched.extend(self.suspend.fd().map(braid_device::watch));
        let timeouts = [self.tunnel.poll_timeout(), self.link_sockets.poll_timeout()];
        let next = timeouts.into_iter().flatten().min();
        let timeout = match more_pending {
            true => Some(Duration::ZERO),
            false => time_until(self.clock.now(), next),
        };
        braid_device::wait(watched, timeout).map_err(|source| {
            let step = "wait for packets";
            BondError::System { step, source }
        })?;
        let is_ready = |index: usize| watched[index].revents != 0;
        let links = self.link_sockets.fds().enumerate();
        let links = links.filter(|(place, _)| is_ready(place + 2));
        let links = links.fold(0, |bits, (_, (index, _))| bits | 1 << index);
        Ok(Ready {
            commands: is_ready(0),
            device: is_ready(1),
            links,
            suspend: watched[link_sockets..].iter().any(|fd| fd.revents != 0),
        })
    }

    /// Handles pending commands. Returns true if the client is to stop.
    fn handle_commands(&mut self, commands: &CommandReceiver<Command>) -> bool {
        commands.clear();
        while let Some(command) = commands.poll() {
            let now = self.clock.now();
            match command {
                Command::Links(links) => {
                    self.link_sockets
                        .set(now, links, &mut self.tunnel, &mut self.events);
                }
                Command::Policy(policy) => self.tunnel.set_settings(TunnelSettings {
                    policy: *policy,
                    ..TunnelSettings::default()
                }),
                Command::Hub(key) => self.tunnel.set_hub(now, key),
                // The caller may have given up.
                Command::Status(answer) => _ = answer.try_send(self.status(now)),
                Command::FlowLinks(flows, answer) => {
                    let links = flows.iter().map(|flow| {
                        let hashes = flow.map(|packet| packet.hash());
                        self.tunnel.flow_links(now, hashes).unwrap_or_default()
                    });
                    _ = answer.try_send(links.collect());
                }
                Command::Stop => return true,
            }
        }
        false
    }

    /// Handles incoming datagrams and inner packets. Returns true if there may be more.
    fn receive(&mut self, ready: &Ready) -> Result<bool, BondError> {
        let mut more = false;
        let mut links = ready.links;
        while links != 0 {
            let index = links.trailing_zeros() as usize;
            links &= links - 1;
            let now = self.clock.now();
            more |= self.link_sockets.receive(now, index, &mut self.tunnel);
        }
        if ready.device {
            let now = self.clock.now();
            let tunnel = &mut self.tunnel;
            more |= self.device.read(|packet| {
                clamp_mss(packet, || tunnel.max_whole_packet());
                tunnel.handle_inner(now, packet);
            })?;
        }
        Ok(more)
    }

    /// Delivers the tunnel's inner packets, datagrams and events.
    fn deliver(&mut self, now: Time) -> Result<(), BondError> {
        while let Some(packet) = self.tunnel.poll_inner(now) {
            self.device.write(packet)?;
        }
        self.device.flush()?;
        while let Some(to) = self.tunnel.poll_transmit(now, &mut self.datagram) {
            self.link_sockets.send(to.link, to.to, &self.datagram);
        }
        self.link_sockets
            .flush(now, &mut self.tunnel, &mut self.events);
        while let Some(event) = self.tunnel.poll_event() {
            (self.events)(ClientEvent::Tunnel(event));
        }
        Ok(())
    }

    fn status(&self, now: Time) -> ClientStatus {
        let mut links = snapshot::links(now, &self.tunnel, &self.link_sockets.shares);
        self.link_sockets.fill(&mut links);
        ClientStatus {
            session: snapshot::session(now, &self.tunnel),
            links,
            flow: snapshot::flow(&self.tunnel),
            tun: self.device.status(),
            policy: self.tunnel.policy_status(),
        }
    }

    fn stop(&mut self) -> Result<(), BondError> {
        self.tunnel.close(Reason::Stopped);
        self.deliver(self.clock.now())
    }
}

/// Ready descriptors.
struct Ready {
    commands: bool,
    device: bool,
    /// Links, one bit each.
    links: u32,
    suspend: bool,
}
