//! A TCP flow: CUBIC (RFC 9438) with HyStart, SACK and RACK (RFC 8985) like Linux, counted in
//! segments; or BBR instead. Without [`TcpSender::undo`] a wrong loss is not undone, so reordering
//! costs more here than on Linux.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

mod bbr;
mod hystart;

use bbr::{Bbr, Snapshot};
pub use hystart::Sign;
use hystart::{HyStart, View};

const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// A receive window of 6 MB, Linux's default limit.
const WINDOW: u64 = 4_000;

/// An acknowledgement: everything below `next`, and the newest ranges above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub next: u64,
    pub sacks: Vec<(u64, u64)>,
    /// Send time of the segment that it answers.
    pub echo: Time,
    /// True if that segment had arrived before: a duplicate SACK (RFC 2883).
    pub again: bool,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    sent: Time,
    sacked: bool,
    lost: bool,
    again: bool,
    snapshot: Snapshot,
}

/// Quarters of the smallest round trip by which segments may be late: one more for each round trip in which something
/// was sent again for nothing, until 16 recoveries pass without (RFC 8985 §6.2 step 4).
#[derive(Debug)]
struct ReorderingWindow {
    steps: u32,
    /// The next step is not before everything below this number is acknowledged.
    until: u64,
    recoveries: u32,
}

impl Default for ReorderingWindow {
    fn default() -> ReorderingWindow {
        ReorderingWindow {
            steps: 1,
            until: 0,
            recoveries: 0,
        }
    }
}

impl ReorderingWindow {
    fn widen(&mut self, una: u64, next: u64) {
        if una >= self.until {
            self.steps = (self.steps + 1).min(255);
            self.until = next;
            self.recoveries = 16;
        }
    }

    fn handle_recovery(&mut self) {
        self.recoveries = self.recoveries.saturating_sub(1);
        if self.recoveries == 0 {
            self.steps = 1;
        }
    }
}

/// State before a reduction of the window, and the first retransmission after it.
#[derive(Debug, Clone, Copy)]
struct Before {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    again: Option<Time>,
}

#[derive(Debug)]
pub struct TcpSender {
    bbr: Option<Bbr>,
    undo: bool,
    grows_at_first: bool,
    /// As QUIC with quinn's CUBIC: nobody else can read or limit it, and slow start ends with a loss.
    quic: bool,
    receive_window: u64,
    /// Number below which a limit to its window permits it to send.
    limit: u64,
    /// True if it had more room in its own window than in the limit.
    limited: bool,
    /// Segments to send in all.
    total: u64,
    before: Option<Before>,
    pub undone: u32,
    /// All from `una` to before `next`.
    segments: VecDeque<Segment>,
    /// Segments SACKed; then segments counted as lost and not retransmitted.
    sacked: usize,
    lost: usize,
    next: u64,
    una: u64,
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    epoch: Option<(Time, f64, f64)>,
    recovery: Option<u64>,
    srtt: Option<Duration>,
    rttvar: Duration,
    min_rtt: Duration,
    hystart: HyStart,
    /// The sign that ended the first slow start without a loss, and the window then.
    pub full: Option<(Sign, f64)>,
    rack: Option<(Time, Duration)>,
    reordering: bool,
    reordering_window: ReorderingWindow,
    rto_at: Option<Time>,
    backoff: u32,
    pub cuts: u32,
    pub timeouts: u32,
}

impl TcpSender {
    pub fn new() -> TcpSender {
        TcpSender {
            bbr: None,
            undo: false,
            grows_at_first: false,
            quic: false,
            receive_window: WINDOW,
            limit: u64::MAX,
            limited: false,
            total: u64::MAX,
            before: None,
            undone: 0,
            segments: VecDeque::new(),
            sacked: 0,
            lost: 0,
            next: 0,
            una: 0,
            cwnd: 10.0,
            ssthresh: f64::INFINITY,
            w_max: 0.0,
            epoch: None,
            recovery: None,
            srtt: None,
            rttvar: Duration::ZERO,
            min_rtt: Duration::MAX,
            hystart: HyStart::new(),
            full: None,
            rack: None,
            reordering: false,
            reordering_window: ReorderingWindow::default(),
            rto_at: None,
            backoff: 0,
            cuts: 0,
            timeouts: 0,
        }
    }

    /// Returns a sender with BBR instead of CUBIC.
    pub fn bbr() -> TcpSender {
        TcpSender {
            bbr: Some(Bbr::new()),
            ..TcpSender::new()
        }
    }

    /// Returns a sender of QUIC: CUBIC without HyStart, by packets that only its two ends can read.
    pub fn quic() -> TcpSender {
        TcpSender {
            quic: true,
            ..TcpSender::new()
        }
    }

    pub fn is_quic(&self) -> bool {
        self.quic
    }

    /// Enables the undo by timestamps: a reduction is undone once an acknowledgement shows that the
    /// original arrived (RFC 4015).
    pub fn undo(self) -> TcpSender {
        TcpSender { undo: true, ..self }
    }

    /// Enables what Linux does beyond RFC 9438: until the first reduction the window grows by at
    /// least 5 % each round trip (`bictcp_update`).
    pub fn grows_at_first(self) -> TcpSender {
        TcpSender {
            grows_at_first: true,
            ..self
        }
    }

    /// Sets the receive window in segments.
    pub fn receive_window(self, receive_window: u64) -> TcpSender {
        TcpSender {
            receive_window,
            ..self
        }
    }

    /// Sets the number of segments after which the flow ends.
    pub fn total(self, total: u64) -> TcpSender {
        TcpSender { total, ..self }
    }

    pub fn total_segments(&self) -> u64 {
        self.total
    }

    /// Sets the number below which a limit to its window permits it to send; none without one.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit.unwrap_or(u64::MAX);
    }

    /// Returns the number below which segments may be sent.
    fn end(&self) -> u64 {
        (self.total.min(self.una + self.receive_window)).min(self.limit)
    }

    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or_default()
    }

    fn pipe(&self) -> usize {
        self.segments.len() - self.sacked - self.lost
    }

    pub fn window(&self) -> usize {
        self.bbr.as_ref().map_or(self.cwnd, Bbr::cwnd) as usize
    }

    fn wants(&self) -> bool {
        self.pipe() < self.window() && (self.lost > 0 || self.next < self.end())
    }

    /// Returns the segments to send now.
    pub fn poll_transmit(&mut self, now: Time) -> Vec<u64> {
        let mut out = Vec::new();
        let mut room = self.window().saturating_sub(self.pipe());
        let lost: Vec<u64> = (self.una..)
            .zip(&self.segments)
            .filter(|(_, s)| s.lost && !s.sacked)
            .map(|(seq, _)| seq)
            .take(room.min(self.lost))
            .collect();
        for seq in lost {
            if !self.is_ready(now) {
                break;
            }
            self.lost -= 1;
            self.send(now, seq, true);
            out.push(seq);
            room -= 1;
        }
        while room > 0 && self.next < self.end() && self.is_ready(now) {
            self.send(now, self.next, false);
            out.push(self.next);
            self.next += 1;
            room -= 1;
        }
        self.limited = room > 0 && self.next >= self.limit;
        if !out.is_empty() && self.rto_at.is_none() {
            self.rto_at = Some(now + self.rto());
        }
        out
    }

    fn is_ready(&self, now: Time) -> bool {
        self.bbr.as_ref().is_none_or(|bbr| bbr.is_ready(now))
    }

    fn send(&mut self, now: Time, seq: u64, again: bool) {
        let idle = self.pipe() == 0;
        let snapshot = match &mut self.bbr {
            Some(bbr) => {
                bbr.handle_sent(now);
                bbr.snapshot(now, idle)
            }
            None => Snapshot {
                delivered: 0,
                at: now,
            },
        };
        if again && let Some(before) = &mut self.before {
            before.again.get_or_insert(now);
        }
        let segment = Segment {
            sent: now,
            sacked: false,
            lost: false,
            again,
            snapshot,
        };
        match self.segments.get_mut((seq - self.una) as usize) {
            Some(before) => *before = segment,
            None => self.segments.push_back(segment),
        }
    }

    fn rto(&self) -> Duration {
        let base = self.srtt.map_or(Duration::from_secs(1), |srtt| {
            srtt + (self.rttvar * 4).max(Duration::from_millis(200))
        });
        base * (1 << self.backoff.min(6))
    }

    pub fn handle_ack(&mut self, now: Time, ack: &Ack) {
        let rtt = now.since(ack.echo);
        self.handle_rtt(rtt);
        let mut delivered = 0;
        let mut newest: Option<(Time, Duration)> = None;
        let mut snapshot = None;
        let min_rtt = self.min_rtt;
        let mut note = |segment: &Segment| {
            let sample = (segment.sent, now.since(segment.sent));
            // Its original may have arrived (RFC 8985 §6.2 step 2).
            if segment.again && sample.1 < min_rtt {
                return;
            }
            if newest.is_none_or(|n| n.0 < sample.0) {
                newest = Some(sample);
                snapshot = Some((segment.snapshot, segment.sent));
            }
        };
        let acked = ack.next.saturating_sub(self.una) as usize;
        for segment in self.segments.drain(..acked) {
            if !segment.sacked {
                delivered += 1;
                note(&segment);
                // Below an earlier SACK and never retransmitted: it was only late.
                let late = self.rack.is_some_and(|(sent, _)| segment.sent < sent);
                self.reordering |= late && !segment.again;
            }
            self.sacked -= usize::from(segment.sacked);
            self.lost -= usize::from(segment.lost);
        }
        let advanced = ack.next > self.una;
        self.una = self.una.max(ack.next);
        for &(from, to) in &ack.sacks {
            let [from, to] = [from, to].map(|seq| seq.saturating_sub(self.una) as usize);
            for segment in self.segments.range_mut(from..to) {
                if !segment.sacked {
                    self.sacked += 1;
                    self.lost -= usize::from(segment.lost);
                    segment.lost = false;
                    segment.sacked = true;
                    delivered += 1;
                    note(segment);
                }
            }
        }
        if let Some(newest) = newest
            && self.rack.is_none_or(|rack| rack.0 < newest.0)
        {
            self.rack = Some(newest);
        }
        if advanced {
            self.backoff = 0;
            self.rto_at = (!self.segments.is_empty()).then(|| now + self.rto());
        }
        if advanced {
            self.take_back(ack.echo);
        }
        if ack.again {
            self.reordering_window.widen(self.una, self.next);
        }
        if self.recovery.is_some_and(|end| self.una >= end) {
            self.recovery = None;
            self.reordering_window.handle_recovery();
        }
        // Linux does this before it looks for losses.
        if delivered > 0 && self.cwnd < self.ssthresh {
            self.end_slow_start(now, rtt);
        }
        self.detect(now);
        let pipe = self.pipe();
        if let Some(bbr) = &mut self.bbr {
            bbr.handle_ack(now, rtt, delivered, snapshot, pipe);
        } else if self.recovery.is_none() && delivered > 0 {
            self.grow(now, delivered);
        }
    }

    /// Undoes a reduction if the acknowledged segment was sent before any retransmission.
    fn take_back(&mut self, echo: Time) {
        let wrong = |before: &Before| before.again.is_some_and(|again| echo < again);
        if self.undo
            && self.recovery.is_some()
            && let Some(before) = self.before.filter(wrong)
        {
            self.cwnd = self.cwnd.max(before.cwnd);
            self.ssthresh = self.ssthresh.max(before.ssthresh);
            self.w_max = before.w_max;
            self.epoch = None;
            self.recovery = None;
            self.before = None;
            self.backoff = 0;
            self.undone += 1;
            self.segments.iter_mut().for_each(|s| s.lost = false);
            self.lost = 0;
        }
    }

    fn handle_rtt(&mut self, rtt: Duration) {
        self.min_rtt = self.min_rtt.min(rtt);
        match self.srtt {
            Some(srtt) => {
                self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
                self.srtt = Some((srtt * 7 + rtt) / 8);
            }
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
        }
    }

    /// Ends slow start if the links are full.
    fn end_slow_start(&mut self, now: Time, rtt: Duration) {
        if self.quic {
            return;
        }
        let flow = View {
            una: self.una,
            next: self.next,
            cwnd: self.cwnd,
            rtt,
            min_rtt: self.min_rtt,
        };
        if let Some(sign) = self.hystart.handle_ack(now, &flow) {
            self.full.get_or_insert((sign, self.cwnd));
            self.ssthresh = self.cwnd;
        }
    }

    /// Returns true if an outstanding segment can have been overtaken.
    fn has_holes(&self) -> bool {
        self.sacked > 0 || self.recovery.is_some()
    }

    /// Returns the time by which a segment may be late (RFC 8985 §6.2 step 4).
    fn reordering_allowance(&self) -> Duration {
        match self.reordering {
            true => (self.min_rtt / 4 * self.reordering_window.steps).min(self.srtt()),
            false => Duration::ZERO,
        }
    }

    fn detect(&mut self, now: Time) {
        let Some((rack_sent, rack_rtt)) = self.rack.filter(|_| self.has_holes()) else {
            return;
        };
        let reo = self.reordering_allowance();
        let mut above = self.sacked;
        let mut found = false;
        for segment in &mut self.segments {
            if segment.sacked {
                above -= 1;
                continue;
            }
            if segment.lost {
                continue;
            }
            let overdue = now.since(segment.sent) >= rack_rtt + reo + Duration::from_micros(1);
            let by_rack = segment.sent < rack_sent && overdue;
            let by_count = !self.reordering && !segment.again && above >= 3;
            if by_rack || by_count {
                segment.lost = true;
                self.lost += 1;
                found = true;
            }
        }
        if found && self.recovery.is_none() {
            self.cut();
        }
    }

    fn remember(&mut self) {
        self.before = Some(Before {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            w_max: self.w_max,
            again: None,
        });
    }

    fn cut(&mut self) {
        self.cuts += 1;
        self.recovery = Some(self.next);
        self.remember();
        let fast = self.cwnd < self.w_max;
        self.w_max = if fast {
            self.cwnd * (1.0 + BETA) / 2.0
        } else {
            self.cwnd
        };
        self.cwnd = (self.cwnd * BETA).max(2.0);
        self.ssthresh = self.cwnd;
        self.epoch = None;
    }

    fn grow(&mut self, now: Time, delivered: u32) {
        // The application always has data, so the window counts as used up to the receiver's.
        if self.limited || self.cwnd >= self.receive_window as f64 {
            return;
        }
        if self.cwnd < self.ssthresh {
            self.cwnd += f64::from(delivered);
            return;
        }
        let srtt = self.srtt().as_secs_f64();
        let cwnd = self.cwnd;
        let w_max = self.w_max;
        let (start, k, _) = *self.epoch.get_or_insert_with(|| {
            let k = ((w_max - cwnd).max(0.0) / C).cbrt();
            (now, k, cwnd)
        });
        let origin = w_max.max(self.epoch.map_or(cwnd, |e| e.2));
        let t = now.since(start).as_secs_f64() + srtt;
        let target = (origin + C * (t - k).powi(3)).clamp(cwnd, 1.5 * cwnd);
        let started = self.epoch.map_or(cwnd, |e| e.2);
        let friendly = started + 3.0 * (1.0 - BETA) / (1.0 + BETA) * (t - srtt) / srtt;
        let mut step = (target - cwnd) / cwnd * f64::from(delivered);
        if self.grows_at_first && w_max == 0.0 {
            step = step.max(f64::from(delivered) / 20.0);
        }
        self.cwnd = (cwnd + step).max(friendly.min(cwnd + f64::from(delivered)));
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let rack = self
            .rack
            .filter(|_| self.has_holes())
            .and_then(|(sent, rtt)| {
                let reo = self.reordering_allowance();
                let waiting = |s: &&Segment| !s.sacked && !s.lost && s.sent < sent;
                let first = self.segments.iter().find(waiting)?;
                Some(first.sent + rtt + reo + Duration::from_micros(1))
            });
        let pace = self
            .bbr
            .as_ref()
            .filter(|_| self.wants())
            .map(|bbr| bbr.ready());
        rack.into_iter().chain(self.rto_at).chain(pace).min()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.detect(now);
        if self.rto_at.is_some_and(|at| at <= now) {
            self.timeouts += 1;
            self.backoff += 1;
            self.remember();
            self.segments.iter_mut().for_each(|s| s.lost = !s.sacked);
            self.lost = self.segments.len() - self.sacked;
            self.ssthresh = (self.cwnd * BETA).max(2.0);
            self.w_max = self.cwnd;
            self.cwnd = 2.0;
            self.epoch = None;
            self.recovery = Some(self.next);
            self.rto_at = Some(now + self.rto());
        }
    }
}

/// The receiving end: acknowledges every second segment, and every one out of order.
#[derive(Debug, Default)]
pub struct TcpReceiver {
    pub next: u64,
    /// Ranges that arrived above `next`, in order; none touches another.
    ahead: Vec<(u64, u64)>,
    unacked: u32,
    pub out_of_order: u64,
}

/// Segments above the first gap of which an acknowledgement tells, beside the range of the one that it answers.
const TOLD: u64 = 64;

impl TcpReceiver {
    pub fn handle_segment(&mut self, seq: u64, sent: Time) -> Option<Ack> {
        let ordered = seq == self.next && self.ahead.is_empty();
        let held = |&(from, to): &(u64, u64)| (from..to).contains(&seq);
        let again = seq < self.next || self.ahead.iter().any(held);
        if seq >= self.next {
            self.add(seq);
        }
        self.out_of_order += u64::from(seq != self.next);
        if self.ahead.first().is_some_and(|range| range.0 == self.next) {
            self.next = self.ahead.remove(0).1;
        }
        self.unacked += 1;
        if ordered && self.unacked < 2 {
            return None;
        }
        self.unacked = 0;
        Some(Ack {
            next: self.next,
            sacks: self.sacks(seq),
            echo: sent,
            again,
        })
    }

    fn add(&mut self, seq: u64) {
        let at = self.ahead.partition_point(|range| range.1 < seq);
        match self.ahead.get_mut(at) {
            Some(range) if range.1 == seq => range.1 += 1,
            Some(range) if range.0 == seq + 1 => range.0 = seq,
            Some(range) if range.0 <= seq => return,
            _ => self.ahead.insert(at, (seq, seq + 1)),
        }
        if let Some(&(from, to)) = self.ahead.get(at + 1)
            && self.ahead[at].1 == from
        {
            self.ahead[at].1 = to;
            self.ahead.remove(at + 1);
        }
    }

    /// Returns the range that holds `seq`, and the lowest others, four in all.
    fn sacks(&self, seq: u64) -> Vec<(u64, u64)> {
        let holding = self
            .ahead
            .iter()
            .find(|range| (range.0..range.1).contains(&seq));
        let mut left = TOLD;
        let lowest = self.ahead.iter().map_while(|&(from, to)| {
            let told = left.min(to - from);
            left -= told;
            (told > 0).then_some((from, from + told))
        });
        holding.copied().into_iter().chain(lowest).take(4).collect()
    }
}
