//! The control socket: one JSON object per line in, one per line out.
//!
//! ```text
//! → {"set":{"direction":"down","rate":"5 Mbit/s","delay":"40 ms"}}
//! ← {"ok":true}
//! → {"blackhole":{"direction":"both","on":true}}
//! ← {"ok":true}
//! → {"stats":{}}
//! ← {"stats":{…}}
//! → {"set":{"rate":"5 Mbit"}}
//! ← {"error":"…"}
//! ```
//!
//! A `set` is applied as a whole or not at all; without a direction it is for both.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Direction, EmulatorError};
use crate::Settings;

/// Longest request line: far more than a command with every setting.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Most simultaneous clients; a further one is turned away.
const MAX_CLIENTS: usize = 16;

/// A request to the emulator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Change some settings.
    Set(Change),
    /// Switch the black hole.
    Blackhole(BlackHole),
    /// Show the counters.
    Stats {},
}

/// Settings for a direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Direction of the change.
    pub direction: Direction,
    /// The changes.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The black hole of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlackHole {
    /// Its direction; both by default.
    #[serde(default)]
    pub direction: Direction,
    /// True if it drops all packets.
    pub on: bool,
}

impl<'de> Deserialize<'de> for Change {
    /// Manual, because serde cannot reject unknown keys beside a flattened struct.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Change, D::Error> {
        let mut map = Map::deserialize(deserializer)?;
        let direction = match map.remove("direction") {
            Some(value) => serde_json::from_value(value).map_err(serde::de::Error::custom)?,
            None => Direction::Both,
        };
        let settings =
            serde_json::from_value(Value::Object(map)).map_err(serde::de::Error::custom)?;
        Ok(Change {
            direction,
            settings,
        })
    }
}

/// The listening socket and its clients. The socket's file is removed on drop.
#[derive(Debug)]
pub(super) struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Server {
    pub fn bind(path: &Path) -> Result<Server, EmulatorError> {
        let refuse = |source| EmulatorError::Socket {
            path: path.to_owned(),
            source,
        };
        if UnixStream::connect(path).is_ok() {
            return Err(EmulatorError::SocketTaken {
                path: path.to_owned(),
            });
        }
        // A socket without a listener is left over from a killed process.
        let bind = || braid_device::bind_with_mode(path, 0o600);
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                fs::remove_file(path).map_err(refuse)?;
                bind()
            }
            result => result,
        }
        .and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Server {
                path: path.to_owned(),
                listener,
                clients: Vec::new(),
            })
        })
        .map_err(refuse)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the descriptors to poll for reading. They change only in [`serve`](Self::serve).
    pub fn fds(&self) -> impl Iterator<Item = RawFd> {
        let clients = self.clients.iter().map(|client| client.stream.as_raw_fd());
        std::iter::once(self.listener.as_raw_fd()).chain(clients)
    }

    /// Accepts, reads and answers all that is available, without waiting.
    pub fn serve(&mut self, mut answer: impl FnMut(Request) -> Result<Value, EmulatorError>) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < MAX_CLIENTS && stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client {
                    stream,
                    input: Vec::new(),
                });
            }
        }
        self.clients.retain_mut(|client| client.serve(&mut answer));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The file may already have been removed.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    /// Returns false if the client has disconnected or sent an invalid request.
    fn serve(&mut self, answer: &mut impl FnMut(Request) -> Result<Value, EmulatorError>) -> bool {
        let mut chunk = [0; 4096];
        let open = loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break false,
                Ok(len) => self.input.extend_from_slice(&chunk[..len]),
                Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
            }
            if self.input.len() > MAX_LINE_BYTES {
                break false;
            }
        };
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let reply = serde_json::from_slice(&line)
                .map_err(|error| EmulatorError::Refused(error.to_string()))
                .and_then(&mut *answer)
                .unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }));
            // A reply is far smaller than a socket's buffer; a client that lets it fill up is gone.
            if self
                .stream
                .write_all(format!("{reply}\n").as_bytes())
                .is_err()
            {
                return false;
            }
        }
        open
    }
}

/// Sends one request to an emulator and returns its reply.
///
/// # Errors
/// No emulator listens on the socket, or it refuses the request, with its own text.
pub fn send_request(path: &Path, request: &Request) -> Result<Value, EmulatorError> {
    let refuse = |source| EmulatorError::Socket {
        path: path.to_owned(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(|source| EmulatorError::NoEmulator {
        path: path.to_owned(),
        source,
    })?;
    let line = serde_json::to_string(request).map_err(|error| refuse(error.into()))?;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .map_err(refuse)?;
    let mut reply = String::new();
    BufReader::new(stream)
        .read_line(&mut reply)
        .map_err(refuse)?;
    let reply: Value = serde_json::from_str(&reply).map_err(|error| refuse(error.into()))?;
    match reply.get("error").and_then(Value::as_str) {
        Some(error) => Err(EmulatorError::Refused(error.to_owned())),
        None => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_read() {
        let Ok(Request::Set(change)) = read(r#"{"set":{"direction":"down","rate":"5 Mbit/s"}}"#)
        else {
            panic!("a change");
        };
        assert_eq!(change.direction, Direction::Down);
        assert_eq!(
            change.settings.rate,
            Some("5 Mbit/s".parse().expect("a rate"))
        );
        assert_eq!(
            read(r#"{"blackhole":{"on":true}}"#),
            Ok(Request::Blackhole(BlackHole {
                direction: Direction::Both,
                on: true
            }))
        );
        assert_eq!(read(r#"{"stats":{}}"#), Ok(Request::Stats {}));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            r#"{"set":{"direction":"up","rate":"unlimited","queue":"1000p","aqm":"drop-tail"}}"#,
            r#"{"set":{"direction":"both","jitter_dist":"pareto","loss":"1 %","loss_burst":"off"}}"#,
            r#"{"stats":{}}"#,
        ] {
            let request = read(text).expect("a request");
            assert_eq!(serde_json::to_string(&request).expect("text"), text);
        }
    }

    #[test]
    fn refusals_name_the_key_and_the_value() {
        for (text, part) in [
            (r#"{"set":{"ratte":"5 Mbit/s"}}"#, "unknown field `ratte`"),
            (r#"{"set":{"rate":"5 Mbit"}}"#, "unknown unit \"Mbit\""),
            (r#"{"set":{"direction":"left"}}"#, "unknown variant `left`"),
            (r#"{"blackhole":{}}"#, "missing field `on`"),
            (r#"{"stats":{"x":1}}"#, "unknown field `x`"),
            (r#"{"stop":{}}"#, "unknown variant `stop`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
