//! Writing uplink entries.

use std::collections::{BTreeMap, BTreeSet};

use braid_core::MAX_UPLINKS;

use crate::generated::{FAMILIES, LAYER_L2, LAYER_L3, LOW_DEVICES, UPLINK_HOLDS_UDP};
use crate::maps::layout::{Address, NextHopValue, UplinkValue, from_v4, from_v6};
use crate::maps::tables::{Tables, refused, replace};
use crate::{Error, Layer, NextHop, UplinkEntry};

const _: () = assert!(MAX_UPLINKS == crate::generated::MAX_UPLINKS as usize);

/// Replaces all entries. Entries that stay the same are not written: the programs may be reading
/// them, and a write is not atomic.
pub(crate) fn set_uplinks(tables: &mut Tables, uplinks: &[UplinkEntry]) -> Result<(), Error> {
    let mut wanted = BTreeMap::new();
    let mut by_device = BTreeMap::new();
    for uplink in uplinks {
        let id = uplink.id;
        let refuse = |problem: String| {
            Err(Error::Invalid {
                what: "uplink",
                problem,
            })
        };
        if id.index() >= MAX_UPLINKS {
            return refuse(format!("{id}: ids go up to {}", MAX_UPLINKS - 1));
        }
        if uplink.ifindex == 0 || uplink.ports.is_empty() {
            return refuse(format!("{id}: needs a device and a range of ports"));
        }
        if wanted.insert(id.index(), value(uplink)).is_some() {
            return refuse(format!("{id}: given twice"));
        }
        if let Some(other) = by_device.insert(uplink.ifindex, u32::from(id.0) + 1) {
            return refuse(format!("{id} and {}: same device", other - 1));
        }
    }
    let own = own_addresses(&wanted);
    let failed = |error| refused("map uplinks", &error);
    let current: Vec<_> = (0..crate::generated::MAX_UPLINKS)
        .map(|index| tables.uplinks.get(&index, 0))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    set_realms(&mut wanted, &current);
    let waiting = uplinks.iter().filter(|uplink| uplink.waits);
    let waiting: BTreeSet<usize> = waiting.map(|uplink| uplink.id.index()).collect();
    for (index, current) in (0_u32..).zip(current) {
        let mut value = wanted.get(&(index as usize)).copied().unwrap_or_default();
        value.others = others(&wanted, index as usize);
        value.resets_tcp &= value.others;
        if waiting.contains(&(index as usize)) {
            value.others |= UPLINK_HOLDS_UDP as u8;
        }
        if current != value {
            tables.uplinks.set(index, value, 0).map_err(failed)?;
        }
    }
    set_devices(tables, &by_device)?;
    replace("map own_addresses", &mut tables.own_addresses, &own)
}

/// The families that an uplink other than this one takes flows of.
fn others(uplinks: &BTreeMap<usize, UplinkValue>, than: usize) -> u8 {
    let takers = uplinks
        .iter()
        .filter(|(id, uplink)| **id != than && uplink.accepts_new != 0);
    takers.fold(0, |families, (_, uplink)| {
        let present = (0..)
            .zip(&uplink.next_hops)
            .map(|(family, exit)| exit.present << family);
        present.fold(families, |families, bit: u8| families | bit)
    })
}

/// Tells uplinks with the same address apart: each gets the smallest realm that no other one with
/// this address has, and keeps it as long as it keeps the address, because its flows have it too.
fn set_realms(wanted: &mut BTreeMap<usize, UplinkValue>, current: &[UplinkValue]) {
    for family in 0..FAMILIES as usize {
        let mut taken = BTreeSet::new();
        let mut fresh = Vec::new();
        for (&id, uplink) in wanted.iter_mut() {
            let (exit, before) = (
                &mut uplink.next_hops[family],
                &current[id].next_hops[family],
            );
            if exit.present != 0 && before.present != 0 && exit.address == before.address {
                exit.realm = before.realm;
                taken.insert((exit.address, exit.realm));
            } else if exit.present != 0 {
                fresh.push(exit);
            }
        }
        for exit in fresh {
            let mut realms = 0..=u8::MAX;
            let free = realms.find(|&realm| taken.insert((exit.address, realm)));
            exit.realm = free.expect("fewer uplinks than realms");
        }
    }
}

/// Maps each outside address to its uplink. If two uplinks share an address, the first one has it.
fn own_addresses(uplinks: &BTreeMap<usize, UplinkValue>) -> BTreeMap<Address, u32> {
    let mut own = BTreeMap::new();
    for (&id, uplink) in uplinks {
        for exit in uplink.next_hops.iter().filter(|exit| exit.present != 0) {
            own.entry(exit.address)
                .or_insert(u32::try_from(id).expect("below MAX_UPLINKS"));
        }
    }
    own
}

/// Writes which device is whose: uplink + 1 by interface index.
fn set_devices(tables: &mut Tables, by_device: &BTreeMap<u32, u32>) -> Result<(), Error> {
    let failed = |error| refused("map uplink_of_low", &error);
    for device in 0..LOW_DEVICES {
        let number = by_device.get(&device).copied().unwrap_or_default();
        if tables.uplink_of_low.get(&device, 0).map_err(failed)? != number {
            tables
                .uplink_of_low
                .set(device, number, 0)
                .map_err(failed)?;
        }
    }
    let high: BTreeMap<_, _> = by_device
        .range(LOW_DEVICES..)
        .map(|(&device, &number)| (device, number))
        .collect();
    replace("map uplink_of_high", &mut tables.uplink_of_high, &high)
}

fn value(uplink: &UplinkEntry) -> UplinkValue {
    let layer = match uplink.layer {
        Layer::L2 => LAYER_L2,
        Layer::L3 => LAYER_L3,
    };
    UplinkValue {
        next_hops: [exit(uplink.v4, from_v4), exit(uplink.v6, from_v6)],
        ifindex: uplink.ifindex,
        mtu: uplink.mtu,
        port_low: *uplink.ports.start(),
        port_high: *uplink.ports.end(),
        layer: layer as u8,
        accepts_new: uplink.accepts_new.into(),
        resets_tcp: u8::from(uplink.resets_tcp).wrapping_neg(),
        others: 0,
        epoch: uplink.epoch,
        leased: uplink.leased.into(),
        sends_twice: uplink.sends_twice.into(),
        unused: [0; 2],
    }
}

fn exit<A: Copy>(exit: Option<NextHop<A>>, mapped: impl Fn(A) -> Address) -> NextHopValue {
    exit.map_or_else(NextHopValue::default, |exit| NextHopValue {
        address: mapped(exit.address),
        gateway: exit.gateway.map_or([0; 16], &mapped),
        present: 1,
        has_gateway: exit.gateway.is_some().into(),
        realm: 0,
        on_link: exit.on_link.unwrap_or_default(),
    })
}
