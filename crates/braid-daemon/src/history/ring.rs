//! The history of one uplink: an hour of seconds and a day of minutes, in memory as they are on disk.
//!
//! The place of a record follows from its time alone, and each record has its time and a checksum. So nothing but
//! records is ever written, in any order, and a write that a crash cuts short costs no record but those it was about to
//! replace. Older records are those of the last round, which their time shows.
//!
//! Pure.

use std::collections::BTreeSet;
use std::ops::Range;

use super::record::{HistoryRecord, RECORD_BYTES};

/// Steps of a second that are kept.
const SECONDS: usize = 3600;
/// Steps of a minute that are kept.
const MINUTES: usize = 24 * 60;
/// First bytes of a file: name, version, and the numbers of its places.
const HEADER: [u8; 16] = *b"braid-history 1\n";
/// Length of a file.
pub const FILE_BYTES: usize = HEADER.len() + (SECONDS + MINUTES) * RECORD_BYTES;

/// The history of one uplink.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Contents of the file.
    image: Vec<u8>,
    /// Places that are not written yet.
    unwritten: BTreeSet<usize>,
    /// The minute of the last record; `None` before the first one.
    minute: Option<u32>,
}

/// Bytes to be written at a place of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The place.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Ring {
    /// Returns an empty history.
    #[must_use]
    pub fn new() -> Ring {
        let mut image = vec![0; FILE_BYTES];
        image[..HEADER.len()].copy_from_slice(&HEADER);
        Ring {
            image,
            unwritten: BTreeSet::new(),
            minute: None,
        }
    }

    /// Takes the contents of a file.
    ///
    /// # Errors
    /// The reason why they are no history.
    pub fn parse(image: Vec<u8>) -> Result<Ring, String> {
        if image.len() != FILE_BYTES {
            return Err(format!("{} bytes instead of {FILE_BYTES}", image.len()));
        }
        if image[..HEADER.len()] != HEADER {
            return Err("another kind of file, or of another version".to_owned());
        }
        Ok(Ring {
            image,
            ..Ring::new()
        })
    }

    /// Returns the contents for a new file.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        &self.image
    }

    /// Takes the record of a second. Returns true if a minute ended before it: then it is time to write.
    pub fn note(&mut self, record: &HistoryRecord) -> bool {
        let minute = record.unix_s / 60;
        let ended = self.minute.filter(|before| *before != minute);
        if let Some(ended) = ended {
            self.end_minute(ended);
        }
        self.minute = Some(minute);
        self.put(record.unix_s as usize % SECONDS, record);
        ended.is_some()
    }

    /// Ends the minute under way, before the end of the daemon. The seconds of it stay, so another daemon goes on.
    pub fn finish(&mut self) {
        if let Some(minute) = self.minute {
            self.end_minute(minute);
        }
    }

    fn end_minute(&mut self, minute: u32) {
        let seconds = self.seconds(minute * 60..minute.saturating_add(1).saturating_mul(60));
        if let Some(record) = HistoryRecord::over(minute * 60, &seconds) {
            self.put(SECONDS + minute as usize % MINUTES, &record);
        }
    }

    /// Returns what must be written since the last call; neighbours are one write.
    #[must_use]
    pub fn take_unwritten(&mut self) -> Vec<Write> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for place in std::mem::take(&mut self.unwritten) {
            match runs.last_mut() {
                Some(run) if run.end == place => run.end += 1,
                _ => runs.push(place..place + 1),
            }
        }
        let write = |run: Range<usize>| Write {
            offset: start(run.start) as u64,
            bytes: self.image[start(run.start)..start(run.end)].to_vec(),
        };
        runs.into_iter().map(write).collect()
    }

    /// Returns the step of the records of a time, at least `step` seconds: seconds are kept for an hour, minutes longer.
    #[must_use]
    pub fn step_of(last: u32, step: u32) -> u32 {
        step.max(if last as usize <= SECONDS { 1 } else { 60 })
    }

    /// Returns the records of a time, in steps of [`Ring::step_of`]. A step without records is left out.
    #[must_use]
    pub fn records(&self, now: u32, last: u32, step: u32) -> Vec<HistoryRecord> {
        let from = now.saturating_sub(last);
        let step = Ring::step_of(last, step);
        // The first step is a whole one: half of it would be another one's mean.
        let from = from.div_ceil(step) * step;
        let records = match last as usize <= SECONDS {
            true => self.seconds(from..now.saturating_add(1)),
            false => self.minutes(from, now),
        };
        let steps = records.chunk_by(|one, other| one.unix_s / step == other.unix_s / step);
        let merged = steps.map(|of| HistoryRecord::over(of[0].unix_s / step * step, of));
        merged.flatten().collect()
    }

    /// Returns the last record of all, if it is no older than a day.
    #[must_use]
    pub fn latest(&self, now: u32) -> Option<HistoryRecord> {
        let day = MINUTES as u32 * 60;
        let minutes = self.minutes(now.saturating_sub(day), now);
        let seconds = self.seconds(now.saturating_sub(SECONDS as u32)..now.saturating_add(1));
        seconds.last().or(minutes.last()).copied()
    }

    /// Returns the records of seconds in a time, in its order.
    fn seconds(&self, time: Range<u32>) -> Vec<HistoryRecord> {
        let first = time.start.max(time.end.saturating_sub(SECONDS as u32));
        let at = |second: u32| {
            let record = self.get(second as usize % SECONDS)?;
            (record.unix_s == second).then_some(record)
        };
        (first..time.end).filter_map(at).collect()
    }

    /// Returns the records of minutes that begin in a time, and of the one under way.
    fn minutes(&self, from: u32, now: u32) -> Vec<HistoryRecord> {
        let (current, first) = (now / 60, from.div_ceil(60));
        let first = first.max((current + 1).saturating_sub(MINUTES as u32));
        let at = |minute: u32| {
            let record = self.get(SECONDS + minute as usize % MINUTES)?;
            (record.unix_s == minute * 60).then_some(record)
        };
        let ended = (first..current).filter_map(at);
        let seconds = self.seconds(current * 60..now.saturating_add(1));
        ended
            .chain(HistoryRecord::over(current * 60, &seconds))
            .collect()
    }

    fn put(&mut self, place: usize, record: &HistoryRecord) {
        self.image[start(place)..start(place + 1)].copy_from_slice(&record.to_bytes());
        self.unwritten.insert(place);
    }

    fn get(&self, place: usize) -> Option<HistoryRecord> {
        let bytes = self.image[start(place)..].first_chunk()?;
        HistoryRecord::parse(bytes)
    }
}

fn start(place: usize) -> usize {
    HEADER.len() + place * RECORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    /// A time at the start of a minute.
    const START: u32 = 1_800_000_000;

    fn filled(seconds: u32) -> Ring {
        let mut ring = Ring::new();
        for second in 0..seconds {
            ring.note(&record(START + second, u64::from(second / 60 % 50)));
        }
        ring
    }

    #[test]
    fn an_hour_has_seconds_and_a_day_minutes() {
        let day = 24 * 3600;
        let ring = filled(day + 600);
        let now = START + day + 599;
        let hour = ring.records(now, 3600, 1);
        assert_eq!(hour.len(), 3600);
        assert_eq!(hour.last().unwrap().unix_s, now);
        assert!(
            hour.windows(2)
                .all(|two| two[1].unix_s == two[0].unix_s + 1)
        );
        let whole = ring.records(now, day, 1);
        assert_eq!(whole.len(), 1440);
        assert!(
            whole
                .windows(2)
                .all(|two| two[1].unix_s == two[0].unix_s + 60)
        );
        assert_eq!(
            whole[7],
            record(
                whole[7].unix_s,
                u64::from((whole[7].unix_s - START) / 60 % 50)
            )
        );
        let coarse = ring.records(now, day, 3600);
        assert!((23..=25).contains(&coarse.len()), "{}", coarse.len());
        assert_eq!(ring.latest(now).unwrap().unix_s, now);
        assert!(ring.latest(now + 2 * day).is_none());
    }

    #[test]
    fn a_pause_is_a_gap_and_old_rounds_are_no_records() {
        let mut ring = filled(3600);
        let later = START + 3600 + 1800;
        ring.note(&record(later, 9));
        let hour = ring.records(later, 3600, 1);
        assert_eq!(
            hour.len(),
            1801 - 1,
            "half an hour of before, and one second"
        );
        assert_eq!(ring.records(later, 60, 1), [record(later, 9)]);
        assert!(ring.records(later + 10_000, 3600, 1).is_empty());
        // A clock that goes back: what lies in the future is not shown.
        assert_eq!(ring.records(START + 10, 3600, 1).len(), 11);
    }

    #[test]
    fn each_minute_writes_its_records_and_nothing_else() {
        let mut ring = filled(60);
        assert!(!ring.take_unwritten().is_empty());
        let ended = (60..=120)
            .filter(|second| ring.note(&record(START + second, 1)))
            .count();
        assert_eq!(ended, 2, "the minutes before this one, and this one");
        let writes = ring.take_unwritten();
        let bytes: usize = writes.iter().map(|write| write.bytes.len()).sum();
        assert_eq!((writes.len(), bytes), (2, (61 + 2) * RECORD_BYTES));
        assert!(ring.take_unwritten().is_empty());
    }

    #[test]
    fn what_was_written_is_the_same_history_again() {
        let mut ring = Ring::new();
        let mut file = ring.image().to_vec();
        for second in 0..4000 {
            if ring.note(&record(START + second, 7)) {
                for Write { offset, bytes } in ring.take_unwritten() {
                    let offset = usize::try_from(offset).unwrap();
                    file[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        let mut again = Ring::parse(file).unwrap();
        // The daemon was killed in the middle of a minute: what came after the last write is lost.
        let now = START + 3999;
        assert_eq!(again.latest(now).unwrap().unix_s, START + 3959 + 1);
        assert_eq!(again.records(now, 3600, 1).len(), 3561);
        again.note(&record(now, 7));
        again.finish();
        assert_eq!(again.records(now, 86_400, 60).len(), 67);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Ring::parse(vec![0; FILE_BYTES]).is_err());
        assert!(Ring::parse(Ring::new().image()[1..].to_vec()).is_err());
        assert!(Ring::parse(Vec::new()).is_err());
    }
}
