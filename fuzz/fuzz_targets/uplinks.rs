//! See `braid_fuzz::uplinks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::uplinks(data));
