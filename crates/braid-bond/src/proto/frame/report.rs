//! REPORT: reception statistics of each link.
//!
//! ```text
//! type 0x03 · number varint · links 8 · links × entry
//! entry   link 8 · highest varint · packets varint · bytes varint · lost varint ·
//!         age varint · held varint · echo 24 · delay varint (zigzag) · jitter varint · train varint
//! ```
//! Counts are totals since the session began, so a lost report only costs time. A report covers all
//! links and goes over every link: news of a dead link must not depend on that link.

use braid_multipath::{LinkId, MAX_LINKS};

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;
use crate::proto::varint::{self, unzigzag, zigzag};

/// Reception statistics of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The link.
    pub link: LinkId,
    /// Highest link packet number received.
    pub highest: u64,
    /// Packets received in total, without duplicates.
    pub packets: u64,
    /// Bytes received in total: UDP payloads, and 28 for the headers of each.
    pub bytes: u64,
    /// Packet numbers given up as lost, in total. One that arrives late is subtracted again, so the
    /// total may shrink.
    pub lost: u64,
    /// µs from the last arrival to this report.
    pub age: u32,
    /// µs from the arrival of `highest` to this report, which are not part of the round trip.
    pub held: u32,
    /// Stamp of the packet `highest`. The sender subtracts it and `held` from its own clock to get
    /// the round-trip time.
    pub echo: u32,
    /// Least one-way delay since the previous report, µs: the receiver's clock minus the stamp,
    /// less a constant that is the same for all links of the session.
    pub delay: i64,
    /// Mean deviation of the one-way delay between consecutive packets, µs.
    pub jitter: u32,
    /// Arrival rate of a train of padded packets, kbit/s; zero if there was none.
    pub train: u32,
}

impl Entry {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let link = reader.u8()?;
        if usize::from(link) >= MAX_LINKS {
            return Err(FrameError::Range);
        }
        Ok(Entry {
            link: LinkId(link),
            highest: varint::parse(reader)?,
            packets: varint::parse(reader)?,
            bytes: varint::parse(reader)?,
            lost: varint::parse(reader)?,
            age: varint::parse_u32(reader)?,
            held: varint::parse_u32(reader)?,
            echo: reader.u24()?,
            delay: unzigzag(varint::parse(reader)?),
            jitter: varint::parse_u32(reader)?,
            train: varint::parse_u32(reader)?,
        })
    }

    fn append(&self, out: &mut Vec<u8>) {
        out.push(self.link.0);
        varint::append(self.highest, out);
        varint::append(self.packets, out);
        varint::append(self.bytes, out);
        varint::append(self.lost, out);
        varint::append(self.age.into(), out);
        varint::append(self.held.into(), out);
        append_u24(self.echo, out);
        varint::append(zigzag(self.delay), out);
        varint::append(self.jitter.into(), out);
        varint::append(self.train.into(), out);
    }
}

/// Reception statistics of each link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// Sequence number; of two reports the higher is the newer.
    pub number: u64,
    /// One entry per link with news, in ascending order of links.
    pub entries: Entries<'a>,
}

impl<'a> Report<'a> {
    pub(super) fn parse(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let number = varint::parse(reader)?;
        let count = reader.u8()?;
        let start = reader.rest();
        let mut last = None;
        for _ in 0..count {
            let link = Entry::parse(reader)?.link;
            if last.replace(link).is_some_and(|last| last >= link) {
                return Err(FrameError::Range);
            }
        }
        let bytes = &start[..start.len() - reader.rest().len()];
        Ok(Report {
            number,
            entries: Entries {
                count,
                reader: Reader::new(bytes),
            },
        })
    }

    /// Writes the frame.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(kind::REPORT);
        varint::append(self.number, out);
        out.push(self.entries.count);
        out.extend_from_slice(self.entries.reader.rest());
    }

    /// Writes a report of these entries, which must ascend by link.
    pub fn write(number: u64, entries: &[Entry], out: &mut Vec<u8>) {
        debug_assert!(entries.windows(2).all(|pair| pair[0].link < pair[1].link));
        out.push(kind::REPORT);
        varint::append(number, out);
        out.push(entries.len() as u8);
        entries.iter().for_each(|entry| entry.append(out));
    }
}

/// Entries of a report, parsed lazily.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    count: u8,
    reader: Reader<'a>,
}

impl PartialEq for Entries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.reader.rest() == other.reader.rest()
    }
}

impl Eq for Entries<'_> {}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.count = self.count.checked_sub(1)?;
        Entry::parse(&mut self.reader).ok()
    }
}
