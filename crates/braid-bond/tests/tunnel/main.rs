//! Whole tunnels over lines in virtual time.

mod acknowledgements;
mod cleartext;
mod datagrams;
#[path = "../support/epochs.rs"]
mod epochs;
mod forged;
mod header_compression;
mod hostile;
mod key_rotation;
mod life;
mod line;
mod load;
mod policy;
mod receive_windows;
mod retransmissions;
mod sim;
