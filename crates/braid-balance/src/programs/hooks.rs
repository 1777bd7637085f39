//! Attaching the programs to devices and taking them off again.
//!
//! The kernel's own lists (TCX query, filter dump) are the truth; the pins of links only keep TCX
//! attachments alive and are compared with it. So a device that was deleted and made again, or a
//! pin that outlived its device, needs no special case.

use std::io;
use std::mem;
use std::path::PathBuf;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType, tc};
use aya::util::KernelVersion;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;

use crate::generated::verifier_error;
use crate::pins::{self, Pins};
use crate::programs::detach::detach;
use crate::programs::filters::{self, Filter};
use crate::{Error, HookKind};

/// Priority and handle of our clsact filters: low enough to run before most others, and fixed, so
/// that replacing one is a single atomic request.
const PRIORITY: u16 = 49;
/// Handle of the first of [`Hook::ALL`]; each has its own.
const HANDLE: u32 = 0xb10;

/// First kernel with TCX.
const TCX_SINCE: KernelVersion = KernelVersion::new(6, 6, 0);

/// One of the four programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Outbound,
    Inbound,
    Lan,
    Shape,
}

impl Hook {
    pub(crate) const ALL: [Self; 4] = [Self::Outbound, Self::Inbound, Self::Lan, Self::Shape];

    /// The handle of its filter.
    fn handle(self) -> u32 {
        HANDLE + self as u32
    }

    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Outbound => "braid_outbound",
            Self::Inbound => "braid_inbound",
            Self::Lan => "braid_lan",
            Self::Shape => "braid_shape",
        }
    }

    fn side(self) -> TcAttachType {
        match self {
            Self::Outbound | Self::Shape => TcAttachType::Egress,
            Self::Inbound | Self::Lan => TcAttachType::Ingress,
        }
    }

    fn side_name(self) -> &'static str {
        match self {
            Self::Outbound | Self::Shape => "egress",
            Self::Inbound | Self::Lan => "ingress",
        }
    }

    fn is_egress(self) -> bool {
        matches!(self, Self::Outbound | Self::Shape)
    }
}

/// A program on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachPoint {
    pub hook: Hook,
    pub ifindex: u32,
}

impl AttachPoint {
    fn pin(self, pins: &Pins) -> PathBuf {
        pins.links()
            .join(format!("{}-{}", self.hook.program(), self.ifindex))
    }

    /// Parses the name of a pin.
    fn from_pin(name: &str) -> Option<Self> {
        let (program, ifindex) = name.rsplit_once('-')?;
        let hook = Hook::ALL
            .into_iter()
            .find(|hook| hook.program() == program)?;
        Some(Self {
            hook,
            ifindex: ifindex.parse().ok()?,
        })
    }

    fn device(self) -> Result<String, Error> {
        // For an unknown index this returns an empty name, not the error that it documents.
        match if_indextoname(self.ifindex) {
            Ok(name) if !name.is_empty() => Ok(name.to_string_lossy().into_owned()),
            answer => Err(Error::Device {
                ifindex: self.ifindex,
                source: answer.err().unwrap_or(Errno::ENODEV).into(),
            }),
        }
    }
}

/// The loaded programs, in the order of [`Hook::ALL`].
pub(crate) struct Programs(Vec<SchedClassifier>);

impl Programs {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        let open = |hook: Hook| {
            SchedClassifier::from_pin(pins.program(hook.program()))
                .map_err(|error| refused(hook.program(), &error))
        };
        Ok(Self(
            Hook::ALL.into_iter().map(open).collect::<Result<_, _>>()?,
        ))
    }

    fn of(&mut self, hook: Hook) -> &mut SchedClassifier {
        &mut self.0[hook as usize]
    }

    fn id(&self, hook: Hook) -> Result<u32, Error> {
        let info = self.0[hook as usize]
            .info()
            .map_err(|error| refused(hook.program(), &error))?;
        Ok(info.id())
    }
}

/// Returns true if `hook` means TCX on this kernel.
pub(crate) fn uses_tcx(hook: HookKind) -> bool {
    match hook {
        HookKind::Tcx => true,
        HookKind::Clsact => false,
        HookKind::Auto => KernelVersion::current().is_ok_and(|kernel| kernel >= TCX_SINCE),
    }
}

/// Returns true if the program must be attached, false if it is attached already. A foreign program
/// on a hook that has none of ours yet is an error, unless the configuration lets both share it.
pub(crate) fn is_missing(
    programs: &Programs,
    place: AttachPoint,
    coexist: bool,
) -> Result<bool, Error> {
    let device = place.device()?;
    let (ours, foreign) = occupants(place, &device, programs.id(place.hook)?)?;
    match foreign {
        Some((program, id)) if !ours && !coexist => {
            let direction = place.hook.side_name();
            Err(Error::ForeignProgram {
                device,
                direction,
                program,
                id,
            })
        }
        _ => Ok(!ours),
    }
}

/// Attaches a program where it is missing.
pub(crate) fn put(
    programs: &mut Programs,
    pins: &Pins,
    place: AttachPoint,
    hook: HookKind,
) -> Result<(), Error> {
    let device = place.device()?;
    tracing::info!(device, program = place.hook.program(), "attaching");
    if uses_tcx(hook) {
        put_tcx(programs, pins, place, &device)
    } else {
        put_clsact(programs, place, &device, true)
    }
}

/// Detaches a program, if it is attached. A device that is gone has taken its attachments with it.
pub(crate) fn take(pins: &Pins, place: AttachPoint) -> Result<bool, Error> {
    let pin = place.pin(pins);
    let pinned = pin.exists();
    if pinned && let Err(error) = detach(&pin) {
        // Removing the pin detaches it as well, a moment later.
        tracing::debug!(pin = %pin.display(), %error, "detaching");
    }
    pins::remove_file(&pin)?;
    let Ok(device) = place.device() else {
        return Ok(pinned);
    };
    Ok(take_clsact(place, &device)? || pinned)
}

/// Returns every attachment of ours: pinned links, and our filters on the devices of this namespace.
pub(crate) fn places(pins: &Pins) -> Result<Vec<AttachPoint>, Error> {
    let mut places: Vec<AttachPoint> = pins::names(&pins.links())?
        .iter()
        .filter_map(|name| AttachPoint::from_pin(name))
        .collect();
    let devices = nix::net::if_::if_nameindex()
        .map_err(|error| Error::system("listing devices", error.into()))?;
    for device in &devices {
        for hook in Hook::ALL {
            let place = AttachPoint {
                hook,
                ifindex: device.index(),
            };
            let filter = match own_filter(place) {
                Err(error) if is_gone(&error) => None,
                filter => filter?,
            };
            if !places.contains(&place) && filter.is_some() {
                places.push(place);
            }
        }
    }
    Ok(places)
}

/// Replaces the program of an attachment by the pinned one; no packet passes without either.
pub(crate) fn replace(
    programs: &mut Programs,
    pins: &Pins,
    place: AttachPoint,
) -> Result<(), Error> {
    let pin = place.pin(pins);
    if !pin.exists() {
        return put_clsact(programs, place, &place.device()?, false);
    }
    let failed = |error: &dyn std::fmt::Display| {
        Error::system(
            pin.display().to_string(),
            io::Error::other(error.to_string()),
        )
    };
    let link = FdLink::from(PinnedLink::from_pin(&pin).map_err(|error| failed(&error))?);
    let link = SchedClassifierLink::try_from(link).map_err(|error| failed(&error))?;
    let program = programs.of(place.hook);
    // A device that is gone leaves a dead link behind, which cannot be updated.
    match program.attach_to_link(link) {
        Ok(id) => drop(
            program
                .take_link(id)
                .map_err(|error| refused(place.hook.program(), &error))?,
        ),
        Err(_) if place.device().is_err() => pins::remove_file(&pin)?,
        Err(error) => return Err(refused(place.hook.program(), &error)),
    }
    Ok(())
}

fn put_tcx(
    programs: &mut Programs,
    pins: &Pins,
    place: AttachPoint,
    device: &str,
) -> Result<(), Error> {
    let name = place.hook.program();
    let program = programs.of(place.hook);
    // Ours runs first: it hands on every packet that is not ours, so the others miss nothing.
    let order = TcAttachOptions::TcxOrder(LinkOrder::first());
    let id = program
        .attach_with_options(device, place.hook.side(), order)
        .map_err(|error| refused(&format!("{name} on {device}"), &error))?;
    let link = program
        .take_link(id)
        .map_err(|error| refused(name, &error))?;
    let link = FdLink::try_from(link).map_err(|error| {
        Error::system(
            format!("{name} on {device}"),
            io::Error::other(error.to_string()),
        )
    })?;
    // A pin of this name belongs to a link whose device is gone.
    let pin = place.pin(pins);
    pins::remove_file(&pin)?;
    link.pin(&pin)
        .map_err(|error| pins::system(&pin, io::Error::other(error.to_string())))?;
    Ok(())
}

fn put_clsact(
    programs: &mut Programs,
    place: AttachPoint,
    device: &str,
    create: bool,
) -> Result<(), Error> {
    let name = place.hook.program();
    let failed = |error: &ProgramError| refused(&format!("{name} on {device}"), error);
    if create {
        match tc::qdisc_add_clsact(device) {
            Err(error) if !is_already_there(&error) => return Err(failed(&error.into())),
            _ => {}
        }
    }
    let handle = TcHandle::from(place.hook.handle());
    let program = programs.of(place.hook);
    let id = if create {
        let options = NlOptions {
            priority: PRIORITY,
            handle,
            ..NlOptions::default()
        };
        program.attach_with_options(device, place.hook.side(), TcAttachOptions::Netlink(options))
    } else {
        let link = SchedClassifierLink::attached(device, place.hook.side(), PRIORITY, handle, None)
            .map_err(|source| Error::Device {
                ifindex: place.ifindex,
                source,
            })?;
        program.attach_to_link(link)
    }
    .map_err(|error| failed(&error))?;
    // Dropping the link would detach the filter, which must outlive this process.
    mem::forget(program.take_link(id).map_err(|error| failed(&error))?);
    Ok(())
}

fn take_clsact(place: AttachPoint, device: &str) -> Result<bool, Error> {
    let Some(filter) = own_filter(place)? else {
        return Ok(false);
    };
    let link = SchedClassifierLink::attached(
        device,
        place.hook.side(),
        filter.priority,
        TcHandle::from(filter.handle),
        None,
    )
    .map_err(|source| Error::Device {
        ifindex: place.ifindex,
        source,
    })?;
    drop(link);
    let egress = filters::list(place.ifindex, true);
    let ingress = filters::list(place.ifindex, false);
    if matches!((&egress, &ingress), (Ok(egress), Ok(ingress)) if egress.is_empty() && ingress.is_empty())
    {
        // Nobody else uses the qdisc that we made. A failure leaves a qdisc without effect.
        filters::remove_qdisc(place.ifindex).map_err(|source| Error::Device {
            ifindex: place.ifindex,
            source,
        })?;
    }
    Ok(true)
}

/// Returns true if our program is attached there, and the first foreign program.
fn occupants(
    place: AttachPoint,
    device: &str,
    own: u32,
) -> Result<(bool, Option<(String, u32)>), Error> {
    let mut ours = false;
    let mut foreign = None;
    if uses_tcx(HookKind::Auto) {
        let (_, programs) = SchedClassifier::query_tcx(device, place.hook.side())
            .map_err(|error| refused(&format!("programs on {device}"), &error))?;
        for program in programs {
            let name = program.name_as_str().unwrap_or_default().to_owned();
            if program.id() == own {
                ours = true;
            } else {
                foreign = foreign.or(Some((name, program.id())));
            }
        }
    }
    for filter in list(place)? {
        if is_ours(&filter, place) && filter.program == own {
            ours = true;
        } else {
            let name = if filter.name.is_empty() {
                filter.kind
            } else {
                filter.name
            };
            foreign = foreign.or(Some((name, filter.program)));
        }
    }
    Ok((ours, foreign))
}

fn own_filter(place: AttachPoint) -> Result<Option<Filter>, Error> {
    let mut filters = list(place)?.into_iter();
    Ok(filters.find(|filter| is_ours(filter, place)))
}

/// Braid puts its filters at fixed priorities and handles, under their program's name. On kernels without tracing
/// (`CONFIG_BPF_EVENTS`, often left out on routers) the name is empty, because aya tests for names with a tracepoint
/// program: priority and handle identify the filter there.
fn is_ours(filter: &Filter, place: AttachPoint) -> bool {
    let named = match filter.name.as_str() {
        "" => filter.kind == "bpf" && filter.priority == PRIORITY,
        name => name == place.hook.program(),
    };
    named && filter.handle == place.hook.handle()
}

fn list(place: AttachPoint) -> Result<Vec<Filter>, Error> {
    filters::list(place.ifindex, place.hook.is_egress()).map_err(|source| Error::Device {
        ifindex: place.ifindex,
        source,
    })
}

/// Returns true if the device vanished between the listing and the query.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Device { source, .. } if source.raw_os_error() == Some(libc::ENODEV))
}

fn is_already_there(error: &tc::TcError) -> bool {
    error.to_string().contains("exists")
        || std::error::Error::source(error)
            .is_some_and(|source| source.to_string().contains("exists"))
}

/// The kernel's answer to an operation with a program.
pub(crate) fn refused(what: &str, error: &ProgramError) -> Error {
    match error {
        ProgramError::SyscallError(call) => Error::system(
            what,
            call.io_error.raw_os_error().map_or_else(
                || io::Error::other(call.to_string()),
                io::Error::from_raw_os_error,
            ),
        ),
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => match io_error.raw_os_error() {
            Some(libc::EPERM) => Error::Permission {
                action: format!("load {what}"),
            },
            _ => Error::Load {
                program: what.to_owned(),
                reason: verifier_error(io_error, &verifier_log.to_string()),
            },
        },
        other => Error::Load {
            program: what.to_owned(),
            reason: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_log_is_told_without_its_statistics() {
        let log = "0: (b7) r0 = 0\n1: (bf) r2 = r1\n; code\n2: (61) r0 = *(u32 *)(r2 +4)\n\
                   R2 invalid mem access 'scalar'\nverification time 9 usec\n\
                   stack depth 0\nprocessed 3 insns (limit 1000000)\n";
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(
            verifier_error(&denied, log),
            "Permission denied (os error 13); ; code; 2: (61) r0 = *(u32 *)(r2 +4); \
             R2 invalid mem access 'scalar'"
        );
        let full = io::Error::from_raw_os_error(libc::ENOMEM);
        assert_eq!(
            verifier_error(&full, ""),
            "Cannot allocate memory (os error 12)"
        );
    }
}
