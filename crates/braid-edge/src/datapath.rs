//! The programs and their maps.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use aya::{Ebpf, Pod, include_bytes_aligned};
use nix::net::if_::if_nametoindex;

use crate::Error;
use crate::shared::{
    MAX_TARGETS, NO_TARGET, REASONS, SLOTS, TAG_AS_COMES, TAG_IN_ORDER, TAG_UNKNOWN,
};
use crate::table::{Mac, Outward};

#[cfg(test)]
mod trial;
mod ways;

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/edge.bpf.o"));

/// Links that end with their process came with this kernel.
const SINCE: KernelVersion = KernelVersion::new(6, 6, 0);
/// The verifier gives up with EAGAIN when a signal is pending, which says nothing about the program.
const LOAD_ATTEMPTS: usize = 16;

/// The devices that an edge joins.
#[derive(Debug, Clone)]
pub struct Devices {
    /// Towards the hosts.
    pub inside: String,
    /// Towards the switch; with layer-3 paths, towards the routers.
    pub outside: Vec<String>,
    /// The resequencer's.
    pub hold: String,
}

/// What paths are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Tags, by a bump in the wire.
    Two,
    /// Pairs of addresses, by a router.
    Three,
}

impl Layer {
    /// The programs on the resequencer's device, the outside and the inside.
    fn programs(self) -> [&'static str; 3] {
        match self {
            Layer::Two => ["braid_ordered", "braid_join", "braid_split"],
            Layer::Three => ["braid_route_ord", "braid_route_in", "braid_route_out"],
        }
    }
}

/// What is done with a tag that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Dropped.
    Unknown,
    /// Handed on as it comes.
    AsComes,
    /// TCP by way of the resequencer.
    InOrder,
}

/// What went by a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

// SAFETY: two integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for Traffic {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Settings {
    inside: u32,
    outside: u32,
    hold: u32,
    epoch: u32,
    numbers: u32,
}

// SAFETY: five integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for Settings {}

/// `struct slot_table`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SlotWords {
    tags: [u16; SLOTS as usize],
    numbered: u32,
    zero: u32,
    rate: u64,
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for SlotWords {}

/// The programs at work. Dropping it takes them off.
pub struct Datapath {
    object: Ebpf,
    /// Other edges and their places in `tables`; a place is another's only once nobody points there.
    targets: BTreeMap<String, u32>,
    /// Who is behind which of them, as the programs have it.
    hosts: BTreeMap<Mac, u32>,
}

impl Datapath {
    /// Loads the programs and puts them on the devices. Without `numbers` packets that others have
    /// numbered are dropped; what is numbered here is of this `epoch`.
    pub fn attach(
        devices: &Devices,
        layer: Layer,
        numbers: bool,
        epoch: u8,
    ) -> Result<Datapath, Error> {
        if !KernelVersion::current().is_ok_and(|kernel| kernel >= SINCE) {
            let release = nix::sys::utsname::uname().map_or_else(
                |_| "unknown".to_owned(),
                |name| name.release().to_string_lossy().into_owned(),
            );
            return Err(Error::Kernel { release });
        }
        let mut datapath = Datapath::loaded(layer)?;
        let [ordered, inwards, outwards] = layer.programs();
        let mut places = vec![(ordered, &devices.hold)];
        places.extend(devices.outside.iter().map(|device| (inwards, device)));
        places.push((outwards, &devices.inside));
        for (_, device) in &places {
            must_be_free(device)?;
        }
        let settings = Settings {
            inside: index(&devices.inside)?,
            // Where there are several, routes say which.
            outside: devices.outside.last().map_or(Ok(0), |name| index(name))?,
            hold: index(&devices.hold)?,
            epoch: epoch.into(),
            numbers: numbers.into(),
        };
        datapath.set(settings)?;
        // Nothing comes in before what it may need is there.
        for (program, device) in places {
            let order = TcAttachOptions::TcxOrder(LinkOrder::first());
            datapath
                .program(program)?
                .attach_with_options(device, TcAttachType::Ingress, order)
                .map_err(|error| refused(&format!("{program} on {device}"), &error))?;
        }
        Ok(datapath)
    }

    /// The programs, on no device yet.
    pub fn loaded(layer: Layer) -> Result<Datapath, Error> {
        let object = aya::EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| refused("loading edge.bpf.o", &error))?;
        let mut datapath = Datapath {
            object,
            targets: BTreeMap::new(),
            hosts: BTreeMap::new(),
        };
        for program in layer.programs() {
            datapath.load(program)?;
        }
        Ok(datapath)
    }

    fn set(&mut self, settings: Settings) -> Result<(), Error> {
        self.array::<Settings>("settings")?
            .set(0, settings, 0)
            .map_err(|error| map_refused("settings", &error))
    }

    fn program(&mut self, name: &str) -> Result<&mut SchedClassifier, Error> {
        let program = self.object.program_mut(name).ok_or_else(|| missing(name))?;
        program
            .try_into()
            .map_err(|error: ProgramError| refused(name, &error))
    }

    fn load(&mut self, name: &str) -> Result<(), Error> {
        let program = self.program(name)?;
        for _ in 1..LOAD_ATTEMPTS {
            match program.load() {
                Ok(()) => return Ok(()),
                Err(ProgramError::LoadError { io_error, .. })
                    if io_error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) => return Err(refused(name, &error)),
            }
        }
        program.load().map_err(|error| refused(name, &error))
    }

    fn map(&mut self, name: &str) -> Result<&mut Map, Error> {
        self.object.map_mut(name).ok_or_else(|| missing(name))
    }

    fn array<V: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, V>, Error> {
        Array::try_from(self.map(name)?).map_err(|error| map_refused(name, &error))
    }

    /// Sets what is done with tags.
    pub fn treat(&mut self, tags: impl IntoIterator<Item = (u16, Treatment)>) -> Result<(), Error> {
        let mut inward = self.array::<u32>("inward")?;
        for (tag, treatment) in tags {
            let value = match treatment {
                Treatment::Unknown => TAG_UNKNOWN,
                Treatment::AsComes => TAG_AS_COMES,
                Treatment::InOrder => TAG_IN_ORDER,
            };
            inward
                .set(tag.into(), value, 0)
                .map_err(|error| map_refused("inward", &error))?;
        }
        Ok(())
    }

    /// Splits packets like this from now on: who is behind nobody any more goes first, which makes room
    /// and leaves nobody at a place that becomes another's; then tables, then who is behind whom.
    pub fn split(&mut self, outward: &[Outward]) -> Result<(), Error> {
        self.targets
            .retain(|name, _| outward.iter().any(|each| each.target == *name));
        let wanted: BTreeSet<Mac> = outward
            .iter()
            .flat_map(|each| each.hosts.iter().copied())
            .collect();
        let kept: BTreeSet<u32> = self.targets.values().copied().collect();
        let mut gone = self.hosts.clone();
        gone.retain(|mac, place| !wanted.contains(mac) || !kept.contains(place));
        for mac in gone.into_keys() {
            self.point(mac, None)?;
        }
        for each in outward {
            let place = self.place(&each.target);
            let mut words = SlotWords {
                tags: [0; SLOTS as usize],
                numbered: each.numbers().into(),
                zero: 0,
                rate: each.ceiling_bit_s / 8,
            };
            words.tags.copy_from_slice(&each.slots);
            self.array::<SlotWords>("tables")?
                .set(place, words, 0)
                .map_err(|error| map_refused("tables", &error))?;
        }
        for each in outward {
            let place = self.place(&each.target);
            for mac in &each.hosts {
                if self.hosts.get(mac) != Some(&place) {
                    self.point(*mac, Some(place))?;
                }
            }
        }
        Ok(())
    }

    /// Has a host be behind the target at a place, or behind none.
    fn point(&mut self, mac: Mac, place: Option<u32>) -> Result<(), Error> {
        let mut hosts: HashMap<_, [u8; 8], u32> =
            HashMap::try_from(self.map("hosts")?).map_err(|error| map_refused("hosts", &error))?;
        match place {
            Some(place) => hosts.insert(key(mac), place, 0),
            None => hosts.remove(&key(mac)),
        }
        .map_err(|error| map_refused("hosts", &error))?;
        match place {
            Some(place) => self.hosts.insert(mac, place),
            None => self.hosts.remove(&mac),
        };
        Ok(())
    }

    fn place(&mut self, target: &str) -> u32 {
        let taken: Vec<u32> = self.targets.values().copied().collect();
        let free = (0..MAX_TARGETS).find(|place| !taken.contains(place));
        *self
            .targets
            .entry(target.to_owned())
            .or_insert(free.unwrap_or(NO_TARGET))
    }

    /// How often each reason came about, in their order.
    pub fn reasons(&mut self) -> Result<Vec<u64>, Error> {
        let map = PerCpuArray::<_, u64>::try_from(self.map("reasons")?)
            .map_err(|error| map_refused("reasons", &error))?;
        (0..REASONS.len() as u32)
            .map(|number| {
                let values = map.get(&number, 0);
                let values = values.map_err(|error| map_refused("reasons", &error))?;
                Ok(values.iter().sum())
            })
            .collect()
    }

    /// What was sent by a path from here, or came by one to here.
    pub fn traffic(&mut self, sent: bool, tag: u16) -> Result<Traffic, Error> {
        let name = if sent { "sent" } else { "came" };
        let map = PerCpuArray::<_, Traffic>::try_from(self.map(name)?)
            .map_err(|error| map_refused(name, &error))?;
        let values = map.get(&tag.into(), 0);
        let values = values.map_err(|error| map_refused(name, &error))?;
        Ok(values.iter().fold(Traffic::default(), |sum, each| Traffic {
            packets: sum.packets + each.packets,
            bytes: sum.bytes + each.bytes,
        }))
    }
}

fn key(Mac(mac): Mac) -> [u8; 8] {
    let mut key = [0; 8];
    key[..6].copy_from_slice(&mac);
    key
}

fn index(device: &str) -> Result<u32, Error> {
    if_nametoindex(device).map_err(|errno| Error::Device {
        device: device.to_owned(),
        source: errno.into(),
    })
}

/// Two edges on one device would split what the other has split.
fn must_be_free(device: &str) -> Result<(), Error> {
    index(device)?;
    let (_, programs) = SchedClassifier::query_tcx(device, TcAttachType::Ingress)
        .map_err(|error| refused(&format!("programs on {device}"), &error))?;
    let ours = [Layer::Two.programs(), Layer::Three.programs()].concat();
    match programs
        .iter()
        .filter_map(|program| program.name_as_str())
        .find(|name| ours.contains(name))
    {
        Some(program) => Err(Error::Taken {
            device: device.to_owned(),
            program: program.to_owned(),
        }),
        None => Ok(()),
    }
}

fn missing(what: &str) -> Error {
    Error::Load {
        what: what.to_owned(),
        reason: "not in the object that was built".to_owned(),
    }
}

fn map_refused(name: &str, error: &MapError) -> Error {
    refused(&format!("map {name}"), error)
}

/// The kernel's answer, down to its last reason.
fn refused(what: &str, error: &dyn std::error::Error) -> Error {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::PermissionDenied
        {
            let action = what.to_owned();
            return Error::Permission { action };
        }
        reason = format!("{reason}: {inner}");
        source = inner.source();
    }
    Error::Load {
        what: what.to_owned(),
        reason,
    }
}
