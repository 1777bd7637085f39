//! Losses of an uplink: those that it has whatever it carries, and those that its own load causes.
//!
//! Rules, and why:
//! - Senders find the capacity of a line by losing packets there. Such losses show the capacity, which is counted
//!   elsewhere, and not the quality of the line: what counts for that are seconds in which it carried less than
//!   [`QUIET_LOAD_FRACTION`] of its capacity.
//! - Of a line whose capacity is not known, the highest rate that it was seen to carry stands in for it: less than a
//!   quarter of that is less than a quarter of the capacity. Without a queue it was not full anyway. A queue alone shows no
//!   load: the window of a single flow can make one of some milliseconds, and on a line that loses 2 % no other flows remain
//!   in the end of a page.
//! - A second is judged by the highest load from one second earlier, as flows tell some of their losses late, up to
//!   [`JUDGED_AFTER`] seconds later. Most is lost in the first second of a burst, when often no capacity is known yet.
//! - They are averaged over [`AVERAGING_TIME`]: long enough for a line that loses one packet in a thousand, short enough
//!   to follow the evening.
//! - All that was lost beyond that share is put down to the load. A line that loses much and is never quiet cannot be
//!   told from a full one.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Rate;

/// Time over which losses are averaged.
const AVERAGING_TIME: Duration = Duration::from_secs(300);
/// Packets assumed to be delivered before the first one was counted: one loss among the first ten packets is no
/// loss of a tenth.
const PRIOR_PACKETS: f64 = 500.0;
/// Fraction of its capacity below which an uplink's losses are not caused by its own flows.
const QUIET_LOAD_FRACTION: f64 = 0.25;
/// Later counts, one a second, after which some are judged.
pub const JUDGED_AFTER: usize = 3;
/// Packets of any load that are counted, before the old ones count half: some times as many as of one path.
const MAX_PACKETS: f64 = 200_000.0;

/// Packets with data, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacketCounts {
    /// All of them.
    pub packets: u64,
    /// Those that were lost.
    pub lost: u64,
}

/// Load of an uplink in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondLoad {
    /// Rate that it carried, in its busier direction.
    pub carried: Rate,
    /// Its capacity; `None` if it is not known.
    pub capacity: Option<Rate>,
    /// Lower bound of its capacity: the highest rate that it carried lately.
    pub at_least: Rate,
    /// True if it had a queue.
    pub queue: bool,
}

impl SecondLoad {
    /// Returns the fraction of its capacity that it carried, at most.
    fn fraction(&self) -> f64 {
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None if !self.queue => return 0.0,
            None => self.at_least.max(self.carried),
        };
        match capacity.bits_per_sec() {
            0 => 1.0,
            capacity => self.carried.bits_per_sec() as f64 / capacity as f64,
        }
    }
}

/// Losses of one uplink.
#[derive(Clone, Debug, Default)]
pub struct UplinkLosses {
    /// Counts that are not judged yet, with the highest load around them.
    recent: VecDeque<(PacketCounts, f64)>,
    /// Load of the last second.
    last_load: f64,
    /// Counts of quiet seconds.
    quiet: Counted,
    /// Counts of all seconds that are judged, and of paths from before.
    all: Counted,
}

/// Counts of which old ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    packets: f64,
    lost: f64,
}

impl Counted {
    fn add(&mut self, counts: PacketCounts) {
        self.packets += counts.packets as f64;
        self.lost += counts.lost as f64;
    }

    fn keep(&mut self, fraction: f64) {
        self.packets *= fraction;
        self.lost *= fraction;
    }
}

impl UplinkLosses {
    /// Takes what was counted on its paths before. All of it is of unknown load: it is among all packets.
    pub fn note_earlier(&mut self, counts: PacketCounts) {
        self.all.add(counts);
        if self.all.packets >= MAX_PACKETS {
            self.all.keep(0.5);
        }
    }

    /// Takes what was counted in the time that has `passed` since the last call, about a second, and the load then.
    pub fn note(&mut self, passed: Duration, counts: PacketCounts, load: &SecondLoad) {
        self.quiet
            .keep((-passed.as_secs_f64() / AVERAGING_TIME.as_secs_f64()).exp());
        let load = load.fraction();
        let before = std::mem::replace(&mut self.last_load, load);
        self.recent.push_back((counts, before));
        for (_, highest) in &mut self.recent {
            *highest = highest.max(load);
        }
        if self.recent.len() > JUDGED_AFTER
            && let Some((counts, load)) = self.recent.pop_front()
        {
            self.note_earlier(counts);
            if load < QUIET_LOAD_FRACTION {
                self.quiet.add(counts);
            }
        }
    }

    /// Returns the fraction of packets that it loses, whatever it carries.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.quiet.lost / (self.quiet.packets + PRIOR_PACKETS)).min(1.0)
    }

    /// Returns the fraction of packets that it has lost beyond that.
    #[must_use]
    pub fn load_share(&self) -> f64 {
        if self.all.packets == 0.0 {
            return 0.0;
        }
        let all = (self.all.lost / self.all.packets).min(1.0);
        (all - self.share()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOTHING: PacketCounts = PacketCounts {
        packets: 0,
        lost: 0,
    };

    const IDLE: SecondLoad = SecondLoad {
        carried: Rate::from_bits_per_sec(0),
        capacity: Some(CAPACITY),
        at_least: Rate::from_bits_per_sec(0),
        queue: false,
    };
    const CAPACITY: Rate = Rate::from_bits_per_sec(20_000_000);

    /// The load of a second in which the line carried so many percent of its capacity.
    fn percent(load: u64) -> SecondLoad {
        SecondLoad {
            carried: Rate::from_bits_per_sec(CAPACITY.bits_per_sec() * load / 100),
            ..IDLE
        }
    }

    /// Counts one second, and lets as much time pass as it takes to judge it.
    fn count(losses: &mut UplinkLosses, packets: u64, lost: u64, load: SecondLoad) {
        losses.note(SECOND, PacketCounts { packets, lost }, &load);
        for _ in 0..JUDGED_AFTER {
            losses.note(SECOND, NOTHING, &IDLE);
        }
    }

    #[test]
    fn loss_is_that_of_late() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 10, 1, percent(0));
        let one = losses.share();
        assert!(0.0 < one && one < 0.002, "one packet proves nothing: {one}");
        count(&mut losses, 99_990, 1_999, percent(0));
        assert!((losses.share() - 0.02).abs() < 0.0005);
        // A minute of delivered packets hardly outweighs it. Half an hour without a packet does not either;
        // half an hour with some does.
        losses.note(60 * SECOND, NOTHING, &IDLE);
        count(&mut losses, 50_000, 0, percent(0));
        assert!((0.010..0.015).contains(&losses.share()));
        losses.note(1800 * SECOND, NOTHING, &IDLE);
        count(&mut losses, 2_000, 0, percent(0));
        assert!(losses.share() < 0.003);
        let all = 2_000.0 / 152_000.0;
        assert!((losses.load_share() - (all - losses.share())).abs() < 1e-9);
    }

    #[test]
    fn who_looks_for_a_lines_end_finds_losses_there() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 2_000, 200, percent(90));
        assert_eq!(losses.share(), 0.0);
        assert_eq!(losses.load_share(), 0.1);
        count(&mut losses, 2_000, 40, percent(10));
        assert!((losses.share() - 0.016).abs() < 0.001);
        assert!((losses.load_share() - (0.06 - losses.share())).abs() < 1e-9);
    }

    #[test]
    fn a_second_is_judged_by_what_is_known_soon_after_it() {
        // A line's first second fills it, but its capacity is known only in the next one.
        for (load, expected) in [(90, 0.0), (20, 0.08)] {
            let mut losses = UplinkLosses::default();
            let counts = PacketCounts {
                packets: 2_000,
                lost: 200,
            };
            losses.note(SECOND, counts, &IDLE);
            count(&mut losses, 0, 0, percent(load));
            assert!((losses.share() - expected).abs() < 0.002);
        }
    }

    #[test]
    fn what_a_burst_lost_may_be_told_a_second_later() {
        let mut losses = UplinkLosses::default();
        losses.note(SECOND, NOTHING, &percent(90));
        count(&mut losses, 2_000, 200, percent(10));
        assert_eq!(losses.share(), 0.0);
        count(&mut losses, 2_000, 40, percent(10));
        assert!((losses.share() - 0.016).abs() < 0.001);
    }

    /// The end of a page on a line that loses 2 %: a large object alone, in a queue of its own window.
    #[test]
    fn a_line_of_unknown_capacity_is_quiet_if_it_has_carried_much_more() {
        let tail = SecondLoad {
            carried: Rate::from_bits_per_sec(2_500_000),
            capacity: None,
            at_least: Rate::from_bits_per_sec(16_000_000),
            queue: true,
        };
        let share = |load| {
            let mut losses = UplinkLosses::default();
            count(&mut losses, 2_000, 40, load);
            losses.share()
        };
        assert_eq!(share(tail), 0.016);
        let carried = Rate::from_bits_per_sec(16_000_000);
        assert_eq!(share(SecondLoad { carried, ..tail }), 0.0);
        let queue = false;
        assert_eq!(
            share(SecondLoad {
                carried,
                queue,
                ..tail
            }),
            0.016
        );
        let at_least = Rate::default();
        assert_eq!(share(SecondLoad { at_least, ..tail }), 0.0);
        assert_eq!(
            share(SecondLoad {
                at_least,
                carried: at_least,
                ..tail
            }),
            0.0
        );
    }

    #[test]
    fn what_is_not_judged_yet_counts_as_neither() {
        let mut losses = UplinkLosses::default();
        let counts = PacketCounts {
            packets: 2_000,
            lost: 200,
        };
        losses.note(SECOND, counts, &percent(90));
        assert_eq!((losses.share(), losses.load_share()), (0.0, 0.0));
    }

    #[test]
    fn what_paths_lost_before_is_of_the_load_until_quiet_seconds_show_it() {
        let mut losses = UplinkLosses::default();
        losses.note_earlier(PacketCounts {
            packets: 9_000,
            lost: 270,
        });
        assert_eq!((losses.share(), losses.load_share()), (0.0, 0.03));
        count(&mut losses, 20_000, 600, percent(10));
        assert!(losses.load_share() < 0.001);
    }

    #[test]
    fn a_long_history_is_outweighed() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 1_000_000, 100_000, percent(90));
        for _ in 0..20 {
            count(&mut losses, 100_000, 0, percent(90));
        }
        assert!(losses.load_share() < 0.001);
    }
}
