//! Progress of an exchange, for all versions of HTTP: which messages have arrived, whether the
//! request may be repeated, and which connections stay open.

use super::{MAX_INTERIM_RESPONSES, ServerFault};
use crate::body::BodyFraming;
use crate::forward::ClientConnection;
use crate::head::{RequestHead, ResponseHead};
use crate::{ExchangePhase, HttpMethod};

/// Progress of a request and its response. The caller notes each event. The progress decides
/// whether the request may be repeated, and whether the connections can be reused.
#[derive(Debug, Clone)]
pub struct ExchangeState {
    method: HttpMethod,
    is_http11: bool,
    wants_upgrade: bool,
    keeps_alive: bool,
    is_request_whole: bool,
    /// Whether bytes of the request's body were forwarded, and the caller cannot send them again.
    has_sent_body: bool,
    response: ResponsePhase,
    /// Whether the server has sent a byte of a response.
    has_server_bytes: bool,
    /// Whether the client has received a part of the final response, or an incomplete interim
    /// response.
    has_answered: bool,
    /// Whether the client has received an interim response.
    has_passed_interim: bool,
    interim: u8,
    client: ClientConnection,
    server_keeps_alive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponsePhase {
    Head,
    Body,
    Whole,
    /// Both connections have switched to another protocol.
    Changed,
}

/// What to do with a head that the server has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadVerdict {
    /// An interim response. The client gets it.
    PassInterim,
    /// An interim response. The client does not get it, because it speaks HTTP/1.0.
    DropInterim,
    /// The final response.
    Final,
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

impl ExchangeState {
    /// Creates the state of an exchange whose request has this head.
    pub fn new(head: &RequestHead) -> ExchangeState {
        ExchangeState {
            method: head.method(),
            is_http11: head.is_http11(),
            wants_upgrade: head.upgrade().is_some(),
            keeps_alive: head.keeps_alive() && head.is_http11(),
            is_request_whole: head.framing().is_empty(),
            has_sent_body: false,
            response: ResponsePhase::Head,
            has_server_bytes: false,
            has_answered: false,
            has_passed_interim: false,
            interim: 0,
            client: ClientConnection::Closes,
            server_keeps_alive: false,
        }
    }

    /// Makes this the last request of the client's connection. The response announces the close.
    pub fn set_last(&mut self) {
        self.keeps_alive = false;
    }

    /// Method of the request.
    pub fn method(&self) -> HttpMethod {
        self.method
    }

    /// Notes that bytes of the request's body were forwarded to the server.
    pub fn note_sent_body(&mut self) {
        self.has_sent_body = true;
    }

    /// Notes that the caller still has the forwarded part of the request's body and can send it
    /// again.
    pub fn note_body_taken_back(&mut self) {
        self.has_sent_body = false;
    }

    /// Notes that the whole request was forwarded to the server.
    pub fn note_request_end(&mut self) {
        self.is_request_whole = true;
    }

    /// Notes that the server has sent a byte of a response.
    pub fn note_server_bytes(&mut self) {
        self.has_server_bytes = true;
    }

    /// Notes a head of the server, and returns what to do with it. A final response to an
    /// incomplete request announces the close of the client's connection, because the rest of the
    /// request may never arrive.
    ///
    /// # Errors
    /// The server may not send this head.
    pub fn take_head(&mut self, head: &ResponseHead) -> Result<HeadVerdict, ServerFault> {
        self.has_server_bytes = true;
        if head.is_interim() {
            self.interim += 1;
            if self.interim > MAX_INTERIM_RESPONSES {
                return Err(ServerFault::TooManyInterim);
            }
            self.has_passed_interim |= self.is_http11;
            return Ok(if self.is_http11 { HeadVerdict::PassInterim } else { HeadVerdict::DropInterim });
        }
        if head.status() == 101 {
            if !self.wants_upgrade || !self.is_request_whole {
                return Err(ServerFault::UnaskedUpgrade);
            }
            (self.response, self.client) = (ResponsePhase::Changed, ClientConnection::Changes);
            return Ok(HeadVerdict::Final);
        }
        let framing = head.framing();
        let client_stays = self.keeps_alive && self.is_request_whole && framing != BodyFraming::UntilClose;
        self.client = match framing {
            BodyFraming::Chunked if !self.is_http11 => ClientConnection::ClosesWithoutChunks,
            _ if client_stays => ClientConnection::Stays,
            _ => ClientConnection::Closes,
        };
        self.server_keeps_alive = head.keeps_alive();
        self.response = if framing.is_empty() { ResponsePhase::Whole } else { ResponsePhase::Body };
        Ok(HeadVerdict::Final)
    }

    /// State of the client's connection after the response. Call this once the final head was
    /// received.
    pub fn client_connection(&self) -> ClientConnection {
        self.client
    }

    /// Notes that no other response can reach the client any more: convey sends it the final head,
    /// or the client has received only a part of an interim response.
    pub fn note_answer(&mut self) {
        self.has_answered = true;
    }

    /// Notes that the server has sent the whole body of its response.
    pub fn note_response_end(&mut self) {
        if self.response == ResponsePhase::Body {
            self.response = ResponsePhase::Whole;
        }
    }

    /// Notes that the server has closed its side. `ends_body`: a body that lasts until the close is
    /// complete now.
    ///
    /// # Errors
    /// The response is not complete.
    pub fn note_server_closed(&mut self, ends_body: bool) -> Result<(), ServerFault> {
        self.server_keeps_alive = false;
        match self.response {
            ResponsePhase::Body if ends_body => self.response = ResponsePhase::Whole,
            ResponsePhase::Whole | ResponsePhase::Changed => {}
            ResponsePhase::Head | ResponsePhase::Body => return Err(ServerFault::Closed),
        }
        Ok(())
    }

    /// Whether the whole request was forwarded to the server.
    pub fn is_request_whole(&self) -> bool {
        self.is_request_whole
    }

    /// Whether the server has not sent its final head yet.
    pub fn awaits_head(&self) -> bool {
        self.response == ResponsePhase::Head
    }

    /// Whether the server has sent the whole response.
    pub fn is_response_whole(&self) -> bool {
        self.response == ResponsePhase::Whole
    }

    /// Phase of a request that is being sent to a server.
    pub fn phase(&self) -> ExchangePhase {
        match self.response {
            ResponsePhase::Head if self.is_request_whole => ExchangePhase::ResponseHead,
            ResponsePhase::Head => ExchangePhase::UpstreamRequest,
            ResponsePhase::Body | ResponsePhase::Whole => ExchangePhase::Bodies,
            ResponsePhase::Changed => ExchangePhase::Tunnel,
        }
    }

    /// Whether the connection has switched to another protocol (status 101). Then all bytes are
    /// forwarded in both directions.
    pub fn has_changed(&self) -> bool {
        self.response == ResponsePhase::Changed
    }

    /// Whether the client has received a part of the final response, or an incomplete interim
    /// response. Then convey cannot send it another response.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Whether the server has not sent a single byte of a response.
    pub fn is_server_silent(&self) -> bool {
        !self.has_server_bytes
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
        let is_whole = self.is_request_whole && self.is_response_whole();
        ExchangeEnd {
            client_stays: is_whole && self.client == ClientConnection::Stays,
            server_stays: is_whole && self.server_keeps_alive,
        }
    }
}
