//! Padding of dropped DATA frames. The padding uses flow control windows of the sender (RFC 9113,
//! section 6.9), and the library does not release them.

use std::collections::BTreeMap;
use std::mem;

use super::{FRAME_HEAD, FrameHead, WINDOW_UPDATE};

/// Threshold in bytes: from this much padding on, convey sends WINDOW_UPDATE frames for it. The
/// threshold is a quarter of the smallest window.
const MUCH: u32 = 16 * 1024;

/// Maximum number of streams with padding that is not released yet.
const MAX_STREAMS: usize = 256;

/// Largest increment of a window, in bytes.
const MAX_INCREMENT: u32 = (1 << 31) - 1;

/// Bytes of dropped frames for which the sender still needs WINDOW_UPDATE frames.
#[derive(Debug, Default)]
pub(super) struct DroppedPadding {
    connection: u32,
    /// Bytes by stream. Their sum is `connection` at most.
    streams: BTreeMap<u32, u32>,
}

impl DroppedPadding {
    /// Counts the payload of a frame. Returns whether the filter may drop the frame.
    pub(super) fn add(&mut self, stream: u32, len: u32) -> bool {
        let has_room = self.streams.len() < MAX_STREAMS || self.streams.contains_key(&stream);
        let has_room = has_room && self.connection + len <= MAX_INCREMENT;
        if has_room {
            self.connection += len;
            *self.streams.entry(stream).or_default() += len;
        }
        has_room
    }

    /// Notes that the sender has ended a stream, so that it needs no window for the stream.
    pub(super) fn end(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }

    /// Appends the WINDOW_UPDATE frames that are due.
    pub(super) fn put_updates(&mut self, out: &mut Vec<u8>) {
        if self.connection < MUCH && self.streams.len() < MAX_STREAMS {
            return;
        }
        let connection = (0, mem::take(&mut self.connection));
        for (stream, increment) in [connection].into_iter().chain(mem::take(&mut self.streams)) {
            let increment = increment.to_be_bytes();
            FrameHead { len: increment.len(), kind: WINDOW_UPDATE, flags: 0, stream }.write(out);
            out.extend_from_slice(&increment);
        }
    }
}

/// Whether a padded DATA frame contains only padding; `None` if more bytes are needed.
pub(super) fn is_padding(head: &FrameHead, bytes: &[u8]) -> Option<bool> {
    let most = usize::from(u8::MAX) + 1;
    if !(1..=most).contains(&head.len) {
        return Some(false);
    }
    let is_padding = usize::from(*bytes.get(FRAME_HEAD)?) + 1 == head.len;
    (!is_padding || bytes.len() >= FRAME_HEAD + head.len).then_some(is_padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stream: u8, increment: u32) -> Vec<u8> {
        [&[0, 0, 4, 8, 0, 0, 0, 0, stream][..], &increment.to_be_bytes()].concat()
    }

    fn updates(padding: &mut DroppedPadding) -> Vec<u8> {
        let mut out = Vec::new();
        padding.put_updates(&mut out);
        out
    }

    #[test]
    fn padding_is_released_as_often_as_it_was_dropped() {
        let mut padding = DroppedPadding::default();
        for _ in 0..3 {
            for n in 0..64 {
                assert!(updates(&mut padding).is_empty());
                assert!(padding.add([1, 3, 5, 7][n % 4], 256));
            }
            padding.end(5);
            padding.end(9);
            let expected = [update(0, 16_384), update(1, 4_096), update(3, 4_096), update(7, 4_096)].concat();
            assert_eq!(updates(&mut padding), expected);
            assert!(updates(&mut padding).is_empty());
        }
    }

    #[test]
    fn padding_that_waits_for_its_release_is_bounded() {
        let mut padding = DroppedPadding::default();
        let streams = MAX_STREAMS as u32;
        assert!((0..streams).all(|n| padding.add(2 * n + 1, 1)));
        assert!(!padding.add(2 * streams + 1, 1));
        assert!(padding.add(1, MAX_INCREMENT - streams));
        assert!(!padding.add(1, 1));
        let released = updates(&mut padding);
        assert_eq!(released.len(), (MAX_STREAMS + 1) * 13);
        assert!(
            released
                .starts_with(&[update(0, MAX_INCREMENT), update(1, MAX_INCREMENT - streams + 1)].concat())
        );
        assert!(padding.add(1, 256));
        // Padding of many streams is released even if it is short.
        assert!((0..streams).all(|n| padding.add(2 * n + 1, 1)));
        assert!(updates(&mut padding).starts_with(&update(0, 256 + streams)));
    }
}
