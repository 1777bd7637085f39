//! The word of a process that it is there to carry the packets of an uplink.
//!
//! An uplink whose packets a process carries is a hole once that process is gone, and whoever
//! would have said so may be gone with it. So the programs do not wait for word: such an uplink
//! takes flows only up to an instant that its carrier puts off for as long as it works.

use std::fmt;

use aya::maps::{Array, MapData};

use crate::maps::tables::{refused, typed};
use crate::pins::Pins;
use crate::{Error, KernelTime};

/// Until when leased uplinks take flows. May be used on another thread than the datapath.
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

    /// Has leased uplinks take flows up to this instant; at one that has passed, they take none.
    pub fn set(&mut self, until: KernelTime) -> Result<(), Error> {
        let renewed = self.until.set(0, until.as_nanos(), 0);
        renewed.map_err(|error| refused("map lease", &error))
    }
}
