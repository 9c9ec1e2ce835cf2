//! Streams as their requests use them: the body of the request, the response, and the end.

use std::task::{Context, Poll};

use bytes::Bytes;
use convey_http_core::{Frame, Malformed, OutgoingResponse, Trailers};

use super::queue::MIN_ROOM;
use super::{ClientConnection, MAX_UNSENT};
use crate::frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ErrorCode, FRAME_HEAD, FrameHead, HEADERS, MAX_FRAME,
    put_reset, put_window_update,
};
use crate::stream::{StreamFault, StreamKey};

impl ClientConnection {
    /// Receives the next data of a request's body, at most `most` bytes; `None` after the last data.
    pub fn poll_data(
        &mut self,
        key: StreamKey,
        cx: &Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Bytes, StreamFault>>> {
        let Some(stream) = self.streams.get(key) else { return Poll::Ready(Some(Err(StreamFault::Gone))) };
        if !stream.data.is_empty() {
            let data = match stream.data.len() > most {
                true => stream.data.split_to(most),
                false => std::mem::take(&mut stream.data),
            };
            return Poll::Ready(Some(Ok(data.freeze())));
        }
        match stream.fault {
            Some(fault) => Poll::Ready(Some(Err(fault))),
            None if stream.is_received => Poll::Ready(None),
            None => {
                stream.wait(cx);
                Poll::Pending
            }
        }
    }

    /// Receives the last frame of a request, after its data: trailers, or the end. An inner error
    /// means that the trailers are malformed.
    pub fn poll_last(
        &mut self,
        key: StreamKey,
        cx: &Context<'_>,
    ) -> Poll<Result<Result<Frame<Bytes>, Malformed>, StreamFault>> {
        let Some(stream) = self.streams.get(key) else { return Poll::Ready(Err(StreamFault::Gone)) };
        match stream.fault {
            Some(fault) => Poll::Ready(Err(fault)),
            None if stream.is_received => Poll::Ready(Ok(stream.last.take().unwrap_or(Ok(Frame::End)))),
            None => {
                stream.wait(cx);
                Poll::Pending
            }
        }
    }

    /// Whether the client has sent the whole request, and it has no trailers.
    pub fn has_ended_without_trailers(&mut self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| stream.is_received && stream.last.is_none())
    }

    /// Lets the client send `len` bytes of the body again, because as many have left convey.
    ///
    /// # Errors
    /// The stream is over.
    pub fn release(&mut self, key: StreamKey, len: usize) -> Result<(), StreamFault> {
        let stream = self.streams.get(key).ok_or(StreamFault::Gone)?;
        if let Some(fault) = stream.fault {
            return Err(fault);
        }
        let len = (len as u32).min(stream.held);
        stream.held -= len;
        if let Some(increment) = stream.window.free(len).filter(|_| !stream.is_received) {
            put_window_update(key.id, increment, &mut self.out);
        }
        self.free_window(len);
        Ok(())
    }

    /// Sends the head of a response. `is_over` if neither data nor trailers follow. A switch to
    /// WebSocket (101) becomes a 200 (RFC 8441, section 5). Returns the length of the head in
    /// HTTP/1.1, in bytes.
    ///
    /// # Errors
    /// The stream is over.
    pub fn send_head(
        &mut self,
        key: StreamKey,
        response: &OutgoingResponse<'_>,
        is_over: bool,
    ) -> Result<usize, StreamFault> {
        self.check_sending(key)?;
        let at = self.begin_section();
        let mut len = response.start_len();
        let is_switch = response.status() == 101;
        self.encoder.put_status(if is_switch { 200 } else { response.status() }, &mut self.out);
        let (encoder, out) = (&mut self.encoder, &mut self.out);
        // Internal iteration takes fewer instructions than a loop.
        response.fields().for_each(|(name, value)| {
            len += OutgoingResponse::field_len(name, &value);
            if !(is_switch && name.eq_ignore_ascii_case(b"sec-websocket-accept")) {
                encoder.put_field(name, &value, out);
            }
        });
        self.end_section(key, at, is_over);
        Ok(len)
    }

    /// Sends the trailers of a response, which end it.
    ///
    /// # Errors
    /// The stream is over.
    pub fn send_trailers(&mut self, key: StreamKey, trailers: &Trailers) -> Result<(), StreamFault> {
        self.check_sending(key)?;
        let at = self.begin_section();
        for (name, value) in trailers.fields() {
            self.encoder.put_field(name, value, &mut self.out);
        }
        self.end_section(key, at, true);
        Ok(())
    }

    /// Waits until the client accepts data of a response. Returns the number of bytes that it
    /// accepts, from 1 to `wanted`, and reserves them until the next call for this stream.
    pub fn poll_room(
        &mut self,
        key: StreamKey,
        cx: &Context<'_>,
        wanted: usize,
    ) -> Poll<Result<usize, StreamFault>> {
        self.check_sending(key)?;
        let was_called = self.end_call(key);
        if self.cancel_reservation(key) {
            self.wake_queue();
        }
        let unsent = self.unsent().len() + self.reserved;
        let (initial, of_connection) = (self.initial_window, self.send_window - self.reserved as i64);
        let Some(stream) = self.streams.get(key) else { return Poll::Ready(Err(StreamFault::Gone)) };
        let of_stream = initial + stream.send_delta;
        let has_space = unsent + wanted.min(MIN_ROOM) <= MAX_UNSENT;
        if of_stream > 0 && of_connection > 0 && has_space {
            let window = of_stream.min(of_connection) as usize;
            let room = wanted.min(window).min(MAX_UNSENT - unsent);
            stream.reserved = room as u32;
            self.reserved += room;
            self.leave_queue(key);
            if was_called {
                self.wake_queue();
            }
            return Poll::Ready(Ok(room));
        }
        stream.wait(cx);
        // A stream whose own window is closed waits for the client alone.
        if of_stream <= 0 && was_called {
            self.wake_queue();
        } else if of_stream > 0 && !stream.is_queued {
            stream.is_queued = true;
            self.queue.push_back(key);
        }
        Poll::Pending
    }

    /// Makes the room that [`ClientConnection::poll_room`] has reserved for a stream available to
    /// others.
    pub fn free_room(&mut self, key: StreamKey) {
        if self.cancel_reservation(key) {
            self.wake_queue();
        }
    }

    /// Sends data of a response, at most as much as [`ClientConnection::poll_room`] has returned.
    /// `is_last` if neither data nor trailers follow.
    ///
    /// # Errors
    /// The stream is over, or has no room for the data.
    pub fn send_data(&mut self, key: StreamKey, data: &[u8], is_last: bool) -> Result<(), StreamFault> {
        self.check_sending(key)?;
        let Some(stream) = self.streams.get(key) else { return Err(StreamFault::Gone) };
        if data.len() > stream.reserved as usize {
            return Err(StreamFault::Gone);
        }
        stream.send_delta -= data.len() as i64;
        let is_rest_free = stream.reserved as usize > data.len();
        self.cancel_reservation(key);
        self.send_window -= data.len() as i64;
        if !(data.is_empty() && is_last && self.end_last_frame(key)) {
            self.put_data(key, data, is_last);
        }
        if is_last {
            self.streams.change(key, |stream| stream.is_sent = true);
        }
        if is_rest_free {
            self.wake_queue();
        }
        Ok(())
    }

    /// Appends DATA frames.
    fn put_data(&mut self, key: StreamKey, data: &[u8], is_last: bool) {
        let mut left = data;
        while !left.is_empty() || is_last {
            let (part, rest) = left.split_at(left.len().min(MAX_FRAME));
            left = rest;
            let is_end = is_last && left.is_empty();
            let flags = if is_end { END_STREAM } else { 0 };
            self.last_data = Some(self.out.len());
            FrameHead { len: part.len(), kind: DATA, flags, stream: key.id }.put(&mut self.out);
            self.out.extend_from_slice(part);
            if is_end {
                break;
            }
        }
    }

    /// Ends the stream with its last DATA frame, if no byte of the frame was sent yet, and no other
    /// frame follows it. Returns false otherwise.
    fn end_last_frame(&mut self, key: StreamKey) -> bool {
        let Some(at) = self.last_data.filter(|at| *at >= self.sent) else { return false };
        let Some(frame) = FrameHead::read(&self.out[at..]) else { return false };
        let is_last = frame.stream == key.id && at + FRAME_HEAD + frame.len == self.out.len();
        if is_last {
            FrameHead { flags: END_STREAM, ..frame }.put_at(at, &mut self.out);
        }
        is_last
    }

    /// Resets a stream, unless it is over.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        if self.streams.get(key).is_some_and(|stream| !stream.is_over()) {
            self.end_stream(key, StreamFault::Gone);
            self.remember_reset(key.id);
            put_reset(key.id, code, &mut self.out);
        }
    }

    /// Waits until the client resets a stream, or its connection ends.
    pub fn poll_reset(&mut self, key: StreamKey, cx: &Context<'_>) -> Poll<StreamFault> {
        let Some(stream) = self.streams.get(key) else { return Poll::Ready(StreamFault::Gone) };
        match stream.fault {
            Some(fault) => Poll::Ready(fault),
            None => {
                stream.wait(cx);
                Poll::Pending
            }
        }
    }

    /// Removes a stream whose request is over. If the request is incomplete after its whole response,
    /// the stream is reset without an error (RFC 9113, section 8.1).
    pub fn close(&mut self, key: StreamKey) {
        let is_sent = self.streams.get(key).is_some_and(|stream| stream.is_sent);
        if self.end != super::End::Over {
            self.reset(key, if is_sent { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL });
        }
        let had_room = self.cancel_reservation(key) | self.end_call(key);
        self.leave_queue(key);
        if let Some(stream) = self.streams.remove(key) {
            self.free_window(stream.held);
        }
        if had_room {
            self.wake_queue();
        }
    }

    /// Ends a stream early, and discards its data.
    pub(super) fn end_stream(&mut self, key: StreamKey, fault: StreamFault) {
        if self.cancel_reservation(key) | self.end_call(key) {
            self.wake_queue();
        }
        let mut held = 0;
        self.streams.change(key, |stream| {
            stream.fault = stream.fault.or(Some(fault));
            stream.data = bytes::BytesMut::new();
            held = std::mem::take(&mut stream.held);
            stream.wake();
        });
        self.free_window(held);
    }

    fn check_sending(&mut self, key: StreamKey) -> Result<(), StreamFault> {
        let stream = self.streams.get(key);
        match stream.is_some_and(|stream| stream.fault.is_none() && !stream.is_sent) {
            true => Ok(()),
            false => Err(StreamFault::Gone),
        }
    }

    /// Makes reserved bytes of a stream available to others. Returns whether there were any.
    fn cancel_reservation(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get(key) else { return false };
        let reserved = std::mem::take(&mut stream.reserved) as usize;
        self.reserved -= reserved;
        reserved > 0
    }

    /// Begins a field section. Returns the place of its first frame.
    fn begin_section(&mut self) -> usize {
        self.prepare_buffer();
        let at = self.out.len();
        self.out.extend_from_slice(&[0; FRAME_HEAD]);
        self.encoder.begin(&mut self.out);
        at
    }

    /// Completes the frames of a field section, which begins at `at`.
    fn end_section(&mut self, key: StreamKey, at: usize, is_over: bool) {
        let len = self.out.len() - at - FRAME_HEAD;
        let end_stream = if is_over { END_STREAM } else { 0 };
        let flags = end_stream | if len <= MAX_FRAME { END_HEADERS } else { 0 };
        let head = FrameHead { len: len.min(MAX_FRAME), kind: HEADERS, flags, stream: key.id };
        head.put_at(at, &mut self.out);
        if len > MAX_FRAME {
            let rest = self.out.split_off(at + FRAME_HEAD + MAX_FRAME);
            let mut parts = rest.chunks(MAX_FRAME).peekable();
            while let Some(part) = parts.next() {
                let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
                let head = FrameHead { len: part.len(), kind: CONTINUATION, flags, stream: key.id };
                head.put(&mut self.out);
                self.out.extend_from_slice(part);
            }
        }
        if is_over {
            self.streams.change(key, |stream| stream.is_sent = true);
        }
    }
}
