//! Fuzz targets: the properties that every parser keeps on any bytes.
//!
//! In: arbitrary bytes. Out: nothing, or a panic that names the broken property. Each parser has
//! one function. The fuzzer calls it (`make fuzz`), and `tests/replay.rs` calls it with the
//! committed corpus in every test run, on a stable compiler and without the fuzzer. An input that
//! once broke a property stays in `corpus/<target>/`.
//!
//! Nothing here opens a file, a socket or a device: a fuzzer reaches whatever it can name.
#![forbid(unsafe_code)]

mod config;
mod control;
mod cookie;
mod drive;
mod edge;
mod frames;
mod handshake;
mod hub;
mod hub_api;
mod names;
mod options;
mod packet;
mod probe;
mod state;
mod token;
mod trace;
mod units;
mod uplinks;

pub use config::config;
pub use control::control;
pub use cookie::cookie;
pub use edge::{edge_frames, edge_paths, edge_table};
pub use frames::frames;
pub use handshake::handshake;
pub use hub::hub;
pub use hub_api::hub_api;
pub use names::names;
pub use options::options;
pub use packet::packet;
pub use probe::probe;
pub use state::state;
pub use token::token;
pub use trace::trace;
pub use units::units;
pub use uplinks::uplinks;

/// A function that checks the properties of one parser.
pub type Target = fn(&[u8]);

/// Every target by name, which is also the name of its corpus directory and of its fuzzer.
pub const TARGETS: [(&str, Target); 19] = [
    ("config", config),
    ("control", control),
    ("cookie", cookie),
    ("edge_frames", edge_frames),
    ("edge_paths", edge_paths),
    ("edge_table", edge_table),
    ("frames", frames),
    ("handshake", handshake),
    ("hub", hub),
    ("hub_api", hub_api),
    ("names", names),
    ("options", options),
    ("packet", packet),
    ("probe", probe),
    ("state", state),
    ("token", token),
    ("trace", trace),
    ("units", units),
    ("uplinks", uplinks),
];

/// Texts are read from files and sockets as UTF-8; other bytes never reach their parsers.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}
