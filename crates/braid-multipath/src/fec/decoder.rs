//! The receiving end: rebuilds lost packets from repair symbols.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use super::field::{inverse, times};
use super::{Group, MAX_SPACING};
use crate::{LANES, LaneId, LaneSeq, LinkId, Stamp};

/// Packets and repair symbols kept per lane.
const MAX_LANE_PACKETS: usize = 256;
const MAX_LANE_SYMBOLS: usize = 8;

/// Packets kept of all lanes without a repair symbol together: the first symbol of a young lane
/// covers those just before it.
const MAX_RECENT_PACKETS: usize = 64;

/// Most missing packets of a usable symbol, and most of all symbols together. With more, the symbol
/// waits.
const MAX_MISSING: usize = 8;
const MAX_UNKNOWNS: usize = 16;

/// A lane without a repair symbol for this long is forgotten.
const LANE_TIMEOUT: Duration = Duration::from_secs(1);

/// Recipe for a missing packet: the sum of all terms, each multiplied by its factor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild<T, S> {
    /// Lane of the packet.
    pub lane: LaneId,
    /// Number in the lane.
    pub seq: LaneSeq,
    /// Link of the newest symbol used.
    pub link: LinkId,
    /// Stamp of that symbol.
    pub stamp: Stamp,
    /// Repair symbols and their factors.
    pub symbols: Vec<(u8, S)>,
    /// Received packets and their factors.
    pub packets: Vec<(u8, T)>,
}

/// Symbol interval assumed before there were two symbols, and its maximum: a pause is no interval.
const INITIAL_SYMBOL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_SYMBOL_INTERVAL: Duration = Duration::from_millis(30);

/// Terms of a packet, as in [`Rebuild`].
type Terms<T, S> = (Vec<(u8, S)>, Vec<(u8, T)>);

#[derive(Debug, Clone)]
struct RepairSymbol<S> {
    group: Group,
    link: LinkId,
    stamp: Stamp,
    /// When the symbol becomes usable; none once it is.
    usable_at: Option<Time>,
    symbol: S,
}

#[derive(Debug, Clone)]
struct LaneState<T, S> {
    /// By number modulo [`MAX_LANE_PACKETS`].
    items: Vec<Option<(u64, T)>>,
    symbols: VecDeque<RepairSymbol<S>>,
    /// Packet whose recipe was returned and that is not back yet.
    pending: Option<u64>,
    /// True if the lane is among the [unsolved](Decoder::unsolved).
    is_unsolved: bool,
    last: Time,
    /// Mean interval of symbols.
    interval: Duration,
}

/// Keeps packets and symbols to rebuild lost packets; few packets until a lane's first symbol.
#[derive(Debug, Clone)]
pub struct Decoder<T, S> {
    lanes: Vec<Option<Box<LaneState<T, S>>>>,
    /// Lanes with state.
    kept: Vec<LaneId>,
    /// Last packets of the other lanes.
    recent: VecDeque<(LaneId, u64, T)>,
    /// Lanes of which something was handed in since their symbols were last solved. That costs some
    /// µs, so it is done once for all packets and symbols of a datagram.
    unsolved: VecDeque<LaneId>,
    /// Allocations to be reused.
    spare: Vec<Terms<T, S>>,
    passed: Stamp,
    rebuilt: u64,
}

impl<T, S> Default for Decoder<T, S> {
    fn default() -> Decoder<T, S> {
        Decoder {
            lanes: (0..LANES).map(|_| None).collect(),
            kept: Vec::new(),
            recent: VecDeque::with_capacity(MAX_RECENT_PACKETS),
            unsolved: VecDeque::new(),
            spare: Vec::new(),
            passed: Stamp(0),
            rebuilt: 0,
        }
    }
}

impl<T: Clone, S: Clone> Decoder<T, S> {
    /// Takes a packet that arrived or was rebuilt.
    pub fn handle_packet(&mut self, lane: LaneId, seq: LaneSeq, item: &T) {
        let Some(state) = &mut self.lanes[lane.index()] else {
            if self.recent.len() == MAX_RECENT_PACKETS {
                self.recent.pop_front();
            }
            self.recent.push_back((lane, seq.0, item.clone()));
            return;
        };
        let slot = &mut state.items[seq.0 as usize % MAX_LANE_PACKETS];
        if slot.as_ref().is_none_or(|(of, _)| *of < seq.0) {
            *slot = Some((seq.0, item.clone()));
            let covers = |symbol: &RepairSymbol<S>| {
                symbol.usable_at.is_none() && symbol.group.factor(seq).is_some()
            };
            let awaited = state.pending.take_if(|pending| *pending == seq.0).is_some();
            if awaited || state.symbols.iter().any(covers) {
                state.note_unsolved(lane, &mut self.unsolved);
            }
        }
    }

    /// Takes a repair symbol stamped `stamp`. By `usable_at`, every packet sent before it has
    /// arrived or is lost.
    pub fn handle_symbol(
        &mut self,
        now: Time,
        group: Group,
        (link, stamp): (LinkId, Stamp),
        usable_at: Time,
        symbol: S,
    ) {
        let lane = group.lane;
        let state = self.lanes[lane.index()].get_or_insert_with(|| {
            self.kept.push(lane);
            let mut items: Vec<_> = (0..MAX_LANE_PACKETS).map(|_| None).collect();
            for (_, seq, item) in self.recent.iter().filter(|(of, ..)| *of == lane) {
                items[*seq as usize % MAX_LANE_PACKETS] = Some((*seq, item.clone()));
            }
            Box::new(LaneState {
                items,
                symbols: VecDeque::with_capacity(MAX_LANE_SYMBOLS),
                pending: None,
                is_unsolved: false,
                last: now,
                interval: INITIAL_SYMBOL_INTERVAL,
            })
        });
        let interval = now.since(state.last).min(MAX_SYMBOL_INTERVAL);
        state.interval = (state.interval * 7 + interval) / 8;
        state.last = now;
        state.pending = None;
        if state.symbols.len() == MAX_LANE_SYMBOLS {
            state.symbols.pop_front();
        }
        let is_usable = usable_at <= now || stamp <= self.passed;
        state.symbols.push_back(RepairSymbol {
            group,
            link,
            stamp,
            usable_at: (!is_usable).then_some(usable_at),
            symbol,
        });
        state.note_unsolved(lane, &mut self.unsolved);
    }

    /// Forgets a lane's symbols: they contradict each other.
    pub fn forget_symbols(&mut self, lane: LaneId) {
        if let Some(state) = &mut self.lanes[lane.index()] {
            state.symbols.clear();
            state.pending = None;
        }
    }

    /// Forgets all packets and symbols.
    pub fn forget(&mut self) {
        for lane in self.kept.drain(..) {
            self.lanes[lane.index()] = None;
        }
        self.recent.clear();
        self.unsolved.clear();
    }

    /// Notes that every packet stamped up to `passed` has arrived or is lost.
    pub fn handle_progress(&mut self, passed: Stamp) {
        self.passed = passed;
        self.make_usable(|symbol| symbol.stamp <= passed);
    }

    /// Makes symbols usable whose time has come. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.make_usable(|symbol| symbol.usable_at.is_some_and(|usable_at| usable_at <= now));
        let lanes = &mut self.lanes;
        self.kept.retain(|lane| {
            let state = &mut lanes[lane.index()];
            state
                .take_if(|state| now.since(state.last) >= LANE_TIMEOUT)
                .is_none()
        });
    }

    fn make_usable(&mut self, is_usable: impl Fn(&RepairSymbol<S>) -> bool) {
        for index in 0..self.kept.len() {
            let lane = self.kept[index];
            let Some(state) = &mut self.lanes[lane.index()] else {
                continue;
            };
            let waiting = state.symbols.iter_mut();
            let mut any = false;
            for symbol in waiting.filter(|symbol| symbol.usable_at.is_some()) {
                if is_usable(symbol) {
                    symbol.usable_at = None;
                    any = true;
                }
            }
            if any {
                state.note_unsolved(lane, &mut self.unsolved);
            }
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let each = self.kept().flat_map(|state| {
            let usable_at = state.symbols.iter().filter_map(|symbol| symbol.usable_at);
            usable_at.chain([state.last + LANE_TIMEOUT])
        });
        each.min()
    }

    /// Returns the interval of symbols in the lane where it is longest; none if there were no
    /// symbols lately.
    #[must_use]
    pub fn symbol_interval(&self) -> Option<Duration> {
        self.kept().map(|state| state.interval).max()
    }

    fn kept(&self) -> impl Iterator<Item = &LaneState<T, S>> {
        let kept = self.kept.iter();
        kept.filter_map(|lane| self.lanes[lane.index()].as_deref())
    }

    /// Drops symbols without missing packets and solves the usable ones for one packet: the next one
    /// follows when that is handed in.
    fn solve(&mut self, lane: LaneId) -> Option<Rebuild<T, S>> {
        let state = self.lanes[lane.index()].as_mut()?;
        state.is_unsolved = false;
        if state.pending.is_some() {
            return None;
        }
        let items = &state.items;
        let misses = |group: &Group| missing(items, group).next().is_some();
        state
            .symbols
            .retain(|symbol| symbol.usable_at.is_some() || misses(&symbol.group));
        let solution = Equations::of(state).solve()?;
        self.rebuilt += 1;
        state.pending = Some(solution.seq);
        let terms = self.spare.pop().unwrap_or_else(|| {
            let most = MAX_LANE_SYMBOLS * MAX_SPACING;
            (
                Vec::with_capacity(MAX_LANE_SYMBOLS),
                Vec::with_capacity(most),
            )
        });
        let recipe = state.recipe(lane, &solution, terms);
        // With that packet, this symbol is a combination of the others.
        state.symbols.remove(solution.redundant);
        Some(recipe)
    }

    /// Returns the recipe of a missing packet. Make the packet and hand it in as if it had arrived,
    /// or [forget the lane's symbols](Self::forget_symbols). The recipe may be
    /// [given back](Self::give_back).
    pub fn poll_rebuild(&mut self) -> Option<Rebuild<T, S>> {
        loop {
            let lane = self.unsolved.pop_front()?;
            let recipe = self.solve(lane);
            if recipe.is_some() {
                return recipe;
            }
        }
    }

    /// Takes back a recipe to reuse its memory.
    pub fn give_back(&mut self, mut rebuild: Rebuild<T, S>) {
        rebuild.symbols.clear();
        rebuild.packets.clear();
        self.spare.push((rebuild.symbols, rebuild.packets));
    }

    /// Returns the packets that could be rebuilt; some of them arrived nevertheless.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }
}

fn here<T>(items: &[Option<(u64, T)>], seq: u64) -> Option<&T> {
    let slot = items[seq as usize % MAX_LANE_PACKETS].as_ref();
    slot.filter(|(of, _)| *of == seq).map(|(_, item)| item)
}

fn missing<T>(items: &[Option<(u64, T)>], group: &Group) -> impl Iterator<Item = u64> {
    (group.first.0..group.end()).filter(|seq| here(items, *seq).is_none())
}

impl<T, S> LaneState<T, S> {
    fn note_unsolved(&mut self, lane: LaneId, unsolved: &mut VecDeque<LaneId>) {
        if !std::mem::replace(&mut self.is_unsolved, true) {
            unsolved.push_back(lane);
        }
    }
}

impl<T: Clone, S: Clone> LaneState<T, S> {
    fn recipe(
        &self,
        lane: LaneId,
        solution: &Solution,
        (mut symbols, mut packets): Terms<T, S>,
    ) -> Rebuild<T, S> {
        let used = || {
            self.symbols
                .iter()
                .zip(solution.factors)
                .filter(|(_, factor)| *factor > 0)
        };
        let first = used()
            .map(|(symbol, _)| symbol.group.first.0)
            .min()
            .unwrap_or(0);
        let end = used()
            .map(|(symbol, _)| symbol.group.end())
            .max()
            .unwrap_or(0);
        let known = (first..end).filter_map(|seq| {
            let factors = used().filter_map(|(symbol, factor)| {
                Some(times(factor, symbol.group.factor(LaneSeq(seq))?))
            });
            let factor = factors.fold(0, |sum, factor| sum ^ factor);
            let item = here(&self.items, seq).filter(|_| factor > 0)?;
            Some((factor, item.clone()))
        });
        packets.extend(known);
        symbols.extend(used().map(|(symbol, factor)| (factor, symbol.symbol.clone())));
        let newest = used().map(|(symbol, _)| (symbol.stamp, symbol.link)).max();
        let (stamp, link) = newest.unwrap_or((Stamp(0), LinkId(0)));
        Rebuild {
            lane,
            seq: LaneSeq(solution.seq),
            link,
            stamp,
            symbols,
            packets,
        }
    }
}

/// Linear equations: one row per symbol, one unknown per missing packet.
struct Equations {
    unknown: [u64; MAX_UNKNOWNS],
    unknowns: usize,
    /// Factors of the unknowns, and of the symbols combined in the row.
    rows: [([u8; MAX_UNKNOWNS], [u8; MAX_LANE_SYMBOLS]); MAX_LANE_SYMBOLS],
}

/// The packet `seq` is the combination of symbols by these factors, and of received packets.
struct Solution {
    seq: u64,
    factors: [u8; MAX_LANE_SYMBOLS],
    /// A symbol used up by this solution.
    redundant: usize,
}

impl Equations {
    fn of<T, S>(state: &LaneState<T, S>) -> Equations {
        let mut all = Equations {
            unknown: [0; MAX_UNKNOWNS],
            unknowns: 0,
            rows: [([0; MAX_UNKNOWNS], [0; MAX_LANE_SYMBOLS]); MAX_LANE_SYMBOLS],
        };
        // Symbols with the fewest missing packets go first: a packet alone in its window is rebuilt
        // whatever else is missing.
        let mut order = [(usize::MAX, 0); MAX_LANE_SYMBOLS];
        for (index, symbol) in state.symbols.iter().enumerate() {
            let count = missing(&state.items, &symbol.group).take(MAX_MISSING + 1);
            order[index] = (count.count(), index);
        }
        order.sort_unstable();
        for (_, index) in order.into_iter().filter(|(count, _)| *count <= MAX_MISSING) {
            let symbol = &state.symbols[index];
            if symbol.usable_at.is_some() {
                continue;
            }
            let (mut row, mut fits) = ([0; MAX_UNKNOWNS], true);
            let before = all.unknowns;
            for seq in missing(&state.items, &symbol.group) {
                let factor = symbol.group.factor(LaneSeq(seq)).unwrap_or(0);
                match all.column(seq) {
                    Some(column) => row[column] = factor,
                    None => fits = false,
                }
            }
            if fits {
                all.rows[index].0 = row;
                all.rows[index].1[index] = 1;
            } else {
                all.unknowns = before;
            }
        }
        all
    }

    fn column(&mut self, seq: u64) -> Option<usize> {
        let known = self.unknown[..self.unknowns]
            .iter()
            .position(|of| *of == seq);
        if known.is_none() && self.unknowns < MAX_UNKNOWNS {
            self.unknown[self.unknowns] = seq;
            self.unknowns += 1;
            return Some(self.unknowns - 1);
        }
        known
    }

    /// Solves by Gauss-Jordan elimination; returns the lowest number that is determined.
    fn solve(mut self) -> Option<Solution> {
        let mut pivots = 0;
        for column in 0..self.unknowns {
            let Some(pivot) = (pivots..MAX_LANE_SYMBOLS).find(|row| self.rows[*row].0[column] > 0)
            else {
                continue;
            };
            self.rows.swap(pivots, pivot);
            let by = inverse(self.rows[pivots].0[column]);
            let (left, right) = &mut self.rows[pivots];
            left.iter_mut()
                .chain(right)
                .for_each(|value| *value = times(*value, by));
            let (left, right) = self.rows[pivots];
            for (index, row) in self.rows.iter_mut().enumerate() {
                let factor = row.0[column];
                if index != pivots && factor > 0 {
                    let add = |(to, from): (&mut u8, u8)| *to ^= times(factor, from);
                    row.0.iter_mut().zip(left).for_each(add);
                    row.1.iter_mut().zip(right).for_each(add);
                }
            }
            pivots += 1;
        }
        let solved = self.rows[..pivots].iter().filter_map(|(left, right)| {
            let mut columns = (0..self.unknowns).filter(|column| left[*column] > 0);
            let column = columns.next().filter(|_| columns.next().is_none())?;
            Some((self.unknown[column], *right))
        });
        let (seq, factors) = solved.min_by_key(|(seq, _)| *seq)?;
        let redundant = factors.iter().position(|factor| *factor > 0)?;
        Some(Solution {
            seq,
            factors,
            redundant,
        })
    }
}
