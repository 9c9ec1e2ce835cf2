//! One request and its response: bytes both ways between a client and a server, as [`Exchange`] says.

mod down;
mod end;
mod outgoing;
mod up;

use std::task::{Context, Poll};

use bytes::BytesMut;
use convey_http_core::{Exchange, FieldRules};
use tokio::net::TcpStream;

use crate::bulk::Bulk;
use crate::compress::Compression;
use crate::ends::End;

pub(crate) use end::TransferEnd;
pub(crate) use outgoing::Outgoing;

/// Most bytes of a body that are kept for a server that may refuse the request once it has them.
const MAX_KEPT: usize = 16 * 1024;

/// Turns of one transfer before the thread's other connections get one.
const TURNS: usize = 8;

/// The same where the response is compressed: that takes longer.
const COMPRESSED_TURNS: usize = 2;

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

    /// Bytes of a whole response that its client has not taken yet.
    pub(crate) fn take_rest(&mut self) -> Outgoing {
        std::mem::take(&mut self.to_client)
    }

    /// Whether the client has got a part of what waits for it, and cannot get another answer.
    pub(crate) fn is_torn(&self, client: &impl End) -> bool {
        (self.to_client.sent > 0 || client.is_writing()) && self.to_client.left() > 0
    }

    /// Moves what there is to move, until the client has the whole response, or cannot have it. A stream's client has it too if the rest
    /// is in [`Transfer::take_rest`].
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
                (None | Some(Step::Over), None | Some(Step::Over)) => {
                    // A direction that waits for the server does not read the client.
                    return ends.client.poll_reset(cx).map(|()| TransferEnd::ClientGone);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io;

    use convey_http_core::{HeadLimits, HeadReader};
    use convey_proxy::{ByteStream, More};
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

    /// A stream whose client takes a head and no byte of a body.
    struct ClosedWindow {
        head: usize,
        is_reset: bool,
    }

    impl End for ClosedWindow {
        fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bytes: &[u8], _: More) -> Poll<io::Result<usize>> {
            match bytes.windows(4).position(|end| end == b"\r\n\r\n").filter(|_| self.head == 0) {
                Some(end) => {
                    self.head = end + 4;
                    Poll::Ready(Ok(self.head))
                }
                None => Poll::Pending,
            }
        }

        fn poll_room(&mut self, _: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
            if self.head == 0 { Poll::Ready(Ok(most)) } else { Poll::Pending }
        }

        fn is_stream(&self) -> bool {
            true
        }

        fn poll_reset(&mut self, _: &mut Context<'_>) -> Poll<()> {
            if self.is_reset { Poll::Ready(()) } else { Poll::Pending }
        }

        fn socket(&self) -> Option<&TcpStream> {
            None
        }

        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Ready(())
        }
    }

    fn read_head(received: &mut BytesMut) -> Exchange {
        Exchange::new(&HeadReader::default().request(received, &HeadLimits::default()).unwrap().unwrap())
    }

    #[tokio::test]
    async fn short_response_needs_no_server_while_its_client_reads_nothing() {
        for parts in [vec![2], vec![1_000, 1_000, 4_000]] {
            let (server, mut app) = connection().await;
            let (mut client, mut server) =
                (ClosedWindow { head: 0, is_reset: false }, ByteStream::from(server));
            let mut received = BytesMut::from("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let (exchange, fields) = (read_head(&mut received), FieldRules::default());
            let none = Compression::default();
            let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &fields, none);
            let len: usize = parts.iter().sum();
            let answers = async {
                app.read_exact(&mut [0; 4]).await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
                app.write_all(head.as_bytes()).await.unwrap();
                for part in &parts {
                    app.write_all(&vec![b'x'; *part]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let moves = poll_fn(|cx| transfer.poll(cx, Ends { client: &mut client, server: &mut server }));
            let (end, ()) = tokio::join!(moves, answers);
            assert_eq!((end, transfer.is_with_server()), (TransferEnd::Whole, true));
            assert_eq!(transfer.take_rest().left(), len);
        }
    }

    #[tokio::test]
    async fn reset_is_noticed_while_the_server_reads_nothing() {
        let (server, _app) = connection().await;
        let (mut client, mut server) = (ClosedWindow { head: 0, is_reset: true }, ByteStream::from(server));
        let body = 64 << 20;
        let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
        let mut received = BytesMut::from(&head[..]);
        let (exchange, fields) = (read_head(&mut received), FieldRules::default());
        received.extend(std::iter::repeat_n(b'x', body - 1));
        let none = Compression::default();
        let mut transfer = Transfer::new(exchange, b"head".to_vec(), &mut received, &fields, none);
        let moves = poll_fn(|cx| transfer.poll(cx, Ends { client: &mut client, server: &mut server }));
        assert_eq!(moves.await, TransferEnd::ClientGone);
    }

    #[tokio::test]
    async fn a_server_that_answers_before_it_has_the_request_gets_no_other_one() {
        assert!(is_with_server(1_000, 1_004).await);
        assert!(!is_with_server(64 << 20, 4).await, "the kernel takes no 64 MiB");
    }
}
