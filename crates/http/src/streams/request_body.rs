//! Body of a request on a client's stream, as frames. A part of it can be returned again, for a
//! retry.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use convey_http_core::{BodyFraming, Frame, MAX_KEPT_BODY, Malformed, RequestHead};

use super::IncomingBody;
use super::body::{BodyFault, DataSource};
use crate::data_queue::FRAME;

/// Maximum number of bytes of a request's body that are kept for a retry.
pub(crate) const MAX_KEPT: usize = MAX_KEPT_BODY as usize;

/// Body of a request.
pub(crate) struct RequestBody<S> {
    source: S,
    /// Bytes still to receive, if the head has a content length.
    left: Option<u64>,
    phase: Phase,
    /// Copy of the frames that were returned; `None`: a retry is not possible.
    kept: Option<KeptFrames>,
    /// Frames to return again.
    again: Option<KeptFrames>,
    /// Bytes that were returned and not released yet.
    unreleased: usize,
    /// Bytes that were returned again, after they had been released.
    free: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Data,
    Trailers,
    Over,
}

/// First frames of a body.
#[derive(Debug, Default)]
struct KeptFrames {
    data: BytesMut,
    last: Option<Frame<Bytes>>,
}

impl<S: DataSource> RequestBody<S> {
    /// Creates the body of a request with this head; `None` if the head could not be read.
    pub(crate) fn of_head(source: S, head: Option<&RequestHead>) -> RequestBody<S> {
        let framing = match head {
            // The data of a tunnel follows the response.
            Some(head) if head.upgrade().is_some() => BodyFraming::UntilClose,
            head => head.map_or(BodyFraming::Empty, RequestHead::framing),
        };
        RequestBody::new(source, framing)
    }

    /// Creates the body of a request whose head has this framing.
    fn new(source: S, framing: BodyFraming) -> RequestBody<S> {
        let left = if let BodyFraming::Length(length) = framing { Some(length) } else { None };
        let phase = if framing.is_empty() { Phase::Over } else { Phase::Data };
        RequestBody { source, left, phase, kept: None, again: None, unreleased: 0, free: 0 }
    }
}

impl<S: DataSource> IncomingBody for RequestBody<S> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        let frame = match self.next_again() {
            Some(frame) => frame,
            None => ready!(self.poll_next(cx))?,
        };
        if let Some(kept) = &mut self.kept {
            match &frame {
                Frame::Data(data) => kept.data.extend_from_slice(data),
                last => _ = kept.last.get_or_insert_with(|| last.clone()),
            }
        }
        self.kept.take_if(|kept| kept.data.len() > MAX_KEPT);
        Poll::Ready(Ok(frame))
    }

    fn release(&mut self, len: usize) -> io::Result<()> {
        let free = len.min(self.free);
        self.free -= free;
        self.release_of_source(len - free)
    }

    fn keep(&mut self) {
        self.kept = Some(KeptFrames::default());
    }

    fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    fn forget(&mut self) {
        self.kept = None;
    }

    fn take_back(&mut self) -> Option<u64> {
        let mut kept = self.kept.take()?;
        let len = kept.data.len();
        // The kept bytes are few, so the client may send others meanwhile.
        self.free = 0;
        let _ = self.release_of_source(self.unreleased);
        if let Some(rest) = self.again.take() {
            kept.data.extend_from_slice(&rest.data);
            kept.last = rest.last;
        }
        self.again = Some(kept);
        Some(len as u64)
    }
}

impl<S: DataSource> RequestBody<S> {
    fn next_again(&mut self) -> Option<Frame<Bytes>> {
        let again = self.again.as_mut()?;
        if !again.data.is_empty() {
            let data = again.data.split().freeze();
            self.free += data.len();
            return Some(Frame::Data(data));
        }
        self.again.take()?.last
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        while self.phase == Phase::Data {
            match ready!(self.source.poll_data(cx, FRAME)) {
                // The library has counted the bytes, and found a length that differs from the
                // head's.
                Some(Err(fault)) if self.left.is_some() && BodyFault::within(&fault).is_some() => {
                    return Poll::Ready(Err(BodyFault::new(Malformed::ContentLength).into()));
                }
                Some(data) => {
                    let data = data?;
                    self.count(data.len())?;
                    if !data.is_empty() {
                        return Poll::Ready(Ok(Frame::Data(data)));
                    }
                }
                // The body is shorter than its content length (RFC 9114, section 4.1.2).
                None if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(BodyFault::new(Malformed::ContentLength).into()));
                }
                None => self.phase = Phase::Trailers,
            }
        }
        if self.phase == Phase::Over {
            return Poll::Ready(Ok(Frame::End));
        }
        let last = ready!(self.source.poll_last(cx));
        self.phase = Phase::Over;
        Poll::Ready(last)
    }

    fn release_of_source(&mut self, len: usize) -> io::Result<()> {
        self.unreleased -= len;
        if len > 0 { self.source.release(len) } else { Ok(()) }
    }

    fn count(&mut self, len: usize) -> io::Result<()> {
        self.unreleased += len;
        if let Some(left) = &mut self.left {
            let rest = left.checked_sub(len as u64);
            *left = rest.ok_or(BodyFault::new(Malformed::ContentLength))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
