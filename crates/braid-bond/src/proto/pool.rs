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

/// Most memory of the packets of one direction of a tunnel: twice what a full resequencer and a tenth
/// of a second of 1 Gbit/s need. Without it a peer that lets packets of 64 kB wait had 2 GB of them.
pub const MAX_POOL_BYTES: usize = 128 << 20;

/// Least time between two searches for all free buffers of a pool that is full.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// Time without any use after which all buffers that nobody holds are freed.
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
    /// Memory of these.
    bytes: usize,
    /// Time of the last search for all free buffers.
    searched: Time,
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
                self.bytes -= buffer.capacity();
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
            self.return_buffer(Buffer(fresh()));
        }
        Buffer(fresh())
    }

    /// Same as [`take`](Self::take), at the time of the last call.
    pub fn take_again(&mut self) -> Buffer {
        self.take(self.used)
    }

    /// Makes a packet of a buffer, which is reused once the packet is dropped.
    pub fn lend(&mut self, buffer: Buffer) -> Packet {
        self.bytes += buffer.capacity();
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
        self.bytes += buffer.capacity();
        self.lent.push_front(buffer.0);
    }

    /// Memory of the buffers that are lent or kept, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if they have less than [`MAX_POOL_BYTES`], if need be once those that nobody
    /// holds are freed.
    pub fn has_room(&mut self, now: Time) -> bool {
        if self.bytes > MAX_POOL_BYTES && now.since(self.searched) >= SEARCH_INTERVAL {
            self.searched = now;
            self.free();
        }
        self.bytes <= MAX_POOL_BYTES
    }

    /// Frees the buffers that nobody holds.
    pub fn free(&mut self) {
        self.lent.retain(|buffer| !is_free(buffer));
        self.bytes = self.lent.iter().map(|buffer| buffer.capacity()).sum();
    }

    /// Forgets all buffers: those in use are freed once their packets are dropped.
    pub fn forget(&mut self) {
        self.lent.clear();
        self.bytes = 0;
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
            self.bytes -= self.lent.pop_front().map_or(0, |buffer| buffer.capacity());
        }
    }

    /// Frees memory that has not been used lately. Early and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        if now.since(self.used) >= IDLE_TIMEOUT {
            self.used = now;
            self.free();
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
    fn memory_is_counted_whatever_becomes_of_buffers() {
        let mut pool = BufferPool::default();
        let counts = |pool: &BufferPool| {
            let each = pool.lent.iter().map(|buffer| buffer.capacity());
            assert_eq!(pool.bytes(), each.sum::<usize>());
            pool.bytes()
        };
        let mut packets: Vec<Packet> = (0..100)
            .map(|number| pool.packet(NOW, &vec![0; number * 100]))
            .collect();
        assert!(counts(&pool) >= 100 * BUFFER_CAPACITY);
        packets.truncate(50);
        let buffer = pool.take(NOW);
        counts(&pool);
        pool.return_buffer(buffer);
        counts(&pool);
        pool.free();
        let held: usize = packets.iter().map(|packet| packet.0.capacity()).sum();
        assert_eq!(counts(&pool), held);
        pool.forget();
        assert_eq!(counts(&pool), 0);
        let large = vec![0; MAX_POOL_BYTES / 16];
        packets = (0..17).map(|_| pool.packet(NOW, &large)).collect();
        let later = NOW + SEARCH_INTERVAL;
        assert!(!pool.has_room(later));
        packets.pop();
        assert!(!pool.has_room(later), "the search is not repeated at once");
        assert!(pool.has_room(later + SEARCH_INTERVAL));
        assert_eq!(packets.len(), 16);
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
