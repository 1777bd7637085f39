//! Evidence from the traffic itself.

use std::time::{Duration, Instant};

use super::Sample;
use super::constants::{
    HALF_TICK, MAX_PACKET_GAP, MAX_SILENCE, MIN_SILENCE, MIN_STREAM_PACKETS, MIN_STREAM_TIME,
    MIN_UNANSWERED,
};
use super::rtt::Rtt;

/// Evidence from one uplink's traffic so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    last: Option<(Instant, Sample)>,
    /// Round trips of handshakes. They go to many hosts, so they vary more than those of probes.
    pub(super) rtt: Rtt,
    /// Packets went out, or a stream ended, and nothing has come in since.
    pub(super) silence: Option<Silence>,
    /// SYNs were sent and none has been answered since, whatever else came in.
    pub(super) unanswered_syns: Option<Silence>,
    /// Time of the last packet in either direction, and of the last one received.
    pub(super) moved: Option<Instant>,
    pub(super) received: Option<Instant>,
    /// Time of the last packet that this machine dropped before sending.
    pub(super) local_drops: Option<Instant>,
    stream: Option<Stream>,
    /// True if the last two packets were sent within a short time.
    continuous: bool,
}

/// Packets received without a pause.
#[derive(Clone, Copy, Debug)]
struct Stream {
    began: Instant,
    /// Most packets received from one sample to the next.
    most: u64,
}

impl Stream {
    fn new(began: Instant) -> Stream {
        Stream { began, most: 0 }
    }
}

/// An interval in which answers are missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    pub(super) since: Instant,
    /// The counters at the beginning of the interval.
    base: Sample,
    /// Probes were answered during the interval, so the silence is no evidence any more.
    pub(super) explained: bool,
}

/// Differences of two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) syns: u64,
    pub(super) repeats: u64,
    answers: u64,
}

impl Moved {
    fn between(old: &Sample, new: &Sample) -> Moved {
        let repeats = |s: &Sample| s.syn_repeats.saturating_add(s.repeats);
        Moved {
            sent: new.sent.saturating_sub(old.sent),
            received: new.received.saturating_sub(old.received),
            syns: new.syns.saturating_sub(old.syns),
            repeats: repeats(new).saturating_sub(repeats(old)),
            answers: new.syn_answers.saturating_sub(old.syn_answers),
        }
    }

    /// Returns true if hosts that are not there do not explain the number of unanswered packets.
    pub(super) fn is_conclusive(&self) -> bool {
        self.syns.saturating_add(self.repeats) >= MIN_UNANSWERED
    }
}

impl Traffic {
    /// Takes new counters; returns true if packets were received.
    pub(super) fn add(&mut self, now: Instant, new: Sample) -> bool {
        let Some((before, old)) = self.last.replace((now, new)) else {
            return false;
        };
        if is_anew(&old, &new) {
            (self.silence, self.unanswered_syns) = (None, None);
            return false;
        }
        if new.local_drops > old.local_drops {
            self.local_drops = Some(now);
        }
        let moved = Moved::between(&old, &new);
        self.add_round_trips(&old, &new);
        // The packets were sent at some time since the last sample; assume the middle.
        let age = now.saturating_duration_since(before) / 2;
        let silence = Silence {
            since: now.checked_sub(age.min(HALF_TICK)).unwrap_or(now),
            base: old,
            explained: false,
        };
        if moved.received > 0 {
            let pause = self.received.map(|at| now.saturating_duration_since(at));
            if pause.is_none_or(|pause| pause > MAX_PACKET_GAP) {
                self.stream = None;
            }
            let stream = self.stream.get_or_insert(Stream::new(now));
            stream.most = stream.most.max(moved.received);
            self.silence = None;
            self.received = Some(now);
        } else if self.stream_ends() || moved.sent > 0 {
            self.silence.get_or_insert(silence);
        }
        if moved.answers > 0 {
            self.unanswered_syns = None;
        } else if moved.syns > 0 {
            self.unanswered_syns.get_or_insert(silence);
        }
        if moved.sent > 0 || moved.received > 0 {
            let pause = self.moved.map(|at| now.saturating_duration_since(at));
            self.continuous = pause.is_some_and(|pause| pause <= MAX_PACKET_GAP);
            self.moved = Some(now);
        }
        moved.received > 0
    }

    /// Returns true, once, if a stream has just ended; called when nothing was received. A host that only
    /// receives sends nothing when nothing comes, so this is the only sign of a line that falls silent during a
    /// download.
    fn stream_ends(&mut self) -> bool {
        let (Some(stream), Some(last)) = (self.stream.take(), self.received) else {
            return false;
        };
        stream.most >= MIN_STREAM_PACKETS
            || last.saturating_duration_since(stream.began) >= MIN_STREAM_TIME
    }

    /// Handles answered probes: the silence has another cause. If nothing was sent there was no silence, only
    /// the end of a stream.
    pub(super) fn explain(&mut self) {
        self.silence = self.silence.take().filter(|s| self.since(s).sent > 0);
        if let Some(silence) = &mut self.silence {
            silence.explained = true;
        }
        self.unanswered_syns = None;
    }

    fn add_round_trips(&mut self, old: &Sample, new: &Sample) {
        let count = new.rtt_samples.saturating_sub(old.rtt_samples);
        let sum = new.rtt_us_sum.saturating_sub(old.rtt_us_sum);
        if let Some(mean) = sum.checked_div(count) {
            self.rtt.add(Duration::from_micros(mean));
        }
    }

    /// Returns the packets counted since a silence began.
    pub(super) fn since(&self, silence: &Silence) -> Moved {
        let last = self.last.map_or(silence.base, |(_, sample)| sample);
        Moved::between(&silence.base, &last)
    }

    /// Forgets packets under way; counters continue from their current values.
    pub(super) fn forget(&mut self) {
        (self.silence, self.unanswered_syns) = (None, None);
    }

    /// Returns the time since which traffic suffers from a silence that outlasted `silence_limit`. A silence
    /// that probes have explained counts only while packets follow each other closely.
    pub(super) fn suffering_since(&self, silence_limit: Duration) -> Option<Instant> {
        let silence = self.silence?;
        let counts = !silence.explained || self.continuous;
        counts.then_some(silence.since + silence_limit)
    }

    /// Returns the length of silence that makes an uplink suspect; `probes` is used where the traffic's own
    /// round trip is unknown.
    pub(super) fn silence_limit(&self, probes: &Rtt) -> Duration {
        let expected = match (self.rtt.is_known(), probes.smoothed()) {
            (true, _) => self.rtt.expected(),
            (false, Some(_)) => probes.expected(),
            (false, None) => MAX_SILENCE,
        };
        expected.clamp(MIN_SILENCE, MAX_SILENCE)
    }
}

/// Returns true if the counters restarted: the datapath was loaded again, or it is another uplink.
fn is_anew(old: &Sample, new: &Sample) -> bool {
    new.sent < old.sent || new.received < old.received
}
