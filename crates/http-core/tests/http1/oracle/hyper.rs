//! Messages that hyper reads from bytes.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use convey_http_core::{HttpMethod, RequestHead};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper::{Request, Response};

use super::{Message, Start, sorted};

/// Maximum number of polls of one connection, which has all of its bytes from the beginning.
const MAX_TURNS: usize = 10_000;

/// Maximum number of fields of a request. hyper limits heads and trailers in the same way.
const MAX_REQUEST_FIELDS: usize = 100;

/// Maximum number of fields of a response.
const MAX_RESPONSE_FIELDS: usize = 256;

/// Returns the whole requests on a connection of a client that closes its side after these bytes.
///
/// # Panics
/// hyper waits for more bytes.
pub(crate) fn requests(bytes: &[u8]) -> Vec<Message> {
    let seen: Rc<RefCell<Vec<Message>>> = Rc::default();
    let requests = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| note(requests.clone(), request));
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .auto_date_header(false)
            .max_headers(MAX_REQUEST_FIELDS)
            .serve_connection(Wire { left: bytes, is_open: true }, service)
    );
    let cx = &mut Context::from_waker(Waker::noop());
    let is_over = (0..MAX_TURNS).any(|_| connection.as_mut().poll(cx).is_ready());
    assert!(is_over, "hyper waits for more bytes");
    seen.take()
}

async fn note(
    seen: Rc<RefCell<Vec<Message>>>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or("", |target| target.as_str());
    let host = match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => head.headers.get("host").map_or(&[][..], |host| host.as_bytes()),
    };
    let start = Start::request(head.method.as_str().as_bytes(), target.as_bytes(), host);
    let message = read(message(start, &head.headers), body).await;
    if message.is_whole {
        seen.borrow_mut().push(message);
    }
    Ok(Response::new(Empty::new()))
}

/// Returns the response to a request: interim responses and the final one, from a server that
/// closes its connection after these bytes. The data of a 101 are all further bytes.
///
/// # Panics
/// hyper waits for more bytes.
pub(crate) fn response(request: &RequestHead, bytes: &[u8]) -> Vec<Message> {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_headers(MAX_RESPONSE_FIELDS);
    let handshake = pin!(builder.handshake(Wire { left: bytes, is_open: false }));
    let Poll::Ready(Ok((mut sender, mut connection))) = handshake.poll(cx) else {
        panic!("hyper waits before it sends its request");
    };
    let interim: Arc<Mutex<Vec<Message>>> = Arc::default();
    let request = outgoing(request, &interim);
    let mut reading = pin!(async move {
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let start = Start::Response { status: head.status.as_u16() };
        Some(read(message(start, &head.headers), body).await)
    });
    let (mut last, mut is_over) = (None, false);
    for _ in 0..MAX_TURNS {
        if last.is_none()
            && let Poll::Ready(read) = reading.as_mut().poll(cx)
        {
            last = Some(read);
        }
        if is_over {
            break;
        }
        is_over = connection.poll_without_shutdown(cx).is_ready();
    }
    let last = last.expect("hyper waits for more bytes");
    let mut seen = std::mem::take(&mut *interim.lock().expect("one thread"));
    if let Some(mut last) = last {
        if last.status() == 101 {
            let parts = connection.into_parts();
            last.data.extend_from_slice(&parts.read_buf);
            last.data.extend_from_slice(parts.io.left);
        }
        seen.push(last);
    }
    seen
}

fn outgoing(head: &RequestHead, interim: &Arc<Mutex<Vec<Message>>>) -> Request<Empty<Bytes>> {
    let method = if head.method() == HttpMethod::Head { "HEAD" } else { "GET" };
    let mut request = Request::builder().method(method).header("host", "a");
    if let Some(protocol) = head.upgrade() {
        request = request.header("connection", "upgrade").header("upgrade", protocol);
    }
    let mut request = request.body(Empty::new()).expect("a valid request");
    let interim = interim.clone();
    hyper::ext::on_informational(&mut request, move |response| {
        let start = Start::Response { status: response.status().as_u16() };
        let mut message = message(start, response.headers());
        message.is_whole = true;
        interim.lock().expect("one thread").push(message);
    });
    request
}

fn message(start: Start, fields: &HeaderMap) -> Message {
    Message::new(start, fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())))
}

/// Reads the body of a message. The message is not whole if the body is invalid.
async fn read(mut message: Message, mut body: Incoming) -> Message {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return message };
        match frame.into_data() {
            Ok(data) => message.data.extend_from_slice(&data),
            Err(frame) => {
                let fields = frame.into_trailers().unwrap_or_default();
                let fields = fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
                message.trailers = sorted(fields);
            }
        }
    }
    message.is_whole = true;
    message
}

/// Connection whose peer sends these bytes and closes its side. The peer reads everything.
struct Wire<'a> {
    left: &'a [u8],
    /// Whether the peer has begun to send. A server waits for the request.
    is_open: bool,
}

impl Read for Wire<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_open {
            return Poll::Pending;
        }
        let (now, later) = self.left.split_at(self.left.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.left = later;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_open = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
