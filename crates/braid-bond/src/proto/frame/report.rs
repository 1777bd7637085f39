//! REPORT: what arrived, link by link.
//!
//! ```text
//! type 0x03 · number varint · links 8 · links × entry
//! entry   link 8 · highest varint · packets varint · bytes varint · lost varint ·
//!         age varint · held varint · echo 24 · delay varint (zigzag) · jitter varint · train varint
//! ```
//! Counts are totals since the session began, so a lost report loses nothing but time. A report
//! speaks of all links and goes over every link: the news of a dead link must not depend on it.

use super::{FrameError, append_u24, kind};
use crate::proto::reader::Reader;
use crate::proto::varint::{self, unzigzag, zigzag};
use braid_core::{LinkId, MAX_LINKS};

/// What arrived on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The link.
    pub link: LinkId,
    /// The highest link packet number that arrived.
    pub highest: u64,
    /// Packets that arrived, in all; duplicates are not counted.
    pub packets: u64,
    /// Bytes that arrived, in all: UDP payloads, and 28 for the headers of each.
    pub bytes: u64,
    /// Packet numbers given up as lost, in all; one that comes after all is taken off again, so
    /// the total may shrink.
    pub lost: u64,
    /// µs from the last arrival to this report.
    pub age: u32,
    /// µs from the arrival of `highest` to this report: not part of the round trip.
    pub held: u32,
    /// The stamp of `highest`, as it was in the packet: the sender takes it from its own clock, and
    /// `held` off, and has the round trip.
    pub echo: u32,
    /// Least one-way delay since the report before, µs: the receiver's clock minus the stamp, less
    /// a constant that is the same for all links of the session.
    pub delay: i64,
    /// Mean deviation of the one-way delay between neighbours, µs.
    pub jitter: u32,
    /// What a train of padded packets arrived at, kbit/s; zero if there was none.
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

/// What arrived, link by link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// Counts the reports; of two the higher is the newer.
    pub number: u64,
    /// One entry per link of which there is something to say, links ascending.
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

/// A report's entries, read as they are asked for.
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
