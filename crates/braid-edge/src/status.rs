//! Status of an edge, served over a Unix socket: one JSON document per connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Version of the format: incremented when a field is removed or changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Status of an edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The edge's name in the controller's configuration.
    pub name: String,
    /// The device towards the hosts.
    pub inside: String,
    /// The device towards the switch, or those towards routers.
    pub outside: String,
    /// The controller's address, or the file of layer-3 paths.
    pub controller: String,
    /// Generation of the plan in effect; none before the first.
    pub generation: Option<u64>,
    /// Method by which packets are put in order.
    pub reordering: String,
    /// Towards other edges.
    pub egress: Vec<EgressStatus>,
    /// From other edges.
    pub ingress: Vec<IngressStatus>,
    /// Packets by exit or event of the eBPF programs, by name (`bpf/reasons.h`).
    pub reasons: BTreeMap<String, u64>,
    /// Problems.
    pub health: Vec<Problem>,
}

/// Towards another edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// The other edge.
    pub target: String,
    /// Number of hosts behind it.
    pub hosts: usize,
    /// Paths to it, by tag.
    pub paths: Vec<EgressPathStatus>,
}

/// A path from this edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EgressPathStatus {
    /// Its tag.
    pub tag: u16,
    /// Prefixes at both ends of a layer-3 path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// Share of the slots.
    pub share: f64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes of these packets, whole frames.
    pub tx_bytes: u64,
    /// TCP segments among them that the host sent again: lost, or taken for lost. Counted while the
    /// controller tells rates.
    #[serde(default)]
    pub resent_packets: u64,
    /// True if copies are kept of what is sent by it, since it loses some packets.
    #[serde(default)]
    pub copied: bool,
    /// True if flows that keep to one path take others, since it loses packets.
    #[serde(default)]
    pub avoided: bool,
    /// Packets that it lost and that were sent again by another path.
    #[serde(default)]
    pub repeated_packets: u64,
    /// True if the far edge gets nothing by it, so that packets take other paths.
    #[serde(default)]
    pub silent: bool,
}

/// From another edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressStatus {
    /// The other edge.
    pub source: String,
    /// True if its TCP segments are put in order.
    pub in_order: bool,
    /// Paths from it, by latency.
    pub paths: Vec<IngressPathStatus>,
    /// Counters of the resequencer: TCP segments, and packets with a shim.
    pub segments: Segments,
}

/// A path to this edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngressPathStatus {
    /// Its tag.
    pub tag: u16,
    /// Prefixes at both ends of a layer-3 path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// One-way latency, if it was measured.
    pub latency_ms: Option<f64>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of these packets, whole frames.
    pub rx_bytes: u64,
}

/// Counters of a resequencer, in segments and gaps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Segments {
    /// Streams being tracked.
    pub streams: usize,
    /// Segments waiting now.
    pub waiting: usize,
    /// Segments that arrived in order and did not wait.
    pub in_order: u64,
    /// Segments that waited and were then delivered in order.
    pub held: u64,
    /// Mean wait of these.
    pub held_mean_ms: f64,
    /// Longest wait.
    pub held_max_ms: f64,
    /// Retransmitted segments, which do not wait.
    pub retransmitted: u64,
    /// Segments that arrived after their gap had been given up.
    pub late: u64,
    /// Gaps given up because every path had delivered something later.
    pub known_lost: u64,
    /// Gaps given up at their deadline.
    pub expired: u64,
    /// Gaps given up for want of memory, or by Algorithm 1's T.
    pub forced: u64,
    /// Segments forwarded as they came because too many streams were tracked.
    pub crowded: u64,
    /// Gaps for which copies were asked for.
    #[serde(default)]
    pub asked: u64,
    /// Segments that came for these while they were waited for.
    #[serde(default)]
    pub repaired: u64,
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable identifier, for programs.
    pub code: String,
    /// Explanation and remedy, for people.
    pub text: String,
}

/// Returns the path of the status socket of edge `name`.
#[must_use]
pub fn socket(run_dir: &Path, name: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect();
    run_dir.join(format!("edge-{name}.sock"))
}

/// Queries a running edge.
///
/// # Errors
/// No edge answers, or the answer is not understood.
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

/// Listens at `path`, for its owner alone. The socket of a killed edge is replaced; one that still
/// answers is an error.
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
    braid_device::bind_with_mode(path, 0o600).map_err(failed)
}

/// Serves the status for ever.
pub(crate) fn serve(listener: &UnixListener, status: impl Fn() -> Status) {
    for stream in listener.incoming() {
        let answered = stream.and_then(|mut stream| {
            stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
            let text = serde_json::to_vec(&status()).map_err(std::io::Error::other)?;
            stream.write_all(&text)
        });
        if let Err(error) = answered {
            tracing::debug!(%error, "a status client has gone");
        }
    }
}
