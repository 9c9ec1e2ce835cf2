//! Buffers to be filled again.

use super::Buffer;
use super::buffer::ORDINARY;

/// Most that are kept of each size: a few batches of ordinary frames (2 MiB), and of super-frames (4 MiB).
const MOST_ORDINARY: usize = 1_024;
const MOST_LARGE: usize = 64;

/// Buffers in two sizes: what has grown for a super-frame is not given to an ordinary one, or in time all would be large.
#[derive(Debug, Default)]
pub struct Spares {
    ordinary: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl Spares {
    /// Keeps a buffer, unless there are enough of its size.
    pub fn put(&mut self, buffer: Buffer) {
        let (kept, most) = match buffer.capacity() > ORDINARY {
            true => (&mut self.large, MOST_LARGE),
            false => (&mut self.ordinary, MOST_ORDINARY),
        };
        if kept.len() < most {
            kept.push(buffer);
        }
    }

    /// Whether more are wanted.
    pub(super) fn is_short(&self) -> bool {
        self.ordinary.len() < MOST_ORDINARY / 4 || self.large.len() < MOST_LARGE / 4
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

    fn filled(spares: &mut Spares, len: usize) -> Buffer {
        let mut buffer = spares.take(len);
        buffer.fill(&vec![0; len]);
        buffer
    }

    #[test]
    fn what_grew_for_a_super_frame_is_not_kept_by_frames_of_60_bytes() {
        let mut spares = Spares::default();
        let super_frames: Vec<Buffer> = (0..10_000).map(|_| filled(&mut spares, 60_000)).collect();
        super_frames.into_iter().for_each(|buffer| spares.put(buffer));
        for _ in 0..3 {
            let frames: Vec<Buffer> = (0..2_000).map(|_| filled(&mut spares, 70)).collect();
            assert!(frames.iter().map(Buffer::capacity).sum::<usize>() <= 2_000 * ORDINARY);
            frames.into_iter().for_each(|buffer| spares.put(buffer));
        }
        let kept = spares.ordinary.iter().chain(&spares.large).map(Buffer::capacity).sum::<usize>();
        assert!(kept <= 6 << 20, "{kept} bytes");
        let of = filled(&mut spares, 60_000).capacity();
        assert_eq!((of, spares.large.len()), (60_000, MOST_LARGE - 1), "they are used again");
    }
}
