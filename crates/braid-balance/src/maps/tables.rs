//! Typed handles on the pinned maps.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};

use super::batch;
use super::layout::select::{DnsNameValue, RuleBank, StickyKey, StickyValue};
use super::layout::{
    Address, FlowValue, ForecastValue, FragmentKey, FragmentValue, LanDevice, Meta, PathEntryValue,
    RaceValue, ReplayBufferValue, Settings, ShapeCountersValue, ShapeRateValue, SlotBank,
    StoredPacketValue, TrafficValue, Tuple, UplinkValue, VirtualQueueValue,
};
use crate::pins::Pins;
use crate::{Error, MapMemory};

/// The maps that are pinned, by name. The others (`pkt_scratch`, `blank_entry`, `refused`, `subjects`, and the times in
/// `queued_until` and `queue_seen`, which soon are over) are scratch space of the programs; each build has its own, and their
/// contents are no part of the layout.
pub(crate) const MAPS: [&str; 36] = [
    "upcall_quotas",
    "client_macs",
    "embryos",
    "embryos_reverse",
    "flows",
    "flows_reverse",
    "fragments",
    "lan_devices",
    "replay_buffers",
    "late_replies",
    "lease",
    "connlimit",
    "meta",
    "dns_names",
    "upcalls",
    "forecasts",
    "own_addresses",
    "path_cache",
    "replay_embryos",
    "race_budget",
    "races",
    "reasons",
    "rules",
    "rules_active",
    "settings",
    "shape_counters",
    "shape_rates",
    "slots",
    "sticky",
    "sticky_embryos",
    "traffic",
    "rr_cursors",
    "uplink_of_high",
    "uplink_of_low",
    "uplinks",
    "virtual_queues",
];

/// The maps that this side reads or writes.
pub(crate) struct Tables {
    pub meta: Array<MapData, Meta>,
    pub settings: Array<MapData, Settings>,
    pub uplinks: Array<MapData, UplinkValue>,
    pub slots: Array<MapData, SlotBank>,
    pub uplink_of_low: Array<MapData, u32>,
    pub uplink_of_high: HashMap<MapData, u32, u32>,
    pub own_addresses: HashMap<MapData, Address, u32>,
    pub lan_devices: HashMap<MapData, u32, LanDevice>,
    pub reasons: PerCpuArray<MapData, u64>,
    pub traffic: PerCpuArray<MapData, TrafficValue>,
    pub rules: Array<MapData, RuleBank>,
    pub rules_active: Array<MapData, u32>,
    pub dns_names: HashMap<MapData, Address, DnsNameValue>,
    pub dns_names_data: MapData,
    /// Entries of clients that have had an answer, and entries of those that have not.
    pub sticky: [StickyTable; 2],
    pub connlimit: HashMap<MapData, Address, u32>,
    pub assured: Pair,
    pub embryos: Pair,
    pub fragments: HashMap<MapData, FragmentKey, FragmentValue>,
    pub replay_buffers: HashMap<MapData, Tuple, ReplayBufferValue>,
    pub replay_embryos: HashMap<MapData, Tuple, StoredPacketValue>,
    pub races: HashMap<MapData, Tuple, RaceValue>,
    pub races_data: MapData,
    pub path_cache: HashMap<MapData, Address, PathEntryValue>,
    pub path_cache_data: MapData,
    pub forecasts: Array<MapData, ForecastValue>,
    pub shape_rates: Array<MapData, ShapeRateValue>,
    pub shape_counters: PerCpuArray<MapData, ShapeCountersValue>,
    pub virtual_queues: Array<MapData, VirtualQueueValue>,
}

/// A forward table and its reverse.
pub(crate) struct Pair {
    pub forward: HashMap<MapData, Tuple, FlowValue>,
    pub reverse: HashMap<MapData, Tuple, Tuple>,
    forward_data: MapData,
    reverse_data: MapData,
}

impl Pair {
    fn open(pins: &Pins, forward: &str, reverse: &str) -> Result<Self, Error> {
        Ok(Self {
            forward: typed(pins, forward)?,
            reverse: typed(pins, reverse)?,
            forward_data: data(pins, forward)?,
            reverse_data: data(pins, reverse)?,
        })
    }

    pub(crate) fn forward_fd(&self) -> BorrowedFd<'_> {
        self.forward_data.fd().as_fd()
    }

    pub(crate) fn reverse_fd(&self) -> BorrowedFd<'_> {
        self.reverse_data.fd().as_fd()
    }

    pub(crate) fn max_entries(&self) -> Result<u32, Error> {
        let info = self
            .forward_data
            .info()
            .map_err(|error| refused("map flows", &error))?;
        Ok(info.max_entries())
    }
}

/// One of the two tables of sticky clients.
pub(crate) struct StickyTable {
    pub map: HashMap<MapData, StickyKey, StickyValue>,
    data: MapData,
}

impl StickyTable {
    fn open(pins: &Pins, name: &str) -> Result<Self, Error> {
        Ok(Self {
            map: typed(pins, name)?,
            data: data(pins, name)?,
        })
    }

    pub(crate) fn entries(&self) -> Result<Vec<(StickyKey, StickyValue)>, Error> {
        batch::entries(self.data.fd().as_fd())
            .map_err(|source| Error::system("reading map sticky", source))
    }
}

impl Tables {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            meta: typed(pins, "meta")?,
            settings: typed(pins, "settings")?,
            uplinks: typed(pins, "uplinks")?,
            slots: typed(pins, "slots")?,
            uplink_of_low: typed(pins, "uplink_of_low")?,
            uplink_of_high: typed(pins, "uplink_of_high")?,
            own_addresses: typed(pins, "own_addresses")?,
            lan_devices: typed(pins, "lan_devices")?,
            reasons: typed(pins, "reasons")?,
            traffic: typed(pins, "traffic")?,
            rules: typed(pins, "rules")?,
            rules_active: typed(pins, "rules_active")?,
            dns_names: typed(pins, "dns_names")?,
            dns_names_data: data(pins, "dns_names")?,
            sticky: [
                StickyTable::open(pins, "sticky")?,
                StickyTable::open(pins, "sticky_embryos")?,
            ],
            connlimit: typed(pins, "connlimit")?,
            assured: Pair::open(pins, "flows", "flows_reverse")?,
            embryos: Pair::open(pins, "embryos", "embryos_reverse")?,
            fragments: typed(pins, "fragments")?,
            replay_buffers: typed(pins, "replay_buffers")?,
            replay_embryos: typed(pins, "replay_embryos")?,
            races: typed(pins, "races")?,
            races_data: data(pins, "races")?,
            path_cache: typed(pins, "path_cache")?,
            path_cache_data: data(pins, "path_cache")?,
            forecasts: typed(pins, "forecasts")?,
            shape_rates: typed(pins, "shape_rates")?,
            shape_counters: typed(pins, "shape_counters")?,
            virtual_queues: typed(pins, "virtual_queues")?,
        })
    }
}

/// Reads the version that pinned the maps; `None` if that cannot be read, as with another layout.
pub(crate) fn read_meta(pins: &Pins) -> Option<Meta> {
    let meta: Array<MapData, Meta> = typed(pins, "meta").ok()?;
    meta.get(&0, 0).ok()
}

/// Kernel memory of every pinned map, as `/proc/self/fdinfo` accounts it.
pub(crate) fn memory(pins: &Pins) -> Result<Vec<MapMemory>, Error> {
    MAPS.iter()
        .map(|&name| {
            let map = data(pins, name)?;
            let path = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
            let text = fs::read_to_string(&path).map_err(|source| Error::system(&path, source))?;
            let bytes = text
                .lines()
                .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
                .unwrap_or(0);
            Ok(MapMemory {
                map: name.to_owned(),
                bytes,
            })
        })
        .collect()
}

pub(crate) fn data(pins: &Pins, name: &str) -> Result<MapData, Error> {
    MapData::from_pin(pins.map(name)).map_err(|error| refused(&format!("map {name}"), &error))
}

pub(crate) fn typed<T: TryFrom<Map, Error = MapError>>(
    pins: &Pins,
    name: &str,
) -> Result<T, Error> {
    let named = |error| refused(&format!("map {name}"), &error);
    Map::from_map_data(data(pins, name)?)
        .and_then(T::try_from)
        .map_err(named)
}

/// The kernel's answer to an operation on `what`.
pub(crate) fn refused(what: &str, error: &MapError) -> Error {
    let source = match error {
        MapError::SyscallError(call) => match call.io_error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::other(call.to_string()),
        },
        other => io::Error::other(other.to_string()),
    };
    Error::system(what, source)
}

/// Replaces the contents of a map.
pub(crate) fn replace<K: Pod + Ord>(
    what: &str,
    map: &mut HashMap<MapData, K, u32>,
    wanted: &BTreeMap<K, u32>,
) -> Result<(), Error> {
    let failed = |error| refused(what, &error);
    for known in map.keys().collect::<Result<Vec<_>, _>>().map_err(failed)? {
        if !wanted.contains_key(&known) {
            map.remove(&known).map_err(failed)?;
        }
    }
    for (key, id) in wanted {
        map.insert(key, id, 0).map_err(failed)?;
    }
    Ok(())
}

/// Returns a removal's result, in which a missing entry is no error.
pub(crate) fn ignore_missing(what: &str, result: Result<(), MapError>) -> Result<(), Error> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(call)) if call.io_error.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        result => result.map_err(|error| refused(what, &error)),
    }
}

/// Returns all entries of a map whose keys are connections.
pub(crate) fn read<V: Pod>(what: &str, map: BorrowedFd<'_>) -> Result<Vec<(Tuple, V)>, Error> {
    batch::entries(map).map_err(|source| Error::system(format!("reading map {what}"), source))
}

/// Returns a look-up's result, in which a missing entry is no error.
pub(crate) fn found<V>(result: Result<V, MapError>) -> Result<Option<V>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(refused("looking up a flow", &error)),
    }
}
