//! See `braid_fuzz::edge_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::edge_frames(data));
