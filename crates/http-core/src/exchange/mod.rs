//! One request and its response, between a client and a server of HTTP/1: which bytes go where, and
//! what becomes of both connections.
//!
//! No body is kept. A shell reads from both sockets, asks here how many of the bytes go on, and
//! passes them on as they are.
//!
//! A client of HTTP/1.0 has its request passed on as one of HTTP/1.0: so no server answers it in
//! chunks, which it could not read.

#[cfg(test)]
mod tests;

use bytes::BytesMut;

use crate::body::{BodyFraming, BodyPiece, BodyProgress, BodyReader};
use crate::forward::{ClientConnection, FieldRules, write_response};
use crate::head::{HeadLimits, HeadReader, RequestHead, ResponseHead};
use crate::{HttpMethod, Malformed};

/// Most interim responses (1xx) of a server to one request.
pub const MAX_INTERIM_RESPONSES: u8 = 16;

/// A request that goes to a server, and what the server answers.
#[derive(Debug)]
pub struct Exchange {
    method: HttpMethod,
    is_http11: bool,
    wants_upgrade: bool,
    keeps_alive: bool,
    request: Request,
    response: Response,
    /// Whether bytes of the request's body were passed on.
    has_sent_body: bool,
    /// Whether the client has got anything of the last response.
    has_answered: bool,
    /// Whether it has got an interim one.
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
    /// Neither side is HTTP any more.
    Changed,
}

/// Why a server's answer is none. Its connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// It could be read in two ways, or is no HTTP.
    Malformed(Malformed),
    /// It changes to another protocol, and the client has asked for none.
    UnaskedUpgrade,
    /// More than [`MAX_INTERIM_RESPONSES`].
    TooManyInterim,
    /// The server closed before its response was whole.
    Closed,
}

/// What becomes of the two connections after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeEnd {
    /// Whether the client may send another request, as it was told.
    pub client_stays: bool,
    /// Whether the server's connection can have another request, if nothing came behind the
    /// response.
    pub server_stays: bool,
}

impl Exchange {
    /// The head goes to a server; its body may follow.
    pub fn new(head: &RequestHead) -> Exchange {
        let is_empty = matches!(head.framing(), BodyFraming::Empty | BodyFraming::Length(0));
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

    /// The client may send no other request after this one: it is told so with the response.
    pub fn is_last(&mut self) {
        self.keeps_alive = false;
    }

    /// The request's body may have so many bytes at most, without its framing. A length beyond that
    /// is for the caller to refuse.
    pub fn limit_body(&mut self, most: u64) {
        if let Request::Body(body) = &mut self.request {
            body.limit(most);
        }
    }

    /// The response's head may have so many bytes and fields, and so may its trailers. Unless set:
    /// [`HeadLimits::OF_RESPONSES`].
    pub fn limit_response(&mut self, limits: HeadLimits) {
        self.response_limits = limits;
    }

    /// How many of the client's next bytes go to the server. What is left is the client's next
    /// request.
    ///
    /// # Errors
    /// The body is malformed. The server cannot have the rest of it.
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

    /// Reads the next head of the server's from the front of what was received, and writes what the
    /// client gets of it. Interim responses are passed on to clients that know them. Returns the
    /// last head, after which the body comes; `None`: more has to be received.
    ///
    /// # Errors
    /// What the server sends is no response to this request.
    pub fn head_from_server(
        &mut self,
        received: &mut BytesMut,
        fields: &FieldRules,
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
            write_response(&head, fields, self.client, out);
            self.has_answered = true;
            return Ok(Some(head));
        }
        Ok(None)
    }

    /// How many of the server's next bytes go to the client, once it has the head. More are of no
    /// response.
    ///
    /// # Errors
    /// The body is malformed: the client cannot have it whole.
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

    /// What the server's next bytes are, once the client has the head: in place of
    /// [`Exchange::from_server`], for a body that goes on in another framing. Ask again with what
    /// is left, until none is or the body ends.
    ///
    /// # Errors
    /// The body is malformed: the client cannot have it whole.
    pub fn piece_from_server(&mut self, bytes: &[u8]) -> Result<BodyPiece, ServerFault> {
        let Response::Body(body) = &mut self.response else { return Ok(BodyPiece::End(0)) };
        let piece = body.next(bytes).map_err(ServerFault::Malformed)?;
        if let BodyPiece::End(_) = piece {
            self.response = Response::Whole;
        }
        Ok(piece)
    }

    /// Whether the client gets the data of the body without its chunks: it speaks HTTP/1.0. Then
    /// only [`Exchange::piece_from_server`] has what goes to the client: no framing, no trailers.
    pub fn removes_chunks(&self) -> bool {
        self.client == ClientConnection::ClosesWithoutChunks
    }

    /// So many of the server's bytes have gone to the client without a look at them: at most
    /// [`Exchange::opaque_from_server`].
    pub fn passed_from_server(&mut self, len: u64) {
        if let Response::Body(body) = &mut self.response
            && body.pass(len)
        {
            self.response = Response::Whole;
        }
    }

    /// The same of the client's bytes, at most [`Exchange::opaque_from_client`].
    pub fn passed_from_client(&mut self, len: u64) {
        self.has_sent_body |= len > 0;
        if let Request::Body(body) = &mut self.request
            && body.pass(len)
        {
            self.request = Request::Whole;
        }
    }

    /// The server has closed its side.
    ///
    /// # Errors
    /// The response is not whole.
    pub fn server_closed(&mut self) -> Result<(), ServerFault> {
        self.server_keeps_alive = false;
        match &self.response {
            Response::Body(body) if body.may_end() => self.response = Response::Whole,
            Response::Whole | Response::Changed => {}
            Response::Head(_) | Response::Body(_) => return Err(ServerFault::Closed),
        }
        Ok(())
    }

    /// The next bytes of the client that go to the server whatever they are; 0: they have to be
    /// looked at.
    pub fn opaque_from_client(&self) -> u64 {
        match (&self.response, &self.request) {
            (Response::Changed, _) => u64::MAX,
            (_, Request::Body(body)) => body.opaque(),
            (_, Request::Whole) => 0,
        }
    }

    /// The next bytes of the server that go to the client whatever they are; 0: they have to be
    /// looked at.
    pub fn opaque_from_server(&self) -> u64 {
        match &self.response {
            Response::Changed => u64::MAX,
            Response::Body(body) => body.opaque(),
            Response::Head(_) | Response::Whole => 0,
        }
    }

    /// Whether the server has the whole request.
    pub fn is_request_whole(&self) -> bool {
        matches!(self.request, Request::Whole)
    }

    /// Whether the client has the whole response.
    pub fn is_response_whole(&self) -> bool {
        matches!(self.response, Response::Whole)
    }

    /// Whether the connection is no longer HTTP: all bytes go on in both directions.
    pub fn has_changed(&self) -> bool {
        matches!(self.response, Response::Changed)
    }

    /// Whether the client has got anything of an answer: then it cannot have another one. After an
    /// interim response it can.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// The client has got a part of an interim response alone: nothing else can follow it.
    pub fn has_passed_part(&mut self) {
        self.has_answered = true;
    }

    /// What was passed on of the request's body is at hand again: as if none had been.
    pub fn has_body_back(&mut self) {
        self.has_sent_body = false;
    }

    /// Whether not a byte of a response has come.
    pub fn has_sent_nothing_back(&self) -> bool {
        matches!(&self.response, Response::Head(reader) if reader.is_new()) && self.interim == 0
    }

    /// Whether another server may be asked after this one has got the request and failed. The
    /// client has no answer yet, and nothing of the request's body is gone. The request does the
    /// same twice as once (RFC 9110, section 9.2.2).
    pub fn may_be_repeated(&self) -> bool {
        self.method.is_idempotent() && self.may_be_sent_elsewhere()
    }

    /// The same after a server that has done nothing of what was asked.
    pub fn may_be_sent_elsewhere(&self) -> bool {
        !self.has_answered && !self.has_passed_interim && !self.has_sent_body
    }

    /// What becomes of the connections. To be asked when the response is whole.
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
            write_response(head, &FieldRules::default(), ClientConnection::Stays, out);
            self.has_passed_interim = true;
        }
        Ok(())
    }

    /// The last head has come. A client whose request is not whole yet is told to close: nobody
    /// knows whether the rest comes.
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
            BodyFraming::Empty | BodyFraming::Length(0) => Response::Whole,
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
    /// Its name in logs, metrics and documentation.
    pub fn label(self) -> &'static str {
        match self {
            ServerFault::Malformed(malformed) => malformed.label(),
            ServerFault::UnaskedUpgrade => "unasked_upgrade",
            ServerFault::TooManyInterim => "too_many_interim",
            ServerFault::Closed => "closed_early",
        }
    }
}
