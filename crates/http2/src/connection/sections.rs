//! Field sections of the client: requests and trailers.

use std::sync::Arc;

use convey_http_core::Malformed;

use super::receive::Handled;
use super::{ClientConnection, MAX_RESET, ReceivedRequest, RefusedRequest};
use crate::frame::{END_HEADERS, END_STREAM, ErrorCode, FRAME_HEAD, FrameHead, MAX_FRAME, headers_payload};
use crate::hpack::Scratch;
use crate::limits::HEAD_ROOM;
use crate::section::RequestContext;
use crate::stream::{Stream, StreamFault, StreamKey};

/// Maximum number of frames of a field section.
const MAX_FRAMES: usize = 16;

/// Field section of which frames are missing.
#[derive(Debug)]
pub(super) struct PartialSection {
    pub(super) begin: SectionBegin,
    /// Fragments so far.
    block: Vec<u8>,
    frames: usize,
}

/// Facts of the frame that begins a field section.
#[derive(Debug, Clone, Copy)]
pub(super) struct SectionBegin {
    pub(super) stream: u32,
    ends_stream: bool,
    /// Whether the stream depends on itself, which is a fault (RFC 7540, section 5.3.1).
    depends_on_itself: bool,
}

impl ClientConnection {
    pub(super) fn headers(&mut self, head: &FrameHead, payload: &[u8], scratch: &mut Scratch) -> Handled {
        if head.stream.is_multiple_of(2) {
            return Err(ErrorCode::PROTOCOL_ERROR);
        }
        let payload = headers_payload(head, payload).ok_or(ErrorCode::PROTOCOL_ERROR)?;
        let begin = SectionBegin {
            stream: head.stream,
            ends_stream: head.has(END_STREAM),
            depends_on_itself: payload.depends_on == Some(head.stream),
        };
        if head.has(END_HEADERS) {
            return self.section(begin, payload.fragment, scratch);
        }
        let section = PartialSection { begin, block: payload.fragment.to_vec(), frames: 1 };
        self.section = Some(Box::new(section));
        Ok(())
    }

    pub(super) fn continuation(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        scratch: &mut Scratch,
    ) -> Handled {
        let max_section = longest_section(self.limits.head.bytes + HEAD_ROOM);
        let Some(section) = &mut self.section else { return Err(ErrorCode::PROTOCOL_ERROR) };
        section.frames += 1;
        if section.block.len() + payload.len() > max_section {
            if section.begin.stream > self.last_stream {
                self.refused.push(RefusedRequest { fault: Malformed::HeadTooLong });
            }
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        if section.frames > MAX_FRAMES {
            return Err(ErrorCode::ENHANCE_YOUR_CALM);
        }
        section.block.extend_from_slice(payload);
        match self.section.take_if(|_| head.has(END_HEADERS)) {
            Some(section) => self.section(section.begin, &section.block, scratch),
            None => Ok(()),
        }
    }

    /// Handles a whole field section.
    fn section(&mut self, begin: SectionBegin, block: &[u8], scratch: &mut Scratch) -> Handled {
        let max_size = self.limits.head.bytes + HEAD_ROOM;
        let decoded = self.decoder.decode(block, max_size, scratch);
        decoded.map_err(|_| ErrorCode::COMPRESSION_ERROR)?;
        if begin.stream > self.last_stream {
            return self.request(begin, scratch);
        }
        let Some(key) = self.streams.key(begin.stream) else {
            return match begin.stream <= self.last_in_order {
                _ if self.resets.contains(&begin.stream) => Ok(()),
                true => Err(ErrorCode::STREAM_CLOSED),
                // The client has left out this stream, and must not begin it later.
                false => Err(ErrorCode::PROTOCOL_ERROR),
            };
        };
        let Some(stream) = self.streams.get(key) else { return Ok(()) };
        match stream.fault {
            None if stream.is_received => self.stream_fault(begin.stream, ErrorCode::STREAM_CLOSED),
            None if !begin.ends_stream || begin.depends_on_itself => {
                self.stream_fault(begin.stream, ErrorCode::PROTOCOL_ERROR)
            }
            None => self.trailers(key, scratch),
            Some(StreamFault::Gone | StreamFault::Malformed) => Ok(()),
            Some(StreamFault::Reset(_)) => Err(ErrorCode::STREAM_CLOSED),
        }
    }

    fn trailers(&mut self, key: StreamKey, scratch: &Scratch) -> Handled {
        match scratch.lines.trailers() {
            Err(_) => self.stream_fault(key.id, ErrorCode::PROTOCOL_ERROR),
            Ok(last) => {
                if let Some(stream) = self.streams.get(key) {
                    stream.last = Some(last);
                }
                self.end_body(key);
                Ok(())
            }
        }
    }

    /// Handles the section of a new stream.
    fn request(&mut self, begin: SectionBegin, scratch: &Scratch) -> Handled {
        let id = begin.stream;
        if id == self.last_in_order + 2 || id == 1 {
            self.last_in_order = id;
        }
        self.last_stream = id;
        if self.is_refusing() {
            self.remember_reset(id);
            return Ok(());
        }
        self.last_accepted = id;
        let lines = &scratch.lines;
        let fault = lines.request_fault(begin.ends_stream);
        if let Some(fault) = fault.or(begin.depends_on_itself.then_some(Malformed::PseudoField)) {
            self.refused.push(RefusedRequest { fault });
            self.remember_reset(id);
            return self.count_fault(id, ErrorCode::PROTOCOL_ERROR);
        }
        let streams = self.limits.streams as usize;
        if self.streams.open() >= streams || self.streams.len() >= streams + MAX_RESET {
            self.remember_reset(id);
            return self.count_fault(id, ErrorCode::REFUSED_STREAM);
        }
        let has_body = !begin.ends_stream;
        let context = RequestContext { limits: &self.limits.head, websocket_key: self.limits.websocket_key };
        let read = |has_body| lines.request(has_body, &context).map(Arc::new);
        let if_empty = (has_body && lines.says_no_body()).then(|| read(false));
        let head = read(has_body);
        let mut stream = Stream::new(id, self.limits.stream_window);
        stream.content_left = lines.content_length();
        stream.is_received = begin.ends_stream;
        let stream = self.streams.add(stream);
        self.waiting.push_back(ReceivedRequest { stream, head, if_empty });
        Ok(())
    }
}

/// Returns the maximum length of an encoded section, for a limit of its decoded size.
fn longest_section(max_size: usize) -> usize {
    let frames = max_size / MAX_FRAME;
    let continuations = (frames + frames / 4).max(5);
    // The first and the last frame do not count as continuations.
    (continuations + 2) * (FRAME_HEAD + MAX_FRAME)
}
