//! Lease of the uplinks whose packets a process carries, as the bond's.
//!
//! If that process dies, the uplink swallows every packet, and nobody may be left to withdraw it. The programs
//! therefore put flows there only until a deadline, which the process extends while it works.

use std::fmt;

use aya::maps::{Array, MapData};

use crate::maps::tables::{refused, typed};
use crate::pins::Pins;
use crate::{Error, KernelTime};

/// The deadline of all leased uplinks. May be used on another thread than the datapath.
pub struct Lease {
    until: Array<MapData, u64>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            until: typed(pins, "lease")?,
        })
    }

    /// Sets the deadline, after which leased uplinks take no flows.
    pub fn set(&mut self, until: KernelTime) -> Result<(), Error> {
        let renewed = self.until.set(0, until.as_nanos(), 0);
        renewed.map_err(|error| refused("map lease", &error))
    }
}
