//! Trace of one direction of an uplink, as `braid emulate` plays it. Pure.
//!
//! Rules, and why:
//! - One line a second, with the rate from then on: the text is a valid trace after each line.
//! - The first lines wait for a rate above 0: an emulator refuses a trace through which nothing ever passes. Seconds
//!   before it of which nothing is known get that rate.
//! - Rates count whole frames, as the emulator does: the daemon counts IP packets.
//! - A comment says how the rates after it are known, whenever that changes.

use std::fmt::Write;

use braid_daemon::report::{
    CapacityBasisName, HistoryCapacity, HistoryPoint, MeasuredDirection, RecordedTrace, UplinkState,
};

/// A full IP packet, and its frame as the emulator counts it, in bytes.
const PACKET_BYTES: u64 = 1500;
const FRAME_BYTES: u64 = 1514;
/// Seconds without a record from which that is told: the daemon's seconds are a little longer than the clock's.
const MIN_GAP: u32 = 3;

/// The way in which the rate of a second is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RateBasis {
    /// The line was full in this second, or a transfer measured it.
    Measured,
    /// The last measurement holds on.
    CarriedOn,
    /// The line carried this rate of late, and may carry more.
    AtLeast,
    /// The line stalled.
    Stalled,
    /// The uplink was dead or down, or a captive portal answered.
    Down,
    /// Nothing is known.
    Unknown,
}

impl RateBasis {
    fn comment(self) -> &'static str {
        match self {
            RateBasis::Measured => "measured",
            RateBasis::CarriedOn => "carried on from the last measurement",
            RateBasis::AtLeast => "at least: the highest rate of late, the line was not full",
            RateBasis::Stalled => "stalled: the rate received",
            RateBasis::Down => "dead or down",
            RateBasis::Unknown => "unknown: the nearest rate that is known",
        }
    }
}

/// Returns the rate of a second in bits per second, and the way in which it is known.
fn rate(point: &HistoryPoint, direction: MeasuredDirection) -> (RateBasis, Option<u64>) {
    if matches!(
        point.state,
        UplinkState::Dead | UplinkState::Down | UplinkState::Portal
    ) {
        return (RateBasis::Down, Some(0));
    }
    if point.stalled {
        // Packets that are sent into a stall may wait or be lost.
        return (RateBasis::Stalled, Some(point.rx_bit_s));
    }
    let known = match direction {
        MeasuredDirection::Down => point.rx_capacity,
        MeasuredDirection::Up => point.tx_capacity,
    };
    let Some(HistoryCapacity {
        rate_bit_s,
        basis,
        measured,
    }) = known
    else {
        return (RateBasis::Unknown, None);
    };
    let basis = match basis {
        CapacityBasisName::AtLeast => RateBasis::AtLeast,
        _ if measured => RateBasis::Measured,
        _ => RateBasis::CarriedOn,
    };
    (basis, Some(rate_bit_s))
}

/// Text of a trace as it grows.
#[derive(Debug)]
pub struct TraceText {
    direction: MeasuredDirection,
    heading: String,
    /// Seconds before the first rate above 0.
    waiting: Vec<(u32, RateBasis, Option<u64>)>,
    /// The last line: its second, how its rate is known, and the rate; `None` before the first line.
    last: Option<(u32, RateBasis, u64)>,
    counts: RecordedTrace,
}

impl TraceText {
    /// Starts the trace of a direction. `title` is its first comment.
    pub fn new(direction: MeasuredDirection, title: &str) -> TraceText {
        let direction_name = direction.as_str();
        TraceText {
            direction,
            heading: format!(
                "# {title}, {direction_name}\n\
                 # Rates count a frame of {FRAME_BYTES} bytes for an IP packet of {PACKET_BYTES}.\n\
                 seconds,Mbit/s\n"
            ),
            waiting: Vec::new(),
            last: None,
            counts: RecordedTrace {
                direction,
                file: None,
                seconds: 0,
                measured_s: 0,
                carried_on_s: 0,
                at_least_s: 0,
                stalled_s: 0,
                down_s: 0,
                unknown_s: 0,
            },
        }
    }

    /// Takes the record of a second, counted from the start of the recording and later than those before. Returns the
    /// text to be appended to the file, which is empty before the first rate above 0.
    pub fn push(&mut self, second: u32, point: &HistoryPoint) -> String {
        let (basis, bit_s) = rate(point, self.direction);
        if self.last.is_some() {
            return self.line(second, basis, bit_s);
        }
        self.waiting.push((second, basis, bit_s));
        let Some(first) = bit_s.filter(|rate| megabits(*rate) > 0.0) else {
            return String::new();
        };
        let mut text = std::mem::take(&mut self.heading);
        for (second, basis, bit_s) in std::mem::take(&mut self.waiting) {
            text += &self.line(second, basis, Some(bit_s.unwrap_or(first)));
        }
        text
    }

    /// Returns its seconds by the way in which their rates are known.
    pub fn counts(&self) -> &RecordedTrace {
        &self.counts
    }

    fn line(&mut self, second: u32, basis: RateBasis, bit_s: Option<u64>) -> String {
        let mut text = String::new();
        let before = self.last;
        let missed = before.map_or(second, |(before, ..)| second - before - 1);
        if missed >= MIN_GAP {
            let _ = writeln!(text, "# no record of the {missed} s before");
        }
        // A second or two between records belong to the one before; more are unknown.
        match (before, missed) {
            (_, MIN_GAP..) | (None, _) => *self.count(RateBasis::Unknown) += missed,
            (Some((_, basis, _)), _) => *self.count(basis) += missed,
        }
        if before.is_none_or(|(_, before, _)| before != basis) {
            let _ = writeln!(text, "# {}", basis.comment());
        }
        let bit_s = bit_s.or(before.map(|(_, _, rate)| rate)).unwrap_or(0);
        // The first line is the trace's beginning, wherever it is.
        let at = if before.is_none() { 0 } else { second };
        let _ = writeln!(text, "{at},{}", megabits(bit_s));
        *self.count(basis) += 1;
        self.counts.seconds = second + 1;
        self.last = Some((second, basis, bit_s));
        text
    }

    fn count(&mut self, basis: RateBasis) -> &mut u32 {
        let counts = &mut self.counts;
        match basis {
            RateBasis::Measured => &mut counts.measured_s,
            RateBasis::CarriedOn => &mut counts.carried_on_s,
            RateBasis::AtLeast => &mut counts.at_least_s,
            RateBasis::Stalled => &mut counts.stalled_s,
            RateBasis::Down => &mut counts.down_s,
            RateBasis::Unknown => &mut counts.unknown_s,
        }
    }
}

/// Returns a rate of IP packets as the emulator's Mbit/s, in whole bits per second.
fn megabits(bit_s: u64) -> f64 {
    (u128::from(bit_s) * u128::from(FRAME_BYTES) / u128::from(PACKET_BYTES)) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: MeasuredDirection = MeasuredDirection::Down;

    fn point(rate: Option<(u64, CapacityBasisName, bool)>) -> HistoryPoint {
        HistoryPoint {
            unix_ms: 0,
            tx_bit_s: 700_000,
            rx_bit_s: 30_000,
            tx_capacity: None,
            rx_capacity: rate.map(|(mbit, basis, measured)| HistoryCapacity {
                rate_bit_s: mbit * 1_500_000,
                basis,
                measured,
            }),
            rtt_ms: None,
            rtt_basis: None,
            jitter_ms: None,
            loss: None,
            loss_basis: None,
            state: UplinkState::Up,
            stalled: false,
        }
    }

    fn measured(rate: u64) -> HistoryPoint {
        point(Some((rate, CapacityBasisName::Saturated, true)))
    }

    fn text(points: &[(u32, HistoryPoint)]) -> (String, RecordedTrace) {
        let mut trace = TraceText::new(DOWN, "dsl, from then on");
        let text = points.iter().map(|(at, point)| trace.push(*at, point));
        (text.collect(), trace.counts().clone())
    }

    #[test]
    fn each_second_says_how_its_rate_is_known() {
        let mut dead = measured(20);
        dead.state = UplinkState::Dead;
        let mut stalled = measured(20);
        stalled.stalled = true;
        let (text, counts) = text(&[
            (0, point(None)),
            (1, dead),
            (2, point(Some((3, CapacityBasisName::AtLeast, true)))),
            (3, measured(20)),
            (4, measured(18)),
            (5, point(Some((18, CapacityBasisName::Saturated, false)))),
            (6, stalled),
            (7, point(Some((22, CapacityBasisName::Transfer, true)))),
            (9, point(Some((22, CapacityBasisName::Transfer, false)))),
            (60, point(None)),
        ]);
        let expected = "\
# dsl, from then on, down
# Rates count a frame of 1514 bytes for an IP packet of 1500.
seconds,Mbit/s
# unknown: the nearest rate that is known
0,4.542
# dead or down
1,0
# at least: the highest rate of late, the line was not full
2,4.542
# measured
3,30.28
4,27.252
# carried on from the last measurement
5,27.252
# stalled: the rate received
6,0.03028
# measured
7,33.308
# carried on from the last measurement
9,33.308
# no record of the 50 s before
# unknown: the nearest rate that is known
60,33.308
";
        assert_eq!(text, expected);
        let RecordedTrace {
            seconds,
            measured_s,
            carried_on_s,
            at_least_s,
            stalled_s,
            down_s,
            unknown_s,
            ..
        } = counts;
        assert_eq!(
            (seconds, measured_s, carried_on_s, at_least_s),
            (61, 4, 2, 1)
        );
        assert_eq!((stalled_s, down_s, unknown_s), (1, 1, 52));
    }

    #[test]
    fn both_directions_begin_with_the_recording() {
        let (text, counts) = text(&[(7, measured(20)), (8, measured(21))]);
        assert!(text.contains("# no record of the 7 s before\n"), "{text}");
        assert!(text.ends_with("0,30.28\n8,31.794\n"), "{text}");
        assert_eq!((counts.seconds, counts.unknown_s), (9, 7));
    }

    #[test]
    fn nothing_is_written_before_a_rate() {
        let mut down = point(None);
        down.state = UplinkState::Down;
        let (text, counts) = text(&[(0, point(None)), (1, down)]);
        assert_eq!((text.as_str(), counts.seconds), ("", 0));
    }

    /// A recording that ends after any of its seconds.
    #[cfg(feature = "emulate")]
    #[test]
    fn the_emulator_reads_it_after_every_second() {
        let mut dead = measured(20);
        dead.state = UplinkState::Dead;
        let points = [dead, point(None), measured(20), measured(10), point(None)];
        let mut trace = TraceText::new(DOWN, "lte, \"a, b\"");
        let (mut text, mut means) = (String::new(), Vec::new());
        for (second, point) in (0..).zip(&points) {
            text += &trace.push(second, point);
            let played = braid_emulate::trace::Trace::parse("lte.csv".as_ref(), &text);
            means.push(played.ok().map(|trace| trace.mean().bits_per_sec()));
        }
        // Rates of 0, 30.28, 30.28, 15.14 and 15.14 Mbit/s.
        let expected = [
            None,
            None,
            Some(20_186_666),
            Some(18_925_000),
            Some(18_168_000),
        ];
        assert_eq!(means, expected);
    }
}
