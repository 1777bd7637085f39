//! \[mpsdn\] Algorithm 1, "Resequencing for each flow": reorders TCP without a clock and without
//! paths.
//!
//! - A SYN sets the expected number. A segment below it is delivered at once; so is the expected
//!   segment, and then the stored ones that follow it.
//! - A segment ahead is stored. Once more than `T` are stored, all are delivered in order,
//!   "ignoring gaps", and the next `LRF` segments pass in the order of their arrival.
//! - At `S` stored segments, each arrival delivers the lowest.
//!
//! Deviations: "send all delayed packets" is read as those that follow without a gap. As printed,
//! they are looked up before `expected` has moved, and would wait until `T` is exceeded. Sequence
//! numbers are compared modulo 2³². An unknown connection begins with its first segment; a RST ends
//! it. There is no clock: segments stored at the end of a burst wait for the next one.

use std::collections::{BTreeMap, VecDeque};

use super::stream::seq_distance;
use super::{Segment, SegmentKind, StreamCounters};

/// The algorithm's three parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm1Settings {
    /// `S`: segments that a buffer holds.
    pub size: usize,
    /// `T`: stored segments beyond which all are delivered.
    pub threshold: usize,
    /// `LRF`: segments that pass unordered after that; 20 in the paper.
    pub loss_recovery: u32,
}

/// Most connections followed; segments of others pass as they arrive.
const MAX_STREAMS: usize = 16_384;

#[derive(Debug)]
struct Stored<T> {
    seq: u32,
    length: u32,
    item: T,
}

#[derive(Debug)]
struct Flow<T> {
    expected: u32,
    buffer: VecDeque<Stored<T>>,
}

/// Algorithm 1. Drive it like [`Streams`](super::Streams).
#[derive(Debug)]
pub struct Algorithm1<K, T> {
    settings: Algorithm1Settings,
    flows: BTreeMap<K, Flow<T>>,
    ready: VecDeque<T>,
    counters: StreamCounters,
}

impl<K: Ord + Copy, T> Algorithm1<K, T> {
    /// Returns an empty buffer.
    #[must_use]
    pub fn new(settings: Algorithm1Settings) -> Algorithm1<K, T> {
        Algorithm1 {
            settings,
            flows: BTreeMap::new(),
            ready: VecDeque::new(),
            counters: StreamCounters::default(),
        }
    }

    /// Changes the parameters.
    pub fn set(&mut self, settings: Algorithm1Settings) {
        self.settings = settings;
    }

    /// Takes a segment of a connection.
    pub fn handle_segment(&mut self, key: K, segment: Segment, item: T) {
        let known = self.flows.contains_key(&key);
        if segment.kind != SegmentKind::Data || !known {
            if let Some(flow) = self.flows.remove(&key) {
                self.ready
                    .extend(flow.buffer.into_iter().map(|stored| stored.item));
            }
            if segment.kind != SegmentKind::Reset && self.flows.len() < MAX_STREAMS {
                let expected = segment.seq.wrapping_add(segment.length);
                let buffer = VecDeque::new();
                self.flows.insert(key, Flow { expected, buffer });
            }
            self.counters.in_order += 1;
            self.ready.push_back(item);
            return;
        }
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let Segment { seq, length, .. } = segment;
        match seq_distance(seq, flow.expected) {
            ..0 => {
                self.counters.late += 1;
                self.ready.push_back(item);
            }
            0 => {
                self.counters.in_order += 1;
                self.ready.push_back(item);
                flow.expected = seq.wrapping_add(length);
                flow.go_on(&mut self.ready, &mut self.counters);
            }
            _ if flow.buffer.len() > self.settings.threshold => {
                flow.store(Stored { seq, length, item });
                self.counters.forced += 1;
                self.counters.held += flow.buffer.len() as u64;
                let last = flow
                    .buffer
                    .back()
                    .map_or((seq, length), |p| (p.seq, p.length));
                let skip = last.1.wrapping_mul(self.settings.loss_recovery);
                flow.expected = last.0.wrapping_add(skip);
                self.ready
                    .extend(flow.buffer.drain(..).map(|stored| stored.item));
            }
            _ if flow.buffer.len() < self.settings.size => {
                flow.store(Stored { seq, length, item });
            }
            _ => match flow.buffer.front() {
                Some(lowest) if seq_distance(lowest.seq, seq) <= 0 => {
                    self.ready
                        .extend(flow.buffer.pop_front().map(|stored| stored.item));
                    self.counters.held += 1;
                    flow.store(Stored { seq, length, item });
                }
                _ => self.ready.push_back(item),
            },
        }
    }

    /// Returns the next segment to deliver.
    pub fn poll_delivery(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Returns the segments held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.flows.values().map(|flow| flow.buffer.len()).sum()
    }

    /// Returns the connections followed.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.flows.len()
    }

    /// Returns the counters. Deadlines and paths do not exist here; deliveries beyond `T` count as
    /// `forced`.
    #[must_use]
    pub fn counters(&self) -> &StreamCounters {
        &self.counters
    }
}

impl<T> Flow<T> {
    fn store(&mut self, stored: Stored<T>) {
        let behind = |p: &Stored<T>| seq_distance(p.seq, stored.seq) <= 0;
        let index = self.buffer.partition_point(behind);
        self.buffer.insert(index, stored);
    }

    /// Delivers the segments that follow without a gap.
    fn go_on(&mut self, ready: &mut VecDeque<T>, counters: &mut StreamCounters) {
        while let Some(first) = self.buffer.front()
            && seq_distance(first.seq, self.expected) <= 0
        {
            let end = first.seq.wrapping_add(first.length);
            if seq_distance(end, self.expected) > 0 {
                self.expected = end;
            }
            counters.held += 1;
            ready.extend(self.buffer.pop_front().map(|stored| stored.item));
        }
    }
}
