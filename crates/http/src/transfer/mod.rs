//! Transfer of one request and its response between a client and a server, as [`Exchange`] decides.

mod down;
mod end;
mod outgoing;
mod unread;
mod up;

use std::net::IpAddr;
use std::task::{Context, Poll};

use bytes::BytesMut;
use convey_http_core::{Exchange, FieldRules};
use tokio::net::TcpStream;

use crate::bulk::Bulk;
use crate::compress::Compression;
use crate::ends::End;

pub(crate) use end::TransferEnd;
pub(crate) use outgoing::Outgoing;

/// Maximum size of a request body that is stored for a retry, if a server refuses the request.
const MAX_KEPT: usize = 16 * 1024;

/// Maximum turns of one transfer before it yields to the thread's other connections.
const TURNS: usize = 8;

/// Like [`TURNS`], for compressed responses, which take longer per turn.
const COMPRESSED_TURNS: usize = 2;

/// The two endpoints of a transfer.
pub(crate) struct Ends<'a, C, S> {
    pub(crate) client: &'a mut C,
    pub(crate) server: &'a mut S,
}

/// Transfer of a request to a server and of the response to the client.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    pub(crate) exchange: Exchange,
    /// Bytes received from the client that are not processed yet.
    pub(crate) received: &'a mut BytesMut,
    /// Configured changes of the response's fields.
    pub(crate) fields: &'a FieldRules,
    /// How the response's body is compressed.
    pub(crate) compression: Compression<'a>,
    /// Bytes that were read from the client, and written to it, since the caller last took the
    /// numbers.
    pub(crate) moved: (u64, u64),
    /// Bytes of the request's body since the caller last took the number.
    pub(crate) body: u64,
    /// Status of the final response, once its head was received.
    pub(crate) status: Option<u16>,
    /// Whether the transfer waits only for the client to send more of the request's body.
    pub(crate) awaits_client: bool,
    /// Whether the transfer can move more bytes immediately, but first gives a turn to the thread's
    /// other connections.
    pub(crate) has_more: bool,
    /// Whether the server sent bytes after the response.
    pub(crate) has_surplus: bool,
    /// Address of the client, if it uses an HTTP/2 or HTTP/3 stream; `None`: it uses HTTP/1.
    stream_of: Option<IpAddr>,
    /// Whether the transfer waits for bytes of the client, and so notices its end.
    reads_client: bool,
    /// Whether the transfer waits for bytes of the server.
    reads_server: bool,
    /// Forwarded part of the request's body, while a retry on another server is possible.
    kept: Option<BytesMut>,
    to_server: Outgoing,
    to_client: Outgoing,
    /// Bulk transfer of the response's body.
    down: Bulk,
    /// Bulk transfer of the request's body.
    up: Bulk,
    /// Received part of the response's head.
    head: BytesMut,
    /// Whether the client has closed its side.
    client_is_done: bool,
    /// Whether a write to the server has failed, so that the server accepts no more bytes. Its
    /// response may still arrive.
    server_takes_nothing: bool,
    /// Whether the server has closed its side.
    server_is_done: bool,
}

impl<C: End, S: End> Ends<'_, C, S> {
    /// Both sockets, if the kernel may move bytes between them.
    fn sockets(&self) -> Option<(&TcpStream, &TcpStream)> {
        self.client.socket().zip(self.server.socket())
    }
}

/// Result of a step of one direction.
enum Step {
    /// Bytes were moved.
    Moved,
    /// The direction is complete.
    Over,
}

impl<'a> Transfer<'a> {
    /// Creates the transfer of a request. `head` is the head for the server; empty if it was sent
    /// on an HTTP/2 stream.
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
            has_more: false,
            has_surplus: false,
            stream_of: None,
            reads_client: false,
            reads_server: false,
            kept: None,
            to_server: Outgoing::new(head),
            to_client: Outgoing::default(),
            down: Bulk::default(),
            up: Bulk::default(),
            head: BytesMut::new(),
            client_is_done: false,
            server_takes_nothing: false,
            server_is_done: false,
        }
    }

    /// Keeps a copy of the body for a retry, up to `MAX_KEPT` bytes: a server may refuse a request
    /// after it has accepted a part of the body.
    pub(crate) fn keep_body(&mut self) {
        self.kept = Some(BytesMut::new());
    }

    /// Lets convey buffer the response for a stream of this client after it has released the
    /// server; `None`: the client uses no stream.
    pub(crate) fn hold_response(&mut self, stream_of: Option<IpAddr>) {
        self.stream_of = stream_of;
    }

    /// Number of response bytes that wait for the client.
    pub(crate) fn waiting_for_client(&self) -> u64 {
        (self.to_client.left() + self.down.left()) as u64
    }

    /// Moves the forwarded part of the body back to the received bytes of the client, for a retry.
    /// Returns the part's length; `None`: a byte of the part was not kept.
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

    /// Whether all received bytes of the request were written to the server. Otherwise, its
    /// connection must not be reused: the server would read the next request as the missing bytes.
    pub(crate) fn is_with_server(&self) -> bool {
        !self.server_takes_nothing && self.to_server.left() == 0 && self.up.is_empty()
    }

    /// Takes the bytes of the response that the client has not accepted yet.
    pub(crate) fn take_rest(&mut self) -> Outgoing {
        std::mem::take(&mut self.to_client)
    }

    /// Whether the client has received only a part of the waiting bytes, so that no other response
    /// can follow.
    pub(crate) fn is_torn(&self, client: &impl End) -> bool {
        self.to_client.is_torn() || client.is_writing() && self.to_client.left() > 0
    }

    /// Moves bytes in both directions until the client has the whole response, or cannot get it.
    /// For a client's stream, the response is also complete if [`Transfer::take_rest`] returns the
    /// rest.
    pub(crate) fn poll<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        mut ends: Ends<'_, C, S>,
    ) -> Poll<TransferEnd> {
        let ends = &mut ends;
        self.has_more = false;
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
                // After a change of the protocol, both directions have to end.
                (Some(Step::Over), Some(Step::Over)) => return Poll::Ready(TransferEnd::Whole),
                (_, Some(Step::Over)) if !self.exchange.has_changed() => {
                    return Poll::Ready(TransferEnd::Whole);
                }
                (Some(Step::Moved), _) | (_, Some(Step::Moved)) => {}
                (None | Some(Step::Over), None | Some(Step::Over)) => return self.poll_reset(cx, ends),
            }
        }
        self.has_more = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
