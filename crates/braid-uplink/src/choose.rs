//! The decision, pure: snapshot and selection in, uplinks and explanations out.

use crate::{Discovery, Lan, Selection, Snapshot, Uplink};

/// Decides which devices are uplinks.
#[must_use]
pub fn choose(snapshot: &Snapshot, selection: &Selection) -> Discovery {
    let _ = (snapshot, selection);
    todo!()
}

/// Devices of the LAN side: up, with an address, neither loopback nor an uplink nor ours. On a
/// machine that forwards, these are the devices whose clients are served.
#[must_use]
pub fn lans(snapshot: &Snapshot, uplinks: &[Uplink]) -> Vec<Lan> {
    let _ = (snapshot, uplinks);
    todo!()
}
