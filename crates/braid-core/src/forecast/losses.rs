//! Losses of an uplink: those that it has whatever it carries, and those that its own load causes.
//!
//! Rules, and why:
//! - Senders find the capacity of a line by losing packets there. Such losses show the capacity, which is counted
//!   elsewhere, and not the quality of the line: what counts for that are seconds in which it carried less than
//!   [`QUIET_LOAD_FRACTION`] of its capacity.
//! - A second is judged by the highest load up to [`JUDGED_AFTER`] seconds later. Most is lost in the first second of a
//!   burst, when often no capacity is known yet.
//! - They are averaged over [`AVERAGING_TIME`]: long enough for a line that loses one packet in a thousand, short enough
//!   to follow the evening.
//! - All that was lost beyond that share is put down to the load. A line that loses much and is never quiet cannot be
//!   told from a full one.
//! - A lost SYN or SYN/ACK costs a second, so a copy of it is worth while from a small share on. A copy hardly helps where a
//!   queue is full. So of a line that is never quiet the share of all packets has to be higher: some per mille are what
//!   a download loses that fills the line.

use std::collections::VecDeque;
use std::time::Duration;

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

/// Fractions of packets lost from which the first ones of a flow are worth a copy: of those of quiet seconds, and of all.
const LOSSY: f64 = 0.002;
const LOSSY_UNDER_LOAD: f64 = 0.01;
/// Part of these below which they are worth it no longer.
const LOSSY_NO_MORE: f64 = 0.5;

/// Packets with data, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacketCounts {
    /// All of them.
    pub packets: u64,
    /// Those that were lost.
    pub lost: u64,
}

/// Losses of one uplink.
#[derive(Clone, Debug, Default)]
pub struct UplinkLosses {
    /// Counts that are not judged yet, with the highest load since.
    recent: VecDeque<(PacketCounts, f64)>,
    /// Counts of quiet seconds.
    quiet: Counted,
    /// Counts of all seconds that are judged, and of paths from before.
    all: Counted,
    /// Counts of late, whatever the load.
    lately: Counted,
    is_lossy: bool,
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

    fn share(&self) -> f64 {
        (self.lost / (self.packets + PRIOR_PACKETS)).min(1.0)
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

    /// Takes what was counted in the time that has `passed` since the last call, about a second. `load` is the fraction of
    /// its capacity that the uplink carried then. Where none is known, a queue tells whether it was full (1) or not (0).
    pub fn note(&mut self, passed: Duration, counts: PacketCounts, load: f64) {
        let kept = (-passed.as_secs_f64() / AVERAGING_TIME.as_secs_f64()).exp();
        self.quiet.keep(kept);
        self.lately.keep(kept);
        self.lately.add(counts);
        self.recent.push_back((counts, load));
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
        let part = match self.is_lossy {
            true => LOSSY_NO_MORE,
            false => 1.0,
        };
        self.is_lossy =
            self.quiet.share() >= part * LOSSY || self.lately.share() >= part * LOSSY_UNDER_LOAD;
    }

    /// Returns the fraction of packets that it loses, whatever it carries.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.quiet.share()
    }

    /// Returns true if it loses so many packets that the first ones of a flow are worth a copy.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.is_lossy
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

    /// Counts one second, and lets as much time pass as it takes to judge it.
    fn count(losses: &mut UplinkLosses, packets: u64, lost: u64, load: f64) {
        losses.note(SECOND, PacketCounts { packets, lost }, load);
        for _ in 0..JUDGED_AFTER {
            losses.note(SECOND, NOTHING, 0.0);
        }
    }

    #[test]
    fn loss_is_that_of_late() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 10, 1, 0.0);
        let one = losses.share();
        assert!(0.0 < one && one < 0.002, "one packet proves nothing: {one}");
        count(&mut losses, 99_990, 1_999, 0.0);
        assert!((losses.share() - 0.02).abs() < 0.0005);
        // A minute of delivered packets hardly outweighs it. Half an hour without a packet does not either;
        // half an hour with some does.
        losses.note(60 * SECOND, NOTHING, 0.0);
        count(&mut losses, 50_000, 0, 0.0);
        assert!((0.010..0.015).contains(&losses.share()));
        losses.note(1800 * SECOND, NOTHING, 0.0);
        count(&mut losses, 2_000, 0, 0.0);
        assert!(losses.share() < 0.003);
        let all = 2_000.0 / 152_000.0;
        assert!((losses.load_share() - (all - losses.share())).abs() < 1e-9);
    }

    #[test]
    fn who_looks_for_a_lines_end_finds_losses_there() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 2_000, 200, 0.9);
        assert_eq!(losses.share(), 0.0);
        assert_eq!(losses.load_share(), 0.1);
        count(&mut losses, 2_000, 40, 0.1);
        assert!((losses.share() - 0.016).abs() < 0.001);
        assert!((losses.load_share() - (0.06 - losses.share())).abs() < 1e-9);
    }

    #[test]
    fn copies_are_worth_while_from_two_lost_packets_in_a_thousand_on() {
        let mut losses = UplinkLosses::default();
        let mut lose = |packets, lost| {
            count(&mut losses, packets, lost, 0.1);
            losses.is_lossy()
        };
        assert!(!lose(10, 1), "one packet proves nothing");
        assert!(!lose(10_000, 18));
        assert!(lose(10_000, 31));
        assert!(lose(20_000, 0), "between the two nothing changes");
        assert!(!lose(20_000, 0));
    }

    #[test]
    fn copies_are_worth_while_on_a_line_that_is_always_full_if_it_loses_one_packet_in_a_hundred() {
        let mut losses = UplinkLosses::default();
        let mut lose = |passed, packets, lost| {
            losses.note(passed, PacketCounts { packets, lost }, 1.0);
            losses.is_lossy()
        };
        assert!(!lose(SECOND, 10_000, 90));
        assert!(lose(SECOND, 10_000, 130));
        assert!(lose(SECOND, 10_000, 0));
        assert!(!lose(1800 * SECOND, 3_000, 10));
    }

    #[test]
    fn a_second_is_judged_by_what_is_known_soon_after_it() {
        // A line's first second fills it, but its capacity is known only in the next one.
        for (load, expected) in [(0.9, 0.0), (0.2, 0.08)] {
            let mut losses = UplinkLosses::default();
            let counts = PacketCounts {
                packets: 2_000,
                lost: 200,
            };
            losses.note(SECOND, counts, 0.0);
            count(&mut losses, 0, 0, load);
            assert!((losses.share() - expected).abs() < 0.002);
        }
    }

    #[test]
    fn what_is_not_judged_yet_counts_as_neither() {
        let mut losses = UplinkLosses::default();
        let counts = PacketCounts {
            packets: 2_000,
            lost: 200,
        };
        losses.note(SECOND, counts, 0.9);
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
        count(&mut losses, 20_000, 600, 0.1);
        assert!(losses.load_share() < 0.001);
    }

    #[test]
    fn a_long_history_is_outweighed() {
        let mut losses = UplinkLosses::default();
        count(&mut losses, 1_000_000, 100_000, 0.9);
        for _ in 0..20 {
            count(&mut losses, 100_000, 0, 0.9);
        }
        assert!(losses.load_share() < 0.001);
    }
}
