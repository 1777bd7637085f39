//! Anti-replay window of a link: no packet number is taken twice.
//!
//! A bitmap of [`REPLAY_WINDOW`] numbers behind the highest (RFC 6479: words are cleared as the
//! window moves, nothing is shifted). It is per link and outlives a change of keys, since the
//! numbers continue.

use braid_multipath::PacketNumber;

use super::varint;

/// Numbers behind the highest that can still be taken: at 10 Gbit/s of full packets 19 ms of
/// reordering within one link, at 1 Gbit/s 190 ms.
pub const REPLAY_WINDOW: u64 = 16_384;

const WORD: u64 = 64;
/// One word more than the window, so that clearing the word ahead never clears a live one.
const WORDS: usize = (REPLAY_WINDOW / WORD) as usize + 1;

/// Reason for refusing a packet number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It was seen.
    Seen,
    /// It is older than the window.
    Old,
    /// It is higher than any that a report can name. No honest end gets there; one that skips almost
    /// 2³¹ numbers with each packet does.
    Unnameable,
}

/// Packet numbers seen on a link.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    bits: Box<[u64; WORDS]>,
    /// One more than the highest number taken.
    next: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow {
            bits: Box::new([0; WORDS]),
            next: 0,
        }
    }
}

impl ReplayWindow {
    /// One more than the highest number taken.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns `Ok` if a number could be taken. The caller checks before it opens the seal, so that
    /// replays cost nothing; only [`ReplayWindow::take`] changes state.
    ///
    /// # Errors
    /// The reason for refusal.
    pub fn check(&self, number: PacketNumber) -> Result<(), ReplayError> {
        let number = number.0;
        if number > varint::MAX {
            return Err(ReplayError::Unnameable);
        }
        if number >= self.next {
            return Ok(());
        }
        if self.next - number > REPLAY_WINDOW {
            return Err(ReplayError::Old);
        }
        let (word, bit) = place(number);
        if self.bits[word] & bit == 0 {
            Ok(())
        } else {
            Err(ReplayError::Seen)
        }
    }

    /// Takes the number of an authentic packet.
    ///
    /// # Errors
    /// The reason for refusal; nothing has changed then.
    pub fn take(&mut self, number: PacketNumber) -> Result<(), ReplayError> {
        self.check(number)?;
        let number = number.0;
        if number >= self.next {
            self.clear_to(number);
            self.next = number + 1;
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
        Ok(())
    }

    /// Clears the words that come into the window when it moves up to `number`.
    fn clear_to(&mut self, number: u64) {
        // The word of the highest number was cleared when the window entered it.
        let first = self.next.div_ceil(WORD);
        let last = number / WORD;
        if last < first {
            return;
        }
        if last - first >= WORDS as u64 {
            self.bits.fill(0);
            return;
        }
        for word in first..=last {
            self.bits[(word % WORDS as u64) as usize] = 0;
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let word = (number / WORD % WORDS as u64) as usize;
    (word, 1 << (number % WORD))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Jumps of all sizes: neighbours, words, the window and far beyond.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let jump = prop_oneof![
            8 => -70i64..70,
            2 => -(REPLAY_WINDOW as i64) - 70..REPLAY_WINDOW as i64 + 70,
            1 => 0i64..1 << 40,
        ];
        prop::collection::vec(jump, 1..400).prop_map(|jumps| {
            let mut at = 0u64;
            jumps
                .into_iter()
                .map(|jump| {
                    at = at.saturating_add_signed(jump);
                    at
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_all_that_was_seen(numbers in numbers()) {
            let mut window = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            for number in numbers {
                let next = seen.last().map_or(0, |last| last + 1);
                let expected = if seen.contains(&number) && next - number <= REPLAY_WINDOW {
                    Err(ReplayError::Seen)
                } else if number + REPLAY_WINDOW < next {
                    Err(ReplayError::Old)
                } else {
                    Ok(())
                };
                prop_assert_eq!(window.take(PacketNumber(number)), expected);
                if expected.is_ok() {
                    seen.insert(number);
                }
                prop_assert_eq!(window.next(), seen.last().map_or(0, |last| last + 1));
            }
        }
    }
}
