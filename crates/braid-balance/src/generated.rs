//! Constants and reasons that the programs and this crate share, generated from `bpf/constants.h`
//! and `bpf/reasons.h`.
#![allow(missing_docs, dead_code)]

include!(concat!(env!("OUT_DIR"), "/shared.rs"));
