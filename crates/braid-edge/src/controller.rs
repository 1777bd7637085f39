//! Client of the controller's API: HTTP/1.1 over its Unix socket or a TCP address.
//!
//! Each request has a connection of its own. The edge reports its counters by POST and long-polls for
//! its next table: the controller responds once the table differs from the edge's, so a new one
//! arrives within milliseconds.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::http::response::Parts;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::Error;
use crate::key::{self, Key};
use crate::pair_prober::PathStates;
use crate::table::{Table, TableError};

/// The longest time for which the controller holds a request while there is nothing new.
pub const LONG_POLL_TIME: Duration = Duration::from_secs(10);
/// Limit for connecting, and for a response beyond [`LONG_POLL_TIME`].
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a response: 256 targets and 16,384 hosts are 2 MB.
const MAX_RESPONSE_BYTES: usize = 8 << 20;

/// Address of the controller's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket on this machine.
    Unix(PathBuf),
    /// `HOST:PORT` and the key that authenticates both sides.
    Http(String, Option<Key>),
}

impl Endpoint {
    /// Adds the key.
    ///
    /// # Errors
    /// A Unix socket has a key, or a TCP address, where anybody may answer, has none.
    pub fn with_key(self, key: Option<Key>) -> Result<Endpoint, Error> {
        match (self, key) {
            (Endpoint::Http(host, _), Some(key)) => Ok(Endpoint::Http(host, Some(key))),
            (Endpoint::Http(..), None) => Err(Error::NoKey),
            (Endpoint::Unix(_), Some(_)) => Err(Error::KeyForSocket),
            (endpoint @ Endpoint::Unix(_), None) => Ok(endpoint),
        }
    }
}

impl Endpoint {
    /// Returns true if both are one address, however it is written. Names are not looked up.
    pub(crate) fn is_same(&self, other: &Endpoint) -> bool {
        match (self, other) {
            // Component by component: a doubled slash is one.
            (Endpoint::Unix(one), Endpoint::Unix(other)) => one.components().eq(other.components()),
            (Endpoint::Http(one, _), Endpoint::Http(other, _)) => {
                let address = |text: &str| text.parse::<SocketAddr>().ok();
                match (address(one), address(other)) {
                    (Some(one), Some(other)) => one == other,
                    _ => one.eq_ignore_ascii_case(other),
                }
            }
            _ => false,
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint, Error> {
        let wrong = || Error::Endpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Endpoint::Unix(path.into())),
                false => Err(wrong()),
            };
        }
        let host = text.strip_prefix("http://").ok_or_else(wrong)?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let port = host
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(port) if port > 0 && !host.contains('/') => {
                Ok(Endpoint::Http(host.to_owned(), None))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Http(host, _) => write!(f, "http://{host}"),
        }
    }
}

/// Reason why no table was fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The connection failed.
    #[error(
        "the controller at {endpoint} does not answer: {source} (see whether braid sdn fabric runs)"
    )]
    Unreachable {
        /// The controller's address.
        endpoint: Endpoint,
        /// The kernel's error.
        source: io::Error,
    },
    /// The controller knows no edge of that name.
    #[error(
        "the controller has no edge named {0:?} (add an [[edge]] of that name to its configuration)"
    )]
    Unknown(String),
    /// Another controller leads, or none does.
    #[error("the controller at {0} does not lead: {1}")]
    Misdirected(Endpoint, String),
    /// Any other status.
    #[error("the server at {endpoint} answered {status} (is it braid sdn fabric?)")]
    Refused {
        /// The controller's address.
        endpoint: Endpoint,
        /// The status line.
        status: String,
    },
    /// The controller refused the key.
    #[error(
        "the controller at {0} refused this edge's key: {1} (give both sides the same key_file)"
    )]
    Unauthorized(Endpoint, String),
    /// The response's MAC is missing or wrong.
    #[error(
        "the server at {0} did not prove that it knows this edge's key; its table is ignored (is another \
         program listening there?)"
    )]
    Unverified(Endpoint),
    /// The table is invalid.
    #[error("the controller's table: {0}")]
    Table(#[from] TableError),
}

/// Report of an edge to the controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets and bytes.
    pub counts: PathCounts,
    /// Paths as this edge's probes show them.
    pub states: PathStates,
    /// True if other edges are asked to add shims to packets for this one.
    pub shim: bool,
}

/// Packets counted at this edge, by path tag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Received from other edges.
    pub rx: Vec<(u16, u64)>,
    /// Bytes of these packets.
    pub rx_bytes: Vec<(u16, u64)>,
    /// Sent to other edges.
    pub tx: Vec<(u16, u64)>,
    /// Time of the counting by this machine's monotonic clock: a report may be late.
    pub counted: Duration,
}

/// Reports for edge `name` and fetches its table once that differs from `revision`.
///
/// Returns none if nothing changed within [`LONG_POLL_TIME`], if the controller wants the counters
/// again (it does when a path's probes are missing or late), or once `urgent` ends: there is more to
/// report.
///
/// # Errors
/// See [`FetchError`].
pub fn fetch_table(
    endpoint: &Endpoint,
    name: &str,
    revision: &str,
    report: &Report,
    urgent: impl Future<Output = ()>,
) -> Result<Option<Table>, FetchError> {
    let unreachable = |source| FetchError::Unreachable {
        endpoint: endpoint.clone(),
        source,
    };
    let wait = LONG_POLL_TIME.as_secs();
    let path = format!(
        "/v1/fabric/edges/{}/report?revision={}&wait={wait}",
        percent_encoded(name),
        percent_encoded(revision),
    );
    // In the body: of 1,024 paths they may be longer than a URI can be.
    let body = format!(
        "rx={}&rx_bytes={}&tx={}&counted_us={}&shim={}&probed={}&silent={}",
        format_counts(&report.counts.rx),
        format_counts(&report.counts.rx_bytes),
        format_counts(&report.counts.tx),
        report.counts.counted.as_micros(),
        u8::from(report.shim),
        format_tags(&report.states.probed),
        format_tags(&report.states.silent),
    );
    let Some(answer) = post(endpoint, name, &path, body, urgent).map_err(unreachable)? else {
        return Ok(None);
    };
    match answer.status {
        // A refusal bears no MAC: the controller does not know with which key to make it.
        StatusCode::UNAUTHORIZED => {
            let said = String::from_utf8_lossy(&answer.body).trim().to_owned();
            Err(FetchError::Unauthorized(endpoint.clone(), said))
        }
        _ if !answer.verified => Err(FetchError::Unverified(endpoint.clone())),
        StatusCode::OK => Ok(Some(Table::read(&answer.body)?)),
        StatusCode::NO_CONTENT => Ok(None),
        StatusCode::NOT_FOUND => Err(FetchError::Unknown(name.to_owned())),
        StatusCode::CONFLICT => {
            let said = serde_json::from_slice(&answer.body).map(|told: Told| told.error);
            Err(FetchError::Misdirected(
                endpoint.clone(),
                said.unwrap_or_default(),
            ))
        }
        status => Err(FetchError::Refused {
            endpoint: endpoint.clone(),
            status: status.to_string(),
        }),
    }
}

/// Formats counters as `TAG:COUNT,…`.
fn format_counts(counts: &[(u16, u64)]) -> String {
    let words: Vec<String> = counts
        .iter()
        .map(|(tag, count)| format!("{tag}:{count}"))
        .collect();
    words.join(",")
}

/// Body of the controller's answer beside a status that is an error.
#[derive(Deserialize)]
struct Told {
    error: String,
}

/// Formats tags as `TAG,…`.
fn format_tags(tags: &BTreeSet<u16>) -> String {
    let words: Vec<String> = tags.iter().map(u16::to_string).collect();
    words.join(",")
}

struct Response {
    status: StatusCode,
    body: Bytes,
    /// True if the response's MAC is right, or no key is used.
    verified: bool,
}

/// Returns none if `urgent` ended before there was a response.
fn post(
    endpoint: &Endpoint,
    name: &str,
    path: &str,
    body: String,
    urgent: impl Future<Output = ()>,
) -> io::Result<Option<Response>> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, "fabric")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::CONNECTION, "close");
    let Endpoint::Http(_, Some(key)) = endpoint else {
        let request = request.body(body.into()).map_err(io::Error::other)?;
        let response = |(head, body): (Parts, Bytes)| Response {
            status: head.status,
            body,
            verified: true,
        };
        return Ok(send(endpoint, request, urgent)?.map(response));
    };
    let counter = key::counter();
    let line = format!("POST {path} HTTP/1.1");
    let authorization = key.authorization(&percent_encoded(name), counter, &line, &body);
    let request = request.header(header::AUTHORIZATION, authorization);
    let request = request.body(body.into()).map_err(io::Error::other)?;
    let Some((head, body)) = send(endpoint, request, urgent)? else {
        return Ok(None);
    };
    let shown = head.headers.get(key::RESPONSE_HEADER);
    let shown = shown.and_then(|value| value.to_str().ok());
    Ok(Some(Response {
        status: head.status,
        verified: key.verifies(counter, head.status.as_str(), shown, &body),
        body,
    }))
}

/// Sends a request over a connection of its own, and waits for the response, or until `urgent` ends.
fn send(
    endpoint: &Endpoint,
    request: Request<Full<Bytes>>,
    urgent: impl Future<Output = ()>,
) -> io::Result<Option<(Parts, Bytes)>> {
    let conversation = async {
        match endpoint {
            Endpoint::Unix(socket) => exchange(UnixStream::connect(socket).await?, request).await,
            Endpoint::Http(host, _) => {
                let stream = timeout(IO_TIMEOUT, TcpStream::connect(host)).await??;
                exchange(stream, request).await
            }
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            answer = timeout(LONG_POLL_TIME + IO_TIMEOUT, conversation) => answer?.map(Some),
            () = urgent => Ok(None),
        }
    })
}

/// Sends a request and returns the response's head and body.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
) -> io::Result<(Parts, Bytes)> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let answer = async move {
        let response = sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        Ok((head, body.map_err(io::Error::other)?.to_bytes()))
    };
    // The connection ends once the sender is dropped; its error is the answer's too.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

/// Percent-encodes a word of a URL (RFC 3986 §2.1).
fn percent_encoded(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    word.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn places_are_read_and_refused() {
        let unix: Endpoint = "unix:/run/braid/fabric.sock".parse().expect("an endpoint");
        assert_eq!(unix.to_string(), "unix:/run/braid/fabric.sock");
        let http: Endpoint = "http://[::1]:8080/".parse().expect("an endpoint");
        assert_eq!(http, Endpoint::Http("[::1]:8080".to_owned(), None));
        for text in [
            "",
            "unix:fabric.sock",
            "https://a:1",
            "http://a",
            "http://a:0",
            "http://a:1/b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    /// Returns what is made of an answer of these bytes, after which the peer closes.
    fn read(answer: &[u8]) -> io::Result<(Parts, Bytes)> {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (ours, mut theirs) = duplex(4096);
            let request = Request::post("/").body(Full::default()).expect("a request");
            let peer = async move {
                let mut asked = [0; 4];
                theirs.read_exact(&mut asked).await.expect("a question");
                theirs.write_all(answer).await.expect("room");
                // Reads on until the other side has closed: an early end would be another error.
                theirs.shutdown().await.expect("an end");
                let _ = theirs.read_to_end(&mut Vec::new()).await;
            };
            tokio::join!(exchange(ours, request), peer).0
        })
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none() {
        let (head, body) = read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").expect("one");
        assert_eq!((head.status, &body[..]), (StatusCode::OK, &b"{}"[..]));
        for short in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"[..],
            b"HTTP/1.1 2",
            b"",
        ] {
            assert!(read(short).is_err());
        }
        let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", usize::MAX);
        assert!(read(long.as_bytes()).is_err());
    }

    #[test]
    fn a_controller_that_does_not_lead_says_who_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("fabric.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let follower = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut client, _) = listener.accept().expect("a client");
            let _ = client.read(&mut [0; 4096]).expect("a request");
            let body = r#"{"error": "beta leads", "leader": null}"#;
            let head = format!(
                "HTTP/1.1 409 Conflict\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            client
                .write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())
                .expect("room");
        });
        let endpoint = Endpoint::Unix(socket);
        let answer = fetch_table(
            &endpoint,
            "ha",
            "",
            &Report::default(),
            std::future::pending(),
        );
        let error = answer.expect_err("no table");
        follower.join().expect("an end");
        assert!(matches!(error, FetchError::Misdirected(..)));
        assert!(error.to_string().ends_with("does not lead: beta leads"));
    }

    #[test]
    fn a_report_of_all_paths_is_no_longer_than_a_request_can_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("fabric.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let controller = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut client, _) = listener.accept().expect("a client");
            let mut asked = String::new();
            let mut bytes = [0; 4096];
            while !asked.ends_with("silent=") {
                let count = client.read(&mut bytes).expect("a request");
                assert!(count > 0, "{} bytes", asked.len());
                asked.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
            }
            client
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .expect("room");
            asked
        });
        // 256 other edges, each with four paths there and four back; no counter is longer.
        let counts = |first: u16| (first..first + 1024).map(|tag| (tag, u64::MAX)).collect();
        let counts = PathCounts {
            rx: counts(1000),
            rx_bytes: counts(1000),
            tx: counts(2024),
            counted: Duration::from_millis(7),
        };
        let states = PathStates {
            probed: (2024..3048).collect(),
            ..PathStates::default()
        };
        let shim = true;
        let report = Report {
            counts,
            states,
            shim,
        };
        let endpoint = Endpoint::Unix(socket);
        let answer = fetch_table(&endpoint, "ha", "r", &report, std::future::pending());
        assert!(matches!(answer, Ok(None)), "{answer:?}");
        let asked = controller.join().expect("an end");
        let (head, body) = asked.split_once("\r\n\r\n").expect("a body");
        assert!(
            head.starts_with("POST /v1/fabric/edges/ha/report?revision=r&wait=10 HTTP/1.1\r\n")
        );
        assert!(body.len() > usize::from(u16::MAX), "as long as no URI is");
        assert!(body.starts_with("rx=1000:18446744073709551615,1001:"));
        assert!(body.contains("&counted_us=7000&shim=1&probed=2024,2025,"));
    }

    #[test]
    fn counts_are_listed_as_the_controller_reads_them() {
        assert_eq!(format_counts(&[]), "");
        assert_eq!(
            format_counts(&[(7, 100), (4094, u64::MAX)]),
            "7:100,4094:18446744073709551615"
        );
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(percent_encoded("edge 1/ä"), "edge%201%2F%C3%A4");
    }
}
