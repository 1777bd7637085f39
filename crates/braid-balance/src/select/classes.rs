//! Classes of traffic: each has slot tables of its own.

use std::time::Duration;

use braid_core::{MAX_UPLINKS, UplinkId};

use crate::generated::{
    CLASSES, FAMILIES, FAMILY_V4, FAMILY_V6, LB_FASTEST, LB_HASH_PAIR, LB_HASH_SOURCE, LB_RACE,
    LB_ROUND_ROBIN, SLOTS,
};
use crate::maps::layout::SlotBank;
use crate::maps::tables::{Tables, refused};
use crate::{ClassId, Error, Family, LbMethod};

const _: () = assert!(braid_core::slots::SLOTS == SLOTS as usize);

/// Number of classes.
pub const MAX_CLASSES: usize = CLASSES as usize;

/// The balancing of one class of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassEntry {
    /// Its number, below [`MAX_CLASSES`]. 0 is the default, for flows that match no rule.
    pub id: ClassId,
    /// Method by which a new flow picks its slot.
    pub lb_method: LbMethod,
    /// Time for which a client keeps its uplink for a site, counted from the last flow that it
    /// opened there, in whole seconds; `None`: every flow is chosen anew. A client keeps an uplink
    /// that takes flows even if the slots no longer name it; see
    /// [`Datapath::forget_sticky`](crate::Datapath::forget_sticky).
    pub sticky: Option<Duration>,
    /// Slots for IPv4, at most 1024. Empty: new flows are dropped, reason `no_uplink` in class 0
    /// and `class_blocked` in others. A single slot in a class other than 0 means that a rule
    /// leaves no choice: its flows have [`Choice::Only`](crate::Choice::Only).
    pub v4: Vec<UplinkId>,
    /// Slots for IPv6.
    pub v6: Vec<UplinkId>,
    /// The uplink that takes every flow of the class while it takes any. The slots are used when it
    /// does not; the programs check that themselves, see
    /// [`UplinkEntry::leased`](crate::UplinkEntry).
    pub prefers: Option<UplinkId>,
    /// The uplinks that a new flow may be raced on, or that are compared by the path cache, under
    /// [`LbMethod::Race`] and [`LbMethod::Fastest`]. If fewer than two of them take flows of its
    /// family, the slots choose.
    pub candidates: Vec<UplinkId>,
}

/// Replaces all slot tables. The inactive bank is written, then activated by one byte for each
/// class and family. Tables that stay the same are not written.
pub(crate) fn set_classes(tables: &mut Tables, classes: &[ClassEntry]) -> Result<(), Error> {
    let wanted = banks(tables, classes)?;
    let failed = |error| refused("map slots", &error);
    let mut settings = tables.settings.get(&0, 0).map_err(failed)?;
    for (number, bank) in wanted.iter().enumerate() {
        let active = &mut settings.active[number];
        let first = u32::try_from(number * 2).expect("few tables");
        let walked = first + u32::from(*active & 1);
        if tables.slots.get(&walked, 0).map_err(failed)? == *bank {
            continue;
        }
        *active ^= 1;
        let other = first + u32::from(*active & 1);
        tables.slots.set(other, bank, 0).map_err(failed)?;
    }
    tables.settings.set(0, settings, 0).map_err(failed)
}

/// Returns every table's bank, by class and family; those of classes that are not given are empty.
fn banks(tables: &Tables, classes: &[ClassEntry]) -> Result<Vec<SlotBank>, Error> {
    let mut banks = vec![SlotBank::EMPTY; (CLASSES * FAMILIES) as usize];
    let mut given = [false; MAX_CLASSES];
    let refuse = |problem| {
        Err(Error::Invalid {
            what: "classes",
            problem,
        })
    };
    for class in classes {
        let id = class.id.0;
        let Some(given) = given.get_mut(usize::from(id)) else {
            return refuse(format!("class {id}: they go up to {}", CLASSES - 1));
        };
        if std::mem::replace(given, true) {
            return refuse(format!("class {id}: given twice"));
        }
        for (family, slots) in [(Family::V4, &class.v4), (Family::V6, &class.v6)] {
            if slots.len() > SLOTS as usize {
                return refuse(format!(
                    "class {id}: {} slots, at most {SLOTS}",
                    slots.len()
                ));
            }
            banks[number(class.id, family)] = bank(tables, class, slots)?;
        }
    }
    Ok(banks)
}

fn bank(tables: &Tables, class: &ClassEntry, slots: &[UplinkId]) -> Result<SlotBank, Error> {
    let seconds = class.sticky.map_or(0, |time| time.as_secs().max(1));
    let mut bank = SlotBank {
        count: u32::try_from(slots.len()).expect("at most SLOTS"),
        lb_method: match class.lb_method {
            LbMethod::RoundRobin => LB_ROUND_ROBIN,
            LbMethod::HashSource => LB_HASH_SOURCE,
            LbMethod::HashPair => LB_HASH_PAIR,
            LbMethod::Race => LB_RACE,
            LbMethod::Fastest => LB_FASTEST,
        } as u16,
        prefers: prefers(tables, class)?,
        candidates: candidates(tables, class)?,
        sticky: u32::try_from(seconds).unwrap_or(u32::MAX),
        ..SlotBank::EMPTY
    };
    let mut known = [None; MAX_UPLINKS];
    for (slot, &uplink) in slots.iter().enumerate() {
        let configured = match known.get_mut(uplink.index()) {
            None => false,
            Some(Some(known)) => *known,
            Some(unknown) => *unknown.insert(is_configured(tables, uplink)?),
        };
        if !configured {
            return Err(Error::UnknownUplink { slot, uplink });
        }
        bank.slot[slot] = uplink.0;
    }
    Ok(bank)
}

/// Returns the uplink that a class prefers, as its bank stores it.
fn prefers(tables: &Tables, class: &ClassEntry) -> Result<u16, Error> {
    match class.prefers {
        None => Ok(0),
        Some(uplink) if uplink.index() < MAX_UPLINKS && is_configured(tables, uplink)? => {
            Ok(u16::from(uplink.0) + 1)
        }
        Some(uplink) => Err(Error::Invalid {
            what: "classes",
            problem: format!(
                "class {}: {uplink} is preferred and is no uplink",
                class.id.0
            ),
        }),
    }
}

/// Returns the bits of a class' candidates.
fn candidates(tables: &Tables, class: &ClassEntry) -> Result<u32, Error> {
    class.candidates.iter().try_fold(0, |bits, &uplink| {
        if uplink.index() < MAX_UPLINKS && is_configured(tables, uplink)? {
            return Ok(bits | 1 << uplink.0);
        }
        Err(Error::Invalid {
            what: "classes",
            problem: format!("class {}: {uplink} races and is no uplink", class.id.0),
        })
    })
}

/// Reads the active bank.
pub(crate) fn class_slots(
    tables: &Tables,
    class: ClassId,
    family: Family,
) -> Result<Vec<UplinkId>, Error> {
    if u32::from(class.0) >= CLASSES {
        return Ok(Vec::new());
    }
    let number = number(class, family);
    let failed = |error| refused("map slots", &error);
    let settings = tables.settings.get(&0, 0).map_err(failed)?;
    let walked = number * 2 + usize::from(settings.active[number] & 1);
    let walked = u32::try_from(walked).expect("few tables");
    let bank = tables.slots.get(&walked, 0).map_err(failed)?;
    let slots = bank.slot.iter().take(bank.count as usize);
    Ok(slots.map(|&uplink| UplinkId(uplink)).collect())
}

/// Returns the number of a class' table for one family.
fn number(class: ClassId, family: Family) -> usize {
    let family = match family {
        Family::V4 => FAMILY_V4,
        Family::V6 => FAMILY_V6,
    };
    usize::from(class.0) * FAMILIES as usize + family as usize
}

fn is_configured(tables: &Tables, uplink: UplinkId) -> Result<bool, Error> {
    let value = tables.uplinks.get(&u32::from(uplink.0), 0);
    Ok(value
        .map_err(|error| refused("map uplinks", &error))?
        .ifindex
        != 0)
}
