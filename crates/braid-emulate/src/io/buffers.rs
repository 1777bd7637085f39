//! A pool of packet buffers.

/// Buffers for reuse. In a steady state no packet costs an allocation.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Vec<u8>>);

/// Buffers kept after a burst: enough for 100 ms at 1 Gbit/s in full frames.
const MAX_POOLED_BUFFERS: usize = 8192;

impl Pool {
    /// Returns a buffer with a copy of `frame`.
    pub fn fill(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(frame);
        buffer
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.0.len() < MAX_POOLED_BUFFERS {
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_with_nothing_left_of_the_last_packet() {
        let mut pool = Pool::default();
        let first = pool.fill(&[1; 1500]);
        let place = first.as_ptr();
        pool.recycle(first);
        let second = pool.fill(&[2; 60]);
        assert_eq!((second.as_ptr(), &second[..]), (place, &[2; 60][..]));
    }
}
