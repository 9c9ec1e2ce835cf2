//! Frames of the client.

use std::time::Duration;

use super::{ClientConnection, MAX_WAITING};
use crate::frame::{
    ACK, CONTINUATION, DATA, ErrorCode, FRAME_HEAD, FrameHead, GOAWAY, HEADERS, MAX_FRAME, PING, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, depends_on, number, put_frame, put_reset,
};
use crate::hpack::Scratch;
use crate::stream::StreamFault;
use crate::windows::MAX_WINDOW;

/// Rest of a frame's handling, or the reason for the end of the connection.
pub(super) type Handled = Result<(), ErrorCode>;

impl ClientConnection {
    /// Handles received bytes, without the connection's preface. Returns the number of handled bytes:
    /// the caller calls again with the rest and further bytes, once it has taken all requests. `now`
    /// returns the time since the connection began.
    pub fn receive(&mut self, bytes: &[u8], now: impl Fn() -> Duration, scratch: &mut Scratch) -> usize {
        self.prepare_buffer();
        let mut at = 0;
        while at < bytes.len() && !self.is_over() && self.waiting.len() < MAX_WAITING {
            match self.handle(&bytes[at..], &now, scratch) {
                Ok(0) => break,
                Ok(len) => at += len,
                Err(reason) => self.fail(reason),
            }
        }
        at
    }

    /// Handles the first frame, or a part of a DATA frame. Returns the number of handled bytes; 0 if
    /// more bytes are needed.
    fn handle(
        &mut self,
        bytes: &[u8],
        now: &dyn Fn() -> Duration,
        scratch: &mut Scratch,
    ) -> Result<usize, ErrorCode> {
        if self.data.is_some() {
            return Ok(self.data_part(bytes));
        }
        let Some(head) = FrameHead::read(bytes) else { return Ok(0) };
        if head.len > MAX_FRAME {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        let is_expected = match &self.section {
            Some(section) => head.kind == CONTINUATION && head.stream == section.begin.stream,
            None => head.kind != CONTINUATION,
        };
        if !is_expected {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        if head.kind == DATA {
            return self.begin_data(&head, bytes, now);
        }
        let end = FRAME_HEAD + head.len;
        let Some(payload) = bytes.get(FRAME_HEAD..end) else { return Ok(0) };
        match head.kind {
            HEADERS => self.headers(&head, payload, scratch)?,
            CONTINUATION => self.continuation(&head, payload, scratch)?,
            RST_STREAM => self.rst_stream(&head, payload)?,
            WINDOW_UPDATE => self.window_update(&head, payload)?,
            PRIORITY => self.priority(&head, payload)?,
            PUSH_PROMISE => return Err(ErrorCode::PROTOCOL_ERROR),
            SETTINGS | PING | GOAWAY if head.stream != 0 => return Err(ErrorCode::PROTOCOL_ERROR),
            SETTINGS => self.settings(&head, payload)?,
            PING => self.ping(&head, payload)?,
            GOAWAY if payload.len() < 8 => return Err(ErrorCode::FRAME_SIZE_ERROR),
            GOAWAY => self.note_goaway(),
            // Frames of extensions have no meaning (RFC 9113, section 5.5).
            _ => {}
        }
        Ok(end)
    }

    fn settings(&mut self, head: &FrameHead, payload: &[u8]) -> Handled {
        if head.has(ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(ErrorCode::FRAME_SIZE_ERROR) };
        }
        self.apply_settings(payload)?;
        put_frame(SETTINGS, ACK, 0, &[], &mut self.out);
        Ok(())
    }

    fn ping(&mut self, head: &FrameHead, payload: &[u8]) -> Handled {
        match payload.len() {
            8 if head.has(ACK) => self.note_pong(payload),
            8 => put_frame(PING, ACK, 0, payload, &mut self.out),
            _ => return Err(ErrorCode::FRAME_SIZE_ERROR),
        }
        Ok(())
    }

    fn priority(&mut self, head: &FrameHead, payload: &[u8]) -> Handled {
        if head.stream == 0 {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let fault = match payload.len() {
            5 if depends_on(payload) == Some(head.stream) => ErrorCode::PROTOCOL_ERROR,
            5 => return Ok(()),
            _ => ErrorCode::FRAME_SIZE_ERROR,
        };
        // A stream that has not begun cannot be reset (RFC 9113, section 5.1).
        self.check_begun(head.stream).map_err(|_| fault)?;
        self.stream_fault(head.stream, fault)
    }

    fn rst_stream(&mut self, head: &FrameHead, payload: &[u8]) -> Handled {
        if payload.len() != 4 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        self.check_begun(head.stream)?;
        let code = ErrorCode(number(payload).unwrap_or_default());
        if let Some(key) = self.streams.key(head.stream) {
            self.end_stream(key, StreamFault::Reset(code));
        }
        Ok(())
    }

    fn window_update(&mut self, head: &FrameHead, payload: &[u8]) -> Handled {
        if payload.len() != 4 {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        let increment = i64::from(number(payload).unwrap_or_default() & 0x7fff_ffff);
        if head.stream == 0 {
            self.send_window += increment;
            if increment == 0 {
                return Err(ErrorCode::PROTOCOL_ERROR);
            }
            if self.send_window > MAX_WINDOW {
                return Err(ErrorCode::FLOW_CONTROL_ERROR);
            }
            self.wake_queue();
            return Ok(());
        }
        self.check_begun(head.stream)?;
        let initial = self.initial_window;
        let Some(key) = self.streams.key(head.stream) else { return Ok(()) };
        let Some(stream) = self.streams.get(key).filter(|stream| !stream.is_over()) else { return Ok(()) };
        if increment == 0 {
            return self.stream_fault(head.stream, ErrorCode::PROTOCOL_ERROR);
        }
        if initial + stream.send_delta + increment > MAX_WINDOW {
            return self.stream_fault(head.stream, ErrorCode::FLOW_CONTROL_ERROR);
        }
        stream.send_delta += increment;
        stream.wake();
        Ok(())
    }

    /// Checks that the client has begun this stream, which may be over.
    pub(super) fn check_begun(&self, stream: u32) -> Handled {
        let is_begun = !stream.is_multiple_of(2) && stream <= self.last_stream;
        if is_begun { Ok(()) } else { Err(ErrorCode::PROTOCOL_ERROR) }
    }

    /// Ends a stream because of a fault of the client. Returns an error if the client has made too
    /// many.
    pub(super) fn stream_fault(&mut self, stream: u32, code: ErrorCode) -> Handled {
        if let Some(key) = self.streams.key(stream) {
            let is_malformed = code == ErrorCode::PROTOCOL_ERROR;
            self.end_stream(key, if is_malformed { StreamFault::Malformed } else { StreamFault::Gone });
            self.remember_reset(stream);
        }
        self.count_fault(stream, code)
    }

    pub(super) fn count_fault(&mut self, stream: u32, code: ErrorCode) -> Handled {
        self.faults += 1;
        if self.faults > self.limits.faults {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        put_reset(stream, code, &mut self.out);
        Ok(())
    }
}
