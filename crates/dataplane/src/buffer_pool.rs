//! Buffers to be filled again.

use super::Buffer;
use super::buffer::ORDINARY;

/// Most that are kept of each size: a few batches of ordinary frames (2 MiB), and of super-frames (4 MiB).
const MAX_ORDINARY: usize = 1_024;
const MAX_LARGE: usize = 64;

/// Buffers in two sizes: what has grown for a super-frame is not given to an ordinary one, or in time all would be large.
#[derive(Debug, Default)]
pub struct BufferPool {
    ordinary: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl BufferPool {
    /// Keeps a buffer, unless there are enough of its size.
    pub fn put(&mut self, buffer: Buffer) {
        let (kept, most) = match buffer.capacity() > ORDINARY {
            true => (&mut self.large, MAX_LARGE),
            false => (&mut self.ordinary, MAX_ORDINARY),
        };
        if kept.len() < most {
            kept.push(buffer);
        }
    }

    /// Whether more are wanted.
    pub(super) fn is_short(&self) -> bool {
        self.ordinary.len() < MAX_ORDINARY / 4 || self.large.len() < MAX_LARGE / 4
    }

    /// One for so many bytes; a new one if there is none.
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
    fn what_grew_for_a_super_frame_is_not_kept_by_frames_of_60_bytes() {
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
