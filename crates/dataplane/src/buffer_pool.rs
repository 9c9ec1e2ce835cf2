//! Pool of reusable buffers.

use super::Buffer;
use super::buffer::ORDINARY;

/// Maximum number of buffers in the pool, by size: a few batches of ordinary frames (2 MiB), and of
/// super-frames (4 MiB).
const MAX_ORDINARY: usize = 1_024;
const MAX_LARGE: usize = 64;

/// Pool of reusable buffers in two sizes. A buffer that has grown for a super-frame is not reused
/// for ordinary frames; otherwise all buffers would become large in time.
#[derive(Debug, Default)]
pub struct BufferPool {
    ordinary: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl BufferPool {
    /// Puts a buffer into the pool, or frees it if the pool has enough buffers of its size.
    pub fn put(&mut self, buffer: Buffer) {
        let (kept, most) = match buffer.capacity() > ORDINARY {
            true => (&mut self.large, MAX_LARGE),
            false => (&mut self.ordinary, MAX_ORDINARY),
        };
        if kept.len() < most {
            kept.push(buffer);
        }
    }

    /// Whether the pool has less than a quarter of its maximum in either size.
    pub(super) fn is_short(&self) -> bool {
        self.ordinary.len() < MAX_ORDINARY / 4 || self.large.len() < MAX_LARGE / 4
    }

    /// Takes a buffer for `len` bytes from the pool, or allocates one.
    pub(super) fn take(&mut self, len: usize) -> Buffer {
        let kept = if len > ORDINARY { &mut self.large } else { &mut self.ordinary };
        kept.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &mut BufferPool, len: usize) -> Buffer {
        let mut buffer = pool.take(len);
        buffer.fill(&vec![0; len]);
        buffer
    }

    #[test]
    fn large_buffers_are_not_reused_for_small_frames() {
        let mut pool = BufferPool::default();
        let super_frames: Vec<Buffer> = (0..10_000).map(|_| filled(&mut pool, 60_000)).collect();
        super_frames.into_iter().for_each(|buffer| pool.put(buffer));
        for _ in 0..3 {
            let frames: Vec<Buffer> = (0..2_000).map(|_| filled(&mut pool, 70)).collect();
            assert!(frames.iter().map(Buffer::capacity).sum::<usize>() <= 2_000 * ORDINARY);
            frames.into_iter().for_each(|buffer| pool.put(buffer));
        }
        let kept = pool.ordinary.iter().chain(&pool.large).map(Buffer::capacity).sum::<usize>();
        assert!(kept <= 6 << 20, "{kept} bytes");
        let of = filled(&mut pool, 60_000).capacity();
        assert_eq!((of, pool.large.len()), (60_000, MAX_LARGE - 1), "they are used again");
    }
}
