//! The eBPF programs and their maps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier};
use aya::util::KernelVersion;
use aya::{Ebpf, Pod, include_bytes_aligned};
use braid_device::Interface;
use braid_host::run_dir::NameClaim;
use nix::net::if_::if_nametoindex;
use nix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::pair_monitor::PathQueue;
use crate::pair_repair::{LOSS_WINDOW, Repairs};
use crate::path_loss::RecentLoss;
use crate::shared::{
    MAX_PATHS, MAX_TARGETS, NO_TARGET, OFFER_BYTES, REASONS, SLOTS, TAG_DROP, TAG_FORWARD,
    TAG_RESEQUENCE, verifier_error,
};
use crate::table::{Egress, Mac};

mod attach;
mod l3_paths;
#[cfg(test)]
mod test_run;

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/edge.bpf.o"));

/// The first kernel with TCX links, which end with their process.
const TCX_SINCE: KernelVersion = KernelVersion::new(6, 6, 0);
/// Priority of clsact filters: before most others.
const PRIORITY: u16 = 49;
const HANDLE: u32 = 0xb2;
/// Bytes of a frame that an MTU does not count.
const ETHERNET_HEADER: u32 = 14;
/// Interval at which [`Datapath::renew`] must be called.
pub const LEASE_RENEWAL: Duration = Duration::from_millis(250);
/// Time for which clsact filters stay active after the last [`Datapath::renew`].
const LEASE: Duration = Duration::from_secs(2);
/// Time after the last [`Datapath::renew`] for which the program offers copies.
const OFFERS_LEASE: Duration = Duration::from_secs(1);
/// Attempts to load a program: the verifier fails with EAGAIN while a signal is pending.
const LOAD_ATTEMPTS: usize = 16;

/// The devices that an edge connects.
#[derive(Debug, Clone)]
pub struct Devices {
    /// Device towards the hosts.
    pub inside: String,
    /// Device towards the switch; with layer-3 paths, devices towards the routers.
    pub outside: Vec<String>,
    /// The resequencer's TAP device.
    pub hold: String,
}

/// Method by which programs are attached to devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Hook {
    /// TCX where the kernel has it (6.6), else clsact.
    #[default]
    Auto,
    /// TCX links, which end with their process.
    Tcx,
    /// clsact filters, which stay when the process is killed, and become inactive soon after.
    Clsact,
}

impl Hook {
    fn is_tcx(self) -> bool {
        match self {
            Hook::Auto => KernelVersion::current().is_ok_and(|kernel| kernel >= TCX_SINCE),
            Hook::Tcx => true,
            Hook::Clsact => false,
        }
    }
}

/// Kind of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Tagged paths; the edge is a bump in the wire.
    Two,
    /// Pairs of prefixes; the edge is a router.
    Three,
}

impl Layer {
    /// Returns the programs of the resequencer's, the outside and the inside device.
    fn programs(self) -> [&'static str; 3] {
        match self {
            Layer::Two => ["braid_ordered", "braid_join", "braid_split"],
            Layer::Three => ["braid_route_ord", "braid_route_in", "braid_route_out"],
        }
    }
}

/// Action for packets that arrive with a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagAction {
    /// Drop.
    Drop,
    /// Forward as they come.
    Forward,
    /// Send TCP segments through the resequencer.
    Resequence,
}

/// Packets of a path that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Sent by it.
    Sent,
    /// Among these those of flows that keep to it.
    Kept,
    /// Received by it.
    Received,
}

/// Packets and bytes of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TrafficCounters {
    pub packets: u64,
    pub bytes: u64,
}

// SAFETY: two integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for TrafficCounters {}

/// Bytes within a second from which on flows of a lane are numbered: more than a call carries.
const MIN_LANE_BYTES: u32 = 32_768;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Settings {
    inside: u32,
    outside: u32,
    hold: u32,
    epoch: u32,
    shim: u32,
    max_frame_bytes: u32,
    min_lane_bytes: u32,
    zero: u32,
    lease_end_ns: u64,
    offers_end_ns: u64,
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for Settings {}

/// `struct path`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PathEntry {
    tag: u32,
    delay_us: u32,
    ns_per_kib: u64,
    latency_us: u32,
    zero: u32,
}

/// `struct slot_table`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SlotTableEntry {
    tags: [u16; SLOTS as usize],
    shim: u32,
    path_count: u32,
    rate: u64,
    paths: [PathEntry; MAX_PATHS as usize],
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for SlotTableEntry {}

/// `struct path_loss`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PathLossEntry {
    at: u64,
    sent: u64,
    lost: u64,
    event_at: u64,
    resent: u64,
    measured_end_ns: u64,
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for PathLossEntry {}

/// `struct line`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LineEntry {
    idle_at: u64,
    tag: u32,
    zero: u32,
}

/// `struct cursor`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct CursorEntry {
    lock: u32,
    unused: u32,
    bytes: u64,
    lines: [LineEntry; MAX_PATHS as usize],
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for CursorEntry {}

/// `struct path_queue`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PathQueueEntry {
    ns: u64,
    excess_ns: u64,
    end_ns: u64,
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for PathQueueEntry {}

/// `struct offer`.
type OfferEntry = [u8; OFFER_BYTES as usize];

/// `struct last_arrival`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LastArrivalEntry {
    probe: u64,
    data_at: u64,
    packets: u64,
}

// SAFETY: integers without padding.
#[allow(unsafe_code)]
unsafe impl Pod for LastArrivalEntry {}

impl SlotTableEntry {
    fn of(egress: &Egress) -> SlotTableEntry {
        let mut entry = SlotTableEntry {
            tags: [0; SLOTS as usize],
            shim: egress.uses_shim().into(),
            path_count: 0,
            rate: egress.max_rate_bit_s / 8,
            paths: Default::default(),
        };
        entry.tags.copy_from_slice(&egress.slots);
        let mut paths = egress.paths.clone();
        let known =
            paths.len() <= entry.paths.len() && paths.iter().all(|path| path.rate_bit_s > 0);
        if known && paths.len() > 1 {
            // The queue of a path is known by its place, whatever its latency is among others.
            paths.sort_by_key(|path| path.tag);
            for (place, path) in entry.paths.iter_mut().zip(&paths) {
                *place = PathEntry {
                    tag: path.tag.into(),
                    delay_us: path.delay_us(),
                    ns_per_kib: (8 * 1024 * 1_000_000_000 / path.rate_bit_s).max(1),
                    latency_us: path.latency_us(),
                    zero: 0,
                };
                entry.path_count += 1;
            }
        }
        entry
    }
}

/// The attached programs. Dropping it detaches them.
pub struct Datapath {
    object: Ebpf,
    /// Index of each target edge in `tables`. An index is reused once no host points to it.
    targets: BTreeMap<String, u32>,
    /// Index of each host's target, as in the map.
    hosts: BTreeMap<Mac, u32>,
    /// As in the maps.
    repairs: Repairs,
    avoided: BTreeSet<u16>,
    settings: Settings,
    /// The device whose MTU decides if a shim fits.
    outside: Option<String>,
    /// True if the programs need a lease.
    leased: bool,
    /// Sockets that keep other edges off the devices.
    _claims: Vec<NameClaim>,
}

/// Loads all programs for verification and unloads them: nothing is attached, and running edges are not
/// affected. Returns the kernel's refusals.
#[must_use]
pub fn rehearse() -> Vec<Error> {
    let loaded = [Layer::Two, Layer::Three].map(Datapath::loaded);
    loaded.into_iter().filter_map(Result::err).collect()
}

impl Datapath {
    /// Loads the programs and attaches them. Without `shim`, packets with a shim are dropped; shims added
    /// here bear `epoch`.
    pub fn attach(
        devices: &Devices,
        layer: Layer,
        hook: Hook,
        shim: bool,
        epoch: u8,
    ) -> Result<Datapath, Error> {
        let mut datapath = Datapath::loaded(layer)?;
        let [ordered, from_outside, from_inside] = layer.programs();
        let mut hooks = vec![(ordered, devices.hold.as_str())];
        hooks.extend(
            devices
                .outside
                .iter()
                .map(|device| (from_outside, device.as_str())),
        );
        hooks.push((from_inside, &devices.inside));
        for (program, device) in &hooks {
            datapath._claims.push(attach::claim(device, program)?);
        }
        // With several outside devices routes choose one.
        let outside = devices.outside.last();
        datapath.settings = Settings {
            inside: ifindex(&devices.inside)?,
            outside: outside.map_or(Ok(0), |name| ifindex(name))?,
            hold: ifindex(&devices.hold)?,
            epoch: epoch.into(),
            shim: shim.into(),
            max_frame_bytes: 0,
            min_lane_bytes: MIN_LANE_BYTES,
            zero: 0,
            lease_end_ns: 0,
            offers_end_ns: 0,
        };
        datapath.outside = outside.cloned();
        datapath.leased = !hook.is_tcx();
        datapath.renew()?;
        // The programs of later stages are attached first.
        for (program, device) in hooks {
            attach::put(datapath.program(program)?, program, device, hook)?;
        }
        Ok(datapath)
    }

    /// Renews the lease and the offers of copies, and reads the outside device's MTU. Must be called every [`LEASE_RENEWAL`].
    pub fn renew(&mut self) -> Result<(), Error> {
        let outside = self.outside.as_deref();
        // While the device is missing the last MTU stays in effect.
        if let Some(Ok(mtu)) = outside.map(|device| Interface::open(device)?.mtu()) {
            self.settings.max_frame_bytes = mtu + ETHERNET_HEADER;
        }
        let now = monotonic_time()?;
        let end = |lease: Duration| (now + lease).as_nanos() as u64;
        self.settings.offers_end_ns = end(OFFERS_LEASE);
        if self.leased {
            self.settings.lease_end_ns = end(LEASE);
        }
        self.set(self.settings)
    }

    /// Detaches the programs.
    pub fn detach(&mut self) {
        for (name, program) in self.object.programs_mut() {
            let program: Result<&mut SchedClassifier, _> = program.try_into();
            // A program that was never loaded is not attached either.
            if let Err(error) = program.and_then(SchedClassifier::unload)
                && !matches!(error, ProgramError::NotLoaded)
            {
                tracing::warn!(program = name, %error, "not detached");
            }
        }
    }

    /// Loads the programs without attaching them.
    pub fn loaded(layer: Layer) -> Result<Datapath, Error> {
        let object = aya::EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| refused("loading edge.bpf.o", &error))?;
        let mut datapath = Datapath {
            object,
            targets: BTreeMap::new(),
            hosts: BTreeMap::new(),
            repairs: Repairs::default(),
            avoided: BTreeSet::new(),
            settings: Settings::default(),
            outside: None,
            leased: false,
            _claims: Vec::new(),
        };
        for program in layer.programs() {
            datapath.load(program)?;
        }
        Ok(datapath)
    }

    fn set(&mut self, settings: Settings) -> Result<(), Error> {
        self.array::<Settings>("edge_settings")?
            .set(0, settings, 0)
            .map_err(|error| map_refused("edge_settings", &error))
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

    /// Sets the actions for tags.
    pub fn set_tag_actions(
        &mut self,
        tags: impl IntoIterator<Item = (u16, TagAction)>,
    ) -> Result<(), Error> {
        let mut tag_actions = self.array::<u32>("tag_actions")?;
        for (tag, tag_action) in tags {
            let value = match tag_action {
                TagAction::Drop => TAG_DROP,
                TagAction::Forward => TAG_FORWARD,
                TagAction::Resequence => TAG_RESEQUENCE,
            };
            tag_actions
                .set(tag.into(), value, 0)
                .map_err(|error| map_refused("tag_actions", &error))?;
        }
        Ok(())
    }

    /// Forgets what came by a path: its tag was given to another one.
    pub fn forget_arrivals(&mut self, tag: u16) -> Result<(), Error> {
        self.array::<LastArrivalEntry>("last_arrivals")?
            .set(tag.into(), LastArrivalEntry::default(), 0)
            .map_err(|error| map_refused("last_arrivals", &error))
    }

    /// Returns the index of the outside device.
    #[must_use]
    pub fn outside_index(&self) -> u32 {
        self.settings.outside
    }

    /// Sets the split towards other edges. Stale hosts are removed first, which makes room and frees the
    /// indices of removed targets; then slot tables are written, then new hosts.
    pub fn set_egress(&mut self, egress: &[Egress]) -> Result<(), Error> {
        self.targets
            .retain(|name, _| egress.iter().any(|each| each.target == *name));
        let wanted: BTreeSet<Mac> = egress
            .iter()
            .flat_map(|each| each.hosts.iter().copied())
            .collect();
        let kept: BTreeSet<u32> = self.targets.values().copied().collect();
        let mut gone = self.hosts.clone();
        gone.retain(|mac, index| !wanted.contains(mac) || !kept.contains(index));
        for mac in gone.into_keys() {
            self.set_host(mac, None)?;
        }
        for each in egress {
            let index = self.target_index(&each.target);
            self.array::<SlotTableEntry>("tables")?
                .set(index, SlotTableEntry::of(each), 0)
                .map_err(|error| map_refused("tables", &error))?;
        }
        for each in egress {
            let index = self.target_index(&each.target);
            for mac in &each.hosts {
                if self.hosts.get(mac) != Some(&index) {
                    self.set_host(*mac, Some(index))?;
                }
            }
        }
        Ok(())
    }

    /// Sets or removes a host's target.
    fn set_host(&mut self, mac: Mac, index: Option<u32>) -> Result<(), Error> {
        let mut hosts: HashMap<_, [u8; 8], u32> =
            HashMap::try_from(self.map("hosts")?).map_err(|error| map_refused("hosts", &error))?;
        match index {
            Some(index) => hosts.insert(key(mac), index, 0),
            None => hosts.remove(&key(mac)),
        }
        .map_err(|error| map_refused("hosts", &error))?;
        match index {
            Some(index) => self.hosts.insert(mac, index),
            None => self.hosts.remove(&mac),
        };
        Ok(())
    }

    fn target_index(&mut self, target: &str) -> u32 {
        let taken: Vec<u32> = self.targets.values().copied().collect();
        let free = (0..MAX_TARGETS).find(|index| !taken.contains(index));
        *self
            .targets
            .entry(target.to_owned())
            .or_insert(free.unwrap_or(NO_TARGET))
    }

    /// Returns the counter of each reason, in the order of [`REASONS`].
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

    /// Gives this process copies of the numbered packets that are sent by the paths that lose some, and by no
    /// others, and offers them to the other edges.
    pub fn set_repairs(&mut self, repairs: &Repairs) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.repairs, repairs.clone());
        for tag in before.copied.keys().chain(repairs.copied.keys()) {
            let is_copied = repairs.copied.contains_key(tag);
            if is_copied != before.copied.contains_key(tag) {
                self.array::<u32>("copied_tags")?
                    .set((*tag).into(), u32::from(is_copied), 0)
                    .map_err(|error| map_refused("copied_tags", &error))?;
            }
            if is_copied && !before.copied.contains_key(tag) {
                self.forgive_losses(*tag)?;
            }
        }
        let mut map = self.array::<OfferEntry>("offers")?;
        for tag in before.offers.keys().chain(repairs.offers.keys()) {
            let offer = repairs.offers.get(tag);
            if offer != before.offers.get(tag) {
                let bytes = offer.map_or_else(Default::default, |offer| offer.to_bytes());
                map.set((*tag).into(), bytes, 0)
                    .map_err(|error| map_refused("offers", &error))?;
            }
        }
        Ok(())
    }

    /// Sets the paths that flows avoid which keep to one path.
    pub fn set_avoided(&mut self, avoided: &BTreeSet<u16>) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.avoided, avoided.clone());
        let mut map = self.array::<u32>("avoided_tags")?;
        for tag in before.symmetric_difference(avoided) {
            let is_avoided = u32::from(avoided.contains(tag));
            map.set((*tag).into(), is_avoided, 0)
                .map_err(|error| map_refused("avoided_tags", &error))?;
        }
        Ok(())
    }

    /// Returns the estimated queue in front of each path to another edge; none of those that had no packet yet.
    pub fn estimated_queues(&mut self, target: &str) -> Result<BTreeMap<u16, Duration>, Error> {
        let Some(index) = self.targets.get(target).copied() else {
            return Ok(BTreeMap::new());
        };
        let now = monotonic_time()?.as_nanos() as u64;
        let cursor = self.array::<CursorEntry>("cursors")?.get(&index, 0);
        let cursor = cursor.map_err(|error| map_refused("cursors", &error))?;
        let lines = cursor.lines.iter().filter(|line| line.tag != 0);
        let queue = |line: &LineEntry| Duration::from_nanos(line.idle_at.saturating_sub(now));
        Ok(lines.map(|line| (line.tag as u16, queue(line))).collect())
    }

    /// Sets the queues in front of paths, which hold until `end` by the monotonic clock.
    pub fn set_path_queues(
        &mut self,
        queues: &BTreeMap<u16, PathQueue>,
        end: Duration,
    ) -> Result<(), Error> {
        let mut map = self.array::<PathQueueEntry>("path_queues")?;
        for (tag, queue) in queues {
            let entry = PathQueueEntry {
                ns: queue.whole.as_nanos() as u64,
                excess_ns: queue.excess.as_nanos() as u64,
                end_ns: end.as_nanos() as u64,
            };
            map.set((*tag).into(), entry, 0)
                .map_err(|error| map_refused("path_queues", &error))?;
        }
        Ok(())
    }

    /// Forgets what a path lost lately, so that only losses count from now on that are not repaired.
    fn forgive_losses(&mut self, tag: u16) -> Result<(), Error> {
        let refused = |error| map_refused("path_losses", &error);
        let mut map = self.array::<PathLossEntry>("path_losses")?;
        let entry = map.get(&tag.into(), 0).map_err(refused)?;
        // The program may count a packet meanwhile, which does not matter.
        map.set(tag.into(), PathLossEntry { lost: 0, ..entry }, 0)
            .map_err(refused)
    }

    /// Sets what each path lost lately, which takes the place of what hosts send again for so long.
    pub fn set_losses(
        &mut self,
        losses: &BTreeMap<u16, RecentLoss>,
        lifetime: Duration,
    ) -> Result<(), Error> {
        let refused = |error| map_refused("path_losses", &error);
        let now = monotonic_time()?;
        let mut map = self.array::<PathLossEntry>("path_losses")?;
        for (tag, loss) in losses {
            // The program may count a packet that is sent again meanwhile, which does not matter.
            let entry = PathLossEntry {
                at: now.as_nanos() as u64,
                sent: loss.sent,
                lost: loss.lost,
                measured_end_ns: (now + lifetime).as_nanos() as u64,
                ..map.get(&(*tag).into(), 0).map_err(refused)?
            };
            map.set((*tag).into(), entry, 0).map_err(refused)?;
        }
        Ok(())
    }

    /// Returns how many of the bytes sent by a path within [`LOSS_WINDOW`] there were, and how many were lost.
    pub fn loss(&mut self, tag: u16) -> Result<(u64, u64), Error> {
        let now = monotonic_time()?;
        let map = self.array::<PathLossEntry>("path_losses")?;
        let entry = map.get(&tag.into(), 0);
        let entry = entry.map_err(|error| map_refused("path_losses", &error))?;
        // They decay as others are sent.
        let age = now.saturating_sub(Duration::from_nanos(entry.at));
        Ok(match age > LOSS_WINDOW {
            true => (0, 0),
            false => (entry.sent, entry.lost),
        })
    }

    /// Returns the number of segments sent by a path that the host sent again.
    pub fn resent(&mut self, tag: u16) -> Result<u64, Error> {
        let map = self.array::<PathLossEntry>("path_losses")?;
        let entry = map.get(&tag.into(), 0);
        Ok(entry
            .map_err(|error| map_refused("path_losses", &error))?
            .resent)
    }

    /// Returns the counters of a path.
    pub fn traffic(&mut self, counted: Counted, tag: u16) -> Result<TrafficCounters, Error> {
        let name = match counted {
            Counted::Sent => "tx_traffic",
            Counted::Kept => "kept_traffic",
            Counted::Received => "rx_traffic",
        };
        let map = PerCpuArray::<_, TrafficCounters>::try_from(self.map(name)?)
            .map_err(|error| map_refused(name, &error))?;
        let values = map.get(&tag.into(), 0);
        let values = values.map_err(|error| map_refused(name, &error))?;
        Ok(values
            .iter()
            .fold(TrafficCounters::default(), |sum, each| TrafficCounters {
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

fn ifindex(device: &str) -> Result<u32, Error> {
    if_nametoindex(device).map_err(|errno| Error::Device {
        device: device.to_owned(),
        source: errno.into(),
    })
}

/// Time by this machine's monotonic clock, which the programs have as well.
pub(crate) fn monotonic_time() -> Result<Duration, Error> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map(Duration::from)
        .map_err(|errno| Error::system("reading the clock", errno.into()))
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

/// Makes an error of the kernel's answer, with the whole chain of sources.
fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    if let Some(ProgramError::LoadError {
        io_error,
        verifier_log,
    }) = error.downcast_ref()
        && io_error.raw_os_error() != Some(libc::EPERM)
    {
        return Error::Load {
            what: format!("program {what}"),
            reason: verifier_error(io_error, &verifier_log.to_string()),
        };
    }
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
