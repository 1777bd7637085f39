//! CoDel (RFC 8289): drops at the head of the queue once packets have waited more than a target for
//! longer than an interval, at a rate that grows with the square root of the number of drops.

use std::time::Duration;

use crate::Time;

/// A queue of one full frame is never too long (RFC 8289 §5.6: `maxpacket`).
pub(super) const MAX_PACKET_BYTES: u64 = 1514;

/// A queue that CoDel can take packets from.
pub trait CodelQueue {
    /// A packet.
    type Packet;

    /// Takes the first packet, if there is one.
    fn pop(&mut self) -> Option<Self::Packet>;

    /// Returns when a packet entered the queue.
    fn arrived(packet: &Self::Packet) -> Time;

    /// Returns the bytes still in the queue.
    fn bytes(&self) -> u64;

    /// Returns the length, in bytes, up to which a queue is never too long.
    fn spared(&self) -> u64 {
        MAX_PACKET_BYTES
    }
}

/// State of the controller; names as in RFC 8289 §5.
#[derive(Debug, Clone, Copy)]
pub struct Codel {
    target: Duration,
    interval: Duration,
    spacing: u32,
    first_above: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl Codel {
    /// Returns a controller that drops nothing yet. `target` is the acceptable standing queue (5 ms
    /// in RFC 8289 §4.4), `interval` about a worst-case round trip (100 ms, §4.3).
    #[must_use]
    pub const fn new(target: Duration, interval: Duration) -> Codel {
        Codel {
            target,
            interval,
            spacing: 0,
            first_above: None,
            drop_next: Time::ZERO,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// Keeps drops apart by at least `times` what the dropped packet had waited. A sender reduces its window once in a round trip,
    /// of which this queue is a part, and what it sends again waits behind all of the queue. Drops that follow sooner only leave
    /// more holes in what arrives.
    pub fn set_spacing(&mut self, times: u32) {
        self.spacing = times;
    }

    /// Changes the target and the interval.
    pub fn set_target(&mut self, target: Duration, interval: Duration) {
        (self.target, self.interval) = (target, interval);
    }

    /// Takes the next packet to send at `now`. A packet to be dropped goes to `congested`; if that
    /// returns it, it was marked instead and is sent (RFC 8289 §3: "drop or mark").
    pub fn pop<S: CodelQueue>(
        &mut self,
        now: Time,
        queue: &mut S,
        mut congested: impl FnMut(S::Packet) -> Option<S::Packet>,
    ) -> Option<S::Packet> {
        let (mut head, mut too_long) = self.pop_checked(now, queue);
        if self.dropping {
            if !too_long {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                let waited = waited::<S>(now, head.as_ref());
                if let Some(marked) = head.take().and_then(&mut congested) {
                    self.drop_next = self.control_law(self.drop_next, waited);
                    return Some(marked);
                }
                (head, too_long) = self.pop_checked(now, queue);
                if too_long {
                    self.drop_next = self.control_law(self.drop_next, waited);
                } else {
                    self.dropping = false;
                }
            }
        } else if too_long {
            let waited = waited::<S>(now, head.as_ref());
            let marked = head.take().and_then(&mut congested);
            head = marked.or_else(|| self.pop_checked(now, queue).0);
            self.enter(now, waited);
        }
        head
    }

    /// Begins to drop. Soon after the last time, it continues at the rate that controlled the queue
    /// then.
    fn enter(&mut self, now: Time, waited: Duration) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.since(self.drop_next) < 16 * self.interval;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.control_law(now, waited);
        self.last_count = self.count;
    }

    /// Takes the next packet; true if packets have been above the target for an interval.
    fn pop_checked<S: CodelQueue>(
        &mut self,
        now: Time,
        queue: &mut S,
    ) -> (Option<S::Packet>, bool) {
        let Some(packet) = queue.pop() else {
            self.first_above = None;
            return (None, false);
        };
        if now.since(S::arrived(&packet)) < self.target || queue.bytes() <= queue.spared() {
            self.first_above = None;
            return (Some(packet), false);
        }
        let due = *self.first_above.get_or_insert(now + self.interval);
        (Some(packet), now >= due)
    }

    fn control_law(&self, from: Time, waited: Duration) -> Time {
        let interval = self.interval.div_f64(f64::from(self.count.max(1)).sqrt());
        from + interval.max(waited * self.spacing)
    }
}

fn waited<S: CodelQueue>(now: Time, packet: Option<&S::Packet>) -> Duration {
    packet.map_or(Duration::ZERO, |packet| now.since(S::arrived(packet)))
}
