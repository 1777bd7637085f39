//! See `braid_fuzz::edge_paths`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::edge_paths(data));
