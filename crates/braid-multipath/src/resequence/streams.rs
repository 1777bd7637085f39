//! Reorder buffer for all connections between two edges.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use braid_core::Time;

use super::GivenUp;
use super::excess_wait::ExcessWait;
use super::stream::{MAX_EARNED, MAX_PATHS, Output, Paths, Stream};

/// A path between two edges: its index among those in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

/// Role of a segment in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// A SYN: the connection begins with it.
    Open,
    /// Data, or a FIN.
    Data,
    /// A RST: missing segments will not arrive.
    Reset,
}

/// Properties of a TCP segment, and its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Role.
    pub kind: SegmentKind,
    /// Sequence number.
    pub seq: u32,
    /// Numbers that it takes: its bytes, and one each for SYN and FIN.
    pub length: u32,
    /// Path of arrival; none if it is not in use any more.
    pub path: Option<PathId>,
}

/// Limits of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Segments of one connection: 4096 full frames are 250 ms of 200 Mbit/s.
    pub stream: usize,
    /// Segments of all connections.
    pub all: usize,
    /// Connections. Segments of others pass as they arrive.
    pub streams: usize,
}

impl Default for StreamLimits {
    fn default() -> StreamLimits {
        StreamLimits {
            stream: 4_096,
            all: 16_384,
            streams: 16_384,
        }
    }
}

/// Counters, in segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounters {
    /// Delivered at once, in order.
    pub in_order: u64,
    /// Delivered in order after waiting for a missing one.
    pub held: u64,
    /// Sum of their waits.
    pub waited: Duration,
    /// Longest wait.
    pub waited_max: Duration,
    /// Retransmissions: waited for no gap.
    pub retransmitted: u64,
    /// Arrived after they had been given up; forwarded.
    pub late: u64,
    /// Gaps given up because every path had passed them.
    pub known_lost: u64,
    /// Gaps given up at their deadline.
    pub expired: u64,
    /// Gaps given up because memory was short.
    pub forced: u64,
    /// Passed as they arrived, because there were too many connections.
    pub untracked: u64,
    /// Gaps for which copies were asked for.
    pub asked: u64,
    /// Arrived in such a gap while it was waited for.
    pub repaired: u64,
}

/// Numbers of a connection that are known lost, of which the sender's edge may have copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing<K> {
    /// The connection.
    pub key: K,
    /// The first number.
    pub seq: u32,
    /// Their count.
    pub length: u32,
}

impl StreamCounters {
    pub(super) fn give_up(&mut self, why: GivenUp) {
        match why {
            GivenUp::KnownLost => self.known_lost += 1,
            GivenUp::Deadline => self.expired += 1,
            GivenUp::Forced => self.forced += 1,
        }
    }

    pub(super) fn hold(&mut self, waited: Duration) {
        self.held += 1;
        self.waited += waited;
        self.waited_max = self.waited_max.max(waited);
    }
}

/// A connection silent for this long is forgotten. If it continues, it is learned anew.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of the search for silent connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Puts the segments of all connections between two edges in order. `K` identifies one direction of
/// a connection; a `T` passes through unread.
///
/// Call [`handle_segment`](Self::handle_segment) for each arrival and
/// [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout). After each,
/// call [`poll_delivery`](Self::poll_delivery) and [`poll_missing`](Self::poll_missing) until none.
#[derive(Debug)]
pub struct Streams<K, T> {
    limits: StreamLimits,
    paths: Paths,
    streams: BTreeMap<K, Stream<T>>,
    /// Deadlines of connections that wait.
    due: BTreeSet<(Time, K)>,
    held: usize,
    excess_wait: ExcessWait,
    ready: VecDeque<T>,
    missing: VecDeque<Missing<K>>,
    /// See [`Output::earned`].
    earned: u32,
    counters: StreamCounters,
    swept: Time,
}

impl<K: Ord + Copy, T> Streams<K, T> {
    /// Returns an empty buffer without paths; see [`set_paths`](Self::set_paths).
    #[must_use]
    pub fn new(now: Time, limits: StreamLimits) -> Streams<K, T> {
        Streams {
            limits,
            paths: Paths {
                epoch: 0,
                count: 0,
                lag: [Duration::ZERO; MAX_PATHS],
                drained: now,
                heard: [now; MAX_PATHS],
                repair: None,
            },
            streams: BTreeMap::new(),
            due: BTreeSet::new(),
            held: 0,
            excess_wait: ExcessWait::new(now),
            ready: VecDeque::new(),
            missing: VecDeque::new(),
            earned: MAX_EARNED,
            counters: StreamCounters::default(),
            swept: now,
        }
    }

    /// Sets the paths in use by their latencies. Held segments go by the new paths; later arrivals
    /// on earlier paths have no [`Segment::path`]. With more than [`MAX_PATHS`], arrivals prove no
    /// loss.
    pub fn set_paths(&mut self, now: Time, latencies: &[Duration]) {
        let slowest = latencies.iter().max().copied().unwrap_or_default();
        let mut lag = [Duration::ZERO; MAX_PATHS];
        for (lag, latency) in lag.iter_mut().zip(latencies) {
            *lag = slowest.saturating_sub(*latency);
        }
        // The slowest of the earlier paths may deliver this late.
        let before = self.paths.lag.iter().max().copied().unwrap_or_default();
        let first = self.paths.epoch == 0;
        self.paths = Paths {
            epoch: self.paths.epoch.wrapping_add(1),
            // With a path that is not followed, nothing is known lost.
            count: if latencies.len() > MAX_PATHS {
                0
            } else {
                latencies.len()
            },
            lag,
            drained: if first {
                now
            } else {
                now + self.excess_wait.hold(now, before)
            },
            heard: [now; MAX_PATHS],
            repair: self.paths.repair,
        };
    }

    /// Sets how long a copy of a lost segment takes from the request on; none: nobody keeps copies.
    pub fn set_repair(&mut self, wait: Option<Duration>) {
        self.paths.repair = wait;
    }

    /// Notes that earlier paths are dead: what they have not delivered by now will not arrive.
    pub fn give_up_earlier(&mut self, now: Time) {
        self.paths.drained = now;
    }

    /// Takes a segment of a connection.
    pub fn handle_segment(&mut self, now: Time, key: K, segment: Segment, item: T) {
        self.earned = (self.earned + 1).min(MAX_EARNED);
        if let Some(PathId(path)) = segment.path {
            self.paths.heard[usize::from(path) % MAX_PATHS] = now;
        }
        if segment.kind == SegmentKind::Reset {
            self.end(now, key);
            self.counters.in_order += 1;
            self.ready.push_back(item);
            return;
        }
        let opens = segment.kind == SegmentKind::Open;
        if opens
            && self
                .streams
                .get(&key)
                .is_some_and(|stream| stream.is_other(segment.seq))
        {
            self.end(now, key);
        }
        if self.streams.len() >= self.limits.streams && !self.streams.contains_key(&key) {
            self.counters.untracked += 1;
            self.ready.push_back(item);
            return;
        }
        let paths = self.paths;
        self.with(now, key, segment.seq, |stream, out| {
            stream.handle(now, &paths, segment, item, out);
            stream.release(now, &paths, false, out);
        });
        let full = |all: &Self| {
            let own = all.streams.get(&key).map_or(0, Stream::held);
            own > 0 && (own > all.limits.stream || all.held > all.limits.all)
        };
        while full(self) {
            self.with(now, key, segment.seq, |stream, out| {
                stream.release(now, &paths, true, out);
            });
        }
    }

    /// Delivers segments that have waited long enough, and forgets silent connections.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(due, key)) = self.due.first()
            && due <= now
        {
            let paths = self.paths;
            self.with(now, key, 0, |stream, out| {
                stream.release(now, &paths, false, out)
            });
        }
        if now.since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.streams.retain(|_, stream| {
                stream.held() > 0 || now.since(stream.last) < STREAM_IDLE_TIMEOUT
            });
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(due, _)| due)
    }

    /// Returns the next segment to deliver.
    pub fn poll_delivery(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Returns the next numbers to ask for.
    pub fn poll_missing(&mut self) -> Option<Missing<K>> {
        self.missing.pop_front()
    }

    /// Returns the segments held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns the connections followed.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &StreamCounters {
        &self.counters
    }

    /// Runs `act` on a connection, which begins at `seq` if it is not known, and updates the
    /// totals.
    fn with(
        &mut self,
        now: Time,
        key: K,
        seq: u32,
        act: impl FnOnce(&mut Stream<T>, &mut Output<'_, T>),
    ) {
        let stream = self
            .streams
            .entry(key)
            .or_insert_with(|| Stream::beginning(now, seq));
        let (held, due) = (stream.held(), stream.deadline());
        let mut missing = Vec::new();
        let mut out = Output {
            ready: &mut self.ready,
            counters: &mut self.counters,
            excess_wait: &mut self.excess_wait,
            missing: &mut missing,
            earned: &mut self.earned,
        };
        act(stream, &mut out);
        let missing = missing.into_iter();
        self.missing
            .extend(missing.map(|(seq, length)| Missing { key, seq, length }));
        self.held = self.held - held + stream.held();
        let next = stream.deadline();
        if next != due {
            if let Some(due) = due {
                self.due.remove(&(due, key));
            }
            if let Some(next) = next {
                self.due.insert((next, key));
            }
        }
    }

    /// Delivers everything that a connection holds, in order, and forgets it.
    fn end(&mut self, now: Time, key: K) {
        let paths = self.paths;
        while self
            .streams
            .get(&key)
            .is_some_and(|stream| stream.held() > 0)
        {
            self.with(now, key, 0, |stream, out| {
                stream.release(now, &paths, true, out)
            });
        }
        self.streams.remove(&key);
    }
}
