//! See `braid_fuzz::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::frames(data));
