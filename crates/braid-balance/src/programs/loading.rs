//! Loading the programs and pinning them, or adopting those that are pinned.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};

use crate::generated::{GLOBAL_LINKAGE_OFFSETS, LAYOUT_VERSION, PROGRAMS_HASH};
use crate::maps::layout::Meta;
use crate::maps::tables::{self, MAPS, Tables, refused};
use crate::pins::{self, Pins};
use crate::programs::hooks::{self, Hook, Programs};
use crate::{Error, Opened, Options};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/braid.bpf.o"));

/// The running kernel's own BTF, if it has any.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// A function that is verified from where it is called: kind and linkage of its type (`BTF_KIND_FUNC`,
/// `BTF_FUNC_STATIC`).
const STATIC_FUNCTION: u32 = 12 << 24;

/// The verifier gives up with EAGAIN when a signal or task work is pending, which says nothing about
/// the program.
const LOAD_ATTEMPTS: usize = 16;

/// Loads and pins everything, or adopts what is pinned already. All or nothing.
pub(crate) fn open(options: &Options) -> Result<(Pins, Opened), Error> {
    check(options)?;
    pins::prepare(&options.pin_dir)?;
    let pins = Pins::current(&options.pin_dir);
    if pins.exist() {
        let opened = adopt(&pins, options)?;
        return Ok((pins, opened));
    }
    let next = Pins::next(&options.pin_dir);
    next.remove()?;
    build(&next, options)?;
    next.rename(&pins)?;
    Ok((pins, Opened::Fresh))
}

fn check(options: &Options) -> Result<(), Error> {
    let sizes = [
        ("max_flows", options.max_flows),
        ("max_embryonic", options.max_embryonic),
    ];
    match sizes.into_iter().find(|(_, size)| *size == 0) {
        Some((what, _)) => Err(Error::Invalid {
            what,
            problem: "must be at least 1".into(),
        }),
        None => Ok(()),
    }
}

/// Takes over what is pinned, replacing the programs if they are another build's.
fn adopt(pins: &Pins, options: &Options) -> Result<Opened, Error> {
    let meta = tables::read_meta(pins).unwrap_or_default();
    if meta.layout != LAYOUT_VERSION {
        return Err(Error::Layout {
            path: pins.root().to_owned(),
            found: version_of(&meta),
            found_layout: meta.layout,
            needed_layout: LAYOUT_VERSION,
        });
    }
    if meta.programs == PROGRAMS_HASH {
        return Ok(Opened::Adopted);
    }
    upgrade(pins, meta, options)?;
    Ok(Opened::Upgraded {
        from: version_of(&meta),
    })
}

/// Loads, verifies and pins everything under `pins`.
fn build(pins: &Pins, options: &Options) -> Result<(), Error> {
    pins.create()?;
    let mut object = load(pins, options)?;
    for hook in Hook::ALL {
        pin_program(&mut object, hook, &pins.program(hook.program()))?;
    }
    write_meta(pins, Meta::default())
}

/// Puts this build's programs in the place of another's, on the maps as they are. The version is
/// written last, so that an upgrade that was cut short is done again.
fn upgrade(pins: &Pins, before: Meta, options: &Options) -> Result<(), Error> {
    let mut object = load(pins, options)?;
    for hook in Hook::ALL {
        let path = pins.program(hook.program());
        let next = pins.program(&format!("{}-next", hook.program()));
        pins::remove_file(&next)?;
        pin_program(&mut object, hook, &next)?;
        fs::rename(&next, &path).map_err(|source| pins::system(&path, source))?;
    }
    let mut programs = Programs::open(pins)?;
    for place in hooks::places(pins)? {
        hooks::replace(&mut programs, pins, place)?;
    }
    write_meta(pins, before)
}

/// Has the kernel verify all programs and unloads them: nothing is pinned or attached, and a running datapath is left
/// alone. Returns the rejected ones.
pub(crate) fn dry_run() -> Vec<Error> {
    dry_run_object(&object())
}

fn dry_run_object(bytes: &[u8]) -> Vec<Error> {
    let mut loader = EbpfLoader::new();
    sized(&mut loader, 1, 1);
    let mut object = match hand_over(&mut loader, bytes) {
        Ok(object) => object,
        Err(error) => return vec![error],
    };
    let verify = |hook| load_program(&mut object, hook).err();
    Hook::ALL.into_iter().filter_map(verify).collect()
}

/// Returns the object as this kernel can verify it. A kernel without BTF does not know that an argument of a global
/// function is the packet (braid-bpf-build's linkage.rs), so there these functions are made static.
fn object() -> Cow<'static, [u8]> {
    if Path::new(KERNEL_TYPES).exists() {
        Cow::Borrowed(OBJECT)
    } else {
        Cow::Owned(without_global_packets())
    }
}

fn without_global_packets() -> Vec<u8> {
    let mut object = OBJECT.to_vec();
    for word in GLOBAL_LINKAGE_OFFSETS {
        object[word..word + 4].copy_from_slice(&STATIC_FUNCTION.to_le_bytes());
    }
    object
}

/// Hands the object to the kernel, with maps pinned under `pins` (or taken from there).
fn load(pins: &Pins, options: &Options) -> Result<Ebpf, Error> {
    let mut loader = EbpfLoader::new();
    for name in MAPS {
        loader.map_pin_path(name, pins.map(name));
    }
    sized(&mut loader, options.max_flows, options.max_embryonic);
    hand_over(&mut loader, &object())
}

fn sized(loader: &mut EbpfLoader<'_>, flows: u32, embryos: u32) {
    for name in ["flows", "flows_reverse"] {
        loader.map_max_entries(name, flows);
    }
    for name in ["embryos", "embryos_reverse"] {
        loader.map_max_entries(name, embryos);
    }
}

fn hand_over(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, Error> {
    loader.load(object).map_err(|error| match error {
        EbpfError::MapError(error) => match refused("creating maps", &error) {
            Error::System { action, source } if source.raw_os_error() == Some(libc::EINVAL) => {
                Error::Kernel {
                    action: format!("{action}: {source}"),
                    release: release(),
                }
            }
            other => other,
        },
        other => Error::Load {
            program: "braid.bpf.o".into(),
            reason: other.to_string(),
        },
    })
}

fn pin_program(object: &mut Ebpf, hook: Hook, path: &Path) -> Result<(), Error> {
    let program = load_program(object, hook)?;
    program
        .pin(path)
        .map_err(|error| pins::system(path, io::Error::other(error.to_string())))
}

fn load_program(object: &mut Ebpf, hook: Hook) -> Result<&mut SchedClassifier, Error> {
    let name = hook.program();
    let program = object
        .program_mut(name)
        .expect("the object has all programs");
    let program: &mut SchedClassifier = program
        .try_into()
        .map_err(|error| hooks::refused(name, &error))?;
    let mut attempt = program.load();
    for _ in 1..LOAD_ATTEMPTS {
        match &attempt {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.raw_os_error() == Some(libc::EAGAIN) =>
            {
                attempt = program.load();
            }
            _ => break,
        }
    }
    attempt.map_err(|error| hooks::refused(name, &error))?;
    Ok(program)
}

/// Records this build as the one that pinned the maps; the daemon's own note stays.
fn write_meta(pins: &Pins, before: Meta) -> Result<(), Error> {
    let mut meta = Meta {
        layout: LAYOUT_VERSION,
        marks: before.marks,
        programs: PROGRAMS_HASH,
        version: [0; 24],
    };
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let length = version.len().min(meta.version.len());
    meta.version[..length].copy_from_slice(&version[..length]);
    let mut tables = Tables::open(pins)?;
    tables
        .meta
        .set(0, meta, 0)
        .map_err(|error| refused("map meta", &error))
}

fn version_of(meta: &Meta) -> String {
    let text = meta
        .version
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    match text {
        [] => "unknown".into(),
        text => String::from_utf8_lossy(text).into_owned(),
    }
}

fn release() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| "unknown".into(),
        |name| name.release().to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use braid_verifier::{Verified, verify};

    use super::*;

    /// Bytes of stack that a chain of calls may take.
    const STACK: u32 = 512;

    fn sum(verified: &[Verified]) -> u32 {
        verified.iter().map(|each| each.instructions).sum()
    }

    #[test]
    fn the_programs_pass_where_words_must_be_aligned() {
        let verified = verify(OBJECT, true).unwrap_or_else(|refused| panic!("{refused}"));
        assert_eq!(verified.len(), Hook::ALL.len());
    }

    /// Frames are rounded up as they are without a JIT, by 32 bytes.
    #[test]
    fn the_programs_have_stack_to_spare() {
        for each in verify(OBJECT, false).unwrap_or_else(|refused| panic!("{refused}")) {
            assert!(each.deepest.bytes < STACK, "{each:?}");
        }
    }

    /// The verifier gives up at a million instructions, and older ones look at more than this one.
    #[test]
    fn the_programs_pass_with_functions_that_are_not_global() {
        let verified = verify(&without_global_packets(), true);
        let verified = verified.unwrap_or_else(|refused| panic!("{refused}"));
        assert!(sum(&verified) < 500_000, "{verified:?}");
        // They are others than those of the object as it is.
        assert!(sum(&verified) > sum(&verify(OBJECT, true).expect("accepted")) * 3 / 2);
    }

    #[test]
    fn a_rehearsal_on_this_kernel_has_no_complaint() {
        let errors = dry_run();
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn a_refusal_names_the_program_and_what_the_verifier_has_against_it() {
        // BPF_CALL of bpf_map_lookup_elem becomes one of a helper that no kernel has.
        let (known, unknown) = ([0x85, 0, 0, 0, 1, 0, 0, 0], [0x85, 0, 0, 0, 0, 0, 0, 1]);
        let mut object = OBJECT.to_vec();
        for instruction in object.chunks_exact_mut(8) {
            if instruction == known {
                instruction.copy_from_slice(&unknown);
            }
        }
        let errors = dry_run_object(&object);
        let told: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), Hook::ALL.len());
        for (hook, text) in Hook::ALL.into_iter().zip(told) {
            assert!(
                text.starts_with(&format!("program {}: ", hook.program())),
                "{text}"
            );
            assert!(text.ends_with("invalid func unknown#16777216"), "{text}");
        }
    }
}
