//! A record of the history: an uplink during a step of time, in 32 bytes.

use std::time::Duration;

use braid_core::capacity::CapacityBasis;
use braid_core::{Rate, ShortHash};

use crate::report::UplinkState;

/// Length of a record.
pub const RECORD_BYTES: usize = 32;
/// Content of a field without a value.
const NO_WORD: u32 = u32::MAX;
const NO_LOSS: u16 = u16::MAX;
/// Resolution of a fraction.
const LOSS_SCALE: f64 = 50_000.0;
/// Bits of a capacity's basis, and the one that says that it was measured during the step.
const BASIS: u8 = 0b011;
const MEASURED: u8 = 0b100;
/// Bit beside those of both directions that says that the uplink stalled.
const STALLED: u8 = 0x80;

/// An uplink during a step of time. Rates are stored in whole bytes per second, up to 34 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryRecord {
    /// Start of the step, in seconds since 1970.
    pub unix_s: u32,
    /// Mean rate sent.
    pub tx: Rate,
    /// Mean rate received.
    pub rx: Rate,
    /// Capacity to send as known at the end of the step.
    pub tx_capacity: Option<RecordedCapacity>,
    /// The same to receive.
    pub rx_capacity: Option<RecordedCapacity>,
    /// Mean round-trip time.
    pub rtt: Option<Duration>,
    /// Mean fraction of probes without an answer.
    pub loss: Option<f64>,
    /// The worst state during the step.
    pub state: UplinkState,
    /// True if it stalled at some second's end.
    pub stalled: bool,
}

/// A capacity as it was known at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCapacity {
    /// The capacity, or a lower bound of it.
    pub rate: Rate,
    /// The way in which it was known.
    pub basis: CapacityBasis,
    /// True if it was measured during the step, and not before.
    pub measured: bool,
}

impl HistoryRecord {
    /// Returns the record as bytes, with a checksum.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let capacity = |known: Option<RecordedCapacity>| known.map(|known| word(known.rate));
        let rtt = self
            .rtt
            .map(|rtt| u32::try_from(rtt.as_micros()).unwrap_or(NO_WORD - 1));
        let words = [
            self.unix_s,
            word(self.tx),
            word(self.rx),
            capacity(self.tx_capacity).unwrap_or(NO_WORD),
            capacity(self.rx_capacity).unwrap_or(NO_WORD),
            rtt.unwrap_or(NO_WORD),
        ];
        let mut bytes = [0; RECORD_BYTES];
        for (field, value) in bytes.chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let loss = self
            .loss
            .map_or(NO_LOSS, |loss| (loss.clamp(0.0, 1.0) * LOSS_SCALE) as u16);
        bytes[24..26].copy_from_slice(&loss.to_le_bytes());
        bytes[26] = state_number(self.state);
        let stalled = if self.stalled { STALLED } else { 0 };
        bytes[27] = stalled | basis_bits(self.tx_capacity) << 4 | basis_bits(self.rx_capacity);
        let sum = checksum(&bytes);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a record; `None` if the bytes are none, such as an empty place or one that was half written.
    #[must_use]
    pub fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<HistoryRecord> {
        let word = |place: usize| {
            let field = bytes[place * 4..]
                .first_chunk()
                .expect("six words in a record");
            u32::from_le_bytes(*field)
        };
        if word(7) != checksum(bytes) || word(0) == 0 {
            return None;
        }
        let known = |word: u32| (word != NO_WORD).then_some(word);
        let capacity = |place, bits: u8| {
            Some(RecordedCapacity {
                rate: known(word(place)).map(rate)?,
                basis: basis_of(bits & BASIS)?,
                measured: bits & MEASURED != 0,
            })
        };
        let loss = u16::from_le_bytes([bytes[24], bytes[25]]);
        Some(HistoryRecord {
            unix_s: word(0),
            tx: rate(word(1)),
            rx: rate(word(2)),
            tx_capacity: capacity(3, bytes[27] >> 4),
            rx_capacity: capacity(4, bytes[27]),
            rtt: known(word(5)).map(|us| Duration::from_micros(us.into())),
            loss: (loss != NO_LOSS).then(|| (f64::from(loss) / LOSS_SCALE).min(1.0)),
            state: state_of(bytes[26])?,
            stalled: bytes[27] & STALLED != 0,
        })
    }

    /// Returns the record of a longer step that begins at `unix_s`; `None` without any records. They come in the order
    /// of time.
    #[must_use]
    pub fn over(unix_s: u32, records: &[HistoryRecord]) -> Option<HistoryRecord> {
        let last = records.last()?;
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let (sum, number) = values.fold((0.0, 0_u32), |(sum, n), value| (sum + value, n + 1));
            (number > 0).then(|| sum / f64::from(number))
        };
        let mean_rate = |of: fn(&HistoryRecord) -> Rate| {
            let mean = mean(
                &mut records
                    .iter()
                    .map(|record| of(record).bits_per_sec() as f64),
            );
            Rate::from_bits_per_sec(mean.unwrap_or_default() as u64)
        };
        let capacity = |of: fn(&HistoryRecord) -> Option<RecordedCapacity>| {
            let known = || records.iter().rev().filter_map(of);
            Some(RecordedCapacity {
                measured: known().any(|known| known.measured),
                ..known().next()?
            })
        };
        let rtts = &mut records.iter().filter_map(|record| record.rtt);
        let worst = records
            .iter()
            .map(|record| record.state)
            .max_by_key(|state| severity(*state));
        Some(HistoryRecord {
            unix_s,
            tx: mean_rate(|record| record.tx),
            rx: mean_rate(|record| record.rx),
            tx_capacity: capacity(|record| record.tx_capacity),
            rx_capacity: capacity(|record| record.rx_capacity),
            rtt: mean(&mut rtts.map(|rtt| rtt.as_secs_f64())).map(Duration::from_secs_f64),
            loss: mean(&mut records.iter().filter_map(|record| record.loss)),
            state: worst.unwrap_or(last.state),
            stalled: records.iter().any(|record| record.stalled),
        })
    }
}

fn checksum(bytes: &[u8; RECORD_BYTES]) -> u32 {
    let mut hash = ShortHash::default();
    hash.write(&bytes[..28]);
    hash.finish()
}

fn word(rate: Rate) -> u32 {
    u32::try_from(rate.bits_per_sec() / 8)
        .unwrap_or(NO_WORD - 1)
        .min(NO_WORD - 1)
}

fn rate(word: u32) -> Rate {
    Rate::from_bits_per_sec(u64::from(word) * 8)
}

/// States by their numbers on disk.
const STATES: [UplinkState; 7] = [
    UplinkState::Up,
    UplinkState::Standby,
    UplinkState::Degraded,
    UplinkState::Portal,
    UplinkState::Dead,
    UplinkState::Down,
    UplinkState::Paused,
];

fn state_number(state: UplinkState) -> u8 {
    let place = STATES.iter().position(|other| *other == state);
    u8::try_from(place.expect("all states are listed")).expect("seven states")
}

/// Returns a number that is larger for a worse state.
fn severity(state: UplinkState) -> u8 {
    match state {
        UplinkState::Up => 0,
        UplinkState::Standby => 1,
        UplinkState::Paused => 2,
        UplinkState::Degraded => 3,
        UplinkState::Portal => 4,
        UplinkState::Dead => 5,
        UplinkState::Down => 6,
    }
}

fn state_of(number: u8) -> Option<UplinkState> {
    STATES.get(usize::from(number)).copied()
}

const BASES: [CapacityBasis; 3] = [
    CapacityBasis::Saturated,
    CapacityBasis::AtLeast,
    CapacityBasis::Transfer,
];

/// Returns the number of a basis from 1, with [`MEASURED`] where that holds; 0 without a capacity.
fn basis_bits(known: Option<RecordedCapacity>) -> u8 {
    let Some(known) = known else { return 0 };
    let place = BASES.iter().position(|other| *other == known.basis);
    let number = place.map_or(0, |place| u8::try_from(place + 1).expect("three bases"));
    number | if known.measured { MEASURED } else { 0 }
}

fn basis_of(number: u8) -> Option<CapacityBasis> {
    BASES.get(usize::from(number).checked_sub(1)?).copied()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn record(unix_s: u32, mbit: u64) -> HistoryRecord {
        HistoryRecord {
            unix_s,
            tx: Rate::from_bits_per_sec(mbit * 100_000),
            rx: Rate::from_bits_per_sec(mbit * 1_000_000),
            tx_capacity: None,
            rx_capacity: Some(RecordedCapacity {
                rate: Rate::from_bits_per_sec(20_000_000),
                basis: CapacityBasis::Transfer,
                measured: false,
            }),
            rtt: Some(Duration::from_micros(21_400)),
            loss: Some(0.02),
            state: UplinkState::Up,
            stalled: false,
        }
    }

    #[test]
    fn a_longer_step_has_means_the_last_capacity_and_the_worst_state() {
        let mut records = [record(60, 10), record(61, 20), record(62, 30)];
        records[0].rtt = None;
        records[1].state = UplinkState::Dead;
        records[0].rx_capacity.as_mut().unwrap().measured = true;
        records[0].stalled = true;
        records[2].rx_capacity = None;
        let minute = HistoryRecord::over(60, &records).unwrap();
        assert_eq!(
            minute,
            HistoryRecord {
                rx_capacity: records[0].rx_capacity,
                state: UplinkState::Dead,
                stalled: true,
                ..record(60, 20)
            }
        );
        assert_eq!(HistoryRecord::over(60, &[]), None);
    }

    #[test]
    fn empty_and_torn_places_hold_no_record() {
        assert_eq!(HistoryRecord::parse(&[0; RECORD_BYTES]), None);
        assert_eq!(HistoryRecord::parse(&[0xff; RECORD_BYTES]), None);
        let (old, new) = (record(60, 10).to_bytes(), record(3660, 20).to_bytes());
        for torn in 1..RECORD_BYTES {
            let mut bytes = new;
            bytes[torn..].copy_from_slice(&old[torn..]);
            let found = HistoryRecord::parse(&bytes);
            assert!(
                found.is_none() || bytes == new || bytes == old,
                "torn at {torn}"
            );
        }
    }

    proptest! {
        #[test]
        fn records_read_back(
            unix_s in 1_u32..,
            rates in prop::array::uniform4(0_u64..34_000_000_000),
            known in any::<[bool; 4]>(),
            (measured, stalled) in any::<([bool; 2], bool)>(),
            rtt_us in 0_u64..4_000_000_000,
            loss in 0.0..=1.0f64,
            (state, basis) in (0_usize..6, 0_usize..3),
        ) {
            let rate = |at: usize| Rate::from_bits_per_sec(rates[at] / 8 * 8);
            let capacity = |at: usize| RecordedCapacity {
                rate: rate(at + 2),
                basis: BASES[basis],
                measured: measured[at],
            };
            let written = HistoryRecord {
                unix_s,
                tx: rate(0),
                rx: rate(1),
                tx_capacity: known[0].then(|| capacity(0)),
                rx_capacity: known[1].then(|| capacity(1)),
                rtt: known[2].then(|| Duration::from_micros(rtt_us)),
                loss: known[3].then_some(loss),
                state: STATES[state],
                stalled,
            };
            let read = HistoryRecord::parse(&written.to_bytes()).unwrap();
            let near = |one: Option<f64>, other: Option<f64>| {
                one.is_some() == other.is_some()
                    && (one.unwrap_or_default() - other.unwrap_or_default()).abs() < 1e-4
            };
            prop_assert!(near(read.loss, written.loss));
            prop_assert_eq!(HistoryRecord { loss: None, ..read }, HistoryRecord { loss: None, ..written });
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in any::<[u8; RECORD_BYTES]>()) {
            let _ = HistoryRecord::parse(&bytes);
        }
    }
}
