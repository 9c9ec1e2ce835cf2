//! HTTP/2 stream to a server.

use std::io;
use std::mem;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::{BodyFraming, HttpMethod, OutgoingRequest};
use h2::SendStream;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::kept::{OpenUpload, StreamPlace};
use super::receive::{ReceivedHead, ReceivedStream};
use super::stream::broken;
use crate::streams::body::{BodyIn, BodyOut, DataSink, DataSource, StreamFault};
use crate::streams::heads;

/// Stream to an HTTP/2 server for one request, with the interface of an HTTP/1.1 connection.
pub(crate) struct OutgoingStream {
    place: StreamPlace,
    /// Body of the request; `None`: the request has not begun.
    request: Option<BodyOut<UploadSink>>,
    response: Answer,
    /// Head of the response in HTTP/1.1. The bytes from index `read` on are unread.
    head: Vec<u8>,
    read: usize,
}

/// State of the response.
enum Answer {
    /// The request has not been sent.
    Unasked,
    Awaited {
        stream: ReceivedStream,
        method: HttpMethod,
        is_http11: bool,
    },
    /// The head announces an empty body. The caller reads the head once the body has ended.
    Ending(ReceivedStream),
    Body(BodyIn<ReceivedStream>),
    Over,
    /// The stream could not begin.
    Refused,
}

/// Body of a request, which counts in the send window of its connection.
struct UploadSink {
    stream: SendStream<Bytes>,
    upload: Option<OpenUpload>,
}

impl DataSink for UploadSink {
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.stream.poll_room(cx, wanted)
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        let len = data.len();
        DataSink::send(&mut self.stream, data, is_last)?;
        self.upload.iter_mut().for_each(|upload| upload.has_sent(len, is_last));
        Ok(())
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        DataSink::send_trailers(&mut self.stream, trailers)?;
        self.upload.iter_mut().for_each(|upload| upload.has_sent(0, true));
        Ok(())
    }

    fn reset(&mut self, fault: StreamFault) {
        DataSink::reset(&mut self.stream, fault);
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        DataSink::poll_reset(&mut self.stream, cx)
    }
}

impl OutgoingStream {
    /// Creates a stream whose request has not been sent.
    pub(super) fn new(place: StreamPlace) -> OutgoingStream {
        OutgoingStream { place, request: None, response: Answer::Unasked, head: Vec::new(), read: 0 }
    }

    /// Sends the head of the request. `poll_read` returns the error if this fails.
    pub(crate) fn begin(&mut self, request: &OutgoingRequest<'_>) {
        if self.ask(request).is_err() {
            self.response = Answer::Refused;
        }
    }

    /// Accepts some bytes of the request's body.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.request {
            Some(body) => body.poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Reads some of the response in HTTP/1.1. Returns the number of bytes; 0: the response is
    /// over.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.read < self.head.len() {
                let left = &self.head[self.read..];
                let len = left.len().min(buffer.len());
                buffer[..len].copy_from_slice(&left[..len]);
                self.read += len;
                return Poll::Ready(Ok(len));
            }
            match &mut self.response {
                Answer::Unasked => return Poll::Pending,
                Answer::Over => return Poll::Ready(Ok(0)),
                Answer::Refused => return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
                Answer::Body(body) => return body.poll_read(cx, buffer),
                Answer::Ending(stream) => {
                    // The library refuses data of a body that is announced as empty.
                    if let Some(data) = ready!(stream.poll_data(cx)) {
                        data?;
                        continue;
                    }
                    (self.response, self.read) = (Answer::Over, 0);
                }
                Answer::Awaited { stream, method, is_http11 } => {
                    let head = ready!(stream.poll_head(cx))?;
                    (self.head, self.read) = (Vec::with_capacity(512), 0);
                    let (mut response, is_over) = match head {
                        ReceivedHead::Last { response, is_over } => (response, is_over),
                        ReceivedHead::Interim(interim) => {
                            heads::write_response(&interim, "", &mut self.head);
                            continue;
                        }
                    };
                    let framing = framing(&response, is_over, *method, *is_http11);
                    if framing == Framing::Chunked {
                        response.headers_mut().remove(header::CONTENT_LENGTH);
                    }
                    heads::write_response(&response, framing.line(), &mut self.head);
                    let has_ended = is_over || !heads::says_no_body(response.headers());
                    self.response = match mem::replace(&mut self.response, Answer::Over) {
                        Answer::Awaited { stream, .. } if framing == Framing::Length && !has_ended => {
                            self.read = self.head.len();
                            Answer::Ending(stream)
                        }
                        Answer::Awaited { stream, .. } if framing.has_body() => {
                            Answer::Body(BodyIn::new(stream, framing.of_body()))
                        }
                        _ => Answer::Over,
                    };
                }
            }
        }
    }

    /// Waits until the server resets the stream.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut self.request {
            Some(body) => body.stream().poll_reset(cx),
            None => Poll::Pending,
        }
    }

    /// Stops new streams on the same connection, because the server has sent nothing for too long.
    pub(crate) fn retire_connection(&self) {
        self.place.state().retire();
    }

    /// Notes that the server has gracefully ended the connection before it processed this stream.
    pub(crate) fn was_refused(&self) {
        self.place.was_refused();
    }

    /// Begins the stream with the head of the request.
    fn ask(&mut self, head: &OutgoingRequest<'_>) -> io::Result<()> {
        let is_over = head.framing().is_empty();
        let request = heads::request_to(head)?;
        let (response, stream) = self.place.send().send_request(request, is_over).map_err(broken)?;
        let (method, is_http11) = (head.method(), head.is_http11());
        let stream_in = ReceivedStream::of_response(response, self.place.state().receive_queue().clone());
        self.response = Answer::Awaited { stream: stream_in, method, is_http11 };
        let sink = UploadSink { stream, upload: self.place.take_upload() };
        self.request = Some(BodyOut::new(sink, head.framing(), is_over));
        Ok(())
    }
}

impl Drop for OutgoingStream {
    fn drop(&mut self) {
        // A complete exchange needs no reset. Otherwise, the reset lets the server stop its work.
        if let Some(body) = &mut self.request
            && !matches!(self.response, Answer::Over)
        {
            body.stream().reset(StreamFault::Cancelled);
        }
    }
}

/// Framing of a response in HTTP/1.1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// The response has no body, regardless of its fields.
    None,
    /// The response could have a body, but has none.
    NoBody,
    /// The response has a content length.
    Length,
    Chunked,
    UntilClose,
}

/// Returns the HTTP/1.1 framing of a response. `is_over`: nothing follows the head.
fn framing(response: &Response<()>, is_over: bool, method: HttpMethod, is_http11: bool) -> Framing {
    let status = response.status();
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let has_length = response.headers().contains_key(header::CONTENT_LENGTH);
    match is_over {
        _ if has_none || method == HttpMethod::Head => Framing::None,
        // In HTTP/1.1, a body with a `Content-Length` has no trailers.
        false if has_length && is_http11 && announces_trailers(response.headers()) => Framing::Chunked,
        _ if has_length => Framing::Length,
        true => Framing::NoBody,
        false if is_http11 => Framing::Chunked,
        false => Framing::UntilClose,
    }
}

/// Whether trailers will follow: the head has `Trailer`, or the response is a gRPC response.
fn announces_trailers(fields: &HeaderMap) -> bool {
    let kind = fields.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_grpc = kind.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"));
    is_grpc || fields.contains_key(header::TRAILER)
}

impl Framing {
    fn has_body(self) -> bool {
        !matches!(self, Framing::None | Framing::NoBody)
    }

    /// Framing of the body. The library checks the content length, so it is not checked here.
    fn of_body(self) -> BodyFraming {
        if self == Framing::Chunked { BodyFraming::Chunked } else { BodyFraming::UntilClose }
    }

    fn line(self) -> &'static str {
        match self {
            Framing::None | Framing::Length | Framing::UntilClose => "",
            Framing::NoBody => "Content-Length: 0\r\n",
            Framing::Chunked => "Transfer-Encoding: chunked\r\n",
        }
    }
}
