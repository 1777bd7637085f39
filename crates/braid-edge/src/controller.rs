//! Asking the controller: HTTP/1.1 over its Unix socket or a TCP address.
//!
//! One question a connection, as the controller answers; the answer to "what else than this?" comes
//! when there is something else, so a new table is here within milliseconds and nothing is asked in
//! vain.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::Error;
use crate::key::{self, Key};
use crate::table::{Table, TableError};

/// How long the controller may keep a question that it has nothing new to answer to.
pub const WAIT: Duration = Duration::from_secs(10);
/// An answer that takes longer than this on top will not come.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer: 256 targets and 16,384 hosts are 2 MB.
const MOST: u64 = 8 << 20;

/// Where the controller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A socket of this machine.
    Unix(PathBuf),
    /// `HOST:PORT`, and what is shown there.
    Http(String, Option<Key>),
}

impl Place {
    /// The same, with the key that is shown there.
    ///
    /// # Errors
    /// A key for a socket of this machine, where none is shown, or none for any other place, where
    /// anybody may answer.
    pub fn with_key(self, key: Option<Key>) -> Result<Place, Error> {
        match (self, key) {
            (Place::Http(host, _), Some(key)) => Ok(Place::Http(host, Some(key))),
            (Place::Http(..), None) => Err(Error::NoKey),
            (Place::Unix(_), Some(_)) => Err(Error::KeyForNobody),
            (place @ Place::Unix(_), None) => Ok(place),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place, Error> {
        let wrong = || Error::Place(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Place::Unix(path.into())),
                false => Err(wrong()),
            };
        }
        let host = text.strip_prefix("http://").ok_or_else(wrong)?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let port = host
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(port) if port > 0 && !host.contains('/') => Ok(Place::Http(host.to_owned(), None)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Http(host, _) => write!(f, "http://{host}"),
        }
    }
}

/// Why there is no table.
#[derive(Debug, Error)]
pub enum NoTable {
    /// Nobody answers.
    #[error(
        "the controller at {place} does not answer: {source} (see whether braid sdn fabric runs)"
    )]
    Unreachable {
        /// Where it was asked.
        place: Place,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It knows no edge of that name.
    #[error(
        "the controller knows no edge {0:?} (add an [[edge]] of that name to its configuration)"
    )]
    Unknown(String),
    /// It answers something else.
    #[error("the controller at {place} answers {status} (is it a braid sdn fabric?)")]
    Refused {
        /// Where it was asked.
        place: Place,
        /// The status line.
        status: String,
    },
    /// It wants to be shown a key, and was not, or not the right one.
    #[error("the controller at {0} does not let this edge in: {1} (give both sides one key_file)")]
    Shut(Place, String),
    /// Who answers does not know the key.
    #[error(
        "who answers at {0} does not know this edge's key: not followed (see who else is there)"
    )]
    Strange(Place),
    /// A table that cannot be followed.
    #[error("the controller's table: {0}")]
    Table(#[from] TableError),
}

/// How many packets passed by each path, by its tag, as an edge counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// From other edges to here.
    pub came: Vec<(u16, u64)>,
    /// From here to other edges.
    pub sent: Vec<(u16, u64)>,
}

/// Asks for the table of edge `name`, unless it is still the one called `revision`, and tells what
/// passed by each path, and whether numbers of ours are wanted. None if nothing changed within
/// [`WAIT`], or the controller wants to be told again: it does when a path's probes are missing or
/// late.
///
/// # Errors
/// See [`NoTable`].
pub fn ask(
    place: &Place,
    name: &str,
    revision: &str,
    passed: &Passed,
    shim: bool,
) -> Result<Option<Table>, NoTable> {
    let unreachable = |source| NoTable::Unreachable {
        place: place.clone(),
        source,
    };
    let wait = WAIT.as_secs();
    let path = format!(
        "/v1/fabric/edges/{}?unlike={}&wait={wait}&came={}&sent={}&shim={}",
        escaped(name),
        escaped(revision),
        listed(&passed.came),
        listed(&passed.sent),
        u8::from(shim)
    );
    let answer = get(place, name, &path).map_err(unreachable)?;
    match answer.code() {
        // Who does not let us in has no key to make its answer with.
        "401" => {
            let said = String::from_utf8_lossy(&answer.body).trim().to_owned();
            Err(NoTable::Shut(place.clone(), said))
        }
        _ if !answer.genuine => Err(NoTable::Strange(place.clone())),
        "200" => Ok(Some(Table::read(&answer.body)?)),
        "304" => Ok(None),
        "404" => Err(NoTable::Unknown(name.to_owned())),
        _ => Err(NoTable::Refused {
            place: place.clone(),
            status: answer.status,
        }),
    }
}

/// As the controller reads them.
fn listed(counts: &[(u16, u64)]) -> String {
    let words: Vec<String> = counts
        .iter()
        .map(|(tag, count)| format!("{tag}:{count}"))
        .collect();
    words.join(",")
}

struct Answer {
    /// The whole line.
    status: String,
    body: Vec<u8>,
    /// Whether who made it knows the key, where there is one.
    genuine: bool,
}

fn get(place: &Place, name: &str, path: &str) -> io::Result<Answer> {
    let request = format!("GET {path} HTTP/1.1");
    let headers = "Host: fabric\r\nConnection: close\r\n";
    let Place::Http(_, Some(key)) = place else {
        let (head, body) = send(place, &format!("{request}\r\n{headers}\r\n"))?;
        return Ok(Answer::of(&head, body));
    };
    let counter = key::counter();
    let shown = key.shown(&escaped(name), counter, &request);
    let (head, body) = send(place, &format!("{request}\r\n{shown}\r\n{headers}\r\n"))?;
    let answer = Answer::of(&head, body);
    let genuine = key.is_answer(counter, answer.code(), &head, &answer.body);
    Ok(Answer { genuine, ..answer })
}

impl Answer {
    fn of(head: &str, body: Vec<u8>) -> Answer {
        Answer {
            status: head.lines().next().unwrap_or_default().to_owned(),
            body,
            genuine: true,
        }
    }

    fn code(&self) -> &str {
        self.status.split(' ').nth(1).unwrap_or_default()
    }
}

fn send(place: &Place, request: &str) -> io::Result<(String, Vec<u8>)> {
    let timeout = Some(WAIT + PATIENCE);
    match place {
        Place::Unix(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(timeout)?;
            stream.set_write_timeout(timeout)?;
            exchange(stream, request.as_bytes())
        }
        Place::Http(host, _) => {
            let address = host.to_socket_addrs()?.next();
            let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(timeout)?;
            stream.set_write_timeout(timeout)?;
            exchange(stream, request.as_bytes())
        }
    }
}

/// The head and the body of the answer.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let short = || io::Error::other("its answer ends early");
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer)?;
    let end = b"\r\n\r\n";
    let split = answer
        .windows(end.len())
        .position(|window| window == end)
        .ok_or_else(short)?;
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let body = answer.split_off(split + end.len());
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    if length.is_some_and(|length| length != body.len()) {
        return Err(short());
    }
    Ok((head, body))
}

/// A word of a URL.
fn escaped(word: &str) -> String {
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
    use super::*;

    #[test]
    fn places_are_read_and_refused() {
        let unix: Place = "unix:/run/braid/fabric.sock".parse().expect("a place");
        assert_eq!(unix.to_string(), "unix:/run/braid/fabric.sock");
        let http: Place = "http://[::1]:8080/".parse().expect("a place");
        assert_eq!(http, Place::Http("[::1]:8080".to_owned(), None));
        for text in [
            "",
            "unix:fabric.sock",
            "https://a:1",
            "http://a",
            "http://a:0",
            "http://a:1/b",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none() {
        struct Peer(&'static [u8]);
        impl Read for Peer {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0.read(into)
            }
        }
        impl Write for Peer {
            fn write(&mut self, from: &[u8]) -> io::Result<usize> {
                Ok(from.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let whole = Peer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        let (head, body) = exchange(whole, b"").expect("an answer");
        assert_eq!(Answer::of(&head, Vec::new()).status, "HTTP/1.1 200 OK");
        assert_eq!(body, b"{}");
        for short in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"[..],
            b"HTTP/1.1 2",
            b"",
        ] {
            assert!(exchange(Peer(short), b"").is_err());
        }
    }

    #[test]
    fn counts_are_listed_as_the_controller_reads_them() {
        assert_eq!(listed(&[]), "");
        assert_eq!(
            listed(&[(7, 100), (4094, u64::MAX)]),
            "7:100,4094:18446744073709551615"
        );
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("edge 1/ä"), "edge%201%2F%C3%A4");
    }
}
