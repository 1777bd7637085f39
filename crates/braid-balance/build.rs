//! Compiles `bpf/braid.bpf.c` and turns the headers that both sides share into Rust.

fn main() {
    braid_bpf_build::build("braid");
}
