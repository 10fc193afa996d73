//! Untagged receive buffers of one worker: a bounded number of octets for messages that are still
//! being put together. They are taken when a message's first octet arrives, not when they are posted.
//!
//! No octet of one message is ever seen in another: a buffer is empty when it is taken and what is
//! skipped is filled with zeros.

/// Most buffers kept for reuse.
const MAX_SPARE: usize = 64;
/// Longest buffer kept for reuse, in octets.
const MAX_SPARE_LEN: usize = 64 * 1024;

/// The pool of one worker.
#[derive(Debug)]
pub struct BufferPool {
    capacity: u64,
    in_use: u64,
    high_water: u64,
    spare: Vec<Vec<u8>>,
}

impl BufferPool {
    /// A pool of at most `capacity` octets in unfinished messages. It should be at least twice the
    /// longest buffer of any queue; with less than one such buffer no message of several segments ever
    /// gets through.
    pub fn new(capacity: u64) -> Self {
        BufferPool { capacity, in_use: 0, high_water: 0, spare: Vec::new() }
    }

    /// Octets that unfinished messages may take.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Octets that unfinished messages have taken, whole buffers counted.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Most octets ever in use.
    pub fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Gives back the octets of a delivered message, to be cleared and used again.
    pub fn recycle(&mut self, mut data: Vec<u8>) {
        if self.spare.len() < MAX_SPARE && data.capacity() <= MAX_SPARE_LEN && data.capacity() > 0 {
            data.clear();
            self.spare.push(data);
        }
    }

    /// Takes `size` octets out of the bound, or refuses. Messages beyond a gap get half of it only, so
    /// that they cannot keep out the one that closes the gap, without which they never end.
    pub(crate) fn reserve(&mut self, size: u32, in_order: bool) -> bool {
        let in_use = self.in_use + u64::from(size);
        let limit = if in_order { self.capacity } else { self.capacity / 2 };
        if in_use > limit {
            return false;
        }
        self.in_use = in_use;
        self.high_water = self.high_water.max(in_use);
        true
    }

    /// Gives back what [`reserve`](Self::reserve) took.
    pub(crate) fn release(&mut self, size: u32) {
        self.in_use = self.in_use.saturating_sub(u64::from(size));
    }

    /// An empty vector, used before or new.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_counted() {
        let mut pool = BufferPool::new(100);
        assert!(!pool.reserve(51, false));
        assert!(pool.reserve(50, false));
        assert!(!pool.reserve(1, false));
        assert!(!pool.reserve(51, true));
        assert!(pool.reserve(50, true));
        assert_eq!((pool.in_use(), pool.high_water(), pool.capacity()), (100, 100, 100));
        pool.release(60);
        assert_eq!((pool.in_use(), pool.high_water()), (40, 100));
    }

    #[test]
    fn a_recycled_buffer_is_empty() {
        let mut pool = BufferPool::new(0);
        pool.recycle(vec![7; 100]);
        let data = pool.take();
        assert!(data.is_empty() && data.capacity() >= 100);
        assert_eq!(pool.take().capacity(), 0);
    }

    #[test]
    fn spare_buffers_are_bounded() {
        let mut pool = BufferPool::new(0);
        for _ in 0..2 * MAX_SPARE {
            pool.recycle(vec![0; 10]);
        }
        pool.recycle(vec![0; MAX_SPARE_LEN + 1]);
        assert_eq!(pool.spare.len(), MAX_SPARE);
    }
}
