//! Explains races and the path cache: follows `choose_path` of `bpf/path_cache/path_cache.h` step by step.

use std::net::IpAddr;
use std::time::Duration;

use braid_balance::{CachedPath, ClassEntry, LbMethod, prefix_of};
use braid_core::UplinkId;
use braid_core::forecast::{MAX_RACE_TIME_RATIO, PathStats, Prediction, UplinkLoad, in_turn};
use braid_packet::protocol;

use super::{FlowKey, Trace, name};
use crate::config::DatapathKind;
use crate::datapath::QUIC_PORT;
use crate::report::{ReservationReport, Stage};

/// Decision about a flow of a class that races.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// A race between these uplinks.
    Raced(Vec<UplinkId>),
    /// This uplink, by the path cache.
    Chosen(UplinkId),
    /// The slot table.
    BySlots,
}

/// Score of a cached path.
struct Score {
    uplink: UplinkId,
    rtt: Duration,
    /// Under `fastest`.
    prediction: Option<Prediction>,
}

impl Score {
    /// Returns the figure by which paths are compared: the smallest wins, among equals the lowest id. Under `fastest`
    /// equals take turns, see [`in_turn`].
    fn figure(&self) -> u128 {
        self.prediction
            .map_or(self.rtt.as_micros(), |found| found.score())
    }
}

/// Returns true if a cached path decides about new flows, as in the datapath.
pub(crate) fn is_valid(path: &CachedPath, cache_ttl: Duration) -> bool {
    path.valid && path.rtt.is_some() && path.age.as_secs() <= cache_ttl.as_secs()
}

/// Predicts a transfer over a path; `None` if its round trip is unknown.
pub(crate) fn predict(path: &CachedPath, uplink: &UplinkLoad) -> Option<Prediction> {
    let stats = PathStats {
        rtt: path.rtt?,
        packets: path.packets,
        lost: path.lost,
    };
    Some(uplink.predict(&stats))
}

impl Trace<'_, '_> {
    /// Decides about a flow that neither stickiness nor a rule has placed.
    pub(super) fn race(&mut self, flow: &FlowKey, entry: &ClassEntry) -> Decided {
        if !matches!(entry.lb_method, LbMethod::Race | LbMethod::Fastest) {
            return Decided::BySlots;
        }
        let live = self.live(flow, entry);
        if live.len() < 2 {
            let text = match entry.candidates.is_empty() {
                true => {
                    "nothing is raced now: metered uplinks and those of later tiers take no part"
                }
                false => "fewer than two uplinks could race: it is not raced",
            };
            self.note(Stage::Race, text.to_owned());
            return Decided::BySlots;
        }
        if entry.lb_method == LbMethod::Fastest {
            self.reserved(&live);
        }
        let mut scores = self.scores(entry.lb_method, &live);
        scores.sort_by_key(|score| (score.figure(), score.uplink));
        let refusal = unraceable(flow);
        let (worth, left_out) = self.worth_racing(flow, entry.lb_method, &live);
        let is_known = |id: &UplinkId| scores.iter().any(|score| score.uplink == *id);
        let unknown = worth
            .iter()
            .filter(|id| !is_known(id) && !self.is_silent(flow, **id));
        let waiting = unknown.min_by_key(|id| (self.load(**id).last_opened, **id));
        let may_try = self.shows_round_trip(flow) && entry.sticky.is_none();
        if let Some(next) = waiting.filter(|_| may_try) {
            return self.tried(flow, *next);
        }
        match self.best(entry.lb_method, &scores) {
            Some(best) if refusal.is_some() || worth.iter().all(is_known) => {
                if let Some(why) = refusal {
                    self.note(Stage::Race, format!("not raced: {why}"));
                }
                let again = refusal.is_none();
                self.known(&scores, again);
                Decided::Chosen(best)
            }
            None if refusal.is_some() => {
                let why = refusal.unwrap_or_default();
                let text = format!(
                    "not raced: {why}, and no path to {} is known",
                    network(flow)
                );
                self.note(Stage::Race, text);
                Decided::BySlots
            }
            _ => self.begin(flow, worth, &left_out, &scores),
        }
    }

    /// Returns true for QUIC where its handshakes are measured: in the kernel.
    fn shows_round_trip(&self, flow: &FlowKey) -> bool {
        let by_kernel = self.snapshot.settings.config.datapath.kind == DatapathKind::Ebpf;
        by_kernel && (flow.protocol, flow.port) == (protocol::UDP, Some(QUIC_PORT))
    }

    /// Notes that the flow takes an uplink whose path is not known.
    fn tried(&mut self, flow: &FlowKey, next: UplinkId) -> Decided {
        let text = format!(
            "not raced: only TCP is; a QUIC connection tries {}, whose round trip to {} is not known",
            name(self.snapshot, next),
            network(flow)
        );
        self.note(Stage::Race, text);
        Decided::Chosen(next)
    }

    /// Returns the candidates that take flows of this family.
    fn live(&self, flow: &FlowKey, entry: &ClassEntry) -> Vec<UplinkId> {
        let takes = |id: &&UplinkId| {
            let mut statuses = self.snapshot.statuses.iter();
            statuses.any(|status| status.id == **id && status.takes(flow.family))
        };
        entry.candidates.iter().filter(takes).copied().collect()
    }

    /// Scores the valid cached paths.
    fn scores(&self, walk: LbMethod, live: &[UplinkId]) -> Vec<Score> {
        let memory = self.snapshot.settings.config.race.cache_ttl;
        let ways = self.snapshot.path.map_or(&[][..], |path| &path.paths);
        let score = |way: &CachedPath| {
            let rtt = way.rtt.filter(|_| is_valid(way, memory))?;
            let load = self.load(way.uplink);
            Some(Score {
                uplink: way.uplink,
                rtt,
                prediction: predict(way, &load).filter(|_| walk == LbMethod::Fastest),
            })
        };
        let ways = ways.iter().filter(|way| live.contains(&way.uplink));
        ways.filter_map(score).collect()
    }

    /// Returns the uplink that the path cache chooses, from scores with the best one first.
    fn best(&self, walk: LbMethod, scores: &[Score]) -> Option<UplinkId> {
        if walk != LbMethod::Fastest {
            return scores.first().map(|best| best.uplink);
        }
        let candidate = |score: &Score| (score.figure(), self.load(score.uplink).last_opened);
        let candidates: Vec<(u128, u64)> = scores.iter().map(candidate).collect();
        in_turn(&candidates).map(|place| scores[place].uplink)
    }

    /// Returns the datapath's data on an uplink; without any, it assumes no capacity.
    fn load(&self, id: UplinkId) -> UplinkLoad {
        (self.snapshot.load)(id).unwrap_or_default()
    }

    /// Notes the capacity that is left to app-limited flows.
    fn reserved(&mut self, live: &[UplinkId]) {
        let report = |id: &UplinkId| {
            let found = (self.snapshot.reservation)(*id)?;
            Some(ReservationReport {
                uplink: name(self.snapshot, *id),
                wanted_bit_s: found.wanted.bits_per_sec(),
                reserved_bit_s: found.reserved.bits_per_sec(),
                capacity_bit_s: found.capacity.bits_per_sec(),
            })
        };
        self.reservations = live.iter().filter_map(report).collect();
        let mbit_s = |bit_s: u64| bit_s as f64 / 1e6;
        let text = |of: &ReservationReport| {
            let (reserved, capacity) = (mbit_s(of.reserved_bit_s), mbit_s(of.capacity_bit_s));
            let more = match of.wanted_bit_s > of.reserved_bit_s {
                true => format!(" (they want {:.2})", mbit_s(of.wanted_bit_s)),
                false => String::new(),
            };
            format!("{} {reserved:.2} of {capacity:.1} Mbit/s{more}", of.uplink)
        };
        if !self.reservations.is_empty() {
            let parts: Vec<String> = self.reservations.iter().map(text).collect();
            let text = format!("left to videos, calls and the like: {}", parts.join(", "));
            self.note(Stage::Race, text);
        }
    }

    /// Notes the scores, the best first.
    fn known(&mut self, scores: &[Score], again: bool) {
        let figures = scores.iter().map(|score| match score.prediction {
            None => format!(
                "{} {}",
                name(self.snapshot, score.uplink),
                tenths(score.rtt)
            ),
            Some(found) => {
                let (short, time) = (found.short_time.as_millis(), found.time.as_millis());
                let name = name(self.snapshot, score.uplink);
                format!("{name} {short} ms for 100 kB and {time} ms for 1 MB")
            }
        });
        let figures = figures.collect::<Vec<_>>().join(", ");
        let race = &self.snapshot.settings.config.race;
        let anew = match race.explore_one_in {
            rate if rate > 0 && again => format!("; one in {rate} such connections is raced anew"),
            _ => String::new(),
        };
        let what = match scores.iter().any(|score| score.prediction.is_some()) {
            true => "predicted",
            false => "remembered",
        };
        self.note(Stage::Race, format!("{what}: {figures}{anew}"));
    }

    /// Starts a race between the uplinks that are worth racing.
    fn begin(
        &mut self,
        flow: &FlowKey,
        worth: Vec<UplinkId>,
        left_out: &[UplinkId],
        scores: &[Score],
    ) -> Decided {
        let names = |ids: &[UplinkId]| {
            let names = ids.iter().map(|id| name(self.snapshot, *id));
            names.collect::<Vec<_>>().join(", ")
        };
        let missing = worth
            .iter()
            .filter(|id| scores.iter().all(|s| s.uplink != **id));
        let missing = names(&missing.copied().collect::<Vec<_>>());
        let network = network(flow);
        let others = match left_out {
            [] => String::new(),
            ids => format!(
                "; full or reserved, silent or losing too much: {}",
                names(ids)
            ),
        };
        let cap = self.snapshot.settings.config.race.per_destination;
        let text = match worth.as_slice() {
            [sole] => format!("only {} is worth while{others}", name(self.snapshot, *sole)),
            _ => format!(
                "raced on {}, at most {cap} towards {network}: its round trip by {missing} is not \
                 known{others}",
                names(&worth),
            ),
        };
        self.note(Stage::Race, text);
        match worth.as_slice() {
            [sole] => Decided::Chosen(*sole),
            _ => Decided::Raced(worth),
        }
    }

    /// Returns the uplinks that are worth racing, and those that are left out.
    fn worth_racing(
        &self,
        flow: &FlowKey,
        walk: LbMethod,
        live: &[UplinkId],
    ) -> (Vec<UplinkId>, Vec<UplinkId>) {
        if walk != LbMethod::Fastest {
            return (live.to_vec(), Vec::new());
        }
        let prospect = |id: &UplinkId| self.load(*id).reference_time();
        let answers = |id: &&UplinkId| !self.is_silent(flow, **id);
        let best = live.iter().filter(answers).map(prospect).min();
        let worth = |id: &&UplinkId| {
            answers(id) && prospect(id) <= best.unwrap_or_default() * MAX_RACE_TIME_RATIO
        };
        live.iter().partition(worth)
    }

    /// Returns true if an uplink has just left a SYN to the destination's network unanswered; to a QUIC connection also
    /// while another one tries the uplink.
    fn is_silent(&self, flow: &FlowKey, id: UplinkId) -> bool {
        let memory = self.snapshot.settings.config.race.cache_ttl;
        let tried = |path: &CachedPath| {
            path.tried && path.valid && path.age <= memory && self.shows_round_trip(flow)
        };
        let silent = |path: &CachedPath| path.is_silent() && is_valid(path, memory);
        let mut paths = self.snapshot.path.iter().flat_map(|path| &path.paths);
        paths.any(|path| path.uplink == id && (silent(path) || tried(path)))
    }
}

/// Returns the reason why copies of a flow's first packet may not be sent, if there is one.
fn unraceable(flow: &FlowKey) -> Option<&'static str> {
    if flow.protocol != protocol::TCP {
        return Some("only TCP is");
    }
    is_private(flow.dest).then_some("the destination is private")
}

/// Returns true for private addresses, which are not raced, as in the datapath.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            address.is_private() || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// Returns the destination's network in the path cache.
fn network(flow: &FlowKey) -> String {
    let (prefix, bits) = prefix_of(flow.dest);
    format!("{prefix}/{bits}")
}

fn tenths(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1e3)
}
