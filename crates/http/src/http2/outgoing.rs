//! HTTP/2 stream to a server.

use std::io;
use std::mem;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use convey_http_core::{
    BodyFraming, Frame, HeadLimits, HttpMethod, Malformed, OutgoingRequest, ResponseHead, ServerFault,
    Trailers,
};
use h2::SendStream;
use http::HeaderMap;

use super::kept::{OpenUpload, StreamPlace};
use super::library::broken;
use super::receive::{ReceivedHead, ReceivedStream};
use crate::streams::body::{DataSink, ResetReason};
use crate::streams::heads;

/// Stream to an HTTP/2 server for one request.
pub(crate) struct OutgoingStream {
    place: StreamPlace,
    /// Body of the request; `None`: the request has not begun.
    request: Option<UploadSink>,
    response: Answer,
    /// Whether the server ended the connection before it processed this stream.
    is_refused: bool,
}

/// State of the response.
enum Answer {
    /// The request has not been sent.
    Unasked,
    Awaited {
        stream: ReceivedStream,
        method: HttpMethod,
    },
    /// The head announces an empty body. The caller gets the head once the body has ended.
    Ending {
        stream: ReceivedStream,
        head: Box<ResponseHead>,
    },
    Body(ReceivedStream),
    /// The response is whole. `rest`: its head had no body, but did not end the stream.
    Over {
        rest: Option<ReceivedStream>,
    },
    /// The stream could not begin.
    Refused,
}

/// Fault of a server's stream.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// The server, or its connection, has ended the stream.
    Broken(io::Error),
    /// The response is invalid.
    Invalid(ServerFault),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> StreamError {
        StreamError::Broken(error)
    }
}

impl From<Malformed> for StreamError {
    fn from(malformed: Malformed) -> StreamError {
        StreamError::Invalid(ServerFault::Malformed(malformed))
    }
}

/// Body of a request, which counts in the send window of its connection.
struct UploadSink {
    stream: SendStream<Bytes>,
    upload: Option<OpenUpload>,
    /// Whether the request was sent to its end.
    is_over: bool,
}

impl DataSink for UploadSink {
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.stream.poll_room(cx, wanted)
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        let len = data.len();
        DataSink::send(&mut self.stream, data, is_last)?;
        self.is_over |= is_last;
        self.upload.iter_mut().for_each(|upload| upload.has_sent(len, is_last));
        Ok(())
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        DataSink::send_trailers(&mut self.stream, trailers)?;
        self.is_over = true;
        self.upload.iter_mut().for_each(|upload| upload.has_sent(0, true));
        Ok(())
    }

    fn reset(&mut self, reason: ResetReason) {
        DataSink::reset(&mut self.stream, reason);
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        DataSink::poll_reset(&mut self.stream, cx)
    }
}

impl OutgoingStream {
    /// Creates a stream whose request has not been sent.
    pub(super) fn new(place: StreamPlace) -> OutgoingStream {
        OutgoingStream { place, request: None, response: Answer::Unasked, is_refused: false }
    }

    /// Sends the head of the request. `poll_head` returns the error if this fails.
    pub(crate) fn begin(&mut self, request: &OutgoingRequest<'_>) {
        if self.ask(request).is_err() {
            self.response = Answer::Refused;
        }
    }

    /// Waits until the server accepts data of the request. Returns the number of bytes that it
    /// accepts, from 1 to `most`.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        let room = self.sink()?.poll_room(cx, most);
        room.map_ok(|room| room.min(most))
    }

    /// Sends data of the request, at most as much as [`OutgoingStream::poll_room`] returned.
    /// `is_last` if neither data nor trailers follow.
    pub(crate) fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        self.sink()?.send(data, is_last)
    }

    /// Sends the trailers of the request, which end it.
    pub(crate) fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        self.sink()?.send_trailers(heads::trailers_to(trailers)?)
    }

    /// Receives the next head of the response: interim responses, and then the final one.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        limits: &HeadLimits,
    ) -> Poll<Result<ResponseHead, StreamError>> {
        loop {
            match &mut self.response {
                Answer::Unasked | Answer::Body(_) | Answer::Over { .. } => return Poll::Pending,
                Answer::Refused => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()));
                }
                Answer::Ending { stream, .. } => {
                    // The library refuses data of a body that is announced as empty.
                    if let Some(data) = ready!(stream.poll_data(cx, usize::MAX)) {
                        data?;
                        continue;
                    }
                    let over = Answer::Over { rest: None };
                    if let Answer::Ending { head, .. } = mem::replace(&mut self.response, over) {
                        return Poll::Ready(Ok(*head));
                    }
                }
                Answer::Awaited { stream, method } => {
                    let (response, is_over) = match ready!(stream.poll_head(cx))? {
                        ReceivedHead::Last { response, is_over } => (response, is_over),
                        ReceivedHead::Interim(interim) => {
                            return Poll::Ready(Ok(heads::response_from(&interim, *method, true, limits)?));
                        }
                    };
                    let head = heads::response_from(&response, *method, !is_over, limits)?;
                    if self.takes_head(&head, is_over) {
                        return Poll::Ready(Ok(head));
                    }
                }
            }
        }
    }

    /// Receives the next frame of the response's body, with about `most` bytes of data. After the
    /// last one, returns [`Frame::End`] again.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        limits: &HeadLimits,
    ) -> Poll<Result<Frame<Bytes>, StreamError>> {
        let Answer::Body(stream) = &mut self.response else { return Poll::Ready(Ok(Frame::End)) };
        while let Some(data) = ready!(stream.poll_data(cx, most)) {
            let data = data?;
            if !data.is_empty() {
                return Poll::Ready(Ok(Frame::Data(data)));
            }
        }
        let last = heads::last_frame(ready!(stream.poll_trailers(cx))?.as_ref(), limits)?;
        self.response = Answer::Over { rest: None };
        Poll::Ready(Ok(last))
    }

    /// Notes that `len` bytes of the response have left the stream, so that the server may send as
    /// many again.
    pub(crate) fn release(&mut self, len: usize) {
        if let Answer::Body(stream) = &mut self.response {
            // An error means that the stream is over.
            let _ = stream.release(len);
        }
    }

    /// Waits until the server resets the stream.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(body) = &mut self.request else { return Poll::Pending };
        let error = ready!(body.poll_reset(cx));
        // The sending side reports the end of the connection as a reset, too.
        Poll::Ready(match &self.response {
            Answer::Body(stream) => stream.fault().unwrap_or(error),
            _ => error,
        })
    }

    /// Stops new streams on the same connection, because the server has sent nothing for too long.
    pub(crate) fn retire_connection(&self) {
        self.place.state().retire();
    }

    /// Notes that the server has gracefully ended the connection before it processed this stream.
    pub(crate) fn was_refused(&mut self) {
        self.is_refused = true;
        self.place.was_refused();
    }

    /// Begins the stream with the head of the request.
    fn ask(&mut self, head: &OutgoingRequest<'_>) -> io::Result<()> {
        let is_over = head.framing().is_empty();
        let request = heads::request_to(head)?;
        let (response, stream) = self.place.send().send_request(request, is_over).map_err(broken)?;
        let queue = self.place.state().receive_queue().clone();
        let stream_in = ReceivedStream::of_response(response, queue);
        self.response = Answer::Awaited { stream: stream_in, method: head.method() };
        self.request = Some(UploadSink { stream, upload: self.place.take_upload(), is_over });
        Ok(())
    }

    /// Notes the final head. Returns whether the caller may get it immediately.
    fn takes_head(&mut self, head: &ResponseHead, is_over: bool) -> bool {
        let over = Answer::Over { rest: None };
        let Answer::Awaited { stream, .. } = mem::replace(&mut self.response, over) else {
            return true;
        };
        match head.framing() {
            BodyFraming::Length(0) if !is_over => {
                self.response = Answer::Ending { stream, head: Box::new(head.clone()) };
                return false;
            }
            framing if framing.is_empty() => {
                self.response = Answer::Over { rest: (!is_over).then_some(stream) };
            }
            _ => self.response = Answer::Body(stream),
        }
        true
    }

    fn sink(&mut self) -> io::Result<&mut UploadSink> {
        self.request.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Drop for OutgoingStream {
    fn drop(&mut self) {
        let Some(body) = &mut self.request else { return };
        let (resets, cx) = (self.place.state().resets(), &mut Context::from_waker(Waker::noop()));
        let reset = match body.poll_reset(cx) {
            Poll::Ready(error) => Some(error.kind()),
            Poll::Pending => None,
        };
        // A complete exchange needs no reset. Otherwise, the reset lets the server stop its work.
        // After its response, the server itself may reset the rest of the request.
        if let Answer::Over { rest } = &mut self.response
            && (reset.is_some() || body.is_over && rest.as_mut().is_none_or(|rest| has_ended(rest, cx)))
        {
            return resets.note_served();
        }
        body.reset(ResetReason::Cancelled);
        // A server that refuses streams may be overloaded: another connection would not help it.
        if !self.is_refused && reset != Some(io::ErrorKind::ResourceBusy) {
            resets.count(reset.is_some());
        }
    }
}

/// Whether the server has ended its side of the stream.
fn has_ended(stream: &mut ReceivedStream, cx: &mut Context<'_>) -> bool {
    loop {
        match stream.poll_data(cx, usize::MAX) {
            Poll::Ready(Some(Ok(_))) => {}
            end => return matches!(end, Poll::Ready(None)),
        }
    }
}
