//! A record of the history: an uplink during a step of time, in 32 bytes.

use std::time::Duration;

use braid_core::capacity::CapacityBasis;
use braid_core::{Rate, ShortHash};

use crate::report::UplinkState;
use crate::uplinks::link_quality::QualityBasis;

/// Length of a record.
pub const RECORD_BYTES: usize = 32;
/// Content of a field without a value.
const NO_WORD: u32 = u32::MAX;
const NO_LOSS: u16 = u16::MAX;
const NO_JITTER: u32 = (1 << JITTER_BITS) - 1;
/// A round trip and jitter share a word: the latter has these bits, in steps of [`JITTER_STEP_US`].
const JITTER_BITS: u32 = 14;
/// Resolutions in microseconds: up to 13.1 s for a round trip, and 1.6 s for jitter.
const RTT_STEP_US: u128 = 50;
const JITTER_STEP_US: u128 = 100;
/// Resolution of a fraction.
const LOSS_SCALE: f64 = 50_000.0;
/// Bits of a capacity's basis, and the one that says that it was measured during the step.
const BASIS: u8 = 0b0111;
const MEASURED: u8 = 0b1000;
/// Bit beside those of the state that says that the uplink stalled.
const STALLED: u8 = 0b1000;
const STATE: u8 = 0b0111;

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
    /// Mean round-trip time, and the evidence at the end of the step.
    pub rtt: Option<(Duration, QualityBasis)>,
    /// Mean jitter; none without a round trip.
    pub jitter: Option<Duration>,
    /// Mean fraction lost, and the evidence at the end of the step.
    pub loss: Option<(f64, QualityBasis)>,
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
        let words = [
            self.unix_s,
            word(self.tx),
            word(self.rx),
            capacity(self.tx_capacity).unwrap_or(NO_WORD),
            capacity(self.rx_capacity).unwrap_or(NO_WORD),
            self.rtt
                .map_or(NO_WORD, |(rtt, _)| delay_word(rtt, self.jitter)),
        ];
        let mut bytes = [0; RECORD_BYTES];
        for (field, value) in bytes.chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let loss = self.loss.map_or(NO_LOSS, |(loss, _)| {
            (loss.clamp(0.0, 1.0) * LOSS_SCALE) as u16
        });
        bytes[24..26].copy_from_slice(&loss.to_le_bytes());
        let rtt_basis = evidence_number(self.rtt.map(|(_, basis)| basis));
        let loss_basis = evidence_number(self.loss.map(|(_, basis)| basis));
        let stalled = if self.stalled { STALLED } else { 0 };
        bytes[26] = loss_basis << 6 | rtt_basis << 4 | stalled | state_number(self.state);
        bytes[27] = basis_bits(self.tx_capacity) << 4 | basis_bits(self.rx_capacity);
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
        let (rtt_basis, loss_basis) = (evidence_of(bytes[26] >> 4), evidence_of(bytes[26] >> 6));
        let (rtt, jitter) = match (known(word(5)), rtt_basis) {
            (None, _) => (None, None),
            (Some(word), Some(basis)) => {
                let (rtt, jitter) = delays(word);
                (Some((rtt, basis)), jitter)
            }
            // An older form: microseconds, of probes, without jitter.
            (Some(us), None) => {
                let rtt = Duration::from_micros(us.into());
                (Some((rtt, QualityBasis::Probes)), None)
            }
        };
        let loss_share = (f64::from(loss) / LOSS_SCALE).min(1.0);
        Some(HistoryRecord {
            unix_s: word(0),
            tx: rate(word(1)),
            rx: rate(word(2)),
            tx_capacity: capacity(3, bytes[27] >> 4),
            rx_capacity: capacity(4, bytes[27]),
            rtt,
            jitter,
            loss: (loss != NO_LOSS)
                .then(|| (loss_share, loss_basis.unwrap_or(QualityBasis::Probes))),
            state: state_of(bytes[26] & STATE)?,
            stalled: bytes[26] & STALLED != 0,
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
        let mean_delay = |of: fn(&HistoryRecord) -> Option<Duration>| {
            let delays = records.iter().filter_map(of);
            mean(&mut delays.map(|delay| delay.as_secs_f64())).map(Duration::from_secs_f64)
        };
        let last_rtt = records.iter().rev().find_map(|record| record.rtt);
        let last_loss = records.iter().rev().find_map(|record| record.loss);
        let losses = &mut records.iter().filter_map(|record| record.loss);
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
            rtt: mean_delay(|record| Some(record.rtt?.0)).zip(last_rtt.map(|(_, basis)| basis)),
            jitter: mean_delay(|record| record.jitter),
            loss: mean(&mut losses.map(|(loss, _)| loss)).zip(last_loss.map(|(_, basis)| basis)),
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

/// Returns a round trip and jitter in one word, which is not [`NO_WORD`].
fn delay_word(rtt: Duration, jitter: Option<Duration>) -> u32 {
    let steps = |delay: Duration, step: u128, most: u32| {
        let steps = (delay.as_micros() + step / 2) / step;
        u32::try_from(steps).unwrap_or(most).min(most)
    };
    let jitter = jitter.map(|jitter| steps(jitter, JITTER_STEP_US, NO_JITTER - 1));
    let rtt = steps(rtt, RTT_STEP_US, (NO_WORD >> JITTER_BITS) - 1);
    rtt << JITTER_BITS | jitter.unwrap_or(NO_JITTER)
}

/// Reads [`delay_word`].
fn delays(word: u32) -> (Duration, Option<Duration>) {
    let delay = |steps: u32, step: u128| Duration::from_micros(u64::from(steps) * step as u64);
    let jitter = word & NO_JITTER;
    (
        delay(word >> JITTER_BITS, RTT_STEP_US),
        (jitter != NO_JITTER).then(|| delay(jitter, JITTER_STEP_US)),
    )
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

const BASES: [CapacityBasis; 4] = [
    CapacityBasis::Saturated,
    CapacityBasis::AtLeast,
    CapacityBasis::Transfer,
    CapacityBasis::Dispersion,
];

/// Returns the number of a basis from 1, with [`MEASURED`] where that holds; 0 without a capacity.
fn basis_bits(known: Option<RecordedCapacity>) -> u8 {
    let Some(known) = known else { return 0 };
    let place = BASES.iter().position(|other| *other == known.basis);
    let number = place.map_or(0, |place| u8::try_from(place + 1).expect("few bases"));
    number | if known.measured { MEASURED } else { 0 }
}

fn basis_of(number: u8) -> Option<CapacityBasis> {
    BASES.get(usize::from(number).checked_sub(1)?).copied()
}

const EVIDENCE: [QualityBasis; 2] = [QualityBasis::Probes, QualityBasis::Traffic];

/// Returns the number of an evidence from 1, in two bits; 0 without any.
fn evidence_number(known: Option<QualityBasis>) -> u8 {
    let place = known.and_then(|basis| EVIDENCE.iter().position(|other| *other == basis));
    place.map_or(0, |place| u8::try_from(place + 1).expect("two of them"))
}

/// Reads [`evidence_number`] from the two lowest bits.
fn evidence_of(bits: u8) -> Option<QualityBasis> {
    let place = usize::from(bits & 3).checked_sub(1)?;
    EVIDENCE.get(place).copied()
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
            rtt: Some((Duration::from_micros(21_400), QualityBasis::Traffic)),
            jitter: Some(Duration::from_micros(1_300)),
            loss: Some((0.02, QualityBasis::Probes)),
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
    fn records_of_the_older_form_are_read() {
        let mut bytes = record(60, 10).to_bytes();
        bytes[20..24].copy_from_slice(&21_437_u32.to_le_bytes());
        bytes[26] = state_number(UplinkState::Degraded);
        let sum = checksum(&bytes);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        let expected = HistoryRecord {
            rtt: Some((Duration::from_micros(21_437), QualityBasis::Probes)),
            jitter: None,
            state: UplinkState::Degraded,
            ..record(60, 10)
        };
        assert_eq!(HistoryRecord::parse(&bytes), Some(expected));
    }

    #[test]
    fn delays_beyond_a_word_are_the_longest_that_it_has() {
        let long = Duration::from_secs(20);
        assert_eq!(
            delays(delay_word(long, Some(long))),
            (
                Duration::from_micros(13_107_100),
                Some(Duration::from_micros(1_638_200))
            )
        );
        assert_ne!(delay_word(long, None), NO_WORD);
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
            (rtt_us, jitter_us) in (0_u64..13_000_000, prop::option::of(0_u64..1_600_000)),
            loss in 0.0..=1.0f64,
            evidence in 0_usize..2,
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
                rtt: known[2].then(|| (Duration::from_micros(rtt_us), EVIDENCE[evidence])),
                jitter: jitter_us.filter(|_| known[2]).map(Duration::from_micros),
                loss: known[3].then_some((loss, EVIDENCE[1 - evidence])),
                state: STATES[state],
                stalled,
            };
            let read = HistoryRecord::parse(&written.to_bytes()).unwrap();
            let near = |one: Option<f64>, other: Option<f64>| {
                one.is_some() == other.is_some()
                    && (one.unwrap_or_default() - other.unwrap_or_default()).abs() < 1e-4
            };
            let delays = |of: &HistoryRecord| {
                [of.rtt.map(|(rtt, _)| rtt), of.jitter].map(|delay| Some(delay?.as_secs_f64()))
            };
            prop_assert!(near(read.loss.map(|(loss, _)| loss), written.loss.map(|(loss, _)| loss)));
            for (one, other) in delays(&read).into_iter().zip(delays(&written)) {
                prop_assert!(near(one, other), "{read:?} {written:?}");
            }
            let evidence = |of: &HistoryRecord| {
                (of.rtt.map(|(_, basis)| basis), of.loss.map(|(_, basis)| basis))
            };
            prop_assert_eq!(evidence(&read), evidence(&written));
            let rest = |of| HistoryRecord { rtt: None, jitter: None, loss: None, ..of };
            prop_assert_eq!(rest(read), rest(written));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in any::<[u8; RECORD_BYTES]>()) {
            let _ = HistoryRecord::parse(&bytes);
        }
    }
}
