//! One HTTP/1 exchange: a request and its response between a client and a server. An exchange
//! decides how many bytes to forward in each direction, and whether both connections stay open.
//!
//! An exchange stores no body. The caller reads from both sockets, gets the number of bytes to
//! forward from the exchange, and forwards them unchanged.
//!
//! Servers receive every request as HTTP/1.1. An HTTP/1.0 client cannot read chunks, so the caller
//! removes their framing from the response (`Exchange::removes_chunks`).

#[cfg(test)]
mod tests;

use bytes::BytesMut;

use crate::body::{BodyFraming, BodyPiece, BodyProgress, BodyReader};
use crate::forward::{ClientConnection, FieldRules, OutgoingResponse};
use crate::head::{HeadLimits, HeadReader, RequestHead, ResponseHead};
use crate::{HttpMethod, Malformed};

/// Maximum number of interim responses (1xx) to one request.
pub const MAX_INTERIM_RESPONSES: u8 = 16;

/// A request to a server and the server's response.
#[derive(Debug)]
pub struct Exchange {
    method: HttpMethod,
    is_http11: bool,
    wants_upgrade: bool,
    keeps_alive: bool,
    request: Request,
    response: Response,
    /// Whether bytes of the request's body were forwarded, and the caller cannot send them again.
    has_sent_body: bool,
    /// Whether the client has received a part of the final response, or an incomplete interim
    /// response.
    has_answered: bool,
    /// Whether the client has received an interim response.
    has_passed_interim: bool,
    interim: u8,
    client: ClientConnection,
    server_keeps_alive: bool,
    response_limits: HeadLimits,
}

#[derive(Debug)]
enum Request {
    Body(BodyReader),
    Whole,
}

#[derive(Debug)]
enum Response {
    Head(HeadReader),
    Body(BodyReader),
    Whole,
    /// Both connections have switched to another protocol.
    Changed,
}

/// Reason why a server's response is invalid. The server's connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// The response is ambiguous, or not HTTP.
    Malformed(Malformed),
    /// The server switches to another protocol (101), but the client did not ask for it, or has not
    /// sent its whole request yet.
    UnaskedUpgrade,
    /// The server sent more interim responses than [`MAX_INTERIM_RESPONSES`].
    TooManyInterim,
    /// The server closed the connection before its response was complete.
    Closed,
}

/// Whether both connections can be used again after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeEnd {
    /// Whether the client may send another request, as the head of the response announced.
    pub client_stays: bool,
    /// Whether the server's connection can be reused, if the server sent nothing after the
    /// response.
    pub server_stays: bool,
}

impl Exchange {
    /// Creates the exchange of a request with this head.
    pub fn new(head: &RequestHead) -> Exchange {
        let is_empty = head.framing().is_empty();
        Exchange {
            method: head.method(),
            is_http11: head.is_http11(),
            wants_upgrade: head.upgrade().is_some(),
            keeps_alive: head.keeps_alive() && head.is_http11(),
            request: if is_empty {
                Request::Whole
            } else {
                Request::Body(BodyReader::of_request(head.framing()))
            },
            response: Response::Head(HeadReader::default()),
            has_sent_body: false,
            has_answered: false,
            has_passed_interim: false,
            interim: 0,
            client: ClientConnection::Closes,
            server_keeps_alive: false,
            response_limits: HeadLimits::OF_RESPONSES,
        }
    }

    /// Makes this the last request of the client's connection. The response announces the close.
    pub fn is_last(&mut self) {
        self.keeps_alive = false;
    }

    /// Limits the request's body to this number of bytes, without its framing. The caller refuses a
    /// `Content-Length` above the limit.
    pub fn limit_body(&mut self, most: u64) {
        if let Request::Body(body) = &mut self.request {
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
        let len = match (&self.response, &mut self.request) {
            (Response::Changed, _) => bytes.len(),
            (_, Request::Whole) => 0,
            (_, Request::Body(body)) => match body.advance(bytes)? {
                BodyProgress::All => bytes.len(),
                BodyProgress::Ends(len) => {
                    self.request = Request::Whole;
                    len
                }
            },
        };
        self.has_sent_body |= len > 0;
        Ok(len)
    }

    /// Reads the head of the server's response from the front of `received`. Appends interim
    /// responses to `out`, for clients that support them. Returns the final head, which
    /// [`Exchange::write_head`] writes; `None`: more bytes have to be received.
    ///
    /// # Errors
    /// The received bytes are no valid response to this request.
    pub fn head_from_server(
        &mut self,
        received: &mut BytesMut,
        out: &mut Vec<u8>,
    ) -> Result<Option<ResponseHead>, ServerFault> {
        while let Response::Head(reader) = &mut self.response {
            let head = reader
                .response(received, self.method, &self.response_limits)
                .map_err(ServerFault::Malformed)?;
            let Some(head) = head else { return Ok(None) };
            if head.is_interim() {
                self.pass_on_interim(&head, out)?;
                continue;
            }
            self.begin_response(&head)?;
            return Ok(Some(head));
        }
        Ok(None)
    }

    /// Writes the final head for the client.
    pub fn write_head(&mut self, head: &OutgoingResponse<'_>, out: &mut Vec<u8>) {
        head.write(self.client, out);
        self.has_answered = true;
    }

    /// Returns how many of the server's next bytes to forward to the client, after the head.
    /// Further bytes belong to no response.
    ///
    /// # Errors
    /// The body is malformed, so the client cannot receive all of it.
    pub fn from_server(&mut self, bytes: &[u8]) -> Result<usize, ServerFault> {
        match &mut self.response {
            Response::Changed => Ok(bytes.len()),
            Response::Head(_) | Response::Whole => Ok(0),
            Response::Body(body) => match body.advance(bytes).map_err(ServerFault::Malformed)? {
                BodyProgress::All => Ok(bytes.len()),
                BodyProgress::Ends(len) => {
                    self.response = Response::Whole;
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
        let Response::Body(body) = &mut self.response else { return Ok(BodyPiece::End(0)) };
        let piece = body.next(bytes).map_err(ServerFault::Malformed)?;
        if let BodyPiece::End(_) = piece {
            self.response = Response::Whole;
        }
        Ok(piece)
    }

    /// Whether chunk framing is removed from the response, because the client speaks HTTP/1.0. Then
    /// the caller uses [`Exchange::piece_from_server`], and forwards only the data, without framing
    /// or trailers.
    pub fn removes_chunks(&self) -> bool {
        self.client == ClientConnection::ClosesWithoutChunks
    }

    /// Notes that the caller has forwarded `len` bytes of the server without parsing, at most
    /// [`Exchange::opaque_from_server`].
    pub fn passed_from_server(&mut self, len: u64) {
        if let Response::Body(body) = &mut self.response
            && body.pass(len)
        {
            self.response = Response::Whole;
        }
    }

    /// Notes that the caller has forwarded `len` bytes of the client without parsing, at most
    /// [`Exchange::opaque_from_client`].
    pub fn passed_from_client(&mut self, len: u64) {
        self.has_sent_body |= len > 0;
        if let Request::Body(body) = &mut self.request
            && body.pass(len)
        {
            self.request = Request::Whole;
        }
    }

    /// Notes that the server has closed its side.
    ///
    /// # Errors
    /// The response is not complete.
    pub fn server_closed(&mut self) -> Result<(), ServerFault> {
        self.server_keeps_alive = false;
        match &self.response {
            Response::Body(body) if body.may_end() => self.response = Response::Whole,
            Response::Whole | Response::Changed => {}
            Response::Head(_) | Response::Body(_) => return Err(ServerFault::Closed),
        }
        Ok(())
    }

    /// Number of the client's next bytes that are forwarded without parsing; 0 if they have to be
    /// parsed.
    pub fn opaque_from_client(&self) -> u64 {
        match (&self.response, &self.request) {
            (Response::Changed, _) => u64::MAX,
            (_, Request::Body(body)) => body.opaque(),
            (_, Request::Whole) => 0,
        }
    }

    /// Number of the server's next bytes that are forwarded without parsing; 0 if they have to be
    /// parsed.
    pub fn opaque_from_server(&self) -> u64 {
        match &self.response {
            Response::Changed => u64::MAX,
            Response::Body(body) => body.opaque(),
            Response::Head(_) | Response::Whole => 0,
        }
    }

    /// Whether the whole request was forwarded to the server.
    pub fn is_request_whole(&self) -> bool {
        matches!(self.request, Request::Whole)
    }

    /// Whether the whole response was forwarded to the client.
    pub fn is_response_whole(&self) -> bool {
        matches!(self.response, Response::Whole)
    }

    /// Whether the connection has switched to another protocol (status 101). Then all bytes are
    /// forwarded in both directions.
    pub fn has_changed(&self) -> bool {
        matches!(self.response, Response::Changed)
    }

    /// Whether the client has received a part of the final response, so that no other response can
    /// replace it. A complete interim response does not count.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Notes that the client has received only a part of an interim response, so that no other
    /// response can follow.
    pub fn has_passed_part(&mut self) {
        self.has_answered = true;
    }

    /// Notes that the caller still has the forwarded part of the request's body and can send it
    /// again.
    pub fn has_body_back(&mut self) {
        self.has_sent_body = false;
    }

    /// Whether the server has not sent a single byte of a response.
    pub fn has_sent_nothing_back(&self) -> bool {
        matches!(&self.response, Response::Head(reader) if reader.is_new()) && self.interim == 0
    }

    /// Whether the request may be retried on another server after this server received it and
    /// failed: the method is idempotent (RFC 9110, section 9.2.2), the client has received no
    /// response, and no part of the request's body is lost.
    pub fn may_be_repeated(&self) -> bool {
        self.method.is_idempotent() && self.may_be_sent_elsewhere()
    }

    /// Whether the request may be sent to another server if this server has not processed it: the
    /// client has received no response, and no part of the request's body is lost.
    pub fn may_be_sent_elsewhere(&self) -> bool {
        !self.has_answered && !self.has_passed_interim && !self.has_sent_body
    }

    /// Returns whether both connections can be used again, once the response is complete.
    pub fn end(&self) -> ExchangeEnd {
        let is_whole = self.is_request_whole() && self.is_response_whole();
        ExchangeEnd {
            client_stays: is_whole && self.client == ClientConnection::Stays,
            server_stays: is_whole && self.server_keeps_alive,
        }
    }

    fn pass_on_interim(&mut self, head: &ResponseHead, out: &mut Vec<u8>) -> Result<(), ServerFault> {
        self.interim += 1;
        if self.interim > MAX_INTERIM_RESPONSES {
            return Err(ServerFault::TooManyInterim);
        }
        if self.is_http11 {
            OutgoingResponse::new(head, &FieldRules::default()).write(ClientConnection::Stays, out);
            self.has_passed_interim = true;
        }
        Ok(())
    }

    /// Begins the final response with its head. If the request is still incomplete, the response
    /// announces the close of the client's connection, because the rest may never arrive.
    fn begin_response(&mut self, head: &ResponseHead) -> Result<(), ServerFault> {
        if head.status() == 101 {
            if !self.wants_upgrade || !self.is_request_whole() {
                return Err(ServerFault::UnaskedUpgrade);
            }
            (self.response, self.client) = (Response::Changed, ClientConnection::Changes);
            return Ok(());
        }
        let client_stays =
            self.keeps_alive && self.is_request_whole() && head.framing() != BodyFraming::UntilClose;
        self.client = match head.framing() {
            BodyFraming::Chunked if !self.is_http11 => ClientConnection::ClosesWithoutChunks,
            _ if client_stays => ClientConnection::Stays,
            _ => ClientConnection::Closes,
        };
        self.server_keeps_alive = head.keeps_alive();
        self.response = match head.framing() {
            framing if framing.is_empty() => Response::Whole,
            framing => {
                let mut body = BodyReader::of_response(framing);
                body.limit_trailers(self.response_limits);
                Response::Body(body)
            }
        };
        Ok(())
    }
}

impl ServerFault {
    /// Name of the fault in logs, metrics and documentation.
    pub fn label(self) -> &'static str {
        match self {
            ServerFault::Malformed(malformed) => malformed.label(),
            ServerFault::UnaskedUpgrade => "unasked_upgrade",
            ServerFault::TooManyInterim => "too_many_interim",
            ServerFault::Closed => "closed_early",
        }
    }
}
