//! See `braid_fuzz::cookie`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::cookie(data));
