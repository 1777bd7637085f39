//! CoDel (RFC 8289): drops at the head of the queue once packets have waited more than
//! [`TARGET`] for longer than [`INTERVAL`], at a rate that grows with the square root of the
//! number of drops.

use std::time::Duration;

use crate::Time;
use crate::queue::{Fifo, Held};

/// Acceptable standing queue (RFC 8289 §4.4).
pub const TARGET: Duration = Duration::from_millis(5);

/// About a worst-case round trip (RFC 8289 §4.3).
pub const INTERVAL: Duration = Duration::from_millis(100);

/// A queue of one full frame is never too long (RFC 8289 §5.6: `maxpacket`).
const FULL_FRAME: u64 = 1514;

/// State of the controller; names as in RFC 8289 §5.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Codel {
    first_above: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl Codel {
    /// Takes the next packet to send at `now`; what is dropped on the way goes to `dropped`.
    pub fn pop<P>(
        &mut self,
        now: Time,
        queue: &mut Fifo<P>,
        mut dropped: impl FnMut(Held<P>),
    ) -> Option<Held<P>> {
        let (mut head, mut too_long) = self.pop_judged(now, queue);
        if self.dropping {
            if !too_long {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                if let Some(held) = head.take() {
                    dropped(held);
                }
                self.count += 1;
                (head, too_long) = self.pop_judged(now, queue);
                if too_long {
                    self.drop_next = control_law(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if too_long {
            if let Some(held) = head.take() {
                dropped(held);
            }
            head = self.pop_judged(now, queue).0;
            self.enter(now);
        }
        head
    }

    /// Starts to drop; soon after the last time, at the rate that controlled the queue then.
    fn enter(&mut self, now: Time) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.since(self.drop_next) < 16 * INTERVAL;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = control_law(now, self.count);
        self.last_count = self.count;
    }

    /// The next packet, and whether packets have waited too long for too long.
    fn pop_judged<P>(&mut self, now: Time, queue: &mut Fifo<P>) -> (Option<Held<P>>, bool) {
        let Some(held) = queue.pop() else {
            self.first_above = None;
            return (None, false);
        };
        if now.since(held.arrived) < TARGET || queue.bytes() <= FULL_FRAME {
            self.first_above = None;
            return (Some(held), false);
        }
        let due = *self.first_above.get_or_insert(now + INTERVAL);
        (Some(held), now >= due)
    }
}

fn control_law(from: Time, count: u32) -> Time {
    from + INTERVAL.div_f64(f64::from(count.max(1)).sqrt())
}
