//! Tunnels on real packets: a client and a hub in network namespaces, with two lines between them.
//! Needs root.

#[path = "../support/epochs.rs"]
mod epochs;
mod life;
#[path = "../../../braid-balance/tests/support/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;
mod packets;
mod world;
