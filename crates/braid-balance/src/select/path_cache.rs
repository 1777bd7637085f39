//! The path cache (RTT and loss by destination prefix and uplink), and the forecasts of uplinks.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use braid_core::forecast::{kilobytes_per_sec, ppm};
use braid_core::{MAX_UPLINKS, Rate, UplinkId};

use crate::generated::{self, PATH_BITS_V4, PATH_BITS_V6, RTT_TRIED_US, RTT_UNANSWERED_US};
use crate::maps::batch;
use crate::maps::layout::{Address, ForecastValue, PathEntryValue, PathValue, from_ip, to_ip};
use crate::maps::tables::{Tables, found, refused};
use crate::{Error, KernelTime};

/// Maximum number of prefixes; the least recently used one is evicted.
pub const MAX_CACHED_PREFIXES: usize = generated::MAX_CACHED_PREFIXES as usize;

/// The path cache's entry for one destination prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct PathCacheEntry {
    /// Its first address.
    pub prefix: IpAddr,
    /// Its length: 24 for IPv4, 48 for IPv6.
    pub bits: u8,
    /// The paths to it whose round trip or loss was measured, by uplink.
    pub paths: Vec<CachedPath>,
}

/// The path to a prefix by one uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedPath {
    /// The uplink.
    pub uplink: UplinkId,
    /// From SYN, or QUIC Initial, to its answer; each new handshake moves it by a quarter of the difference. `None`:
    /// not known.
    pub rtt: Option<Duration>,
    /// True if a QUIC connection tries the path and has yet to be answered; others do not try it meanwhile.
    pub tried: bool,
    /// Time since the last handshake.
    pub age: Duration,
    /// TCP segments with data, in both directions; halved now and then, so that old ones count
    /// less.
    pub packets: u32,
    /// Those of them that indicate a loss.
    pub lost: u32,
    /// True if the uplink is in the same epoch as then.
    pub valid: bool,
}

impl CachedPath {
    /// Returns true if its round trip stands for a SYN that was left unanswered: under `fastest` no race to the prefix
    /// is worthwhile there.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.rtt == Some(Duration::from_micros(RTT_UNANSWERED_US.into()))
    }
}

/// The expected load of an uplink, for [`LbMethod::Fastest`](crate::LbMethod::Fastest).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UplinkForecast {
    /// The uplink.
    pub uplink: UplinkId,
    /// Rate that it can carry in its busier direction, capped at 17 Tbit/s.
    pub capacity: Rate,
    /// Rate that is free now.
    pub spare: Rate,
    /// Flows that were moving data, see [`FlowActivity::active`].
    pub busy: u32,
    /// Share of TCP packets that it loses, as a fraction, where the path is unknown.
    pub loss: f64,
    /// Share of TCP packets on all paths that it loses by its own load, as a fraction. A path's losses count as far as
    /// they exceed that.
    pub load_loss: f64,
}

/// Activity on an uplink since its last [`UplinkForecast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowActivity {
    /// The uplink.
    pub uplink: UplinkId,
    /// Flows opened on it; those from before the last forecast count half, from before the one
    /// before a quarter, and so on.
    pub opened: u32,
    /// TCP flows that have moved at least 64 packets with data without an idle forecast period in
    /// between.
    pub active: u32,
    /// [`UplinkForecast::busy`] without connections of which a side has sent a FIN since; they are
    /// taken off `active` as well.
    pub busy: u32,
    /// Time at which the last flow was opened, in the datapath's own unit: it only orders uplinks. 0 if none was.
    pub last_opened: u64,
}

/// Returns the first address of the remote's prefix in the path cache, and the prefix' length.
#[must_use]
pub fn prefix_of(remote: IpAddr) -> (IpAddr, u8) {
    match remote.to_canonical() {
        IpAddr::V4(address) => {
            let mask = u32::MAX << (32 - PATH_BITS_V4);
            (
                IpAddr::V4((address.to_bits() & mask).into()),
                PATH_BITS_V4 as u8,
            )
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - PATH_BITS_V6);
            (
                IpAddr::V6((address.to_bits() & mask).into()),
                PATH_BITS_V6 as u8,
            )
        }
    }
}

/// Returns the entry of one remote's prefix.
pub(crate) fn entry(tables: &Tables, remote: IpAddr) -> Result<Option<PathCacheEntry>, Error> {
    let key = from_ip(prefix_of(remote).0);
    let Some(value) = found(tables.path_cache.get(&key, 0))? else {
        return Ok(None);
    };
    Ok(Some(read(&key, &value, &epochs(tables)?)))
}

/// Returns all entries, in no particular order.
pub(crate) fn entries(tables: &Tables) -> Result<Vec<PathCacheEntry>, Error> {
    let entries: Vec<(Address, PathEntryValue)> =
        batch::entries(tables.path_cache_data.fd().as_fd())
            .map_err(|source| Error::system("reading map path_cache", source))?;
    let epochs = epochs(tables)?;
    let read = |(key, value): &(Address, PathEntryValue)| read(key, value, &epochs);
    Ok(entries.iter().map(read).collect())
}

/// Restores entries saved by an earlier instance, for the uplinks as they are now. Leaves out paths
/// that are not valid, and those that the datapath has measured meanwhile.
pub(crate) fn restore(tables: &mut Tables, memory: &[PathCacheEntry]) -> Result<(), Error> {
    let now = seconds(KernelTime::now());
    let epochs = epochs(tables)?;
    for path in memory.iter().take(MAX_CACHED_PREFIXES) {
        let key = from_ip(prefix_of(path.prefix).0);
        let mut value = found(tables.path_cache.get(&key, 0))?.unwrap_or_default();
        for way in path.paths.iter().filter(|way| way.valid) {
            let (Some(place), Some(epoch)) = (
                value.paths.get_mut(way.uplink.index()),
                epochs.get(way.uplink.index()),
            ) else {
                continue;
            };
            let age = u32::try_from(way.age.as_secs()).unwrap_or(u32::MAX);
            let rtt = way.rtt.map_or(0, |rtt| rtt.as_micros());
            if (place.rtt == 0 || place.epoch != *epoch) && age <= now {
                *place = PathValue {
                    rtt: u32::try_from(rtt).unwrap_or(u32::MAX),
                    measured_at: now - age,
                    packets: way.packets,
                    lost: way.lost,
                    epoch: *epoch,
                };
            }
        }
        let inserted = tables.path_cache.insert(key, value, 0);
        inserted.map_err(|error| refused("map path_cache", &error))?;
    }
    Ok(())
}

fn read(key: &Address, value: &PathEntryValue, epochs: &[u32]) -> PathCacheEntry {
    let now = seconds(KernelTime::now());
    let (prefix, bits) = prefix_of(to_ip(*key));
    let known = |way: &PathValue| way.rtt != 0 || way.packets != 0;
    let ways = (0..).zip(&value.paths).zip(epochs);
    let ways = ways.filter(|((_, way), _)| known(way));
    PathCacheEntry {
        prefix,
        bits,
        paths: ways
            .map(|((uplink, way), epoch)| CachedPath {
                uplink: UplinkId(uplink),
                rtt: (way.rtt != 0 && way.rtt != RTT_TRIED_US)
                    .then(|| Duration::from_micros(way.rtt.into())),
                tried: way.rtt == RTT_TRIED_US,
                age: Duration::from_secs(now.saturating_sub(way.measured_at).into()),
                packets: way.packets,
                lost: way.lost,
                valid: way.epoch == *epoch,
            })
            .collect(),
    }
}

fn epochs(tables: &Tables) -> Result<Vec<u32>, Error> {
    let failed = |error| refused("map uplinks", &error);
    (0..generated::MAX_UPLINKS)
        .map(|index| Ok(tables.uplinks.get(&index, 0).map_err(failed)?.epoch))
        .collect()
}

/// Returns the whole seconds of the kernel's clock, as the programs count them.
fn seconds(now: KernelTime) -> u32 {
    let since = now.since(KernelTime::from_nanos(0));
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// Writes the forecasts; counting starts anew, with half of the opened flows. Uplinks that are not
/// given have nothing to spare.
pub(crate) fn set_forecasts(
    tables: &mut Tables,
    forecasts: &[UplinkForecast],
) -> Result<(), Error> {
    let failed = |error| refused("map forecasts", &error);
    for index in 0..generated::MAX_UPLINKS {
        let before = tables.forecasts.get(&index, 0).map_err(failed)?;
        let given = forecasts
            .iter()
            .find(|forecast| forecast.uplink.index() == index as usize);
        if given.is_none() && before == ForecastValue::default() {
            continue;
        }
        let value = given.map_or_else(ForecastValue::default, |forecast| ForecastValue {
            capacity: kilobytes_per_sec(forecast.capacity),
            spare: kilobytes_per_sec(forecast.spare),
            busy: forecast.busy,
            loss: ppm(forecast.loss),
            tick: before.tick.wrapping_add(1),
            // If all were forgotten at once, the last second's flows would attract the next ones to
            // their uplinks.
            opened: before.opened / 2,
            active: 0,
            load_loss: ppm(forecast.load_loss),
            last_opened: before.last_opened,
        });
        tables.forecasts.set(index, value, 0).map_err(failed)?;
    }
    Ok(())
}

/// Returns the activity since then.
pub(crate) fn flow_activity(tables: &Tables) -> Result<Vec<FlowActivity>, Error> {
    let failed = |error| refused("map forecasts", &error);
    (0..u8::try_from(MAX_UPLINKS).expect("few uplinks"))
        .map(|id| {
            let value = tables.forecasts.get(&id.into(), 0).map_err(failed)?;
            Ok(FlowActivity {
                uplink: UplinkId(id),
                opened: value.opened,
                active: value.active,
                busy: value.busy,
                last_opened: value.last_opened,
            })
        })
        .collect()
}
