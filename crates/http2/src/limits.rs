//! Limits of a connection.

use std::time::Duration;

use convey_http_core::HeadLimits;

/// Number of bytes by which the limit for the fields of a request, as HPACK counts them, exceeds the
/// limit for its head. HPACK counts 32 bytes more for each field, and convey replies to a head that
/// is too long.
pub(crate) const HEAD_ROOM: usize = 64 * 1024;

/// Period of [`EmptyFrames`].
const PERIOD: Duration = Duration::from_secs(1);

/// Limits of a client's connection.
#[derive(Debug)]
pub struct ConnectionLimits {
    /// Maximum number of concurrent requests (`SETTINGS_MAX_CONCURRENT_STREAMS`).
    pub streams: u32,
    /// Receive window of a stream in bytes: the maximum part of a request that no server has
    /// accepted yet.
    pub stream_window: u32,
    /// Receive window of the connection in bytes, at least 65,535.
    pub connection_window: u32,
    /// Limits of the head of a request.
    pub head: HeadLimits,
    /// Maximum number of streams that convey resets because of the client's faults. The connection
    /// ends at the next one.
    pub faults: usize,
    /// Maximum number of reset streams whose late frames are ignored. A late frame of any other
    /// stream is a fault.
    pub remembered_resets: usize,
    /// Limit of empty DATA frames.
    pub empty_frames: EmptyFrames,
    /// Returns a random `Sec-WebSocket-Key` for the server of a tunnel.
    pub websocket_key: fn() -> String,
    /// Returns an empty buffer for bytes that are about to be sent.
    pub new_buffer: fn() -> Vec<u8>,
}

/// Upper bound for the empty DATA frames per second, which have no effect. At the next one, the
/// connection ends.
#[derive(Debug)]
pub struct EmptyFrames {
    most: u32,
    seen: u32,
    /// Start of the current period, since the connection began.
    since: Duration,
}

impl EmptyFrames {
    /// Limit for connections of one client.
    pub const OF_CLIENT: EmptyFrames = EmptyFrames::per_second(1_000);

    /// Limit for connections that streams of many clients share.
    pub const SHARED: EmptyFrames = EmptyFrames::per_second(100_000);

    const fn per_second(most: u32) -> EmptyFrames {
        EmptyFrames { most, seen: 0, since: Duration::ZERO }
    }

    /// Counts a frame at this time since the connection began. Returns whether it is within the
    /// limit.
    pub(crate) fn count(&mut self, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= PERIOD {
            (self.since, self.seen) = (now, 0);
        }
        self.seen = self.seen.saturating_add(1);
        self.seen <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_frames_are_limited_by_the_second() {
        let (mut frames, mut now) = (EmptyFrames::OF_CLIENT, Duration::ZERO);
        for _ in 0..3 {
            assert_eq!((0..1_500).filter(|_| frames.count(now)).count(), 1_000);
            assert!(!frames.count(now + PERIOD / 2));
            now += PERIOD;
        }
    }
}
