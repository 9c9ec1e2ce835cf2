//! Queue of the streams that wait for room on the connection.

use super::{ClientConnection, MAX_UNSENT};
use crate::stream::StreamKey;

/// Smallest part of a body for which a stream waits, so that it does not send many short frames
/// while the socket is full.
pub(super) const MIN_ROOM: usize = 4 * 1024;

impl ClientConnection {
    /// Wakes streams that wait for room on the connection: those that have waited longest, and not
    /// more than find room. Call it after each change that makes room.
    pub(super) fn wake_queue(&mut self) {
        let taken = self.unsent().len() + self.reserved;
        if taken == 0 {
            // Nothing will be sent, after which others could be called. So those that were called and
            // have not asked do not count.
            self.called = 0;
        }
        let window = usize::try_from(self.send_window - self.reserved as i64).unwrap_or(0);
        let parts = MAX_UNSENT.saturating_sub(taken) / MIN_ROOM;
        let most = parts.min(window.div_ceil(MIN_ROOM));
        while self.called < most
            && let Some(key) = self.queue.pop_front()
        {
            if let Some(stream) = self.streams.get(key) {
                (stream.is_queued, stream.is_called) = (false, true);
                self.called += 1;
                stream.wake();
            }
        }
    }

    /// Notes that a stream asks for room, or does not need any. Returns whether it was called, so
    /// that the caller has to call others if it takes no room.
    pub(super) fn end_call(&mut self, key: StreamKey) -> bool {
        let was_called = self.streams.get(key).is_some_and(|stream| std::mem::take(&mut stream.is_called));
        self.called = self.called.saturating_sub(usize::from(was_called));
        was_called
    }

    /// Removes a stream from the queue.
    pub(super) fn leave_queue(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key)
            && std::mem::take(&mut stream.is_queued)
        {
            self.queue.retain(|queued| *queued != key);
        }
    }
}
