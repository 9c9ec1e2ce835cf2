//! One request and its response: bytes both ways between a client and a server, as [`Exchange`] says.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use convey_compression::EncoderFault;
use convey_http_core::{BodyPiece, Exchange, FieldRules, HeadLimits, Malformed, ServerFault};
use convey_proxy::More;
use tokio::net::TcpStream;

use crate::buffer;
use crate::bulk::Bulk;
use crate::compress::{Compression, PIECE};
use crate::ends::End;

/// Most bytes of further requests that are taken while one runs.
const MAX_AHEAD: usize = 16 * 1024;

/// Bytes that a head usually gets longer by.
const ADDED: usize = 256;

/// Most bytes of a body that are kept for a server that may refuse the request once it has them.
const MAX_KEPT: usize = 16 * 1024;

/// Turns of one transfer before the thread's other connections get one.
const TURNS: usize = 8;

/// The same where the response is compressed: that takes longer.
const COMPRESSED_TURNS: usize = 2;

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    /// The client has the whole response.
    Whole,
    /// The client reset its connection, or closed it within the request.
    ClientGone,
    /// The client's body is malformed.
    ClientFault(Malformed),
    /// The server reset its connection.
    ServerReset,
    /// The server ends its connection, and has done nothing of what was asked.
    ServerRefused,
    /// The server has too much to do on its connection, and has done nothing of what was asked.
    ServerBusy,
    /// The server has gone down, by its health.
    ServerDown,
    /// What the server sent is no response, or only a part of one.
    ServerFault(ServerFault),
    /// The encoder refused to go on.
    CompressionFailed,
}

impl TransferEnd {
    /// Whether it is the server that broke it off.
    pub(crate) fn is_of_server(self) -> bool {
        matches!(self, TransferEnd::ServerReset | TransferEnd::ServerFault(_))
    }
}

/// The two sides.
pub(crate) struct Ends<'a, C, S> {
    pub(crate) client: &'a mut C,
    pub(crate) server: &'a mut S,
}

/// A request on its way to a server, and the response on its way back.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) exchange: Exchange,
    /// What the client has sent and nobody has taken yet.
    pub(crate) received: &'a mut BytesMut,
    /// What the operator changes of the response.
    pub(crate) fields: &'a FieldRules,
    /// How the response's body is compressed.
    pub(crate) compression: Compression<'a>,
    /// Bytes that were read from the client, and written to it, since they were last taken.
    pub(crate) moved: (u64, u64),
    /// Bytes of the request's body, since they were last taken.
    pub(crate) body: u64,
    /// The response's status, once its last head has come.
    pub(crate) status: Option<u16>,
    /// Whether nothing but the client holds up the request's body.
    pub(crate) awaits_client: bool,
    /// Whether something came behind the response.
    pub(crate) has_surplus: bool,
    /// What was taken of the client's body, as long as another server might have to get it.
    kept: Option<BytesMut>,
    to_server: Outgoing,
    to_client: Outgoing,
    /// Large parts of the response on their way.
    down: Bulk,
    /// The same of the request.
    up: Bulk,
    /// The response's head, as far as it has come.
    head: BytesMut,
    /// The client has closed its side.
    client_is_done: bool,
    /// The server takes no more: it has answered, or is gone.
    server_takes_nothing: bool,
    /// The server has closed its side (of a connection that has changed its protocol).
    server_is_done: bool,
}

impl<C: End, S: End> Ends<'_, C, S> {
    /// Both sockets, if both have their own.
    fn sockets(&self) -> Option<(&TcpStream, &TcpStream)> {
        self.client.socket().zip(self.server.socket())
    }
}

/// Most bytes that are read of a response for which its client's stream has no room now. They are kept.
const WITHOUT_ROOM: usize = 2 * 1024;

/// Bytes that the other side has not taken yet.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

/// What a direction does next.
enum Step {
    /// It has moved something.
    Moved,
    /// It has nothing more to do.
    Over,
}

impl<'a> Transfer<'a> {
    /// A request with this head, as the server gets it.
    pub(crate) fn new(
        exchange: Exchange,
        head: Vec<u8>,
        received: &'a mut BytesMut,
        fields: &'a FieldRules,
        compression: Compression<'a>,
    ) -> Transfer<'a> {
        Transfer {
            exchange,
            received,
            fields,
            compression,
            moved: (0, 0),
            body: 0,
            status: None,
            awaits_client: false,
            has_surplus: false,
            kept: None,
            to_server: Outgoing { bytes: head, sent: 0 },
            to_client: Outgoing::default(),
            down: Bulk::default(),
            up: Bulk::default(),
            head: BytesMut::new(),
            client_is_done: false,
            server_takes_nothing: false,
            server_is_done: false,
        }
    }

    /// Keeps the beginning of the body: the server may refuse a request after it has begun to take it.
    pub(crate) fn keep_body(&mut self) {
        self.kept = Some(BytesMut::new());
    }

    /// Puts what the server was sent of the body back to what the client has sent. Returns its length; `None`: not all of that was kept.
    pub(crate) fn take_body_back(&mut self) -> Option<u64> {
        let mut kept = self.kept.take()?;
        let len = kept.len() as u64;
        kept.extend_from_slice(self.received);
        *self.received = kept;
        Some(len)
    }

    fn takes_body(&mut self, body: &[u8]) {
        self.body += body.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(body);
        }
        self.kept.take_if(|kept| kept.len() > MAX_KEPT || self.status.is_some());
    }

    /// Whether the server has the whole request. What is still on its way is lost with this, and the server would take the next request
    /// for it.
    pub(crate) fn is_with_server(&self) -> bool {
        !self.server_takes_nothing && self.to_server.left() == 0 && self.up.is_empty()
    }

    /// Whether the client has got a part of what waits for it, and cannot get another answer.
    pub(crate) fn is_torn(&self, client: &impl End) -> bool {
        (self.to_client.sent > 0 || client.is_writing()) && self.to_client.left() > 0
    }

    /// Moves what there is to move, until the client has the whole response, or cannot have it.
    pub(crate) fn poll<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        mut ends: Ends<'_, C, S>,
    ) -> Poll<TransferEnd> {
        let ends = &mut ends;
        for turn in 0..TURNS {
            if turn >= COMPRESSED_TURNS && self.compression.is_on() {
                break;
            }
            let up = match self.poll_up(cx, ends) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(step)) => Some(step),
                Poll::Pending => None,
            };
            let down = match self.poll_down(cx, ends) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(step)) => Some(step),
                Poll::Pending => None,
            };
            match (up, down) {
                // Of a connection with another protocol both directions have to end.
                (Some(Step::Over), Some(Step::Over)) => return Poll::Ready(TransferEnd::Whole),
                (_, Some(Step::Over)) if !self.exchange.has_changed() => {
                    return Poll::Ready(TransferEnd::Whole);
                }
                (Some(Step::Moved), _) | (_, Some(Step::Moved)) => {}
                (None | Some(Step::Over), None | Some(Step::Over)) => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Towards the server.
    fn poll_up<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        self.awaits_client = false;
        if !self.server_takes_nothing {
            match self.to_server.poll_flush(cx, &mut *ends.server, More::No) {
                Poll::Ready(Ok(())) => {}
                // It may have answered before, and that answer still comes.
                Poll::Ready(Err(_)) => self.server_takes_nothing = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.server_takes_nothing && ready!(self.up.poll_drain(cx, ends.server.socket())).is_err() {
            self.server_takes_nothing = true;
        }
        if !self.up.is_empty() && !self.server_takes_nothing {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.exchange.is_request_whole() && !self.exchange.has_changed() {
            return self.poll_ahead(cx, ends.client);
        }
        if !self.received.is_empty() {
            let n = self.exchange.from_client(self.received).map_err(TransferEnd::ClientFault);
            let body = self.received.split_to(n?);
            self.takes_body(&body);
            self.to_server.put(&body);
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.client_is_done {
            ready!(ends.server.poll_close(cx));
            return Poll::Ready(Ok(Step::Over));
        }
        if !self.server_takes_nothing {
            let taken = self.up.fill(ends.sockets(), self.exchange.opaque_from_client());
            let taken = taken.map_err(|_| TransferEnd::ClientGone)?;
            if taken > 0 {
                self.moved.0 += taken;
                self.body += taken;
                self.exchange.passed_from_client(taken);
                return Poll::Ready(Ok(Step::Moved));
            }
        }
        buffer::with(|buffer| {
            let n = match ends.client.poll_read(cx, buffer) {
                Poll::Pending => {
                    self.awaits_client = !self.exchange.has_changed();
                    return Poll::Pending;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(TransferEnd::ClientGone)),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.client_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            self.moved.0 += n as u64;
            let body = self.exchange.from_client(&buffer[..n]).map_err(TransferEnd::ClientFault)?;
            self.takes_body(&buffer[..body]);
            self.received.extend_from_slice(&buffer[body..n]);
            self.up.has_read(n, self.exchange.opaque_from_client());
            if !self.server_takes_nothing
                && self.to_server.write(cx, ends.server, &buffer[..body], More::No).is_err()
            {
                self.server_takes_nothing = true;
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// The request is whole: takes what the client sends ahead, within limits, and hears whether it is gone.
    fn poll_ahead(&mut self, cx: &mut Context<'_>, client: &mut impl End) -> Poll<Result<Step, TransferEnd>> {
        if self.client_is_done || self.received.len() >= MAX_AHEAD {
            return Poll::Ready(Ok(Step::Over));
        }
        buffer::with(|buffer| match client.poll_read(cx, &mut buffer[..MAX_AHEAD]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(_)) => Poll::Ready(Err(TransferEnd::ClientGone)),
            // It may have closed its side alone, and still waits for the response.
            Poll::Ready(Ok(0)) => {
                self.client_is_done = true;
                Poll::Ready(Ok(Step::Over))
            }
            Poll::Ready(Ok(n)) => {
                self.moved.0 += n as u64;
                self.received.extend_from_slice(&buffer[..n]);
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Towards the client.
    fn poll_down<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        let (before, more) = (self.to_client.left(), self.after_the_last());
        let flushed = self.to_client.poll_flush(cx, ends.client, more);
        self.moved.1 += (before - self.to_client.left()) as u64;
        match flushed {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            Poll::Pending => return Poll::Pending,
        }
        match ready!(self.down.poll_drain(cx, ends.client.socket())) {
            Ok(sent) => self.moved.1 += sent,
            Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
        }
        if !self.down.is_empty() {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.server_is_done && self.exchange.has_changed() {
            ready!(ends.client.poll_close(cx));
        }
        if self.exchange.is_response_whole() || self.server_is_done {
            return Poll::Ready(Ok(Step::Over));
        }
        if self.compression.is_on() {
            return self.poll_compressed(cx, ends);
        }
        let sockets = ends.sockets().map(|(client, server)| (server, client));
        let taken = self.down.fill(sockets, self.exchange.opaque_from_server());
        let taken = taken.map_err(|_| TransferEnd::ServerReset)?;
        if taken > 0 {
            self.exchange.passed_from_server(taken);
            return Poll::Ready(Ok(Step::Moved));
        }
        let room = match ends.client.poll_room(cx, buffer::SIZE) {
            Poll::Ready(room) => room.map_err(|_| TransferEnd::ClientGone)?,
            // The end of a body needs none.
            Poll::Pending => WITHOUT_ROOM,
        };
        buffer::with(|buffer| {
            let n = match ends.server.poll_read(cx, &mut buffer[..room]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(server_broke(&error))),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.server_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            let came = &buffer[..n];
            if self.status.is_none() {
                self.head.extend_from_slice(came);
                return Poll::Ready(self.read_head());
            }
            let body = self.exchange.from_server(came).map_err(TransferEnd::ServerFault)?;
            self.has_surplus |= body < n;
            self.down.has_read(n, self.exchange.opaque_from_server());
            let more = self.after_the_last();
            match self.to_client.write(cx, ends.client, &came[..body], more) {
                Ok(sent) => self.moved.1 += sent as u64,
                Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// The same of a body that is compressed, once the client has taken all that was ready. When the server pauses, the client gets all
    /// that has come.
    fn poll_compressed<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        buffer::with(|buffer| match ends.server.poll_read(cx, &mut buffer[..PIECE]) {
            Poll::Pending => match self.compression.flush(&mut self.to_client.bytes) {
                Ok(true) => Poll::Ready(Ok(Step::Moved)),
                Ok(false) => Poll::Pending,
                Err(fault) => Poll::Ready(Err(fault.into())),
            },
            Poll::Ready(Err(error)) => Poll::Ready(Err(server_broke(&error))),
            Poll::Ready(Ok(0)) => Poll::Ready(self.server_closed()),
            Poll::Ready(Ok(n)) => {
                self.has_surplus |= self.compress(&buffer[..n])? < n;
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Compresses what has come of the body. Returns how much of that was the body's.
    fn compress(&mut self, came: &[u8]) -> Result<usize, TransferEnd> {
        let (out, mut at) = (&mut self.to_client.bytes, 0);
        loop {
            let piece = self.exchange.piece_from_server(&came[at..]).map_err(TransferEnd::ServerFault)?;
            at += match piece {
                BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => return Ok(at),
                BodyPiece::Data(len) => {
                    self.compression.write(&came[at..at + len], out)?;
                    len
                }
                BodyPiece::Framing(len) => len,
                BodyPiece::Trailers(len) => {
                    self.compression.finish(out)?;
                    out.extend_from_slice(&came[at..at + len]);
                    len
                }
                BodyPiece::End(len) => {
                    self.compression.finish(out)?;
                    // What came in chunks has a last line of its own.
                    out.extend_from_slice(if len > 0 { &came[at..at + len] } else { b"\r\n" });
                    return Ok(at + len);
                }
            };
        }
    }

    /// What follows what goes to the client next: with its last bytes TCP waits for the end, and sends both in one segment.
    fn after_the_last(&self) -> More {
        let is_last = self.exchange.is_response_whole() && !self.exchange.end().client_stays;
        if is_last { More::End } else { More::No }
    }

    /// Reads the response's head, and passes on what has come of the body with it.
    fn read_head(&mut self) -> Result<Step, TransferEnd> {
        let limits = HeadLimits::default();
        let out = &mut self.to_client.bytes;
        // What comes is about what goes.
        out.reserve(self.head.len() + ADDED);
        let head = self.exchange.head_from_server(&mut self.head, &limits, self.fields, out);
        if let Some(head) = head.map_err(TransferEnd::ServerFault)? {
            self.status = Some(head.status());
            self.compression.decide(head.status(), &mut self.to_client.bytes);
            let rest = std::mem::take(&mut self.head);
            if self.compression.is_on() {
                self.has_surplus = self.compress(&rest)? < rest.len();
                return Ok(Step::Moved);
            }
            let body = self.exchange.from_server(&rest).map_err(TransferEnd::ServerFault)?;
            self.has_surplus = body < rest.len();
            self.to_client.put(&rest[..body]);
        }
        Ok(Step::Moved)
    }

    /// The client has closed within its request, or within another protocol.
    fn client_closed(&mut self) -> Result<Step, TransferEnd> {
        self.client_is_done = true;
        if !self.exchange.has_changed() {
            return Err(TransferEnd::ClientGone);
        }
        Ok(Step::Moved)
    }

    fn server_closed(&mut self) -> Result<Step, TransferEnd> {
        self.exchange.server_closed().map_err(TransferEnd::ServerFault)?;
        self.server_is_done = true;
        if self.compression.is_on() {
            // It was a body until the end of the connection.
            self.compression.finish(&mut self.to_client.bytes)?;
            self.to_client.put(b"\r\n");
        }
        Ok(Step::Moved)
    }
}

impl From<EncoderFault> for TransferEnd {
    fn from(_: EncoderFault) -> TransferEnd {
        TransferEnd::CompressionFailed
    }
}

/// Nothing can be read from the server any more. That of HTTP/1.1 is never refused once it is open.
fn server_broke(error: &io::Error) -> TransferEnd {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => TransferEnd::ServerRefused,
        io::ErrorKind::ResourceBusy => TransferEnd::ServerBusy,
        _ => TransferEnd::ServerReset,
    }
}

impl Outgoing {
    fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes what is left. Its memory is given back with the last of it.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &mut impl End, more: More) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            match to.poll_write(cx, &self.bytes[self.sent..], more) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(sent) => self.sent += sent?,
            }
        }
        if self.sent > 0 {
            *self = Outgoing::default();
        }
        Poll::Ready(Ok(()))
    }

    /// Writes these bytes, where nothing is left, and keeps what the other side does not take. Returns how many it took.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut impl End,
        bytes: &[u8],
        more: More,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let sent = match to.poll_write(cx, bytes, more) {
            Poll::Pending => 0,
            Poll::Ready(sent) => sent?,
        };
        self.put(&bytes[sent..]);
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use convey_http_core::HeadReader;
    use convey_proxy::ByteStream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (ours, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
        (ours.unwrap(), accepted.unwrap().0)
    }

    /// Whether a server that answers at once has the whole request, of which it may read so many bytes before.
    async fn is_with_server(body: usize, reads: usize) -> bool {
        let ((client, mut browser), (server, mut app)) = (connection().await, connection().await);
        let (mut client, mut server) = (ByteStream::from(client), ByteStream::from(server));
        let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
        let mut received = BytesMut::from(&head[..]);
        let head = HeadReader::default().request(&mut received, &HeadLimits::default()).unwrap().unwrap();
        received.extend(std::iter::repeat_n(b'x', body));
        let fields = FieldRules::default();
        let (exchange, none) = (Exchange::new(&head), Compression::default());
        let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &fields, none);
        let answers = async {
            let mut some = vec![0; reads];
            app.read_exact(&mut some).await.unwrap();
            app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        };
        let moves = poll_fn(|cx| transfer.poll(cx, Ends { client: &mut client, server: &mut server }));
        let (end, ()) = tokio::join!(moves, answers);
        assert_eq!((end, transfer.exchange.is_request_whole()), (TransferEnd::Whole, true));
        let mut answer = [0; 2];
        browser.read_exact(&mut answer).await.unwrap();
        transfer.is_with_server()
    }

    #[tokio::test]
    async fn a_server_that_answers_before_it_has_the_request_gets_no_other_one() {
        assert!(is_with_server(1_000, 1_004).await);
        assert!(!is_with_server(64 << 20, 4).await, "the kernel takes no 64 MiB");
    }
}
