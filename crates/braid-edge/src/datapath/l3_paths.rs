//! Layer-3 paths in the programs' maps.

use std::net::IpAddr;
use std::time::Duration;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{HashMap, LpmTrie, MapError};
use braid_core::Prefix;

use super::{Datapath, map_refused};
use crate::Error;
use crate::l3_paths::{L3Path, L3Paths, RemoteEdge};
use crate::shared::{ROLE_LOCAL, ROLE_REMOTE, ROLE_TARGET};

impl Datapath {
    /// Writes the layer-3 paths. Must be called before [`Datapath::set_egress`].
    pub fn set_l3_paths(&mut self, l3_paths: &L3Paths) -> Result<(), Error> {
        let mut local: Vec<Prefix> = Vec::new();
        let mut remote: Vec<Prefix> = Vec::new();
        for edge in &l3_paths.edges {
            let place = self.target_index(&edge.name);
            self.insert_prefix(ROLE_TARGET, edge.remote, place)?;
            for path in &edge.paths {
                let prefix_pair = [
                    self.prefix_number(ROLE_LOCAL, &mut local, path.local)?,
                    self.prefix_number(ROLE_REMOTE, &mut remote, path.remote)?,
                ];
                self.array::<L3PathEntry>("l3_paths")?
                    .set(path.tag.into(), L3PathEntry::of(edge, path), 0)
                    .map_err(|error| map_refused("l3_paths", &error))?;
                let mut prefix_pairs: HashMap<_, [u32; 2], u32> =
                    HashMap::try_from(self.map("prefix_pairs")?)
                        .map_err(|error| map_refused("prefix_pairs", &error))?;
                prefix_pairs
                    .insert(prefix_pair, u32::from(path.tag), 0)
                    .map_err(|error| map_refused("prefix_pairs", &error))?;
            }
        }
        Ok(())
    }

    /// Returns the number of a prefix among those of the same role, and inserts it if it is new.
    fn prefix_number(
        &mut self,
        role: u32,
        known: &mut Vec<Prefix>,
        prefix: Prefix,
    ) -> Result<u32, Error> {
        let place = known.iter().position(|each| *each == prefix);
        let number = place.unwrap_or(known.len()) as u32;
        if place.is_none() {
            known.push(prefix);
            self.insert_prefix(role, prefix, number)?;
        }
        Ok(number)
    }

    fn insert_prefix(&mut self, role: u32, prefix: Prefix, number: u32) -> Result<(), Error> {
        let mut prefixes: LpmTrie<_, [u8; 17], u32> = LpmTrie::try_from(self.map("prefixes")?)
            .map_err(|error| map_refused("prefixes", &error))?;
        let mut words = [0; 17];
        words[0] = role as u8;
        words[1..].copy_from_slice(&mapped(prefix.address()));
        let key = Key::new(8 + mapped_length(prefix), words);
        for _ in 0..INSERT_RETRIES {
            match prefixes.insert(&key, number, 0) {
                Err(MapError::SyscallError(call))
                    if call.io_error.raw_os_error() == Some(libc::ENOMEM) =>
                {
                    std::thread::sleep(INSERT_RETRY_DELAY);
                }
                outcome => return outcome.map_err(|error| map_refused("prefixes", &error)),
            }
        }
        let last = prefixes.insert(&key, number, 0);
        last.map_err(|error| map_refused("prefixes", &error))
    }
}

/// Newer kernels take an entry's memory from a small pool that an interrupt refills, and fail with ENOMEM
/// until then: some 10 ms where the timer does it.
const INSERT_RETRY_DELAY: Duration = Duration::from_millis(5);
const INSERT_RETRIES: u32 = 40;

/// `struct l3_path`.
#[derive(Clone, Copy)]
#[repr(C)]
struct L3PathEntry {
    inner_local: [u8; 16],
    inner_remote: [u8; 16],
    local: [u8; 16],
    remote: [u8; 16],
    local_host_mask: [u8; 16],
    remote_host_mask: [u8; 16],
    family: u32,
}

// SAFETY: bytes and an integer without padding.
#[allow(unsafe_code)]
unsafe impl Pod for L3PathEntry {}

impl L3PathEntry {
    fn of(edge: &RemoteEdge, path: &L3Path) -> L3PathEntry {
        let host_mask =
            |prefix| (u128::MAX.checked_shr(mapped_length(prefix)).unwrap_or(0)).to_be_bytes();
        L3PathEntry {
            inner_local: mapped(edge.local.address()),
            inner_remote: mapped(edge.remote.address()),
            local: mapped(path.local.address()),
            remote: mapped(path.remote.address()),
            local_host_mask: host_mask(path.local),
            remote_host_mask: host_mask(path.remote),
            family: if path.local.address().is_ipv4() { 4 } else { 6 },
        }
    }
}

/// Returns an address as the programs write it: IPv4 is mapped into IPv6.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the length of a prefix of mapped addresses, in bits.
fn mapped_length(prefix: Prefix) -> u32 {
    let length = u32::from(prefix.length());
    match prefix.address() {
        IpAddr::V4(_) => 96 + length,
        IpAddr::V6(_) => length,
    }
}
