//! Layer-3 paths as the programs have them.

use std::net::IpAddr;
use std::time::Duration;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{HashMap, LpmTrie, MapError};
use braid_core::Prefix;

use super::{Datapath, map_refused};
use crate::Error;
use crate::shared::{ROLE_FAR, ROLE_NEAR, ROLE_TARGET};
use crate::ways::{FarEdge, Way, Ways};

impl Datapath {
    /// Knows these layer-3 paths from now on. Before anything is split.
    pub fn know(&mut self, ways: &Ways) -> Result<(), Error> {
        let mut near: Vec<Prefix> = Vec::new();
        let mut far: Vec<Prefix> = Vec::new();
        for edge in &ways.edges {
            let place = self.place(&edge.name);
            self.note(ROLE_TARGET, edge.there, place)?;
            for way in &edge.paths {
                let arrival = [
                    self.numbered(ROLE_NEAR, &mut near, way.here)?,
                    self.numbered(ROLE_FAR, &mut far, way.there)?,
                ];
                self.array::<WayWords>("ways")?
                    .set(way.tag.into(), WayWords::of(edge, way), 0)
                    .map_err(|error| map_refused("ways", &error))?;
                let mut arrivals: HashMap<_, [u32; 2], u32> =
                    HashMap::try_from(self.map("arrivals")?)
                        .map_err(|error| map_refused("arrivals", &error))?;
                arrivals
                    .insert(arrival, u32::from(way.tag), 0)
                    .map_err(|error| map_refused("arrivals", &error))?;
            }
        }
        Ok(())
    }

    /// The number of a prefix among those that have the same role.
    fn numbered(
        &mut self,
        role: u32,
        known: &mut Vec<Prefix>,
        prefix: Prefix,
    ) -> Result<u32, Error> {
        let place = known.iter().position(|each| *each == prefix);
        let number = place.unwrap_or(known.len()) as u32;
        if place.is_none() {
            known.push(prefix);
            self.note(role, prefix, number)?;
        }
        Ok(number)
    }

    fn note(&mut self, role: u32, prefix: Prefix, number: u32) -> Result<(), Error> {
        let mut prefixes: LpmTrie<_, [u8; 17], u32> = LpmTrie::try_from(self.map("prefixes")?)
            .map_err(|error| map_refused("prefixes", &error))?;
        let mut words = [0; 17];
        words[0] = role as u8;
        words[1..].copy_from_slice(&mapped(prefix.address()));
        let key = Key::new(8 + mapped_length(prefix), words);
        for _ in 0..REFILLS {
            match prefixes.insert(&key, number, 0) {
                Err(MapError::SyscallError(call))
                    if call.io_error.raw_os_error() == Some(libc::ENOMEM) =>
                {
                    std::thread::sleep(REFILL);
                }
                outcome => return outcome.map_err(|error| map_refused("prefixes", &error)),
            }
        }
        let last = prefixes.insert(&key, number, 0);
        last.map_err(|error| map_refused("prefixes", &error))
    }
}

/// Newer kernels take an entry's memory from a small stock that an interrupt refills, and say that there is none until
/// it has: some 10 ms where that comes with the timer.
const REFILL: Duration = Duration::from_millis(5);
const REFILLS: u32 = 40;

/// A layer-3 path as the programs have it (`struct way`).
#[derive(Clone, Copy)]
#[repr(C)]
struct WayWords {
    inner_near: [u8; 16],
    inner_far: [u8; 16],
    near: [u8; 16],
    far: [u8; 16],
    near_kept: [u8; 16],
    far_kept: [u8; 16],
    family: u32,
}

// SAFETY: bytes and an integer without padding.
#[allow(unsafe_code)]
unsafe impl Pod for WayWords {}

impl WayWords {
    fn of(edge: &FarEdge, way: &Way) -> WayWords {
        let kept =
            |prefix| (u128::MAX.checked_shr(mapped_length(prefix)).unwrap_or(0)).to_be_bytes();
        WayWords {
            inner_near: mapped(edge.here.address()),
            inner_far: mapped(edge.there.address()),
            near: mapped(way.here.address()),
            far: mapped(way.there.address()),
            near_kept: kept(way.here),
            far_kept: kept(way.there),
            family: if way.here.address().is_ipv4() { 4 } else { 6 },
        }
    }
}

/// An address as the programs have it: IPv4 mapped.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Bits of a prefix of mapped addresses.
fn mapped_length(prefix: Prefix) -> u32 {
    let length = u32::from(prefix.length());
    match prefix.address() {
        IpAddr::V4(_) => 96 + length,
        IpAddr::V6(_) => length,
    }
}
