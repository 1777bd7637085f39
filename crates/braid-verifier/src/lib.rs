//! Passes eBPF objects to the kernel's verifier and parses its log, for tests.
//!
//! In: the bytes of an object. Out: for each program the number of instructions that the verifier
//! processed and the stack of its deepest call chain. Nothing is attached or pinned. The product's
//! loader cannot do this: it neither sets flags nor reads the log of an accepted program.
#![allow(unsafe_code)]

mod call;
mod stack;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya::maps::MapData;
use aya_obj::Object;
use aya_obj::btf::BtfKind;
use aya_obj::generated::{BPF_F_STRICT_ALIGNMENT, bpf_map_type};

pub use stack::Chain;

/// Attempts: the verifier gives up with EAGAIN while a signal is pending, whatever the program.
const ATTEMPTS: usize = 16;

/// Entries of a hash table: the verifier ignores its size.
const HASH_ENTRIES: u32 = 64;

/// A program accepted by the verifier.
#[derive(Debug)]
pub struct Verified {
    /// Name of the program in the object.
    pub program: String,
    /// Instructions that the verifier processed; it gives up at a million.
    pub instructions: u32,
    /// The call chain that takes the most stack, in the programs' own functions.
    pub deepest: Chain,
}

/// A refused object.
#[derive(Debug)]
pub struct Refused {
    /// The program, or the step before programs are loaded.
    pub what: String,
    /// The end of the verifier's log, or the kernel's error.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.reason)
    }
}

impl std::error::Error for Refused {}

/// Verifies all programs of an object. With `strict`, verifies like a kernel whose processor reads
/// words at aligned addresses only. Needs CAP_BPF and CAP_NET_ADMIN.
///
/// # Errors
/// The first program refused, or an earlier refusal of a map or of the types.
pub fn verify(object: &[u8], strict: bool) -> Result<Vec<Verified>, Refused> {
    let mut object = Object::parse(object).map_err(|e| refused("object", &e))?;
    let features = aya::features();
    let types = load_types(&mut object)?;
    let maps = create_maps(&object, types.as_ref())?;
    let sections = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let described = object.maps.clone();
    let fds = maps.iter().map(|(name, map)| {
        let fd = map.fd().as_fd().as_raw_fd();
        (name.as_str(), fd, &described[name])
    });
    object
        .relocate_maps(fds, &sections)
        .map_err(|e| refused("maps", &e))?;
    object
        .relocate_calls(&sections)
        .map_err(|e| refused("calls", &e))?;
    object.sanitize_functions(features);
    let names = function_names(&object);
    let mut programs: Vec<_> = object.programs.iter().collect();
    programs.sort_by_key(|(name, _)| name.as_str());
    let flags = if strict { BPF_F_STRICT_ALIGNMENT } else { 0 };
    programs
        .into_iter()
        .map(|(name, program)| {
            let function = &object.functions[&program.function_key()];
            let log = load(program, function, types.as_ref(), flags)
                .map_err(|(error, log)| refused(name, &format!("{error}\n{}", tail(&log))))?;
            Ok(Verified {
                program: name.clone(),
                instructions: number_after(&log, "processed ").unwrap_or(0),
                deepest: stack::deepest(function, &names, &stack::depths(&log)),
            })
        })
        .collect()
}

fn refused(what: &str, error: &dyn fmt::Display) -> Refused {
    Refused {
        what: what.to_owned(),
        reason: error.to_string(),
    }
}

fn load_types(object: &mut Object) -> Result<Option<OwnedFd>, Refused> {
    let Some(known) = aya::features().btf() else {
        return Ok(None);
    };
    let types = object
        .fixup_and_sanitize_btf(known)
        .map_err(|error| refused("types", &error))?;
    let loaded = types.map(|types| call::load_types(&types.to_bytes()));
    loaded.transpose().map_err(|error| refused("types", &error))
}

fn create_maps(
    object: &Object,
    types: Option<&OwnedFd>,
) -> Result<HashMap<String, MapData>, Refused> {
    object
        .maps
        .iter()
        .map(|(name, map)| {
            let mut map = map.clone();
            let hash = [
                bpf_map_type::BPF_MAP_TYPE_HASH,
                bpf_map_type::BPF_MAP_TYPE_LRU_HASH,
            ];
            if hash.iter().any(|kind| *kind as u32 == map.map_type()) {
                map.set_max_entries(HASH_ENTRIES);
            }
            let created = MapData::create(map, name, types.map(AsFd::as_fd));
            let created = created.map_err(|error| refused(&format!("map {name}"), &error))?;
            Ok((name.clone(), created))
        })
        .collect()
}

/// Returns the names of functions by type number, as the linked program refers to them.
fn function_names(object: &Object) -> HashMap<u32, String> {
    let Some(types) = &object.btf else {
        return HashMap::new();
    };
    let names = object.functions.values().map(|function| &function.name);
    names
        .filter_map(|name| {
            let id = types.id_by_type_name_kind(name, BtfKind::Func).ok()?;
            Some((id, name.clone()))
        })
        .collect()
}

fn load(
    program: &aya_obj::Program,
    function: &aya_obj::Function,
    types: Option<&OwnedFd>,
    flags: u32,
) -> Result<String, (io::Error, String)> {
    let mut attempt = call::load_program(program, function, types, flags);
    for _ in 1..ATTEMPTS {
        match &attempt {
            Err((error, _)) if error.raw_os_error() == Some(libc::EAGAIN) => {
                attempt = call::load_program(program, function, types, flags);
            }
            _ => break,
        }
    }
    attempt
}

fn number_after(log: &str, word: &str) -> Option<u32> {
    let at = log.rfind(word)? + word.len();
    log[at..].split(' ').next()?.parse().ok()
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
