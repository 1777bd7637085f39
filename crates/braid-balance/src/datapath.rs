//! Opening, adopting and describing the pinned datapath.
#![allow(unused_variables, clippy::todo)]

use std::path::Path;

use braid_core::UplinkId;

use crate::{
    Attachments, Counters, Error, Family, Flow, KernelTime, MapMemory, Opened, Options, Removed,
    SweepReport, UplinkEntry, Walk,
};

/// A handle on the pinned programs and maps. Dropping it changes nothing in the kernel.
pub struct Datapath {}

impl Datapath {
    /// Loads and pins the programs, or adopts those that are pinned already. All or nothing: the
    /// new set is built in a temporary directory beside and renamed into place.
    pub fn open(options: &Options) -> Result<(Self, Opened), Error> {
        todo!()
    }

    /// Makes the programs sit exactly on `wanted`: adds what is missing, takes away what is ours
    /// and not wanted, leaves alone what is right. Interface indices are those of the calling
    /// thread's network namespace. Repeating it changes nothing.
    pub fn attach(&mut self, wanted: &Attachments) -> Result<(), Error> {
        todo!()
    }

    /// Replaces all uplink entries. Flows keep their uplink by [`UplinkEntry::id`].
    pub fn set_uplinks(&mut self, uplinks: &[UplinkEntry]) -> Result<(), Error> {
        todo!()
    }

    /// Replaces one family's slot table in one step: a packet sees the old or the new table, never
    /// a mixture. An empty table: new flows of this family are dropped, reason `no_uplink`.
    pub fn set_slots(&mut self, family: Family, walk: Walk, slots: &[UplinkId]) -> Result<(), Error> {
        todo!()
    }

    /// Removes flows that were idle longer than their state allows at `now`, and halves of pairs.
    pub fn sweep(&mut self, now: KernelTime) -> Result<SweepReport, Error> {
        todo!()
    }

    /// All flows, embryos too.
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        todo!()
    }

    /// Counters, summed over the CPUs.
    pub fn counters(&self) -> Result<Counters, Error> {
        todo!()
    }

    /// Kernel memory per map.
    pub fn memory(&self) -> Result<Vec<MapMemory>, Error> {
        todo!()
    }
}

/// Detaches and unpins everything that an instance pinned under `pin_dir`, also what a crash left
/// half done. Finding nothing is success. `pin_dir` itself stays.
pub fn remove(pin_dir: &Path) -> Result<Removed, Error> {
    todo!()
}
