//! One connection of a transfer: its requests, and its counters.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_device::{TcpProgress, tcp_progress};
use http_body_util::{BodyExt, Either, Empty};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HOST, LOCATION, USER_AGENT};
use hyper::rt::{Read, Write};
use hyper::{Method, Request, Response, body};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{TransferDirection, TransferEnd, TransferError, TransferUrl};
use crate::probe::http::driven;

/// Contents below which a line is not filled: they are over within slow start.
const MIN_CONTENTS: u64 = 500_000;
/// Bytes of one upload: servers refuse large ones, and a small one is over within slow start.
const UPLOAD_BYTES: u64 = 25_000_000;
/// Bytes handed to the connection at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of a TCP header, and of the timestamps in it with their padding.
const TCP_HEADER: u64 = 20;
const TIMESTAMPS: u64 = 12;
/// Segments after which their mean length is known: of fewer, a gap is too large a part.
const MIN_SEGMENTS: u32 = 200;

/// The requests of a connection, one after the other.
#[derive(Clone)]
pub(super) struct Exchange {
    url: TransferUrl,
    direction: TransferDirection,
    tls: Option<TlsConnector>,
    chunk: Bytes,
}

impl Exchange {
    pub fn new(url: TransferUrl, direction: TransferDirection) -> Result<Exchange, TransferError> {
        let tls = match url.tls {
            true => Some(connector(&url)?),
            false => None,
        };
        Ok(Exchange {
            url,
            direction,
            tls,
            chunk: incompressible(),
        })
    }

    pub fn direction(&self) -> TransferDirection {
        self.direction
    }

    /// Transfers until the connection is over.
    pub async fn run(self, stream: TcpStream) -> TransferEnd {
        let outcome = match &self.tls {
            None => self.converse(TokioIo::new(stream)).await,
            Some(tls) => match encrypted(tls, &self.url, stream).await {
                Ok(stream) => self.converse(TokioIo::new(stream)).await,
                Err(failure) => Err(failure),
            },
        };
        match outcome {
            Ok(()) => TransferEnd::Closed,
            Err(failure) => TransferEnd::Failed(failure),
        }
    }

    /// Sends requests until the server closes the connection after an answer.
    async fn converse<S: Read + Write + Unpin>(&self, stream: S) -> Result<(), TransferError> {
        let (mut sender, connection) = http1::handshake(stream).await.map_err(broken)?;
        let talk = async {
            loop {
                let answer = sender.send_request(self.request()?).await.map_err(broken)?;
                self.receive(answer).await?;
                if sender.ready().await.is_err() {
                    return Ok(());
                }
            }
        };
        driven(connection, talk).await
    }

    fn request(&self) -> Result<Request<Either<Empty<Bytes>, Upload>>, TransferError> {
        let (method, body) = match self.direction {
            TransferDirection::Down => (Method::GET, Either::Left(Empty::new())),
            TransferDirection::Up => {
                let upload = Upload {
                    left: UPLOAD_BYTES,
                    chunk: self.chunk.clone(),
                };
                (Method::POST, Either::Right(upload))
            }
        };
        Request::builder()
            .method(method)
            .uri(&self.url.path)
            .header(HOST, &self.url.authority)
            .header(USER_AGENT, concat!("braid/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*")
            .header(ACCEPT_ENCODING, "identity")
            .body(body)
            .map_err(|error| TransferError::Broken(error.to_string()))
    }

    async fn receive(&self, answer: Response<body::Incoming>) -> Result<(), TransferError> {
        let status = answer.status();
        if !status.is_success() {
            let location = answer.headers().get(LOCATION);
            let location = location.and_then(|text| text.to_str().ok());
            return Err(TransferError::Status {
                status: status.as_u16(),
                location: location.map(str::to_owned),
            });
        }
        let mut body = answer.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(broken)?;
            bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        match self.direction {
            TransferDirection::Down if bytes < MIN_CONTENTS => Err(TransferError::Small { bytes }),
            _ => Ok(()),
        }
    }
}

fn broken(error: hyper::Error) -> TransferError {
    TransferError::Broken(error.to_string())
}

/// Begins TLS on a connection to the URL's host.
pub(crate) async fn encrypted(
    tls: &TlsConnector,
    url: &TransferUrl,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, TransferError> {
    let failed = |source| TransferError::Tls {
        host: url.host.clone(),
        source,
    };
    let name = ServerName::try_from(url.host.clone());
    let name = name.map_err(|error| failed(io::Error::other(error)))?;
    tls.connect(name, stream).await.map_err(failed)
}

/// Returns a connector that trusts the machine's own certificate authorities.
pub(crate) fn connector(url: &TransferUrl) -> Result<TlsConnector, TransferError> {
    let failed = |source| TransferError::Tls {
        host: url.host.clone(),
        source,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(io::Error::other(error)))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns bytes that a line cannot compress: xorshift64 (Marsaglia, 2003).
pub(crate) fn incompressible() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(CHUNK_BYTES / 8).flatten().collect()
}

/// The body of an upload.
struct Upload {
    left: u64,
    chunk: Bytes,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let length = self.left.min(self.chunk.len() as u64);
        self.left -= length;
        // At most the length of a chunk.
        let chunk = self.chunk.slice(..length as usize);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Counters of a connection. They outlive its exchange, as what it carried was carried.
pub(crate) struct Counters {
    socket: OwnedFd,
    ip_header: u64,
    latest: TcpProgress,
    /// Length of the data in a segment: its mean, and what it is taken for.
    mean: f64,
    payload: f64,
    carried: f64,
    /// Round trip that data has shown, if some was carried between the last two readings.
    round_trip: Option<Duration>,
}

impl Counters {
    pub fn of(stream: &TcpStream, address: SocketAddr) -> Result<Counters, TransferError> {
        let socket = stream.as_fd().try_clone_to_owned();
        Ok(Counters {
            socket: socket.map_err(TransferError::Counters)?,
            ip_header: if address.is_ipv4() { 20 } else { 40 },
            latest: TcpProgress::default(),
            mean: 0.0,
            payload: 0.0,
            carried: 0.0,
            round_trip: None,
        })
    }

    /// Reads the counters, and returns the bytes that the line has carried in a direction, headers included.
    pub fn carried(&mut self, direction: TransferDirection) -> io::Result<u64> {
        let now = tcp_progress(&self.socket)?;
        let before = std::mem::replace(&mut self.latest, now);
        let counted = |at: &TcpProgress| match direction {
            TransferDirection::Down => (at.received_bytes, at.received_segments, at.received_mss),
            TransferDirection::Up => (at.acked_bytes, at.delivered_segments, at.sent_mss),
        };
        let ((bytes, segments, mss), (_, earlier, _)) = (counted(&now), counted(&before));
        // Bytes are counted in order, segments as they come. So the mean is too small while there is a gap, which in
        // the beginning is most of the time; nearly all segments of a transfer are full.
        self.mean = self.mean.max(bytes as f64 / f64::from(segments.max(1)));
        self.payload = match segments < MIN_SEGMENTS {
            true => mss.into(),
            false => self.mean,
        };
        let more = f64::from(segments.saturating_sub(earlier));
        self.carried += more * (self.payload + self.headers(&now) as f64);
        self.round_trip = match direction {
            _ if more == 0.0 => None,
            TransferDirection::Down => now.received_rtt,
            TransferDirection::Up => now.sent_rtt,
        };
        Ok(self.carried as u64)
    }

    /// Returns the round trip that data has shown, if some was carried between the last two readings.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns the bytes of both directions, headers included, as far as the counters were read.
    pub fn spent(&self) -> u64 {
        let at = &self.latest;
        let segments = u64::from(at.sent_segments) + u64::from(at.all_received_segments);
        // Repeated data has a part in what was carried.
        let received = (f64::from(at.received_segments) * self.payload) as u64;
        let received = received.max(at.received_bytes);
        segments * self.headers(at) + at.sent_bytes + received
    }

    fn headers(&self, at: &TcpProgress) -> u64 {
        self.ip_header + TCP_HEADER + if at.has_timestamps { TIMESTAMPS } else { 0 }
    }
}
