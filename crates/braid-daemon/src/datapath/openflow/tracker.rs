//! Connections in the connection tracker of Open vSwitch's userspace datapath, which outlive a bridge.
//!
//! The controller reads and ends them; here they are forgotten at the end.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Zone of our connections, in the tracker that all userspace bridges of a machine share.
pub(super) const ZONE: u16 = 45520;

/// Idle times of connections, seconds: those of the packet-in mode. The tracker's own forget an answered UDP flow after
/// 30 s, and RFC 4787 REQ-5 wants two minutes.
pub(super) const TIMEOUTS: [&str; 6] = [
    "tcp_syn_sent=75",
    "tcp_established=7440",
    "tcp_fin_wait=240",
    "udp_first=120",
    "udp_single=300",
    "udp_multiple=300",
];

/// Time for ovs-vswitchd to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Name of the datapath of all userspace bridges.
const DATAPATH: &str = "netdev@ovs-netdev";

/// Has the switch forget our connections, and their bound. One that does not run has none.
pub(super) fn flush(ovs_run_dir: &Path) {
    let zone = format!("zone={ZONE}");
    let bound = format!("{zone},limit=0");
    // 3.1 takes a datapath's name for something else here, and needs none unless there are several.
    for (command, words) in [
        ("dpctl/flush-conntrack", &[zone.as_str()][..]),
        ("dpctl/flush-conntrack", &[DATAPATH, zone.as_str()]),
        ("dpctl/ct-set-limits", &[DATAPATH, bound.as_str()]),
    ] {
        if let Err(error) = ask(ovs_run_dir, command, words) {
            tracing::debug!(command, %error, "no connection tracker");
        }
    }
}

/// Waits until the switch's cache of decisions is that of its rules, so that no connection begins by former ones.
///
/// # Errors
/// The switch does not answer.
pub(super) fn wait_for_cache(ovs_run_dir: &Path) -> io::Result<()> {
    ask(ovs_run_dir, "revalidator/wait", &[])
}

/// Has the switch execute a command, as ovs-appctl does: a request of JSON-RPC over its control socket.
fn ask(ovs_run_dir: &Path, command: &str, words: &[&str]) -> io::Result<()> {
    let request = serde_json::json!({ "id": 0, "method": command, "params": words }).to_string();
    for entry in fs::read_dir(ovs_run_dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !(name.starts_with("ovs-vswitchd.") && name.ends_with(".ctl")) {
            continue;
        }
        // One that crashed leaves its socket behind.
        let Ok(mut stream) = UnixStream::connect(&path) else {
            continue;
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        // Nothing but its form marks the answer's end.
        let mut answers = serde_json::Deserializer::from_reader(stream).into_iter();
        let answer: serde_json::Value = answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        return match answer.get("error").and_then(serde_json::Value::as_str) {
            Some(error) => Err(io::Error::other(error.trim().to_owned())),
            None => Ok(()),
        };
    }
    Err(io::ErrorKind::NotFound.into())
}
