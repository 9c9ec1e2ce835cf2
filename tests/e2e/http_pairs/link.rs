//! Connections whose reads and writes are split, and messages as streams of frames.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use super::case::{Fields, Link, Message, WHOLE};

/// A field that becomes `te` in front of a server of HTTP/1.1, in a [`SplitStream`]. convey does
/// not forward `te` to such servers, but hyper sends no trailers without it.
pub(super) const TE: (&str, &str) = ("tf", "trailers");

/// Pauses of a sender or reader take at most this time in all.
const MOST_PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// A connection that reads and writes a few bytes at once, and is not always ready.
pub(super) struct SplitStream {
    tcp: TcpStream,
    read: usize,
    write: usize,
    turns: u32,
    /// Last three bytes, in front of a server.
    last: Option<[u8; 3]>,
}

impl Link {
    /// Connects to convey.
    pub(super) async fn connect(&self, to: SocketAddr) -> io::Result<SplitStream> {
        let socket = TcpSocket::new_v4()?;
        if let Some(buffer) = self.buffer {
            socket.set_recv_buffer_size(buffer as u32)?;
        }
        Ok(self.over(socket.connect(to).await?))
    }

    pub(super) fn over(&self, tcp: TcpStream) -> SplitStream {
        tcp.set_nodelay(true).unwrap();
        SplitStream { tcp, read: self.read, write: self.write, turns: 0, last: None }
    }

    /// A connection of a server of HTTP/1.1.
    pub(super) fn of_server(&self, tcp: TcpStream) -> SplitStream {
        SplitStream { last: Some([0; 3]), ..self.over(tcp) }
    }
}

impl SplitStream {
    /// Whether a turn is skipped, as if the socket was not ready.
    fn is_skipped(&mut self, part: usize, cx: &Context<'_>) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let is_skipped = part < WHOLE && self.turns.is_multiple_of(3);
        if is_skipped {
            cx.waker().wake_by_ref();
        }
        is_skipped
    }
}

/// Turns [`TE`] into `te`.
fn replace_te(last: &mut [u8; 3], bytes: &mut [u8]) {
    for byte in bytes {
        if last == b"\r\nt" && *byte == b'f' {
            *byte = b'e';
        }
        *last = [last[1], last[2], *byte];
    }
}

impl AsyncRead for SplitStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let part = self.read;
        if self.is_skipped(part, cx) {
            return Poll::Pending;
        }
        let mut bytes = [0; 16 * 1024];
        let most = part.min(buf.remaining()).min(bytes.len());
        let mut read = ReadBuf::new(&mut bytes[..most]);
        let polled = Pin::new(&mut self.tcp).poll_read(cx, &mut read);
        if let Some(last) = &mut self.last {
            replace_te(last, read.filled_mut());
        }
        buf.put_slice(read.filled());
        polled
    }
}

impl AsyncWrite for SplitStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let part = self.write;
        if self.is_skipped(part, cx) {
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_write(cx, &bytes[..bytes.len().min(part)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Pauses of a reader or sender.
pub(super) struct Pauses(u32);

impl Pauses {
    pub(super) fn new(pauses: bool) -> Pauses {
        Pauses(if pauses { MOST_PAUSES } else { 0 })
    }

    pub(super) async fn pause(&mut self) {
        if self.0 > 0 {
            self.0 -= 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Adds a message's fields to its head.
pub(super) fn add_fields(message: &Message, head: &mut HeaderMap) {
    add(&message.fields, head);
    if message.has_trailers() && message.is_announced {
        let names: Vec<&str> = message.trailers.0.keys().map(String::as_str).collect();
        head.insert("trailer", names.join(", ").parse().unwrap());
    }
    if message.has_length {
        head.insert("content-length", message.len.into());
    }
}

fn add(fields: &Fields, map: &mut HeaderMap) {
    for (name, value) in fields.all() {
        let name: HeaderName = name.parse().unwrap();
        map.append(name, HeaderValue::from_bytes(value).unwrap());
    }
}

/// Frames of a message's body, and its trailers; each with whether it is the last one. The last
/// frame waits until `gate` opens.
pub(super) fn frames(
    message: &Message,
    gate: Option<oneshot::Receiver<()>>,
) -> impl Stream<Item = (Frame<Bytes>, bool)> + Send + 'static {
    let (body, piece) = (Bytes::from(message.body()), message.piece);
    let starts = (0..body.len()).step_by(piece);
    let data = starts.map(|at| Frame::data(body.slice(at..body.len().min(at + piece))));
    let trailers = message.has_trailers().then(|| {
        let mut trailers = HeaderMap::new();
        add(&message.trailers, &mut trailers);
        Frame::trailers(trailers)
    });
    let all: Vec<Frame<Bytes>> = data.chain(trailers).collect();
    let state = (all.into_iter(), Pauses::new(message.pauses), gate);
    stream::unfold(state, |(mut frames, mut pauses, mut gate)| async move {
        if frames.len() <= 1
            && let Some(gate) = gate.take()
        {
            // An error: the request has failed.
            let _ = gate.await;
        }
        let frame = frames.next()?;
        pauses.pause().await;
        let is_last = frames.len() == 0;
        Some(((frame, is_last), (frames, pauses, gate)))
    })
}

/// A message as a body of hyper.
pub(super) fn body(
    message: &Message,
    gate: Option<oneshot::Receiver<()>>,
) -> UnsyncBoxBody<Bytes, Infallible> {
    match message.is_empty() {
        true => Empty::new().boxed_unsync(),
        false => StreamBody::new(frames(message, gate).map(|(frame, _)| Ok(frame))).boxed_unsync(),
    }
}
