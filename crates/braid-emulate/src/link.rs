//! One direction of a link: packets and time in, fates out.

use std::collections::VecDeque;

use crate::Time;
use crate::codel;
use crate::config::{Aqm, Config};
use crate::delay::DelayLine;
use crate::loss::{Loss, LossOutcome};
use crate::queue::{Fifo, QueuedPacket};
use crate::rate::Wire;
use crate::rng::Rng;
use crate::stats::{Count, Stats};

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It arrives at the other side.
    Delivered,
    /// The queue was full when it arrived.
    QueueFull,
    /// CoDel dropped it at the head of the queue.
    Codel,
    /// Lost on the wire by [`Config::loss`].
    LostRandom,
    /// Lost on the wire by [`Config::burst`].
    LostBurst,
    /// Black hole: it would have arrived while the black hole was on.
    BlackHole,
}

impl Fate {
    /// Returns the name used in the decision log and in statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fate::Delivered => "delivered",
            Fate::QueueFull => "queue_full",
            Fate::Codel => "codel",
            Fate::LostRandom => "lost_random",
            Fate::LostBurst => "lost_burst",
            Fate::BlackHole => "black_hole",
        }
    }
}

/// A packet that leaves the link, delivered or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output<P> {
    /// The packet, for delivery or for recycling.
    pub packet: P,
    /// Its sequence number in this direction, from 0 in order of arrival.
    pub number: u64,
    /// Bytes of the frame.
    pub len: u32,
    /// Its fate.
    pub fate: Fate,
    /// Time of arrival.
    pub arrived: Time,
    /// Time when the wire began to send it; if it never did, time of the drop.
    pub started: Time,
    /// Time when it was due at the other side, or was dropped.
    pub due: Time,
}

/// One direction of an emulated link over packets of type `P`, which it only passes through.
///
/// Give it packets with [`handle_packet`](Self::handle_packet) and call
/// [`poll_output`](Self::poll_output) until it returns nothing, at the latest at the time of
/// [`poll_timeout`](Self::poll_timeout). Times must not go backwards. Everything inside happens at
/// its exact virtual time, however late the calls are: a slow driver delays packets but changes no
/// decision. Only configuration changes take effect at the time of their call.
#[derive(Debug)]
pub struct Link<P> {
    config: Config,
    rng: Rng,
    loss: Loss,
    codel: braid_core::aqm::Codel,
    queue: Fifo<P>,
    wire: Wire<QueuedPacket<P>>,
    line: DelayLine<P>,
    dropped: VecDeque<Output<P>>,
    black_hole: bool,
    stats: Stats,
}

impl<P> Link<P> {
    /// Returns an idle link. The same seed and input give the same fates.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Link<P> {
        Link {
            rng: Rng::new(seed),
            loss: Loss::default(),
            codel: codel::controller(),
            queue: Fifo::new(config.queue, config.speed.mean()),
            wire: Wire::new(config.speed.clone()),
            line: DelayLine::new(),
            dropped: VecDeque::new(),
            black_hole: false,
            stats: Stats::default(),
            config,
        }
    }

    /// Takes a packet of `len` bytes that arrives now.
    pub fn handle_packet(&mut self, now: Time, len: u32, packet: P) {
        self.advance(now);
        let number = self.stats.arrived.packets;
        self.stats.arrived.add(len);
        self.stats.held.add(len);
        let held = QueuedPacket {
            packet,
            number,
            len,
            arrived: now,
            started: now,
        };
        if !self.wire.is_busy() && self.queue.len() == 0 {
            self.wire.send(held, len, now);
        } else if let Err(held) = self.queue.push(held) {
            self.dropped.push_back(output(held, Fate::QueueFull, now));
        }
    }

    /// Returns the next packet that has left the link by now, delivered or lost; `None` if there is
    /// none yet.
    pub fn poll_output(&mut self, now: Time) -> Option<Output<P>> {
        self.advance(now);
        let output = match self.dropped.pop_front() {
            Some(output) => output,
            None => {
                let (due, held) = self.line.pop(now)?;
                let fate = if self.black_hole {
                    Fate::BlackHole
                } else {
                    Fate::Delivered
                };
                output(held, fate, due)
            }
        };
        self.stats.fate(output.fate, output.len);
        Some(output)
    }

    /// Returns when to poll again; `None` if nothing happens before the next packet or change. The
    /// time may be slightly early, never late.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if let Some(output) = self.dropped.front() {
            return Some(output.due);
        }
        let sending = self
            .wire
            .done_at()
            .map(|done| done + self.config.delay.shortest());
        self.line.next().into_iter().chain(sending).min()
    }

    /// Changes the configuration. Queued packets keep their place, packets in flight keep their
    /// time.
    pub fn configure(&mut self, now: Time, config: Config) {
        self.advance(now);
        if !config.speed.goes_on_as(&self.config.speed) {
            self.wire.set_speed(now, config.speed.clone());
        }
        if config.aqm != self.config.aqm {
            self.codel = codel::controller();
        }
        self.queue.set_limit(config.queue, config.speed.mean());
        self.config = config;
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Switches the black hole: while it is on, every packet that would leave is lost. The link
    /// otherwise works as before, as when a distant router dies.
    pub fn set_black_hole(&mut self, on: bool) {
        self.black_hole = on;
    }

    /// Returns true while the black hole is on.
    #[must_use]
    pub fn black_hole(&self) -> bool {
        self.black_hole
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let queued = Count {
            packets: self.queue.len() as u64,
            bytes: self.queue.bytes(),
        };
        Stats {
            queued,
            ..self.stats
        }
    }

    /// Processes all events on queue and wire that are due by `now`, in virtual time.
    fn advance(&mut self, now: Time) {
        loop {
            if self.wire.is_busy() {
                let Some((held, done)) = self.wire.take(now) else {
                    return;
                };
                self.leave_wire(held, done);
            }
            let Some(arrived) = self.queue.head_arrived() else {
                return;
            };
            let start = self.wire.start_time(arrived);
            let Some(mut held) = self.dequeue(start) else {
                return;
            };
            held.started = start;
            let len = held.len;
            self.wire.send(held, len, start);
        }
    }

    fn dequeue(&mut self, now: Time) -> Option<QueuedPacket<P>> {
        match self.config.aqm {
            Aqm::DropTail => self.queue.pop(),
            Aqm::Codel => {
                let dropped = &mut self.dropped;
                self.codel.pop(now, &mut self.queue, |mut held| {
                    held.started = now;
                    dropped.push_back(output(held, Fate::Codel, now));
                    None
                })
            }
        }
    }

    fn leave_wire(&mut self, held: QueuedPacket<P>, at: Time) {
        let fate = match self
            .loss
            .next(&mut self.rng, self.config.loss, self.config.burst)
        {
            LossOutcome::Arrives => {
                return self.line.push(at, &self.config.delay, &mut self.rng, held);
            }
            LossOutcome::LostRandom => Fate::LostRandom,
            LossOutcome::LostBurst => Fate::LostBurst,
        };
        self.dropped.push_back(output(held, fate, at));
    }
}

fn output<P>(held: QueuedPacket<P>, fate: Fate, due: Time) -> Output<P> {
    let QueuedPacket {
        packet,
        number,
        len,
        arrived,
        started,
    } = held;
    Output {
        packet,
        number,
        len,
        fate,
        arrived,
        started,
        due,
    }
}
