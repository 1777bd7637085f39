//! See `braid_fuzz::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::handshake(data));
