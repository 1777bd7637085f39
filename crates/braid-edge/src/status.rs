//! What an edge says of itself, over a Unix socket: one JSON document a connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Changes when a field changes its meaning or goes; new fields may come at any time.
pub const VERSION: u32 = 1;

const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The edge, by the controller's name.
    pub name: String,
    /// The device towards the hosts.
    pub inside: String,
    /// The device towards the switch, or those towards routers.
    pub outside: String,
    /// Where the controller is asked, or the file of layer-3 paths.
    pub controller: String,
    /// Of the controller's plans the one in effect; none before the first.
    pub generation: Option<u64>,
    /// How packets are put in order.
    pub reordering: String,
    /// Towards other edges.
    pub egress: Vec<EgressStatus>,
    /// From other edges.
    pub ingress: Vec<IngressStatus>,
    /// How often each way through the programs was taken, by its name.
    pub reasons: BTreeMap<String, u64>,
    /// What is not as it should be.
    pub health: Vec<Problem>,
}

/// Towards another edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// The other edge.
    pub target: String,
    /// How many hosts are behind it.
    pub hosts: usize,
    /// Its paths, by tag.
    pub paths: Vec<EgressPathStatus>,
}

/// A path from here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressPathStatus {
    /// Its tag.
    pub tag: u16,
    /// The addresses that it is between, of a layer-3 path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// The part of the slots that are its.
    pub share: f64,
    /// Packets sent by it.
    pub tx_packets: u64,
    /// Their bytes, whole frames.
    pub tx_bytes: u64,
}

/// From another edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressStatus {
    /// The other edge.
    pub source: String,
    /// Whether its TCP is put in order.
    pub in_order: bool,
    /// Its paths, the quickest first.
    pub paths: Vec<IngressPathStatus>,
    /// What became of its TCP segments, and of its numbered packets.
    pub segments: Segments,
}

/// A path to here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressPathStatus {
    /// Its tag.
    pub tag: u16,
    /// The addresses that it is between, of a layer-3 path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// One way, as the controller measured it; none if it has not.
    pub latency_ms: Option<f64>,
    /// Packets that came by it.
    pub rx_packets: u64,
    /// Their bytes, whole frames.
    pub rx_bytes: u64,
}

/// What a resequencer did, in segments and gaps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Segments {
    /// Connections that are followed.
    pub streams: usize,
    /// Segments that wait now.
    pub waiting: usize,
    /// Went on at once, in order.
    pub in_order: u64,
    /// Waited, then went on in order.
    pub held: u64,
    /// How long those waited on average.
    pub held_mean_ms: f64,
    /// The longest wait.
    pub held_max_ms: f64,
    /// Sent again: waited for no gap.
    pub retransmitted: u64,
    /// Came after they had been given up.
    pub late: u64,
    /// Gaps given up because every path had passed them.
    pub known_lost: u64,
    /// Gaps given up at their deadline.
    pub expired: u64,
    /// Gaps given up because memory, or the paper's T, was short.
    pub forced: u64,
    /// Passed as they came, because there were too many connections.
    pub crowded: u64,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable.
    pub code: String,
    /// For people.
    pub text: String,
}

/// Where edge `name` answers.
#[must_use]
pub fn socket(run_dir: &Path, name: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect();
    run_dir.join(format!("edge-{name}.sock"))
}

/// Asks a running edge.
///
/// # Errors
/// Nobody answers, or somebody else does.
pub fn ask(path: &Path) -> Result<Status, Error> {
    let unreachable = |source| Error::NoEdge {
        path: path.to_owned(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(unreachable)?;
    stream
        .set_read_timeout(Some(SOCKET_TIMEOUT))
        .map_err(unreachable)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(unreachable)?;
    serde_json::from_slice(&text).map_err(|source| Error::BadStatus {
        path: path.to_owned(),
        source,
    })
}

/// Listens at `path`, for its owner alone. What an edge that was killed has left there goes; one that
/// still answers is an error.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let failed = |source| Error::system(format!("listening at {}", path.display()), source);
    if UnixStream::connect(path).is_ok() {
        let text = "another edge of this name answers there";
        return Err(failed(std::io::Error::other(text)));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).map_err(failed)?;
    Ok(listener)
}

/// Answers whoever connects, for ever.
pub(crate) fn serve(listener: &UnixListener, status: impl Fn() -> Status) {
    for stream in listener.incoming() {
        let answered = stream.and_then(|mut stream| {
            stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
            let text = serde_json::to_vec(&status()).map_err(std::io::Error::other)?;
            stream.write_all(&text)
        });
        if let Err(error) = answered {
            tracing::debug!(%error, "whoever asked has gone");
        }
    }
}
