//! See `braid_fuzz::edge_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::edge_table(data));
