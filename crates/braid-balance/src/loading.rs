//! Loading the programs and pinning them, or adopting those that are pinned.

use std::fs;
use std::io;
use std::path::Path;

use aya::programs::ProgramError;
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};

use crate::hooks::{self, Hook, Programs};
use crate::layout::Meta;
use crate::pins::{self, Pins};
use crate::shared::{LAYOUT_VERSION, PROGRAMS_HASH};
use crate::tables::{self, MAPS, Tables, refused};
use crate::{Error, Opened, Options};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/braid.bpf.o"));

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
        ("max_embryos", options.max_embryos),
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

/// Hands the object to the kernel, with maps pinned under `pins` (or taken from there).
fn load(pins: &Pins, options: &Options) -> Result<Ebpf, Error> {
    let mut loader = EbpfLoader::new();
    for name in MAPS {
        loader.map_pin_path(name, pins.map(name));
    }
    for name in ["flows", "flows_reverse"] {
        loader.map_max_entries(name, options.max_flows);
    }
    for name in ["embryos", "embryos_reverse"] {
        loader.map_max_entries(name, options.max_embryos);
    }
    loader.load(OBJECT).map_err(|error| match error {
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
    let name = hook.program();
    let program = object
        .program_mut(name)
        .expect("the object has all three programs");
    let program: &mut aya::programs::SchedClassifier = program
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
    program
        .pin(path)
        .map_err(|error| pins::system(path, io::Error::other(error.to_string())))
}

/// Writes that this build has pinned the maps; what they mean to the daemon stays.
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
