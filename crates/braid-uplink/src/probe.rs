//! Sends probes, each bound to its uplink, and reports their results.
//!
//! Every probe is a task with its own socket, which ends with it. The socket is bound to the uplink's device
//! and address, so that the probe leaves there whatever routes and rules say, and connected to its target, so
//! that it receives from nobody else. Pure functions decide about the bytes of an answer ([`echo::is_reply`],
//! [`dns::judge`], [`http::judge`]).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::Uplink;
use crate::liveness::{ProbeOutcome, ProbeRequest, ProbeResult, Target};

pub mod dns;
pub mod echo;
pub mod http;
mod resolver;
mod socket;
mod tcp;

use resolver::Resolver;

/// Most probes in flight, over all uplinks: each has a socket.
pub const MAX_PROBES: usize = 1024;

/// Sends probes and receives their answers. Dropping it ends those in flight.
#[derive(Debug)]
pub struct Prober {
    answers: UnboundedSender<ProbeResult>,
    tasks: JoinSet<()>,
    resolver: Resolver,
    /// Key of the unpredictable part of each probe: a valid answer proves that its sender saw the request.
    secrets: RandomState,
    sent: u64,
}

/// The uplink's end of a probe, or of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Egress {
    device: String,
    source: IpAddr,
}

impl Egress {
    pub fn new(device: &str, source: IpAddr) -> Egress {
        let device = device.to_owned();
        Egress { device, source }
    }

    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Connects over TCP, and receives no more bytes at once than `window` says; the connection is reset when it is dropped.
/// The inner result is the outcome on the network, the
/// outer one that on this machine.
pub(crate) async fn connect(
    egress: &Egress,
    dest: SocketAddr,
    window: Option<u32>,
) -> io::Result<io::Result<TcpStream>> {
    match tcp::connect(egress, dest, window).await {
        Ok(outcome) => Ok(outcome),
        Err(ProbeError::NotSent(error)) => Err(error),
        Err(ProbeError::Silent) => Ok(Err(io::ErrorKind::HostUnreachable.into())),
        Err(ProbeError::Wrong(why)) => Ok(Err(io::Error::other(why))),
    }
}

/// Opens a socket for ICMP messages to a target.
pub(crate) fn open_icmp(egress: &Egress, dest: IpAddr) -> io::Result<Socket> {
    let protocol = match dest {
        IpAddr::V4(_) => Protocol::ICMPV4,
        IpAddr::V6(_) => Protocol::ICMPV6,
    };
    socket::open(egress, SocketAddr::new(dest, 0), Type::RAW, Some(protocol)).map_err(|error| {
        match error {
            ProbeError::NotSent(error) => error,
            ProbeError::Silent => io::ErrorKind::HostUnreachable.into(),
            ProbeError::Wrong(why) => io::Error::other(why),
        }
    })
}

/// The reason that there is no good answer.
#[derive(Debug)]
enum ProbeError {
    /// Not the answer that the target would give.
    Wrong(String),
    /// A router reported it as undeliverable.
    Silent,
    /// This machine could not send it.
    NotSent(io::Error),
}

impl ProbeError {
    /// Converts a socket error that came after sending.
    fn heard(_: io::Error) -> ProbeError {
        ProbeError::Silent
    }
}

impl Prober {
    /// Creates a prober that reports to this channel, in the network namespace of the calling thread. Needs a
    /// tokio runtime with I/O and time.
    #[must_use]
    pub fn new(answers: UnboundedSender<ProbeResult>) -> Prober {
        Prober {
            answers,
            tasks: JoinSet::new(),
            resolver: Resolver::default(),
            secrets: RandomState::new(),
            sent: 0,
        }
    }

    /// Sends one probe out of this uplink. Never waits; one result follows each request, at the latest when the
    /// request's time is over.
    pub fn send(&mut self, request: ProbeRequest, uplink: &Uplink) {
        while self.tasks.try_join_next().is_some() {}
        self.sent = self.sent.wrapping_add(1);
        let answers = self.answers.clone();
        let (id, of) = (request.id, request.uplink);
        let tell = move |outcome| {
            // A closed channel needs no result.
            let _ = answers.send(ProbeResult {
                uplink: of,
                id,
                outcome,
            });
        };
        if self.tasks.len() >= MAX_PROBES {
            let why = format!("{MAX_PROBES} probes are under way");
            return tell(ProbeOutcome::NotSent { why });
        }
        let probe = Probe {
            egresses: Egresses::of(uplink),
            request,
            secret: self.secrets.hash_one(self.sent),
            resolver: self.resolver.clone(),
        };
        self.tasks.spawn(async move { tell(probe.run().await) });
    }
}

/// The egresses of an uplink, one for each family.
#[derive(Debug)]
struct Egresses {
    v4: Option<Egress>,
    v6: Option<Egress>,
}

impl Egresses {
    fn of(uplink: &Uplink) -> Egresses {
        let egress = |source: IpAddr| Egress::new(&uplink.device, source);
        Egresses {
            v4: uplink
                .v4
                .as_ref()
                .map(|next_hop| egress(next_hop.address.into())),
            v6: uplink
                .v6
                .as_ref()
                .map(|next_hop| egress(next_hop.address.into())),
        }
    }

    fn to(&self, dest: IpAddr) -> Result<&Egress, ProbeError> {
        let (egress, family) = match dest {
            IpAddr::V4(_) => (&self.v4, "IPv4"),
            IpAddr::V6(_) => (&self.v6, "IPv6"),
        };
        egress.as_ref().ok_or_else(|| {
            let why = format!("the uplink has no {family}");
            ProbeError::NotSent(io::Error::other(why))
        })
    }
}

/// One probe in flight.
struct Probe {
    egresses: Egresses,
    request: ProbeRequest,
    secret: u64,
    resolver: Resolver,
}

impl Probe {
    async fn run(self) -> ProbeOutcome {
        match timeout(self.request.timeout, self.ask()).await {
            Ok((_, Err(ProbeError::NotSent(error)))) => ProbeOutcome::NotSent {
                why: error.to_string(),
            },
            Err(_) | Ok((_, Err(ProbeError::Silent))) => ProbeOutcome::Silent,
            Ok((rtt, Err(ProbeError::Wrong(what)))) => ProbeOutcome::Wrong { rtt, what },
            Ok((rtt, Ok(()))) => ProbeOutcome::Answered { rtt },
        }
    }

    /// Looking up a name is no part of the round trip.
    async fn ask(&self) -> (Duration, Result<(), ProbeError>) {
        let mut began = Instant::now();
        let outcome = match &*self.request.target {
            Target::Icmp(dest) => match self.egresses.to(*dest) {
                Ok(egress) => echo::ask(egress, *dest, self.secret).await,
                Err(error) => Err(error),
            },
            Target::Tcp(at) => match self.egresses.to(at.ip()) {
                Ok(egress) => tcp::ask(egress, *at).await,
                Err(error) => Err(error),
            },
            Target::Dns { server, name } => match self.egresses.to(server.ip()) {
                Ok(egress) => dns::ask(egress, *server, name, self.secret as u16).await,
                Err(error) => Err(error),
            },
            Target::Http {
                host,
                port,
                path,
                expect,
            } => match self.resolve(host, *port).await {
                Ok((egress, at)) => {
                    began = Instant::now();
                    http::ask(egress, at, host, path, expect).await
                }
                Err(error) => Err(error),
            },
        };
        (began.elapsed(), outcome)
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<(&Egress, SocketAddr), ProbeError> {
        let addresses = self.resolver.addresses(host).await;
        let mut addresses = addresses.map_err(ProbeError::NotSent)?.into_iter();
        let egress = |dest| Some((self.egresses.to(dest).ok()?, SocketAddr::new(dest, port)));
        addresses.find_map(egress).ok_or_else(|| {
            let why = format!("{host} has no address of the uplink's families");
            ProbeError::NotSent(io::Error::other(why))
        })
    }
}
