//! See `braid_fuzz::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::packet(data));
