//! End of a connection (RFC 9113, section 6.8).

use super::ClientConnection;
use crate::frame::{ErrorCode, PING, put_frame, put_goaway};

/// Number in the first GOAWAY frame, which refuses no stream yet.
const LAST_STREAM: u32 = 0x7fff_ffff;

/// Payload of the PING frame behind the first GOAWAY frame. Its answer shows that the client has
/// received that frame.
const PING_OF_END: &[u8; 8] = b"goaway 1";

/// Progress of the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// The client has left in order: it opens no further streams.
    Left,
    /// The first GOAWAY frame was sent. Streams that are on their way are accepted.
    Announced,
    /// The last GOAWAY frame was sent. No further streams are accepted.
    Refusing,
    Over,
}

impl ClientConnection {
    /// Announces the end of the connection. The client opens no further streams once it knows.
    /// Returns whether this call was the first.
    pub fn announce_end(&mut self) -> bool {
        let is_first = matches!(self.end, End::Open | End::Left);
        if is_first {
            self.end = End::Announced;
            put_goaway(LAST_STREAM, ErrorCode::NO_ERROR, &mut self.out);
            put_frame(PING, 0, 0, PING_OF_END, &mut self.out);
        }
        is_first
    }

    /// Accepts no further streams after the announced end. Call it if the client does not answer the
    /// announcement in time.
    pub fn refuse_streams(&mut self) {
        if self.end == End::Announced {
            self.end = End::Refusing;
            put_goaway(self.last_accepted, ErrorCode::NO_ERROR, &mut self.out);
        }
    }

    /// Ends the connection immediately with this reason, and all of its streams.
    pub fn fail(&mut self, reason: ErrorCode) {
        if self.end != End::Over {
            put_goaway(self.last_accepted, reason, &mut self.out);
            self.close_all();
        }
    }

    /// Ends all streams, because the client's connection is closed.
    pub fn close_all(&mut self) {
        self.end = End::Over;
        self.queue.clear();
        self.waiting.clear();
        self.streams.end_all();
    }

    /// Whether the connection is over once all bytes are sent: it has failed, or has ended in order
    /// and has no streams.
    pub fn is_over(&self) -> bool {
        match self.end {
            End::Open | End::Announced => false,
            End::Left | End::Refusing => self.streams.is_empty(),
            End::Over => true,
        }
    }

    /// Whether the last GOAWAY frame was sent, so that further streams are ignored.
    pub(super) fn is_refusing(&self) -> bool {
        self.end == End::Refusing
    }

    /// Notes an answer to a PING frame.
    pub(super) fn note_pong(&mut self, payload: &[u8]) {
        if payload == PING_OF_END {
            self.refuse_streams();
        }
    }

    /// Notes that the client has sent a GOAWAY frame.
    pub(super) fn note_goaway(&mut self) {
        if self.end == End::Open {
            self.end = End::Left;
        }
    }
}
