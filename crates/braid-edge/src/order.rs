//! Which resequencer a frame goes to: one for each edge that packets come from.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_core::Time;
use braid_core::resequence::{
    Algorithm1, Algorithm1Settings, PathId, Segment, StreamCounters, StreamLimits, Streams,
};

use crate::datapath::Treatment;
use crate::frame::{Frame, Read, StreamKey};
use crate::table::{Inward, InwardPath, Order};

/// \[mpsdn\] §III-D: "a value of 20 allowed the buffer to recover from bursty losses".
const LOSS_RECOVERY: u32 = 20;

/// A latency that moved by less is the same.
const NOTABLE: Duration = Duration::from_millis(1);

/// How packets of several paths are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// Whatever comes by several paths, with a time for each gap and early release
    #[default]
    Ours,
    /// As the paper's Algorithm 1, where the controller asks for it
    Paper,
    /// Not at all
    Off,
}

#[derive(Debug)]
enum Resequencer {
    Ours(Box<Streams<StreamKey, Frame>>),
    Paper(Algorithm1<StreamKey, Frame>),
}

/// What a source's packets have been through.
#[derive(Debug, Clone, Copy, Default)]
pub struct Account {
    pub counters: StreamCounters,
    pub held: usize,
    pub streams: usize,
}

#[derive(Debug)]
struct Source {
    resequencer: Resequencer,
    /// Those that the resequencer knows.
    paths: Vec<InwardPath>,
}

/// All resequencers of an edge.
#[derive(Debug)]
pub struct Orderer {
    sources: BTreeMap<String, Source>,
    /// Whose a tag is, and its path's place; paths that are not in use any more have none.
    tags: BTreeMap<u16, (String, Option<PathId>)>,
}

/// What is done with the tags of a source: once a pair has had several paths its packets keep to the
/// resequencer, since some may wait there when a path goes.
pub fn treatment(ordering: Ordering, inward: &Inward, ordered_before: bool) -> Treatment {
    let order = match ordering {
        Ordering::Ours => inward.paths.len() > 1 || ordered_before,
        Ordering::Paper => inward.order == Order::Resequence || ordered_before,
        Ordering::Off => false,
    };
    match order {
        true => Treatment::InOrder,
        false => Treatment::AsComes,
    }
}

/// Whether they are the same paths, and about as quick; which of two like that is the quicker one is
/// nothing.
fn alike(one: &[InwardPath], other: &[InwardPath]) -> bool {
    let near = |one: &InwardPath, other: &InwardPath| {
        one.tag == other.tag && one.latency().abs_diff(other.latency()) < NOTABLE
    };
    let among = |one: &InwardPath| other.iter().any(|other| near(one, other));
    one.len() == other.len() && one.iter().all(among)
}

impl Orderer {
    pub fn new() -> Orderer {
        Orderer {
            sources: BTreeMap::new(),
            tags: BTreeMap::new(),
        }
    }

    /// Goes by another table from now on. Tags that are no path's any more are still known, and
    /// their packets put in order by their numbers alone.
    pub fn set(&mut self, now: Time, ordering: Ordering, table: &[Inward]) {
        for (_, path) in self.tags.values_mut() {
            *path = None;
        }
        for inward in table {
            let settings = Algorithm1Settings {
                size: inward.size_packets,
                threshold: inward.threshold_packets,
                loss_recovery: LOSS_RECOVERY,
            };
            let source = self
                .sources
                .entry(inward.source.clone())
                .or_insert_with(|| Source {
                    resequencer: match ordering {
                        Ordering::Paper => Resequencer::Paper(Algorithm1::new(settings)),
                        _ => {
                            Resequencer::Ours(Box::new(Streams::new(now, StreamLimits::default())))
                        }
                    },
                    paths: Vec::new(),
                });
            // A table that is new for another's sake changes nothing here.
            let changed = !alike(&source.paths, &inward.paths);
            // What is held against the next table is what the resequencer knows, or small steps
            // would add up unseen.
            if changed {
                source.paths.clone_from(&inward.paths);
            }
            for (place, path) in source.paths.iter().enumerate() {
                let place = u8::try_from(place).ok().map(PathId);
                self.tags.insert(path.tag, (inward.source.clone(), place));
            }
            match &mut source.resequencer {
                Resequencer::Ours(streams) if changed => {
                    let latencies: Vec<Duration> =
                        inward.paths.iter().map(|path| path.latency()).collect();
                    streams.set_paths(now, &latencies);
                    if inward.gave_up {
                        streams.give_up_earlier(now);
                    }
                }
                Resequencer::Ours(_) => {}
                Resequencer::Paper(flows) => flows.set(settings),
            }
        }
    }

    /// Takes a frame and hands on what goes on now.
    pub fn handle(&mut self, now: Time, read: Read, frame: Frame, mut out: impl FnMut(Frame)) {
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
        match &mut source.resequencer {
            Resequencer::Ours(streams) => streams.handle_segment(now, key, segment, frame),
            Resequencer::Paper(flows) => flows.handle_segment(key, segment, frame),
        }
        source.drain(&mut out);
    }

    /// Hands on what has waited long enough.
    pub fn handle_timeout(&mut self, now: Time, mut out: impl FnMut(Frame)) {
        for source in self.sources.values_mut() {
            if let Resequencer::Ours(streams) = &mut source.resequencer {
                streams.handle_timeout(now);
                source.drain(&mut out);
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.sources.values().filter_map(Source::poll_timeout).min()
    }

    pub fn accounts(&self) -> BTreeMap<String, Account> {
        let account = |source: &Source| match &source.resequencer {
            Resequencer::Ours(streams) => Account {
                counters: *streams.counters(),
                held: streams.held(),
                streams: streams.streams(),
            },
            Resequencer::Paper(flows) => Account {
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
            Resequencer::Ours(streams) => streams.poll_timeout(),
            Resequencer::Paper(_) => None,
        }
    }

    fn drain(&mut self, out: &mut impl FnMut(Frame)) {
        let mut next = || match &mut self.resequencer {
            Resequencer::Ours(streams) => streams.poll_delivery(),
            Resequencer::Paper(flows) => flows.poll_delivery(),
        };
        while let Some(frame) = next() {
            out(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(slower_ms: f64) -> Vec<Inward> {
        let path = |tag, ms| InwardPath {
            tag,
            latency_ms: Some(ms),
        };
        vec![Inward {
            source: "hb".to_owned(),
            order: Order::Resequence,
            threshold_packets: 16,
            size_packets: 32,
            paths: vec![path(2, 5.0), path(3, slower_ms)],
            gave_up: false,
        }]
    }

    #[test]
    fn paths_that_take_turns_at_being_the_quicker_one_keep_their_places() {
        let mut orderer = Orderer::new();
        let known = |orderer: &Orderer| (orderer.tags.clone(), orderer.sources["hb"].paths.clone());
        let mut told = table(5.5);
        orderer.set(Time::ZERO, Ordering::Ours, &told);
        let before = known(&orderer);
        told[0].paths.reverse();
        orderer.set(Time::ZERO, Ordering::Ours, &told);
        assert_eq!(known(&orderer), before);
        // One that has become slower takes another.
        told[0].paths[1].latency_ms = Some(7.0);
        orderer.set(Time::ZERO, Ordering::Ours, &told);
        assert_eq!(known(&orderer).1, told[0].paths);
        assert_eq!(orderer.tags[&3].1, Some(PathId(0)));
    }

    #[test]
    fn small_steps_of_a_latency_do_not_add_up_unseen() {
        let mut orderer = Orderer::new();
        for step in 0..20 {
            let told = table(10.0 + 0.9 * f64::from(step));
            orderer.set(Time::ZERO, Ordering::Ours, &told);
            let known = orderer.sources["hb"].paths[1].latency();
            let off = known.abs_diff(told[0].paths[1].latency());
            assert!(off < NOTABLE, "step {step}: {off:?} off");
        }
    }
}
