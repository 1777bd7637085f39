//! Reused buffers for inner packets, so that a tunnel in its steady state allocates nothing.
//!
//! A packet is shared: the queue, the copies kept for repair and the resequencer hold it without
//! copying. Dropping the last handle does not return the buffer: the [`BufferPool`] keeps a handle
//! of every buffer that it lent, in order, and reuses the first one once nobody else holds it.
//! Packets leave a tunnel in about the order in which they came, so the first is nearly always free
//! if any is.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use braid_core::Time;

/// Most buffers in use that a search for a free one passes over.
const MAX_TRIES: usize = 16;

/// Initial capacity of a buffer: a full packet and its headers.
const BUFFER_CAPACITY: usize = 2048;

/// Shrinking stops at twice this number of buffers.
const MIN_BUFFERS: usize = 2048;

/// Time without any use after which all buffers are freed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time without a shortage after which the pool shrinks.
const SHRINK_AFTER: Duration = Duration::from_secs(10);

/// An inner packet. Clones share its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet(Arc<Vec<u8>>);

impl Deref for Packet {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// For packets that are made rarely: the buffer belongs to no pool.
impl From<Vec<u8>> for Packet {
    fn from(bytes: Vec<u8>) -> Self {
        Packet(Arc::new(bytes))
    }
}

/// A buffer that nobody else holds.
#[derive(Debug)]
pub struct Buffer(Arc<Vec<u8>>);

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        Arc::get_mut(&mut self.0).expect("a buffer has one owner")
    }
}

/// Buffers that were lent.
#[derive(Debug, Default)]
pub struct BufferPool {
    lent: VecDeque<Arc<Vec<u8>>>,
    used: Time,
    /// Time of the last shortage.
    grown: Time,
}

impl BufferPool {
    /// An empty buffer.
    pub fn take(&mut self, now: Time) -> Buffer {
        self.used = now;
        let tries = MAX_TRIES.min(self.lent.len());
        for index in 0..tries {
            if is_free(&self.lent[index])
                && let Some(mut buffer) = self.lent.remove(index).map(Buffer)
            {
                buffer.clear();
                self.shrink();
                return buffer;
            }
        }
        // Buffers that stay in use for long move out of the way. As with any growing list, the pool
        // grows in proportion to its size.
        self.lent.rotate_left(tries);
        self.grown = now;
        for _ in 0..self.lent.len() / 8 {
            self.lent.push_front(fresh());
        }
        Buffer(fresh())
    }

    /// Same as [`take`](Self::take), at the time of the last call.
    pub fn take_again(&mut self) -> Buffer {
        self.take(self.used)
    }

    /// Makes a packet of a buffer, which is reused once the packet is dropped.
    pub fn lend(&mut self, buffer: Buffer) -> Packet {
        self.lent.push_back(Arc::clone(&buffer.0));
        Packet(buffer.0)
    }

    /// A packet of these bytes.
    pub fn packet(&mut self, now: Time, bytes: &[u8]) -> Packet {
        let mut buffer = self.take(now);
        buffer.extend_from_slice(bytes);
        self.lend(buffer)
    }

    /// Puts back a buffer of which no packet was made.
    pub fn return_buffer(&mut self, buffer: Buffer) {
        self.lent.push_front(buffer.0);
    }

    /// Frees one buffer if about half of all have been free for long, so that a burst's memory is
    /// returned over time.
    fn shrink(&mut self) {
        let middle = self.lent.len() / 2;
        let settled = self.used.since(self.grown) >= SHRINK_AFTER;
        if settled
            && middle > MIN_BUFFERS
            && self.lent.range(middle..middle + MAX_TRIES).all(is_free)
        {
            self.lent.pop_front();
        }
    }

    /// Frees memory that has not been used lately. Early and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        if now.since(self.used) >= IDLE_TIMEOUT {
            self.lent.clear();
        }
    }

    /// Buffers that are lent or kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// Returns true if no buffer is lent or kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }
}

fn fresh() -> Arc<Vec<u8>> {
    Arc::new(Vec::with_capacity(BUFFER_CAPACITY))
}

/// Returns true if nobody but the pool holds the buffer. New handles are only cloned from handles,
/// so none can appear meanwhile.
fn is_free(buffer: &Arc<Vec<u8>>) -> bool {
    Arc::strong_count(buffer) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    #[test]
    fn a_buffer_is_used_again_once_its_packet_is_dropped_and_not_before() {
        let mut pool = BufferPool::default();
        let first = pool.packet(NOW, b"first");
        let copy = first.clone();
        let second = pool.packet(NOW, b"second");
        assert_eq!(pool.len(), 2);
        drop(first);
        let third = pool.packet(NOW, b"third");
        assert_eq!(pool.len(), 3, "a copy of the first is still held");
        assert_eq!(
            (&*copy, &*second, &*third),
            (&b"first"[..], &b"second"[..], &b"third"[..])
        );
        drop(copy);
        let fourth = pool.packet(NOW, b"fourth");
        assert_eq!((&*fourth, pool.len()), (&b"fourth"[..], 3));
    }

    #[test]
    fn buffers_that_nobody_needs_go_back() {
        let mut pool = BufferPool::default();
        let packets: Vec<Packet> = (0..3 * MIN_BUFFERS)
            .map(|_| pool.packet(NOW, b"x"))
            .collect();
        drop(packets);
        let most = pool.len();
        for _ in 0..2 * most {
            drop(pool.packet(NOW, b"x"));
        }
        assert_eq!(pool.len(), most, "they may be wanted again soon");
        let later = NOW + SHRINK_AFTER;
        for _ in 0..2 * most {
            drop(pool.packet(later, b"x"));
        }
        assert!(pool.len() <= 2 * MIN_BUFFERS + 2, "{}", pool.len());
        pool.handle_timeout(later + IDLE_TIMEOUT);
        assert!(pool.is_empty());
    }
}
