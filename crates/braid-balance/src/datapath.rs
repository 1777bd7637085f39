//! Opening, adopting and describing the pinned datapath.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use aya::programs::ProgramError;
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use braid_core::UplinkId;

use crate::hooks::{self, Hook, Place, Programs};
use crate::inject::Injector;
use crate::layout::Meta;
use crate::pins::{self, Pins};
use crate::shared::{LAYOUT_VERSION, PROGRAMS_HASH};
use crate::tables::{self, MAPS, Tables, refused};
use crate::{
    Attachments, ClassEntry, ClassId, Counters, Error, Evacuated, Family, Flow, Fragments,
    HookKind, KernelTime, MapMemory, Name, Notices, Opened, Options, Release, Released, Removed,
    RuleEntry, Sticky, SweepReport, UplinkCounters, UplinkEntry, classes, clients, counters,
    devices, evacuate, names, notices, rules, sticky, upkeep, uplinks,
};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/braid.bpf.o"));

/// The verifier gives up with EAGAIN when a signal or task work is pending, which says nothing about
/// the program.
const LOAD_ATTEMPTS: usize = 16;

/// A handle on the pinned programs and maps. Dropping it changes nothing in the kernel.
pub struct Datapath {
    pins: Pins,
    programs: Programs,
    tables: Tables,
    hook: HookKind,
    coexist: bool,
    /// The device that programs are attached to for steering; 0 before they are.
    steer: u32,
    injector: Option<Injector>,
}

impl Datapath {
    /// Loads and pins the programs, or adopts those that are pinned already. All or nothing: a new
    /// set is built in a temporary directory beside and renamed into place. Table sizes of an
    /// adopted set stay what they were.
    pub fn open(options: &Options) -> Result<(Self, Opened), Error> {
        check(options)?;
        pins::prepare(&options.pin_dir)?;
        let pins = Pins::current(&options.pin_dir);
        let opened = if pins.exist() {
            adopt(&pins, options)?
        } else {
            let next = Pins::next(&options.pin_dir);
            next.remove()?;
            build(&next, options)?;
            next.rename(&pins)?;
            Opened::Fresh
        };
        let programs = Programs::open(&pins)?;
        let tables = Tables::open(&pins)?;
        let datapath = Self {
            pins,
            programs,
            tables,
            hook: options.hook,
            coexist: options.coexist,
            steer: 0,
            injector: None,
        };
        Ok((datapath, opened))
    }

    /// Makes the programs sit exactly on `wanted`: adds what is missing, takes away what is ours
    /// and not wanted, leaves alone what is right. Interface indices are those of the calling
    /// thread's network namespace. Repeating it changes nothing.
    ///
    /// A LAN device that has vanished, or has somebody else's program, is left out with a warning:
    /// its flows only lack the short way.
    pub fn attach(&mut self, wanted: &Attachments) -> Result<(), Error> {
        let mut lans = devices::lans(&wanted.lans);
        let mut places = vec![Place {
            hook: Hook::Outbound,
            ifindex: wanted.steer,
        }];
        let inbound = wanted.uplinks.iter();
        places.extend(inbound.map(|&ifindex| Place {
            hook: Hook::Inbound,
            ifindex,
        }));
        // All checks first: a refusal must not leave half of the programs in place.
        let mut missing = Vec::new();
        for &place in &places {
            if hooks::is_missing(&self.programs, place, self.coexist)? {
                missing.push(place);
            }
        }
        lans.retain(|&ifindex, _| {
            let hook = Hook::Lan;
            let place = Place { hook, ifindex };
            match hooks::is_missing(&self.programs, place, self.coexist) {
                Ok(true) => missing.push(place),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(ifindex, %error, "lan device without the short way");
                    return false;
                }
            }
            places.push(place);
            true
        });
        for place in hooks::places(&self.pins)? {
            if !places.contains(&place) {
                hooks::take(&self.pins, place)?;
            }
        }
        for place in missing {
            match hooks::put(&mut self.programs, &self.pins, place, self.hook) {
                Err(error) if place.hook == Hook::Lan => {
                    tracing::warn!(ifindex = place.ifindex, %error, "lan device without the short way");
                    lans.remove(&place.ifindex);
                }
                result => result?,
            }
        }
        if self.steer != wanted.steer {
            self.steer = wanted.steer;
            self.injector = None;
        }
        // Last: a device whose flows are marked for the short way must have the program.
        devices::set_lans(&mut self.tables, &lans)
    }

    /// Replaces all uplink entries. Flows keep their uplink by [`UplinkEntry::id`].
    pub fn set_uplinks(&mut self, uplinks: &[UplinkEntry]) -> Result<(), Error> {
        uplinks::set_uplinks(&mut self.tables, uplinks)
    }

    /// Replaces all slot tables, each in one step: a packet sees the old or the new table of its
    /// class and family, never a mixture. A class that is not given is empty afterwards.
    pub fn set_classes(&mut self, classes: &[ClassEntry]) -> Result<(), Error> {
        classes::set_classes(&mut self.tables, classes)
    }

    /// The slot table of a class and family as it is walked now; empty before the first
    /// [`Datapath::set_classes`].
    pub fn class_slots(&self, class: ClassId, family: Family) -> Result<Vec<UplinkId>, Error> {
        classes::class_slots(&self.tables, class, family)
    }

    /// Replaces all rules in one step. The first one that a new flow satisfies puts it into its
    /// class, by then known to [`Datapath::set_classes`]; flows that are open stay where they are.
    pub fn set_rules(&mut self, rules: &[RuleEntry]) -> Result<(), Error> {
        rules::table::set_rules(&mut self.tables, rules)
    }

    /// Notes what is known of remote addresses; for each it replaces what was known before. Room is
    /// for 16,384 addresses, of which the least recently asked for make room for others.
    pub fn learn_names(&mut self, names: &[(IpAddr, Name)]) -> Result<(), Error> {
        names::learn_names(&mut self.tables, names)
    }

    /// What is known of a remote address at `now`.
    pub fn name(&self, remote: IpAddr, now: KernelTime) -> Result<Option<Name>, Error> {
        names::name(&self.tables, remote, now)
    }

    /// All addresses of which something is known by name, what has expired too. A daemon that takes
    /// over finds here what the one before has noted, by that one's rules.
    pub fn names(&self) -> Result<Vec<(IpAddr, Name)>, Error> {
        names::names(&self.tables)
    }

    /// Forgets what is known of these remote addresses.
    pub fn forget_names(&mut self, remotes: &[IpAddr]) -> Result<(), Error> {
        names::forget_names(&mut self.tables, remotes)
    }

    /// Which client keeps to which uplink for which site, entries that have expired too. Room is
    /// for 16,384, of which the least recently used make room for others.
    pub fn sticky(&self) -> Result<Vec<Sticky>, Error> {
        sticky::sticky(&self.tables)
    }

    /// Lets clients choose anew what `which` picks, and says how many entries that were. Needed
    /// before flows are to leave an uplink that is up (failback), and when a class' number comes to
    /// mean other uplinks; entries of an uplink that takes no flows count for nothing anyway.
    pub fn forget_sticky(&mut self, which: impl Fn(&Sticky) -> bool) -> Result<usize, Error> {
        sticky::forget_sticky(&mut self.tables, which)
    }

    /// Refuses new flows of these inner addresses, at most 1024, reason `client_over_limit`, and of
    /// no others. Flows that are open go on.
    pub fn limit_clients(&mut self, clients: &[IpAddr]) -> Result<(), Error> {
        clients::limit_clients(&mut self.tables, clients)
    }

    /// Takes the flows off an uplink that has died: open TCP connections are told, QUIC
    /// connections to servers that `survives` says to follow a change of address are moved, others
    /// are told, and questions that nobody has answered are asked again. Only families that
    /// another uplink takes flows of; everything else stays. Other UDP mappings move with their
    /// next packet from inside.
    ///
    /// First [`Datapath::set_uplinks`] must say that the uplink takes no flows. Needs
    /// [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn evacuate(
        &mut self,
        uplink: UplinkId,
        survives: impl Fn(IpAddr) -> bool,
    ) -> Result<Evacuated, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::evacuate(&mut self.tables, injector, uplink, survives)
    }

    /// Lets flows of an uplink that works go, as when a better one has come back or an address has
    /// changed. Embryos stay as they are.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn release(&mut self, which: impl Fn(&Flow) -> Release) -> Result<Released, Error> {
        let injector = injector(&mut self.injector, self.steer)?;
        evacuate::release(&mut self.tables, injector, which)
    }

    /// QUIC flows that were moved at least `older_than` before `now`, whose client has gone on
    /// sending while their server was silent: it does not follow changes of address.
    pub fn unanswered_moves(
        &self,
        older_than: Duration,
        now: KernelTime,
    ) -> Result<Vec<Flow>, Error> {
        evacuate::unanswered_moves(&self.tables, older_than, now)
    }

    /// Opens the ring of notices. One reader at a time.
    pub fn notices(&self) -> Result<Notices, Error> {
        Notices::open(&self.pins)
    }

    /// Whether DNS answers to flows of ours are handed over as [`Notice::DnsAnswer`]; at first they
    /// are not.
    ///
    /// [`Notice::DnsAnswer`]: crate::Notice::DnsAnswer
    pub fn hand_over_answers(&mut self, wanted: bool) -> Result<(), Error> {
        notices::hand_over_answers(&mut self.tables, wanted)
    }

    /// Sends on those held fragments whose first one has come, says how many, and lets go of those
    /// that were held too long.
    ///
    /// Needs [`Datapath::attach`] before, and the network namespace of its devices.
    pub fn reinject(&mut self, held: &mut Fragments, now: KernelTime) -> Result<usize, Error> {
        held.handle_timeout(now);
        if held.is_empty() {
            return Ok(0);
        }
        let injector = injector(&mut self.injector, self.steer)?;
        notices::reinject(&self.tables, injector, held)
    }

    /// Removes flows that were idle longer than their state allows at `now`, and halves of pairs.
    pub fn sweep(&mut self, now: KernelTime) -> Result<SweepReport, Error> {
        upkeep::sweep(&mut self.tables, now)
    }

    /// All flows, embryos too.
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        upkeep::flows(&self.tables)
    }

    /// Counters, summed over the CPUs.
    pub fn counters(&self) -> Result<Counters, Error> {
        counters::read(&self.tables)
    }

    /// The same of the uplinks alone: cheap enough for many times a second.
    pub fn uplink_counters(&self) -> Result<Vec<(UplinkId, UplinkCounters)>, Error> {
        counters::uplinks(&self.tables)
    }

    /// Which uplinks have an entry, and the interface index of each: what a daemon that has lost its
    /// memory can still tell.
    pub fn uplink_devices(&self) -> Result<Vec<(UplinkId, u32)>, Error> {
        counters::devices(&self.tables)
    }

    /// Most answered flows at once; of an adopted datapath what it was loaded with.
    pub fn capacity(&self) -> Result<u32, Error> {
        self.tables.kept.max_entries()
    }

    /// Kernel memory per map.
    pub fn memory(&self) -> Result<Vec<MapMemory>, Error> {
        tables::memory(&self.pins)
    }
}

/// The sockets to inject packets with, opened when they are needed first.
fn injector(kept: &mut Option<Injector>, steer: u32) -> Result<&Injector, Error> {
    match kept {
        Some(injector) => Ok(injector),
        None => Ok(kept.insert(Injector::open(steer)?)),
    }
}

/// Detaches and unpins everything that an instance pinned under `pin_dir`, also what a crash left
/// half done. Finding nothing is success. `pin_dir` itself stays. clsact filters are looked for in
/// the calling thread's network namespace.
pub fn remove(pin_dir: &Path) -> Result<Removed, Error> {
    let pins = Pins::current(pin_dir);
    let mut removed = Removed::default();
    for place in hooks::places(&pins)? {
        removed.attachments += usize::from(hooks::take(&pins, place)?);
    }
    for set in [pins, Pins::next(pin_dir)] {
        let [links, programs, maps] = set.remove()?;
        removed.attachments += links;
        removed.programs += programs;
        removed.maps += maps;
    }
    Ok(removed)
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
    upgrade(pins, options)?;
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
    write_meta(pins)
}

/// Puts this build's programs in the place of another's, on the maps as they are. The version is
/// written last, so that an upgrade that was cut short is done again.
fn upgrade(pins: &Pins, options: &Options) -> Result<(), Error> {
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
    write_meta(pins)
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

fn write_meta(pins: &Pins) -> Result<(), Error> {
    let mut meta = Meta {
        layout: LAYOUT_VERSION,
        programs: PROGRAMS_HASH,
        ..Meta::default()
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
