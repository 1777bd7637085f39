//! What the traffic itself tells.

use std::time::{Duration, Instant};

use super::Sample;
use super::constants::{
    HALF_TICK, MAX_PACKET_GAP, MAX_SILENCE, MIN_SILENCE, MIN_STREAM_PACKETS, MIN_STREAM_TIME,
    MIN_UNANSWERED,
};
use super::rtt::Rtt;

/// What the traffic of one uplink has told so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    last: Option<(Instant, Sample)>,
    /// Round trips of handshakes: to many hosts, so with more spread than those of probes.
    pub(super) rtt: Rtt,
    /// Packets went out, or a stream came in, and nothing has come in since.
    pub(super) silence: Option<Silence>,
    /// Connections were asked for, and none has been answered since, whatever else came in.
    pub(super) unanswered_syns: Option<Silence>,
    /// When something last moved, and when something last came in.
    pub(super) moved: Option<Instant>,
    pub(super) received: Option<Instant>,
    /// When the machine last did not keep up with what was sent.
    pub(super) local_drops: Option<Instant>,
    stream: Option<Stream>,
    /// The last packets were sent within a short time.
    continuous: bool,
}

/// Something that comes in without a pause.
#[derive(Clone, Copy, Debug)]
struct Stream {
    began: Instant,
    /// Most packets between two looks.
    most: u64,
}

impl Stream {
    fn new(began: Instant) -> Stream {
        Stream { began, most: 0 }
    }
}

/// A time in which something is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    pub(super) since: Instant,
    /// The counters at its beginning.
    base: Sample,
    /// Probes were answered in it: silence is no longer news.
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

    /// More goes unanswered than hosts that are not there explain.
    pub(super) fn is_conclusive(&self) -> bool {
        self.syns.saturating_add(self.repeats) >= MIN_UNANSWERED
    }
}

impl Traffic {
    /// Takes new counters; returns whether something came in.
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
        // What was sent was sent some time since the last look.
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

    /// A stream has just ended: whoever only receives sends nothing when nothing comes, so this is
    /// all that is seen of a line that falls silent under a download. To be called when nothing
    /// came in; says so once.
    fn stream_ends(&mut self) -> bool {
        let (Some(stream), Some(last)) = (self.stream.take(), self.received) else {
            return false;
        };
        stream.most >= MIN_STREAM_PACKETS
            || last.saturating_duration_since(stream.began) >= MIN_STREAM_TIME
    }

    /// Probes answer, so silence has another reason. Where nothing was sent there is none: a stream
    /// was over.
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

    /// What moved since a silence began.
    pub(super) fn since(&self, silence: &Silence) -> Moved {
        let last = self.last.map_or(silence.base, |(_, sample)| sample);
        Moved::between(&silence.base, &last)
    }

    /// What is under way is no longer known to be; counters go on from where they are.
    pub(super) fn forget(&mut self) {
        (self.silence, self.unanswered_syns) = (None, None);
    }

    /// Since when traffic suffers from a silence that outlasted `patience`. A silence that probes
    /// have explained counts while packets follow each other.
    pub(super) fn suffering_since(&self, silence_limit: Duration) -> Option<Instant> {
        let silence = self.silence?;
        let counts = !silence.explained || self.continuous;
        counts.then_some(silence.since + silence_limit)
    }

    /// After how much silence an uplink is suspect, where `probes` know the way as well.
    pub(super) fn silence_limit(&self, probes: &Rtt) -> Duration {
        let expected = match (self.rtt.is_known(), probes.smoothed()) {
            (true, _) => self.rtt.expected(),
            (false, Some(_)) => probes.expected(),
            (false, None) => MAX_SILENCE,
        };
        expected.clamp(MIN_SILENCE, MAX_SILENCE)
    }
}

/// The counters began anew: the datapath was loaded again, or the uplink is another.
fn is_anew(old: &Sample, new: &Sample) -> bool {
    new.sent < old.sent || new.received < old.received
}
