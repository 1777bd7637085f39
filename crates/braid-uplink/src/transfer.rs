//! Measures the capacity of an uplink by a transfer from or to a URL.
//!
//! A few connections, bound to the uplink's device and address as probes are, download the URL's contents or upload
//! data to it, until [`TransferCapacity`], which decides everything, knows the line. The sockets' own counters say how
//! much the line has carried: segments out of order count when they arrive, not when the gap before them is filled.

pub(crate) mod connection;
mod url;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use braid_core::capacity::{
    ActiveEstimate, FIRST_CONNECTIONS, TransferCapacity, TransferSample, TransferStep,
};
use braid_core::{Bytes, Time};
use futures_util::future::{LocalBoxFuture, try_join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use self::connection::{Counters, Exchange};
pub use self::url::TransferUrl;
use crate::probe::{Egress, connect};

/// Interval between two readings of the counters.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Time for a connection to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Direction of a transfer, as seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// Download.
    Down,
    /// Upload.
    Up,
}

/// The uplink of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferEgress {
    /// Its device.
    pub device: String,
    /// Its IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

/// State of a transfer under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferProgress {
    /// The estimate so far; `None` before the first sample.
    pub estimate: Option<ActiveEstimate>,
    /// Bytes sent and received for it so far, headers of IP included.
    pub spent: Bytes,
    /// Time since its start.
    pub took: Duration,
    /// Connections.
    pub connections: usize,
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferResult {
    /// The estimate.
    pub estimate: ActiveEstimate,
    /// Bytes sent and received for it, headers of IP included.
    pub spent: Bytes,
    /// Its duration, from the first connection on.
    pub took: Duration,
    /// Connections at its end.
    pub connections: usize,
}

/// Reasons why a transfer shows nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The URL cannot be used.
    #[error("{url:?} is no URL for a transfer: {why}")]
    Url {
        /// The URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The URL's host has no address of the uplink's families.
    #[error("{host} has no address that the uplink can reach")]
    NoAddress {
        /// The host.
        host: String,
    },
    /// The URL's host cannot be looked up.
    #[error("cannot look up {host}: {source}")]
    Lookup {
        /// The host.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// A socket cannot be bound to the uplink.
    #[error("cannot send from {device}: {source}")]
    Bind {
        /// The uplink's device.
        device: String,
        /// The system's answer.
        source: io::Error,
    },
    /// No connection is established.
    #[error("cannot connect to {address} over {device}: {source}")]
    Connect {
        /// The server's address.
        address: SocketAddr,
        /// The uplink's device.
        device: String,
        /// The reason.
        source: io::Error,
    },
    /// TLS fails.
    #[error("TLS with {host}: {source}")]
    Tls {
        /// The host.
        host: String,
        /// The reason.
        source: io::Error,
    },
    /// The server answers something else.
    #[error("the server answers with status {status}{}", to(location.as_deref()))]
    Status {
        /// Status of HTTP.
        status: u16,
        /// Target of a redirect.
        location: Option<String>,
    },
    /// The contents are too small for a measurement.
    #[error("the URL's contents are {bytes} bytes, too small to fill a line")]
    Small {
        /// Their length.
        bytes: u64,
    },
    /// The connection breaks.
    #[error("the transfer broke off: {0}")]
    Broken(String),
    /// Nothing is carried.
    #[error("the server is connected, and nothing was carried")]
    Silent,
    /// Too few packets of trains, or too unlike ones, arrive.
    #[error("too few packets came back to tell a rate")]
    NoTrains,
    /// The kernel does not count.
    #[error("cannot read the counters of a connection: {0}")]
    Counters(io::Error),
}

fn to(location: Option<&str>) -> String {
    location.map_or_else(String::new, |location| {
        format!(", a redirect to {location}")
    })
}

/// Measures one direction of an uplink. `other_bytes` returns the bytes of the machine's other traffic on the uplink in
/// that direction since any time; `None` if that is not known at the moment. `report` is called for each reading.
///
/// # Errors
/// [`TransferError`] says why nothing was measured.
pub async fn transfer(
    egress: &TransferEgress,
    url: &TransferUrl,
    direction: TransferDirection,
    other_bytes: impl AsyncFnMut() -> Option<u64>,
    report: impl FnMut(&TransferProgress),
) -> Result<TransferResult, TransferError> {
    let (egress, address) = egress.resolve(url).await?;
    let exchange = Exchange::new(url.clone(), direction)?;
    let first = (0..FIRST_CONNECTIONS).map(|_| async {
        let began = Instant::now();
        let stream = establish(&egress, address, None).await?;
        Ok::<_, TransferError>((stream, began.elapsed()))
    });
    let (established, handshakes): (Vec<_>, Vec<_>) =
        try_join_all(first).await?.into_iter().unzip();
    let mut running = Running {
        egress,
        address,
        exchange,
        began: Instant::now(),
        established,
        counters: Vec::new(),
        exchanges: FuturesUnordered::new(),
    };
    running.add()?;
    running.follow(&handshakes, other_bytes, report).await
}

impl TransferEgress {
    pub(crate) async fn resolve(
        &self,
        url: &TransferUrl,
    ) -> Result<(Egress, SocketAddr), TransferError> {
        let host = || url.host.clone();
        let found = lookup_host((url.host.as_str(), url.port)).await;
        let mut found = found.map_err(|source| TransferError::Lookup {
            host: host(),
            source,
        })?;
        let usable = found.find_map(|address| {
            let source: Option<IpAddr> = match address {
                SocketAddr::V4(_) => self.v4.map(Into::into),
                SocketAddr::V6(_) => self.v6.map(Into::into),
            };
            Some((Egress::new(&self.device, source?), address))
        });
        usable.ok_or_else(|| TransferError::NoAddress { host: host() })
    }
}

pub(crate) async fn establish(
    egress: &Egress,
    address: SocketAddr,
    window: Option<u32>,
) -> Result<TcpStream, TransferError> {
    let device = || egress.device().to_owned();
    let refused = |source| TransferError::Connect {
        address,
        device: device(),
        source,
    };
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 s");
    match timeout(CONNECT_TIMEOUT, connect(egress, address, window)).await {
        Err(_) => Err(refused(late())),
        Ok(Err(source)) => Err(TransferError::Bind {
            device: device(),
            source,
        }),
        Ok(Ok(outcome)) => outcome.map_err(refused),
    }
}

/// A transfer under way.
struct Running {
    egress: Egress,
    address: SocketAddr,
    exchange: Exchange,
    began: Instant,
    /// Connections that carry nothing yet.
    established: Vec<TcpStream>,
    counters: Vec<Counters>,
    /// One for each connection; they end with an error alone.
    exchanges: FuturesUnordered<LocalBoxFuture<'static, TransferEnd>>,
}

/// End of a connection's exchange.
enum TransferEnd {
    /// The connection that was to be established is there.
    Established(TcpStream),
    /// The server has closed it after a whole answer: another one is wanted.
    Closed,
    /// It failed.
    Failed(TransferError),
}

impl Running {
    fn begin(&mut self, stream: TcpStream) -> Result<(), TransferError> {
        self.counters.push(Counters::of(&stream, self.address)?);
        self.exchanges
            .push(Box::pin(self.exchange.clone().run(stream)));
        Ok(())
    }

    /// Begins with one more connection: one that is established, or a new one.
    fn add(&mut self) -> Result<(), TransferError> {
        if let Some(stream) = self.established.pop() {
            return self.begin(stream);
        }
        let (egress, address) = (self.egress.clone(), self.address);
        self.exchanges.push(Box::pin(async move {
            match establish(&egress, address, None).await {
                Ok(stream) => TransferEnd::Established(stream),
                Err(failure) => TransferEnd::Failed(failure),
            }
        }));
        Ok(())
    }

    async fn follow(
        mut self,
        handshakes: &[Duration],
        mut other_bytes: impl AsyncFnMut() -> Option<u64>,
        mut report: impl FnMut(&TransferProgress),
    ) -> Result<TransferResult, TransferError> {
        let mut capacity = TransferCapacity::new(Time::ZERO, handshakes);
        let mut others = other_bytes().await;
        let (mut carried, mut read_at) = (0, Time::ZERO);
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(end) = self.exchanges.next() => {
                    self.handle_end(end)?;
                    continue;
                }
                _ = polls.tick() => {}
            }
            let now = Time::ZERO + self.began.elapsed();
            let total = self.carried()?;
            let latest = other_bytes().await;
            let beside = match (others, latest) {
                (Some(before), Some(after)) => after.saturating_sub(before),
                _ => 0,
            };
            others = latest.or(others);
            let own = total - std::mem::replace(&mut carried, total);
            let step = capacity.note(&TransferSample {
                end: now,
                span: now.since(std::mem::replace(&mut read_at, now)),
                // Before the transfer's own first bytes, the others' are no sign of a full line.
                carried: Bytes::new(if total == 0 { 0 } else { own + beside }),
                round_trip: self.round_trip(),
            });
            let progress = TransferProgress {
                estimate: capacity.estimate(),
                spent: self.spent(),
                took: self.began.elapsed(),
                connections: self.exchanges.len(),
            };
            report(&progress);
            match step {
                TransferStep::Continue => {}
                TransferStep::Connections(most) => {
                    (self.exchanges.len()..most).try_for_each(|_| self.add())?;
                }
                TransferStep::Done => {
                    let estimate = progress.estimate.ok_or(TransferError::Silent)?;
                    return Ok(TransferResult {
                        estimate,
                        spent: progress.spent,
                        took: progress.took,
                        connections: progress.connections,
                    });
                }
            }
        }
    }

    fn handle_end(&mut self, end: TransferEnd) -> Result<(), TransferError> {
        match end {
            TransferEnd::Established(stream) => self.begin(stream),
            TransferEnd::Closed => self.add(),
            // A server may limit the connections of a client.
            TransferEnd::Failed(failure) if self.exchanges.is_empty() => Err(failure),
            TransferEnd::Failed(failure) => {
                tracing::debug!(%failure, "a connection of the transfer failed");
                Ok(())
            }
        }
    }

    /// Returns the bytes that the line has carried in the direction of the transfer.
    fn carried(&mut self) -> Result<u64, TransferError> {
        let direction = self.exchange.direction();
        let mut total = 0;
        for counters in &mut self.counters {
            total += counters
                .carried(direction)
                .map_err(TransferError::Counters)?;
        }
        Ok(total)
    }

    /// Returns the round trip in the middle of those that connections have shown by what they carried at last.
    fn round_trip(&self) -> Option<Duration> {
        let shown = self.counters.iter().filter_map(Counters::round_trip);
        let mut shown: Vec<Duration> = shown.collect();
        shown.sort_unstable();
        shown.get(shown.len() / 2).copied()
    }

    fn spent(&self) -> Bytes {
        Bytes::new(self.counters.iter().map(Counters::spent).sum())
    }
}
