//! Build-time part of crates with eBPF programs: compiles `bpf/NAME.bpf.c` and translates the
//! headers shared by both sides to Rust, so that no constant exists twice.
//!
//! In: the crate's `bpf` directory with `constants.h` and `reasons.h`. Out, in `OUT_DIR`:
//! `NAME.bpf.o`, and `shared.rs` with every constant, the types `Reason` and `ReasonKind`, the list
//! `REASONS`, the function `verifier_error`, `PROGRAMS_HASH`, and `GLOBAL_LINKAGE_OFFSETS`, where
//! the object declares functions that take the packet as global (`linkage.rs`). Call it from a
//! `build.rs` only: it prints instructions for cargo on standard output.
#![forbid(unsafe_code)]

mod linkage;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

use fnv::FnvHasher;

/// Headers shared by all crates' programs.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");

/// Types of the list of reasons, the same in both crates.
const REASON_TYPES: &str = include_str!("reason.rs");

/// Error message for a program that the kernel refuses, the same in both crates.
const VERIFIER_ERROR: &str = include_str!("verifier_error.rs");

/// Compiles `bpf/NAME.bpf.c` and writes `shared.rs`.
///
/// # Panics
/// If a file is missing or wrong: the build cannot continue.
pub fn build(name: &str) {
    let sources = PathBuf::from("bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed={SHARED}");
    println!("cargo::rerun-if-env-changed=BRAID_CLANG");

    let object = out.join(format!("{name}.bpf.o"));
    compile(&sources.join(format!("{name}.bpf.c")), &object);
    let constants = fs::read_to_string(sources.join("constants.h")).expect("bpf/constants.h");
    let reasons = fs::read_to_string(sources.join("reasons.h")).expect("bpf/reasons.h");
    let mut generated = format!("{REASON_TYPES}{VERIFIER_ERROR}");
    generated.push_str(&constants_in_rust(&constants));
    generated.push_str(&reasons_in_rust(&reasons));
    writeln!(
        generated,
        "pub const PROGRAMS_HASH: u64 = {:#018x};",
        hash_of([&sources, Path::new(SHARED)])
    )
    .expect("writing to a string");
    let compiled = fs::read(&object).expect("what has just been compiled");
    let words = linkage::global_linkage_offsets(&compiled);
    writeln!(
        generated,
        "pub const GLOBAL_LINKAGE_OFFSETS: [usize; {}] = {words:?};",
        words.len()
    )
    .expect("writing to a string");
    fs::write(out.join("shared.rs"), generated).expect("OUT_DIR is writable");
}

fn compile(source: &Path, object: &Path) {
    let clang = env::var("BRAID_CLANG").unwrap_or_else(|_| "clang-14".into());
    // Headers of the build machine: the programs are the same with those of any architecture.
    let host = env::var("HOST").expect("cargo sets the host");
    let architecture = host.split('-').next().unwrap_or_default();
    let status = Command::new(&clang)
        .args([
            "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror",
        ])
        // Debian keeps <asm/types.h> in a directory per architecture, which clang does not search
        // for the bpf target.
        .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
        .arg(format!("-I{SHARED}"))
        // The shared headers include the crate's own.
        .arg("-Ibpf")
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .status()
        .unwrap_or_else(|error| {
            panic!("{clang}: {error} (apt-get install clang-14 libbpf-dev, or set BRAID_CLANG)")
        });
    assert!(
        status.success(),
        "{clang} could not compile {}",
        source.display()
    );
    strip(object);
}

/// Removes the debugger's information, which clang makes the kernel's types (BTF) from and nothing else reads:
/// 200 of 700 KB of the balancer's programs.
fn strip(object: &Path) {
    let rustc = env::var_os("RUSTC").expect("cargo sets the compiler");
    let said = Command::new(rustc).args(["--print", "sysroot"]).output();
    let said = said.expect("the compiler that compiled this").stdout;
    let sysroot = PathBuf::from(String::from_utf8(said).expect("a path in UTF-8").trim_end());
    let host = env::var("HOST").expect("cargo sets the host");
    // Rust brings one that knows every architecture.
    let objcopy = sysroot
        .join("lib/rustlib")
        .join(host)
        .join("bin/rust-objcopy");
    let status = Command::new(&objcopy)
        .env("LD_LIBRARY_PATH", sysroot.join("lib"))
        .arg("--strip-debug")
        .arg(object)
        .status()
        .unwrap_or_else(|error| {
            panic!(
                "{}: {error} (toolchains of rustup have it)",
                objcopy.display()
            )
        });
    assert!(
        status.success(),
        "{} could not be stripped",
        object.display()
    );
}

/// Every `#define NAME integer`.
fn constants_in_rust(header: &str) -> String {
    let mut rust = String::new();
    for line in header.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("#define") {
            continue;
        }
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        if let Ok(value) = value.parse::<u32>() {
            writeln!(rust, "pub const {name}: u32 = {value};").expect("writing to a string");
        }
    }
    rust
}

/// Every `REASON(name, KIND, "text")` of the list.
fn reasons_in_rust(header: &str) -> String {
    let mut rows = String::new();
    let mut count = 0;
    for line in header.lines() {
        let Some(inside) = line.trim_start().strip_prefix("REASON(") else {
            continue;
        };
        let mut parts = inside.splitn(3, ", ");
        let (Some(name), Some(kind), Some(rest)) = (parts.next(), parts.next(), parts.next())
        else {
            panic!("bpf/reasons.h: cannot read {line:?}");
        };
        let text = rest.split('"').nth(1).expect("a quoted text");
        let kind = format!("{}{}", &kind[..1], kind[1..].to_lowercase());
        writeln!(
            rows,
            "    Reason {{ name: {name:?}, kind: ReasonKind::{kind}, text: {text:?} }},"
        )
        .expect("writing to a string");
        count += 1;
    }
    format!(
        "/// Every reason, by its number.\npub const REASONS: [Reason; {count}] = [\n{rows}];\n"
    )
}

/// A hash of the sources, to tell the programs of two builds apart. On a difference the loader
/// replaces the programs, so the hash only has to avoid accidental equality.
fn hash_of(folders: [&Path; 2]) -> u64 {
    let mut files: Vec<_> = folders.into_iter().flat_map(files_below).collect();
    files.sort();
    let mut hash = FnvHasher::default();
    for file in files {
        hash.write(&fs::read(&file).expect("a readable source"));
    }
    hash.finish()
}

/// Returns every file of a folder and of those in it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("bpf/ exists");
    let paths = entries.map(|entry| entry.expect("a directory entry").path());
    let files = |path: PathBuf| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    };
    paths.flat_map(files).collect()
}
