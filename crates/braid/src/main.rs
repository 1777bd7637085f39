//! The braid command line.

fn main() {}
