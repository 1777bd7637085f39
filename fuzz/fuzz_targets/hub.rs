//! See `braid_fuzz::hub`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| braid_fuzz::hub(data));
