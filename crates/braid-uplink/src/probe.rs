//! Sends probes, each bound to its uplink, and reports what came of them.
//!
//! Every probe is a task with a socket of its own that ends with it: bound to the uplink's device
//! and its address, so that it leaves there whatever routes and rules say, and connected to its
//! target, so that it hears nobody else. What an answer's bytes say is decided by pure functions
//! ([`echo::is_reply`], [`dns::judge`], [`http::judge`]).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::Uplink;
use crate::liveness::{Outcome, ProbeAnswer, ProbeOrder, Target};

pub mod dns;
pub mod echo;
pub mod http;
mod names;
mod socket;
mod tcp;

use names::Names;

/// Most probes under way at once, over all uplinks: each has a socket.
pub const MAX_PROBES: usize = 1024;

/// Sends probes and listens for their answers. Dropping it ends those under way.
#[derive(Debug)]
pub struct Prober {
    answers: UnboundedSender<ProbeAnswer>,
    tasks: JoinSet<()>,
    names: Names,
    /// Keys what nobody is to guess: whoever answers has seen the question.
    secrets: RandomState,
    sent: u64,
}

/// The uplink's end of a probe.
#[derive(Clone, Debug)]
struct Way {
    device: String,
    source: IpAddr,
}

/// Why there is no good answer.
#[derive(Debug)]
enum Failure {
    /// Answered in the target's place, or not as it should.
    Wrong(String),
    /// Undeliverable, by a router's word.
    Silent,
    /// The machine itself could not send it.
    NotSent(io::Error),
}

impl Failure {
    /// A socket that is to be heard of after it was sent from.
    fn heard(_: io::Error) -> Failure {
        Failure::Silent
    }
}

impl Prober {
    /// Reports to this channel, in the network namespace of the calling thread. Needs a tokio
    /// runtime with I/O and time.
    #[must_use]
    pub fn new(answers: UnboundedSender<ProbeAnswer>) -> Prober {
        Prober {
            answers,
            tasks: JoinSet::new(),
            names: Names::default(),
            secrets: RandomState::new(),
            sent: 0,
        }
    }

    /// Sends one probe out of this uplink. Never waits; one answer comes for each order, at the
    /// latest when the order's time is over.
    pub fn send(&mut self, order: ProbeOrder, uplink: &Uplink) {
        while self.tasks.try_join_next().is_some() {}
        self.sent = self.sent.wrapping_add(1);
        let answers = self.answers.clone();
        let (id, of) = (order.id, order.uplink);
        let tell = move |outcome| {
            // Whoever hung up needs no answer.
            let _ = answers.send(ProbeAnswer {
                uplink: of,
                id,
                outcome,
            });
        };
        if self.tasks.len() >= MAX_PROBES {
            let why = format!("{MAX_PROBES} probes are under way");
            return tell(Outcome::NotSent { why });
        }
        let probe = Probe {
            ways: Ways::of(uplink),
            order,
            secret: self.secrets.hash_one(self.sent),
            names: self.names.clone(),
        };
        self.tasks.spawn(async move { tell(probe.run().await) });
    }
}

/// The exits of an uplink.
#[derive(Debug)]
struct Ways {
    v4: Option<Way>,
    v6: Option<Way>,
}

impl Ways {
    fn of(uplink: &Uplink) -> Ways {
        let way = |source: IpAddr| Way {
            device: uplink.device.clone(),
            source,
        };
        Ways {
            v4: uplink.v4.as_ref().map(|exit| way(exit.address.into())),
            v6: uplink.v6.as_ref().map(|exit| way(exit.address.into())),
        }
    }

    fn to(&self, dest: IpAddr) -> Result<&Way, Failure> {
        let (way, family) = match dest {
            IpAddr::V4(_) => (&self.v4, "IPv4"),
            IpAddr::V6(_) => (&self.v6, "IPv6"),
        };
        way.as_ref().ok_or_else(|| {
            let why = format!("the uplink has no {family}");
            Failure::NotSent(io::Error::other(why))
        })
    }
}

/// One probe under way.
struct Probe {
    ways: Ways,
    order: ProbeOrder,
    secret: u64,
    names: Names,
}

impl Probe {
    async fn run(self) -> Outcome {
        match timeout(self.order.timeout, self.ask()).await {
            Ok((_, Err(Failure::NotSent(error)))) => Outcome::NotSent {
                why: error.to_string(),
            },
            Err(_) | Ok((_, Err(Failure::Silent))) => Outcome::Silent,
            Ok((rtt, Err(Failure::Wrong(what)))) => Outcome::Wrong { rtt, what },
            Ok((rtt, Ok(()))) => Outcome::Answered { rtt },
        }
    }

    /// Looking up a name is no part of the round trip.
    async fn ask(&self) -> (Duration, Result<(), Failure>) {
        let mut began = Instant::now();
        let outcome = match &*self.order.target {
            Target::Icmp(dest) => match self.ways.to(*dest) {
                Ok(way) => echo::ask(way, *dest, self.secret).await,
                Err(failure) => Err(failure),
            },
            Target::Tcp(at) => match self.ways.to(at.ip()) {
                Ok(way) => tcp::ask(way, *at).await,
                Err(failure) => Err(failure),
            },
            Target::Dns { server, name } => match self.ways.to(server.ip()) {
                Ok(way) => dns::ask(way, *server, name, self.secret as u16).await,
                Err(failure) => Err(failure),
            },
            Target::Http {
                host,
                port,
                path,
                expect,
            } => match self.resolve(host, *port).await {
                Ok((way, at)) => {
                    began = Instant::now();
                    http::ask(way, at, host, path, expect).await
                }
                Err(failure) => Err(failure),
            },
        };
        (began.elapsed(), outcome)
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<(&Way, SocketAddr), Failure> {
        let addresses = self.names.addresses(host).await;
        let mut addresses = addresses.map_err(Failure::NotSent)?.into_iter();
        let way = |dest| Some((self.ways.to(dest).ok()?, SocketAddr::new(dest, port)));
        addresses.find_map(way).ok_or_else(|| {
            let why = format!("{host} has no address of the uplink's families");
            Failure::NotSent(io::Error::other(why))
        })
    }
}
