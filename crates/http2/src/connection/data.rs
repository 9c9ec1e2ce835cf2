//! DATA frames of the client.

use std::time::Duration;

use super::ClientConnection;
use crate::frame::{END_STREAM, ErrorCode, FRAME_HEAD, FrameHead, PADDED, put_window_update};
use crate::stream::{StreamFault, StreamKey};

/// Rest of a DATA frame.
#[derive(Debug)]
pub(super) struct DataFrame {
    /// Its stream; `None`: the data is discarded.
    stream: Option<StreamKey>,
    left: usize,
    padding: usize,
    ends_stream: bool,
}

impl ClientConnection {
    /// Begins a DATA frame. Returns the number of handled bytes: the head of the frame, and the
    /// length of its padding.
    pub(super) fn begin_data(
        &mut self,
        head: &FrameHead,
        bytes: &[u8],
        now: &dyn Fn() -> Duration,
    ) -> Result<usize, ErrorCode> {
        self.check_begun(head.stream)?;
        let (padding, before) = match head.has(PADDED) {
            true if head.len == 0 => return Err(ErrorCode::FRAME_SIZE_ERROR),
            true => match bytes.get(FRAME_HEAD) {
                Some(padding) => (usize::from(*padding), 1),
                None => return Ok(0),
            },
            false => (0, 0),
        };
        let Some(len) = head.len.checked_sub(padding + before) else { return Err(ErrorCode::PROTOCOL_ERROR) };
        if !self.window.take(head.len as u32) {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        }
        let ends_stream = head.has(END_STREAM);
        if len == 0 && !ends_stream && !self.limits.empty_frames.count(now()) {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        let stream = self.receiver_of_data(head, len)?;
        let free = (padding + before + if stream.is_none() { len } else { 0 }) as u32;
        self.free_window(free);
        self.data = Some(DataFrame { stream, left: len, padding, ends_stream });
        let handled = FRAME_HEAD + before;
        Ok(handled + self.data_part(&bytes[handled..]))
    }

    /// Returns the stream that gets `len` bytes of data; `None`: they are discarded.
    fn receiver_of_data(&mut self, head: &FrameHead, len: usize) -> Result<Option<StreamKey>, ErrorCode> {
        let key = self.streams.key(head.stream);
        let Some((key, stream)) = key.and_then(|key| Some((key, self.streams.get(key)?))) else {
            if !self.resets.contains(&head.stream) {
                self.count_fault(head.stream, ErrorCode::STREAM_CLOSED)?;
            }
            return Ok(None);
        };
        match stream.fault {
            None if stream.is_received => {
                self.stream_fault(head.stream, ErrorCode::STREAM_CLOSED)?;
                return Ok(None);
            }
            None => {}
            // convey has reset the stream, and the client did not know.
            Some(StreamFault::Gone | StreamFault::Malformed) => return Ok(None),
            Some(StreamFault::Reset(_)) => {
                self.count_fault(head.stream, ErrorCode::STREAM_CLOSED)?;
                return Ok(None);
            }
        }
        if !stream.window.take(head.len as u32) {
            self.stream_fault(head.stream, ErrorCode::FLOW_CONTROL_ERROR)?;
            return Ok(None);
        }
        if let Some(left) = &mut stream.content_left {
            match left.checked_sub(len as u64) {
                Some(rest) => *left = rest,
                None => {
                    self.stream_fault(head.stream, ErrorCode::PROTOCOL_ERROR)?;
                    return Ok(None);
                }
            }
        }
        stream.held += len as u32;
        let padding = (head.len - len) as u32;
        if let Some(increment) = stream.window.free(padding).filter(|_| !head.has(END_STREAM)) {
            put_window_update(head.stream, increment, &mut self.out);
        }
        Ok(Some(key))
    }

    /// Handles a part of a DATA frame. Returns the number of handled bytes.
    pub(super) fn data_part(&mut self, bytes: &[u8]) -> usize {
        let Some(frame) = &mut self.data else { return 0 };
        let data = &bytes[..bytes.len().min(frame.left)];
        frame.left -= data.len();
        let padding = (bytes.len() - data.len()).min(frame.padding);
        frame.padding -= padding;
        let (key, ends_stream) = (frame.stream, frame.ends_stream);
        let is_whole = frame.left == 0 && frame.padding == 0;
        if is_whole {
            self.data = None;
        }
        if let Some(key) = key
            && let Some(stream) = self.streams.get(key).filter(|stream| stream.fault.is_none())
        {
            stream.data.extend_from_slice(data);
            if !data.is_empty() {
                stream.wake();
            }
            if is_whole && ends_stream {
                self.end_body(key);
            }
        }
        data.len() + padding
    }

    /// Notes the end of a request.
    pub(super) fn end_body(&mut self, key: StreamKey) {
        let mut is_short = false;
        self.streams.change(key, |stream| {
            is_short = stream.content_left.is_some_and(|left| left > 0);
            stream.is_received |= !is_short;
            stream.wake();
        });
        if is_short && let Err(reason) = self.stream_fault(key.id, ErrorCode::PROTOCOL_ERROR) {
            self.fail(reason);
        }
    }
}
