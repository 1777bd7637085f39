//! Reorder buffers: one resequencer for each edge that packets come from.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_core::Time;
use braid_multipath::LaneId;
use braid_multipath::delivery_pacer::DeliveryPacer;
use braid_multipath::resequence::{
    Algorithm1, Algorithm1Settings, Missing, PathId, Segment, StreamCounters, StreamLimits, Streams,
};

use crate::datapath::TagAction;
use crate::frame::{Frame, ParsedFrame, StreamKey};
use crate::table::{DeliveryOrder, Ingress, IngressPath};

/// \[mpsdn\] §III-D: "a value of 20 allowed the buffer to recover from bursty losses".
const LOSS_RECOVERY: u32 = 20;

/// Longest wait for a copy, whatever the other edge tells.
const MAX_REPAIR_TIME: Duration = Duration::from_millis(250);

/// Smaller changes of a latency are ignored.
const MIN_LATENCY_CHANGE: Duration = Duration::from_millis(1);

/// Method by which packets of several paths are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reordering {
    /// All packets that arrive by several paths, with a deadline for each gap and early release
    #[default]
    Adaptive,
    /// Algorithm 1 of the paper (docs/papers/mpsdn.md), where the controller asks for resequencing
    Algorithm1,
    /// None
    Off,
}

/// A frame, when it came, and the lane that has numbered it.
#[derive(Debug)]
struct Arrival {
    at: Time,
    lane: Option<LaneId>,
    frame: Frame,
}

#[derive(Debug)]
enum Resequencer {
    Adaptive(Box<Streams<StreamKey, Arrival>>),
    Algorithm1(Algorithm1<StreamKey, Arrival>),
}

/// Counters of one source's resequencer.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReorderStats {
    pub counters: StreamCounters,
    pub held: usize,
    pub streams: usize,
}

#[derive(Debug)]
struct Source {
    resequencer: Resequencer,
    /// Spreads datagrams that were held and leave together.
    pacer: DeliveryPacer<Frame>,
    /// The paths set in the resequencer.
    paths: Vec<IngressPath>,
}

/// All resequencers of an edge, by source.
#[derive(Debug)]
pub struct Reorderer {
    sources: BTreeMap<String, Source>,
    /// Source and path of each tag; tags of removed paths have no path.
    tags: BTreeMap<u16, (String, Option<PathId>)>,
}

/// Returns the action for a source's tags. Once a source has had several paths its packets always pass
/// the resequencer, since some may still wait there when a path is removed.
pub fn tag_action(reordering: Reordering, ingress: &Ingress, ordered_before: bool) -> TagAction {
    let order = match reordering {
        Reordering::Adaptive => ingress.paths.len() > 1 || ordered_before,
        Reordering::Algorithm1 => ingress.order == DeliveryOrder::Resequence || ordered_before,
        Reordering::Off => false,
    };
    match order {
        true => TagAction::Resequence,
        false => TagAction::Forward,
    }
}

/// Returns true if these are the same paths with about the same latencies, in any order.
fn alike(one: &[IngressPath], other: &[IngressPath]) -> bool {
    let near = |one: &IngressPath, other: &IngressPath| {
        one.tag == other.tag && one.latency().abs_diff(other.latency()) < MIN_LATENCY_CHANGE
    };
    let among = |one: &IngressPath| other.iter().any(|other| near(one, other));
    one.len() == other.len() && one.iter().all(among)
}

impl Reorderer {
    pub fn new() -> Reorderer {
        Reorderer {
            sources: BTreeMap::new(),
            tags: BTreeMap::new(),
        }
    }

    /// Sets another table. Tags of removed paths stay valid; their packets are put in order by sequence
    /// numbers alone.
    pub fn set(&mut self, now: Time, reordering: Reordering, table: &[Ingress]) {
        for (_, path) in self.tags.values_mut() {
            *path = None;
        }
        for ingress in table {
            let settings = Algorithm1Settings {
                size: ingress.size_packets,
                threshold: ingress.threshold_packets,
                loss_recovery: LOSS_RECOVERY,
            };
            let source = self
                .sources
                .entry(ingress.source.clone())
                .or_insert_with(|| Source {
                    resequencer: match reordering {
                        Reordering::Algorithm1 => {
                            Resequencer::Algorithm1(Algorithm1::new(settings))
                        }
                        _ => Resequencer::Adaptive(Box::new(Streams::new(
                            now,
                            StreamLimits::default(),
                        ))),
                    },
                    pacer: DeliveryPacer::default(),
                    paths: Vec::new(),
                });
            // A table that is new because of another source changes nothing here.
            let changed = !alike(&source.paths, &ingress.paths);
            // The next table is compared with what the resequencer was set to; otherwise small steps
            // would add up unnoticed.
            if changed {
                source.paths.clone_from(&ingress.paths);
            }
            for (place, path) in source.paths.iter().enumerate() {
                let place = u8::try_from(place).ok().map(PathId);
                self.tags.insert(path.tag, (ingress.source.clone(), place));
            }
            match &mut source.resequencer {
                Resequencer::Adaptive(streams) if changed => {
                    let latencies: Vec<Duration> =
                        ingress.paths.iter().map(|path| path.latency()).collect();
                    streams.set_paths(now, &latencies);
                    if ingress.path_withdrawn {
                        streams.give_up_earlier(now);
                    }
                }
                Resequencer::Adaptive(_) => {}
                Resequencer::Algorithm1(flows) => flows.set(settings),
            }
        }
    }

    /// Returns true if a path to here has this tag.
    #[must_use]
    pub fn is_in_use(&self, tag: u16) -> bool {
        self.tags.get(&tag).is_some_and(|(_, path)| path.is_some())
    }

    /// Sets the sources whose edges keep copies, and how long one takes to come from each.
    pub fn set_repairs(&mut self, wait: impl Fn(&str) -> Option<Duration>) {
        for (name, source) in &mut self.sources {
            if let Resequencer::Adaptive(streams) = &mut source.resequencer {
                streams.set_repair(wait(name).map(|wait| wait.min(MAX_REPAIR_TIME)));
            }
        }
    }

    /// Returns the next numbers of which copies are to be asked for, and their source.
    pub fn poll_missing(&mut self) -> Option<(Missing<StreamKey>, &str)> {
        self.sources
            .iter_mut()
            .find_map(|(name, source)| match &mut source.resequencer {
                Resequencer::Adaptive(streams) => Some((streams.poll_missing()?, name.as_str())),
                Resequencer::Algorithm1(_) => None,
            })
    }

    /// Takes a frame, and passes all that can be delivered now to `out`.
    pub fn handle(
        &mut self,
        now: Time,
        read: ParsedFrame,
        frame: Frame,
        mut out: impl FnMut(Frame),
    ) {
        let known = self.tags.get(&read.tag);
        let Some(((source, path), (key, kind, seq, length))) = known.zip(read.segment) else {
            return out(frame);
        };
        let segment = Segment {
            kind,
            seq,
            length,
            path: *path,
        };
        let Some(source) = self.sources.get_mut(source) else {
            return out(frame);
        };
        let lane = match key {
            StreamKey::Lane { lane, .. } => Some(LaneId(lane)),
            StreamKey::Flow(_) => None,
        };
        let arrival = Arrival {
            at: now,
            lane,
            frame,
        };
        match &mut source.resequencer {
            Resequencer::Adaptive(streams) => streams.handle_segment(now, key, segment, arrival),
            Resequencer::Algorithm1(flows) => flows.handle_segment(key, segment, arrival),
        }
        source.drain(now, &mut out);
    }

    /// Delivers frames whose deadline has passed, or whose turn has come.
    pub fn handle_timeout(&mut self, now: Time, mut out: impl FnMut(Frame)) {
        for source in self.sources.values_mut() {
            if let Resequencer::Adaptive(streams) = &mut source.resequencer {
                streams.handle_timeout(now);
                source.drain(now, &mut out);
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.sources.values().filter_map(Source::poll_timeout).min()
    }

    pub fn stats(&self) -> BTreeMap<String, ReorderStats> {
        let account = |source: &Source| match &source.resequencer {
            Resequencer::Adaptive(streams) => ReorderStats {
                counters: *streams.counters(),
                held: streams.held(),
                streams: streams.streams(),
            },
            Resequencer::Algorithm1(flows) => ReorderStats {
                counters: *flows.counters(),
                held: flows.held(),
                streams: flows.streams(),
            },
        };
        self.sources
            .iter()
            .map(|(name, source)| (name.clone(), account(source)))
            .collect()
    }
}

impl Source {
    fn poll_timeout(&self) -> Option<Time> {
        match &self.resequencer {
            Resequencer::Adaptive(streams) => {
                let due = [streams.poll_timeout(), self.pacer.poll_timeout()];
                due.into_iter().flatten().min()
            }
            Resequencer::Algorithm1(_) => None,
        }
    }

    fn drain(&mut self, now: Time, out: &mut impl FnMut(Frame)) {
        while let Some(frame) = self.pacer.poll(now) {
            out(frame);
        }
        let mut next = || match &mut self.resequencer {
            Resequencer::Adaptive(streams) => streams.poll_delivery(),
            Resequencer::Algorithm1(flows) => flows.poll_delivery(),
        };
        while let Some(Arrival { at, lane, frame }) = next() {
            let passes = match lane {
                Some(lane) => self.pacer.handle(now, at, lane, frame.0.len(), frame),
                None => Some(frame),
            };
            if let Some(frame) = passes {
                out(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_multipath::resequence::SegmentKind;

    use super::*;

    fn table(slower_ms: f64) -> Vec<Ingress> {
        let path = |tag, ms| IngressPath {
            tag,
            latency_ms: Some(ms),
        };
        vec![Ingress {
            source: "hb".to_owned(),
            order: DeliveryOrder::Resequence,
            threshold_packets: 16,
            size_packets: 32,
            paths: vec![path(2, 5.0), path(3, slower_ms)],
            path_withdrawn: false,
        }]
    }

    #[test]
    fn paths_that_take_turns_at_being_the_quicker_one_keep_their_places() {
        let mut reorderer = Reorderer::new();
        let known = |reorderer: &Reorderer| {
            (
                reorderer.tags.clone(),
                reorderer.sources["hb"].paths.clone(),
            )
        };
        let mut told = table(5.5);
        reorderer.set(Time::ZERO, Reordering::Adaptive, &told);
        let before = known(&reorderer);
        told[0].paths.reverse();
        reorderer.set(Time::ZERO, Reordering::Adaptive, &told);
        assert_eq!(known(&reorderer), before);
        // A path that has become slower changes its place.
        told[0].paths[1].latency_ms = Some(7.0);
        reorderer.set(Time::ZERO, Reordering::Adaptive, &told);
        assert_eq!(known(&reorderer).1, told[0].paths);
        assert_eq!(reorderer.tags[&3].1, Some(PathId(0)));
    }

    /// Brings five packets from `begin` on by both paths, without the second; returns the number of gaps to ask
    /// for.
    fn asked(reorderer: &mut Reorderer, now: Time, begin: u32) -> usize {
        for number in [0, 2, 3, 4] {
            let key = StreamKey::Lane { epoch: 1, lane: 2 };
            let read = ParsedFrame {
                tag: 2 + number as u16 % 2,
                start: 0,
                segment: Some((key, SegmentKind::Data, begin + number, 1)),
            };
            reorderer.handle(now, read, Frame(Vec::new()), |_| {});
        }
        let mut count = 0;
        while let Some((_, source)) = reorderer.poll_missing() {
            assert_eq!(source, "hb");
            count += 1;
        }
        count
    }

    #[test]
    fn copies_are_asked_for_of_an_edge_that_keeps_them() {
        let mut reorderer = Reorderer::new();
        reorderer.set(Time::ZERO, Reordering::Adaptive, &table(5.5));
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        assert_eq!(asked(&mut reorderer, at(0), 0), 0);
        reorderer.set_repairs(|source| (source == "hc").then_some(Duration::from_millis(50)));
        assert_eq!(asked(&mut reorderer, at(1), 5), 0);
        reorderer.set_repairs(|source| (source == "hb").then_some(Duration::from_secs(9)));
        assert_eq!(asked(&mut reorderer, at(2), 10), 1);
        let due = reorderer.poll_timeout().expect("a wait");
        assert_eq!(due, at(2) + MAX_REPAIR_TIME);
        reorderer.handle_timeout(due, |_| {});
        reorderer.set_repairs(|_| None);
        assert_eq!(asked(&mut reorderer, at(1000), 20), 0);
    }

    #[test]
    fn small_steps_of_a_latency_do_not_add_up_unseen() {
        let mut reorderer = Reorderer::new();
        for step in 0..20 {
            let told = table(10.0 + 0.9 * f64::from(step));
            reorderer.set(Time::ZERO, Reordering::Adaptive, &told);
            let known = reorderer.sources["hb"].paths[1].latency();
            let off = known.abs_diff(told[0].paths[1].latency());
            assert!(off < MIN_LATENCY_CHANGE, "step {step}: {off:?} off");
        }
    }
}
