//! Packets of flows on the uplinks' devices.
//!
//! The switch's counters are read once a second. Silence shows within a round trip, so what the liveness of an uplink is
//! judged by is counted where it leaves and arrives: packets of TCP and UDP between the uplink's outer ports and others.
//! There TCP's segments are read for capacities, too.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::{fs, io};

use braid_balance::{UplinkCounters, UplinkEntry};
use braid_core::UplinkId;
use braid_device::{Direction, PacketCounter};

use super::device_flows::{DEVICES, FlowReader};
use super::port_filter::OuterFilter;

/// The counters of each uplink.
#[derive(Default)]
pub(super) struct DevicePackets(BTreeMap<UplinkId, Counted>);

struct Counted {
    ifindex: u32,
    ports: RangeInclusive<u16>,
    sent: PacketCounter,
    received: PacketCounter,
    flows: FlowReader,
}

impl DevicePackets {
    /// Counts the packets of these uplinks and no others. Those that stay as they were are not counted anew.
    ///
    /// # Errors
    /// The kernel refuses a socket or a thread, or a device has gone.
    pub fn follow(&mut self, uplinks: &[&UplinkEntry]) -> io::Result<()> {
        let mut before = std::mem::take(&mut self.0);
        for uplink in uplinks {
            let (id, ifindex, ports) = (uplink.id, uplink.ifindex, uplink.ports.clone());
            let kept = before
                .remove(&id)
                .filter(|counted| (counted.ifindex, &counted.ports) == (ifindex, &ports));
            let counted = match kept {
                Some(counted) => counted,
                None => Counted::start(ifindex, ports)?,
            };
            self.0.insert(id, counted);
        }
        Ok(())
    }

    /// Returns the packets that each uplink has sent and received so far; an uplink whose device has gone is left out.
    pub fn counts(&mut self) -> BTreeMap<UplinkId, [u64; 2]> {
        let of = |counted: &mut Counted| {
            Some([counted.sent.count().ok()?, counted.received.count().ok()?])
        };
        let counts = self.0.iter_mut();
        counts
            .filter_map(|(id, counted)| Some((*id, of(counted)?)))
            .collect()
    }

    /// Returns the counters of each uplink so far, as far as capacities need them.
    pub fn line_counters(&mut self) -> BTreeMap<UplinkId, UplinkCounters> {
        let devices = fs::read_to_string(DEVICES).unwrap_or_default();
        let all = self.0.iter_mut();
        all.map(|(id, counted)| (*id, counted.flows.counters(&devices)))
            .collect()
    }
}

impl Counted {
    fn start(ifindex: u32, ports: RangeInclusive<u16>) -> io::Result<Self> {
        let start = |direction| {
            let filter = OuterFilter {
                direction,
                ports: &ports,
            };
            PacketCounter::start(ifindex, &filter.program())
        };
        let (sent, received) = (start(Direction::Out)?, start(Direction::In)?);
        let flows = FlowReader::start(ifindex, ports.clone())?;
        Ok(Self {
            ifindex,
            ports,
            sent,
            received,
            flows,
        })
    }
}
