//! One HTTP/1 exchange: a request and its response between a client and a server. An exchange
//! decides how many bytes to forward in each direction, and whether both connections stay open.
//!
//! An exchange stores no body. The caller reads from both sockets. The exchange returns how many of
//! the received bytes to forward, and the caller forwards them unchanged.
//!
//! [`ExchangeState`] makes the decisions that do not depend on the bytes of HTTP/1.
//!
//! Servers receive every request as HTTP/1.1. An HTTP/1.0 client cannot read chunks, so the caller
//! removes the chunk framing from the response (`Exchange::removes_chunks`).

mod state;
#[cfg(test)]
mod tests;

pub use state::{ExchangeEnd, ExchangeState, HeadVerdict};

use crate::Malformed;
use crate::body::{BodyPiece, BodyProgress, BodyReader};
use crate::forward::{ClientConnection, FieldRules, OutgoingResponse};
use crate::head::{HeadLimits, HeadReader, RequestHead, ResponseHead};

/// Maximum number of interim responses (1xx) to one request.
pub const MAX_INTERIM_RESPONSES: u8 = 16;

/// A request to a server and the server's response, between two connections of HTTP/1.
#[derive(Debug)]
pub struct Exchange {
    state: ExchangeState,
    /// Body of the request; `None` once it is complete.
    request: Option<BodyReader>,
    head: HeadReader,
    /// Body of the response; `None` before its head, and once it is complete.
    response: Option<BodyReader>,
    response_limits: HeadLimits,
}

/// Reason why a server's response is invalid. The server's connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// The response is ambiguous, or not HTTP.
    Malformed(Malformed),
    /// The server switches to another protocol (101), but the client did not ask for it, or has not
    /// sent its whole request yet.
    UnaskedUpgrade,
    /// The server switches to WebSocket with a wrong `Sec-WebSocket-Accept`.
    WebSocketAccept,
    /// The server answers a request for a tunnel with a 2xx instead of a 101. A client that uses a
    /// stream would take a 2xx as the beginning of its tunnel.
    NotSwitched,
    /// The server sent more interim responses than [`MAX_INTERIM_RESPONSES`].
    TooManyInterim,
    /// The server closed the connection before its response was complete.
    Closed,
}

impl Exchange {
    /// Creates the exchange of a request with this head.
    #[inline]
    pub fn new(head: &RequestHead) -> Exchange {
        let is_empty = head.framing().is_empty();
        Exchange {
            state: ExchangeState::new(head),
            request: (!is_empty).then(|| BodyReader::of_request(head.framing())),
            head: HeadReader::default(),
            response: None,
            response_limits: HeadLimits::OF_RESPONSES,
        }
    }

    /// Progress of the exchange.
    pub fn state(&self) -> &ExchangeState {
        &self.state
    }

    /// Progress of the exchange, for modification: the caller notes events in it.
    pub fn state_mut(&mut self) -> &mut ExchangeState {
        &mut self.state
    }

    /// Limits the data of a chunked request body to `most` bytes. The caller itself has to refuse a
    /// `Content-Length` above the limit.
    pub fn limit_body(&mut self, most: u64) {
        if let Some(body) = &mut self.request {
            body.limit(most);
        }
    }

    /// Limits the size and the number of fields of the response's head and trailers. The default is
    /// [`HeadLimits::OF_RESPONSES`].
    pub fn limit_response(&mut self, limits: HeadLimits) {
        self.response_limits = limits;
    }

    /// Returns how many of the client's next bytes to forward to the server. The rest belongs to
    /// the client's next request.
    ///
    /// # Errors
    /// The body is malformed, and must not be forwarded any further.
    pub fn from_client(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let len = match &mut self.request {
            _ if self.state.has_changed() => bytes.len(),
            None => 0,
            Some(body) => match body.advance(bytes)? {
                BodyProgress::All => bytes.len(),
                BodyProgress::Ends(len) => {
                    self.end_request();
                    len
                }
            },
        };
        self.note_sent(len as u64);
        Ok(len)
    }

    /// Reads the head of the server's response at the front of `received`. Appends interim responses
    /// to `out`, for clients that support them. Returns the number of read bytes, which the caller
    /// removes, and the final head, which [`Exchange::write_head`] writes; `None`: more bytes have
    /// to be received.
    ///
    /// # Errors
    /// The received bytes are no valid response to this request.
    pub fn head_from_server(
        &mut self,
        received: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<ResponseHead>), ServerFault> {
        let mut read = 0;
        while self.state.awaits_head() {
            let left = &received[read..];
            if !left.is_empty() {
                self.state.note_server_bytes();
            }
            let (method, limits) = (self.state.method(), &self.response_limits);
            let head = self.head.response_in(left, method, limits).map_err(ServerFault::Malformed)?;
            let Some((head, len)) = head else { break };
            read += len;
            match self.state.take_head(&head)? {
                HeadVerdict::DropInterim => {}
                HeadVerdict::PassInterim => {
                    let none = FieldRules::default();
                    OutgoingResponse::new(&head, &none).write(ClientConnection::Stays, out);
                }
                HeadVerdict::Final => {
                    self.response = (!self.state.is_response_whole() && !self.state.has_changed())
                        .then(|| response_body(&head, self.response_limits));
                    return Ok((read, Some(head)));
                }
            }
        }
        Ok((read, None))
    }

    /// Writes the final head for the client.
    pub fn write_head(&mut self, head: &OutgoingResponse<'_>, out: &mut Vec<u8>) {
        head.write(self.state.client_connection(), out);
        self.state.note_answer();
    }

    /// Returns how many of the server's next bytes to forward to the client, after the head.
    /// Further bytes belong to no response.
    ///
    /// # Errors
    /// The body is malformed, so the client cannot receive all of it.
    pub fn from_server(&mut self, bytes: &[u8]) -> Result<usize, ServerFault> {
        match &mut self.response {
            _ if self.state.has_changed() => Ok(bytes.len()),
            None => Ok(0),
            Some(body) => match body.advance(bytes).map_err(ServerFault::Malformed)? {
                BodyProgress::All => Ok(bytes.len()),
                BodyProgress::Ends(len) => {
                    self.end_response();
                    Ok(len)
                }
            },
        }
    }

    /// Parses the server's next bytes after the head: replaces [`Exchange::from_server`] for a body
    /// that is forwarded in another framing. Call it again with the remaining bytes, until none are
    /// left or the body ends.
    ///
    /// # Errors
    /// The body is malformed, so the client cannot receive all of it.
    pub fn piece_from_server(&mut self, bytes: &[u8]) -> Result<BodyPiece, ServerFault> {
        let Some(body) = &mut self.response else { return Ok(BodyPiece::End(0)) };
        let piece = body.next(bytes).map_err(ServerFault::Malformed)?;
        if let BodyPiece::End(_) = piece {
            self.end_response();
        }
        Ok(piece)
    }

    /// Whether chunk framing is removed from the response, because the client speaks HTTP/1.0. Then
    /// the caller uses [`Exchange::piece_from_server`], and forwards only the data, without framing
    /// or trailers.
    pub fn removes_chunks(&self) -> bool {
        self.state.client_connection() == ClientConnection::ClosesWithoutChunks
    }

    /// Notes that the caller has forwarded `len` bytes from the server without parsing. `len` is at
    /// most the number from [`Exchange::opaque_from_server`].
    pub fn passed_from_server(&mut self, len: u64) {
        if let Some(body) = &mut self.response
            && body.pass(len)
        {
            self.end_response();
        }
    }

    /// Notes that the caller has forwarded `len` bytes from the client without parsing. `len` is at
    /// most the number from [`Exchange::opaque_from_client`].
    pub fn passed_from_client(&mut self, len: u64) {
        self.note_sent(len);
        if let Some(body) = &mut self.request
            && body.pass(len)
        {
            self.end_request();
        }
    }

    /// Notes that the server has closed its side.
    ///
    /// # Errors
    /// The response is not complete.
    pub fn server_closed(&mut self) -> Result<(), ServerFault> {
        let ends_body = self.response.as_ref().is_some_and(BodyReader::may_end);
        self.state.note_server_closed(ends_body)?;
        self.response = None;
        Ok(())
    }

    /// Number of the client's next bytes that are forwarded without parsing; 0 if they have to be
    /// parsed.
    pub fn opaque_from_client(&self) -> u64 {
        match self.state.has_changed() {
            true => u64::MAX,
            false => self.request.as_ref().map_or(0, BodyReader::opaque),
        }
    }

    /// Number of the server's next bytes that are forwarded without parsing; 0 if they have to be
    /// parsed.
    pub fn opaque_from_server(&self) -> u64 {
        match self.state.has_changed() {
            true => u64::MAX,
            false => self.response.as_ref().map_or(0, BodyReader::opaque),
        }
    }

    fn note_sent(&mut self, len: u64) {
        if len > 0 {
            self.state.note_sent_body();
        }
    }

    fn end_request(&mut self) {
        self.request = None;
        self.state.note_request_end();
    }

    fn end_response(&mut self) {
        self.response = None;
        self.state.note_response_end();
    }
}

fn response_body(head: &ResponseHead, limits: HeadLimits) -> BodyReader {
    let mut body = BodyReader::of_response(head.framing());
    body.limit_trailers(limits);
    body
}

impl ServerFault {
    /// Name of the fault in logs, metrics and documentation.
    pub fn label(self) -> &'static str {
        match self {
            ServerFault::Malformed(malformed) => malformed.label(),
            ServerFault::UnaskedUpgrade => "unasked_upgrade",
            ServerFault::WebSocketAccept => "websocket_accept",
            ServerFault::NotSwitched => "not_switched",
            ServerFault::TooManyInterim => "too_many_interim",
            ServerFault::Closed => "closed_early",
        }
    }
}
