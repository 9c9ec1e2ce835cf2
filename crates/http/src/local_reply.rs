//! Local replies: responses that convey itself generates. They have `Server: convey` and a reason,
//! so that clients, logs and metrics can distinguish them from responses of servers.

use std::time::Duration;

use bytes::Bytes;
use convey_http_core::{
    BodyFraming, ClientConnection, FieldFault, FieldRules, Malformed, OutgoingResponse, ResponseBuilder,
    ResponseHead, ServerFault, reason_phrase,
};
use convey_model::{ErrorPage, Maintenance};
use convey_snapshot::stats::Counter;

use crate::hooks::Hooks;

/// Content type of plain text bodies.
const TEXT: &str = "text/plain; charset=utf-8";

/// Maximum time in which a client has to read a local reply, and to close a connection after
/// `Connection: close`.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Reason for a local reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalReplyReason {
    /// The request is ambiguous, invalid HTTP, or above a limit.
    Malformed(Malformed),
    /// The client did not send the whole head in time.
    RequestTimeout,
    /// No route matches, and the frontend has no backend.
    NoRoute,
    /// The access lists deny the client that a trusted proxy names.
    AccessDenied,
    /// The host has a certificate other than the one of the client's handshake.
    Misdirected,
    /// The client's source has recently sent too many requests.
    RateLimit,
    /// All clients together have recently sent too many requests to the frontend or the route.
    TotalRateLimit,
    /// All clients together have recently sent too many requests to the backend.
    BackendRateLimit,
    /// The route is a redirect.
    Redirect,
    /// The route has a fixed response.
    Respond,
    /// An operator has put the frontend, the route or the backend into maintenance.
    Maintenance,
    /// The request is a preflight request of a page of another origin (CORS).
    Preflight,
    /// A service of the application has decided to reply.
    Layer,
    /// The request is a certificate authority's validation of a name (ACME).
    AcmeChallenge,
    /// No server of the backend is up.
    NoServer,
    /// Each server that was tried refused the connection or timed out.
    ConnectFailed,
    /// This host has no local port left for a connection to a server.
    NoLocalPort,
    /// Every server stayed at its limit until the timeout, or the client has reached its share.
    QueueTimeout,
    /// The server reset the connection before it had responded.
    ServerReset,
    /// The server sent an invalid response to this request.
    ServerFault(ServerFault),
    /// The server did not respond in time.
    ServerTimeout,
    /// The request as a whole took longer than `timeouts.request`.
    RequestDeadline,
    /// The file does not exist.
    FileNotFound,
    /// The file is not readable, or the directory is not to be listed.
    FileForbidden,
    /// The method is neither `GET` nor `HEAD`.
    FileMethod,
    /// The file does not match the request's condition.
    FilePrecondition,
    /// The file has none of the requested ranges.
    FileRange,
    /// The file could not be read.
    FileFailed,
}

/// Local reply: a response that convey itself generates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalReply {
    status: u16,
    reason: LocalReplyReason,
    /// Fields and body of its own; `None`: it has only the usual ones. Boxed, because each request
    /// reserves room for a reply.
    own: Option<Box<OwnParts>>,
}

/// Parts of a local reply that differ from the usual ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OwnParts {
    /// Fields in addition to the usual ones.
    fields: FieldRules,
    body: Option<Bytes>,
}

impl From<LocalReplyReason> for LocalReply {
    fn from(reason: LocalReplyReason) -> LocalReply {
        LocalReply { status: reason.status(), reason, own: None }
    }
}

impl LocalReply {
    /// Returns the reply of an application's layer, with a status from 200 to 599. Unless the layer
    /// sets a body, the body names the status.
    pub fn new(status: u16) -> LocalReply {
        LocalReply { status, ..LocalReplyReason::Layer.into() }
    }

    /// Returns a redirect to this URL.
    pub(crate) fn redirect(status: u16, location: &str) -> LocalReply {
        let mut reply = LocalReply { status, ..LocalReplyReason::Redirect.into() };
        // The URL has only bytes that are allowed in a field, so this cannot fail.
        let _ = reply.set_field("Location", location);
        reply
    }

    /// Returns the response to a preflight request.
    pub(crate) fn preflight(fields: FieldRules) -> LocalReply {
        let own = OwnParts { fields, body: Some(Bytes::new()) };
        LocalReply { status: 204, own: Some(Box::new(own)), ..LocalReplyReason::Preflight.into() }
    }

    /// Returns the fixed response of a route.
    pub(crate) fn fixed(status: u16, body: Bytes, fields: FieldRules) -> LocalReply {
        let own = OwnParts { fields, body: Some(body) };
        LocalReply { status, own: Some(Box::new(own)), ..LocalReplyReason::Respond.into() }
    }

    /// Returns the reply to a request during maintenance.
    pub(crate) fn maintenance(maintenance: &Maintenance) -> LocalReply {
        let mut reply =
            LocalReply { status: maintenance.status, ..LocalReply::from(LocalReplyReason::Maintenance) };
        // The names are not reserved, and the control API checks the type, so this cannot fail.
        let _ = reply.set_field("Retry-After", &maintenance.retry_after.to_string());
        let _ = reply.set_field("Cache-Control", "no-store");
        if let Some(page) = &maintenance.page {
            let _ = reply.set_field("Content-Type", &page.content_type);
            reply.own_mut().body = Some(page.body.clone());
        }
        reply
    }

    /// Sets a field.
    ///
    /// # Errors
    /// The name or the value is invalid, or convey itself sets the field.
    pub fn set_field(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.own_mut().fields.set(name, value)
    }

    /// Sets the body to this text.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> LocalReply {
        self.own_mut().body = Some(body.into());
        self
    }

    fn own_mut(&mut self) -> &mut OwnParts {
        self.own.get_or_insert_default()
    }

    /// Status of the reply.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Reason for the reply.
    pub fn reason(&self) -> LocalReplyReason {
        self.reason
    }

    /// Writes the reply for a client of HTTP/1, with the operator's changes to responses.
    pub(crate) fn write(&self, to: AnswerTo<'_>, hooks: &mut Hooks, out: &mut Vec<u8>) {
        let reply = self.with_page(to.fields, to.page, hooks);
        let connection = if to.closes { ClientConnection::Closes } else { ClientConnection::Stays };
        let (response, begin) = (OutgoingResponse::new(&reply.head, &reply.fields), out.len());
        response.write(connection, out);
        hooks.response_log.note(&response, out.len() - begin);
        if to.has_body {
            out.extend_from_slice(&reply.body);
        }
    }

    /// Returns the reply as a response, with the changes of the operator and of hooks, and the
    /// operator's error page. If the reply has a body of its own, the response has this body
    /// instead of the page.
    pub(crate) fn with_page(
        &self,
        fields: &FieldRules,
        page: Option<&ErrorPage>,
        hooks: &mut Hooks,
    ) -> BuiltReply {
        let own = self.own.as_deref();
        let (content_type, body) = match (own.and_then(|own| own.body.as_ref()), page) {
            (Some(body), _) => (TEXT, body.clone()),
            (None, Some(page)) => (page.content_type(), Bytes::copy_from_slice(&page.body)),
            (None, None) => (TEXT, self.usual_body()),
        };
        // The next bytes on the connection would be the next response (RFC 9110, section 6.4.1).
        let body = if matches!(self.status, 204 | 205 | 304) { Bytes::new() } else { body };
        let mut head = ResponseBuilder::new(self.status);
        head.field("Server", "convey");
        let framing = if matches!(self.status, 204 | 304) {
            BodyFraming::Empty
        } else {
            let length = body.len();
            head.field("Content-Type", content_type)
                .field("Content-Length", itoa::Buffer::new().format(length));
            BodyFraming::Length(length as u64)
        };
        head.field("Cache-Control", "no-store");
        let head = head.build(framing);
        let fields = match own {
            // A field such as `Cache-Control` of the operator is for usual responses.
            Some(own) if self.reason == LocalReplyReason::Maintenance => fields.then(&own.fields),
            Some(own) => own.fields.then(fields),
            None => fields.clone(),
        };
        let fields = hooks.edit(&head, &fields, true).into_owned();
        BuiltReply { head, fields, body }
    }

    /// Default body of a reply, such as `503 Service Unavailable: no server is up`.
    fn usual_body(&self) -> Bytes {
        let (status, phrase) = (self.status, reason_phrase(self.status));
        let phrase = if phrase.is_empty() { "Error" } else { phrase };
        let body = match self.reason.words() {
            "" => format!("{status} {phrase}\n"),
            words => format!("{status} {phrase}: {words}\n"),
        };
        body.into()
    }
}

/// A local reply as a response.
#[derive(Debug)]
pub(crate) struct BuiltReply {
    pub(crate) head: ResponseHead,
    /// Changes of the head's fields.
    pub(crate) fields: FieldRules,
    pub(crate) body: Bytes,
}

/// Context of a local reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerTo<'a> {
    /// The operator's changes to the fields of responses.
    pub(crate) fields: &'a FieldRules,
    /// The operator's page for this reply.
    pub(crate) page: Option<&'a ErrorPage>,
    /// Whether the connection is closed after the reply.
    pub(crate) closes: bool,
    /// Whether the request's method allows a body in the reply.
    pub(crate) has_body: bool,
}

impl LocalReplyReason {
    /// Status of the reply to the client.
    pub fn status(self) -> u16 {
        match self {
            LocalReplyReason::Malformed(malformed) => malformed.status(),
            LocalReplyReason::RequestTimeout => 408,
            LocalReplyReason::NoRoute => 404,
            LocalReplyReason::AccessDenied => 403,
            LocalReplyReason::Misdirected => 421,
            LocalReplyReason::RateLimit | LocalReplyReason::TotalRateLimit => 429,
            LocalReplyReason::Redirect => 308,
            LocalReplyReason::Respond => 200,
            LocalReplyReason::Preflight => 204,
            LocalReplyReason::Layer => 403,
            LocalReplyReason::AcmeChallenge => 200,
            LocalReplyReason::BackendRateLimit
            | LocalReplyReason::Maintenance
            | LocalReplyReason::NoServer
            | LocalReplyReason::ConnectFailed
            | LocalReplyReason::NoLocalPort
            | LocalReplyReason::QueueTimeout => 503,
            LocalReplyReason::ServerReset | LocalReplyReason::ServerFault(_) => 502,
            LocalReplyReason::ServerTimeout | LocalReplyReason::RequestDeadline => 504,
            LocalReplyReason::FileNotFound => 404,
            LocalReplyReason::FileForbidden => 403,
            LocalReplyReason::FileMethod => 405,
            LocalReplyReason::FilePrecondition => 412,
            LocalReplyReason::FileRange => 416,
            LocalReplyReason::FileFailed => 500,
        }
    }

    /// Counter of replies with this reason.
    pub fn counter(self) -> Counter {
        match self {
            LocalReplyReason::Malformed(_) => Counter::AnsweredMalformed,
            LocalReplyReason::RequestTimeout => Counter::AnsweredRequestTimeout,
            LocalReplyReason::NoRoute => Counter::AnsweredNoRoute,
            LocalReplyReason::AccessDenied => Counter::AnsweredAccess,
            LocalReplyReason::Misdirected => Counter::AnsweredMisdirected,
            LocalReplyReason::RateLimit => Counter::AnsweredRateLimit,
            LocalReplyReason::TotalRateLimit => Counter::AnsweredTotalRateLimit,
            LocalReplyReason::BackendRateLimit => Counter::AnsweredBackendRateLimit,
            LocalReplyReason::Redirect => Counter::AnsweredRedirect,
            LocalReplyReason::Respond => Counter::AnsweredRespond,
            LocalReplyReason::Maintenance => Counter::AnsweredMaintenance,
            LocalReplyReason::Preflight => Counter::AnsweredPreflight,
            LocalReplyReason::Layer => Counter::AnsweredLayer,
            LocalReplyReason::AcmeChallenge => Counter::AnsweredAcme,
            LocalReplyReason::NoServer => Counter::AnsweredNoServer,
            LocalReplyReason::ConnectFailed => Counter::AnsweredConnectFailed,
            LocalReplyReason::NoLocalPort => Counter::AnsweredNoLocalPort,
            LocalReplyReason::QueueTimeout => Counter::AnsweredQueueTimeout,
            LocalReplyReason::ServerReset => Counter::AnsweredServerReset,
            LocalReplyReason::ServerFault(_) => Counter::AnsweredServerFault,
            LocalReplyReason::ServerTimeout => Counter::AnsweredServerTimeout,
            LocalReplyReason::RequestDeadline => Counter::AnsweredRequestDeadline,
            LocalReplyReason::FileNotFound => Counter::AnsweredFileNotFound,
            LocalReplyReason::FileForbidden => Counter::AnsweredFileForbidden,
            LocalReplyReason::FileMethod => Counter::AnsweredFileMethod,
            LocalReplyReason::FilePrecondition => Counter::AnsweredFilePrecondition,
            LocalReplyReason::FileRange => Counter::AnsweredFileRange,
            LocalReplyReason::FileFailed => Counter::AnsweredFileFailed,
        }
    }

    /// Name in logs, more specific than the name of the counter.
    pub fn label(self) -> &'static str {
        match self {
            LocalReplyReason::Malformed(malformed) => malformed.label(),
            LocalReplyReason::ServerFault(fault) => fault.label(),
            other => other.counter().answer_label(),
        }
    }

    /// Explanation in the body of the reply. It reveals nothing about the servers.
    fn words(self) -> &'static str {
        match self {
            LocalReplyReason::Malformed(malformed) => malformed.label(),
            LocalReplyReason::RequestTimeout => "the request was not received in time",
            LocalReplyReason::NoRoute => "nothing is served here",
            LocalReplyReason::AccessDenied => "access denied",
            LocalReplyReason::Misdirected => "the TLS connection is for another host",
            LocalReplyReason::RateLimit | LocalReplyReason::TotalRateLimit => "too many requests",
            LocalReplyReason::BackendRateLimit => "every server is busy",
            LocalReplyReason::Redirect => "the resource has moved",
            LocalReplyReason::Layer | LocalReplyReason::AcmeChallenge => "",
            LocalReplyReason::Respond | LocalReplyReason::Preflight => "",
            LocalReplyReason::Maintenance => "maintenance",
            LocalReplyReason::NoServer => "no server is up",
            LocalReplyReason::ConnectFailed | LocalReplyReason::NoLocalPort => "no server could be reached",
            LocalReplyReason::QueueTimeout => "every server is busy",
            LocalReplyReason::ServerReset => "the server closed the connection too early",
            LocalReplyReason::ServerFault(_) => "invalid response from upstream",
            LocalReplyReason::ServerTimeout => "the server did not answer in time",
            LocalReplyReason::RequestDeadline => "the request took too long",
            LocalReplyReason::FileNotFound => "there is no such file",
            LocalReplyReason::FileForbidden => "this file may not be read",
            LocalReplyReason::FileMethod => "files are read with GET and HEAD",
            LocalReplyReason::FilePrecondition => "the file has changed",
            LocalReplyReason::FileRange => "the range is beyond the end of the file",
            LocalReplyReason::FileFailed => "the file could not be read",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::MaintenancePage;

    #[test]
    fn an_answer_says_who_gives_it_and_why() {
        let (mut out, mut fields) = (Vec::new(), FieldRules::default());
        fields.set("Cache-Control", "max-age=1").unwrap();
        let to = AnswerTo { fields: &fields, page: None, closes: true, has_body: true };
        LocalReply::from(LocalReplyReason::NoServer).write(to, &mut Hooks::default(), &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "503 Service Unavailable: no server is up\n");
        assert_eq!(
            head.lines().collect::<Vec<_>>(),
            [
                "HTTP/1.1 503 Service Unavailable",
                "Server: convey",
                "Content-Type: text/plain; charset=utf-8",
                "Content-Length: 41",
                "Cache-Control: max-age=1",
                "Connection: close"
            ]
        );
    }

    #[test]
    fn maintenance_page_is_never_cached_whatever_the_operator_sets() {
        let mut fields = FieldRules::default();
        fields.set("Cache-Control", "max-age=60").unwrap();
        let page = MaintenancePage { content_type: "text/html".into(), body: "<p>later".into() };
        let maintenance = Maintenance { page: Some(page), retry_after: 60, ..Maintenance::default() };
        let mut out = Vec::new();
        let to = AnswerTo { fields: &fields, page: None, closes: false, has_body: true };
        LocalReply::maintenance(&maintenance).write(to, &mut Hooks::default(), &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && text.ends_with("\r\n\r\n<p>later"),
            "{text}"
        );
        for field in ["Content-Type: text/html", "Retry-After: 60", "Cache-Control: no-store"] {
            assert_eq!(text.matches(&format!("\r\n{field}\r\n")).count(), 1, "{field}: {text}");
        }
        assert!(!text.contains("max-age"), "{text}");
    }

    #[test]
    fn local_reply_uses_the_error_page_unless_it_has_a_body() {
        let page = ErrorPage { path: "503.json".into(), body: b"{}".as_slice().into() };
        let fields = FieldRules::default();
        let written = |answer: LocalReply, has_body| {
            let mut out = Vec::new();
            let to = AnswerTo { fields: &fields, page: Some(&page), closes: false, has_body };
            answer.write(to, &mut Hooks::default(), &mut out);
            String::from_utf8(out).unwrap()
        };
        let text = written(LocalReplyReason::NoServer.into(), true);
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\nServer: convey\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n{}"), "{text}");
        assert!(written(LocalReplyReason::NoServer.into(), false).ends_with("\r\n\r\n"), "for HEAD");
        assert!(written(LocalReply::new(503).with_body("no"), true).ends_with("\r\n\r\nno"));
    }

    #[test]
    fn local_reply_without_content_has_no_body_and_no_length() {
        let fields = FieldRules::default();
        for (status, lengths) in [(204, &[][..]), (205, &["Content-Length: 0"]), (304, &[])] {
            for reply in [LocalReply::new(status), LocalReply::new(status).with_body("no")] {
                let mut out = Vec::new();
                let to = AnswerTo { fields: &fields, page: None, closes: false, has_body: true };
                reply.write(to, &mut Hooks::default(), &mut out);
                let text = String::from_utf8(out).unwrap();
                assert!(text.ends_with("\r\n\r\n"), "{text}");
                let found = text.lines().filter(|line| line.starts_with("Content-Length"));
                assert_eq!(found.collect::<Vec<_>>(), lengths, "{text}");
            }
        }
    }
}
