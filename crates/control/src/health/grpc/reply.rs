//! Verdict on the response to a gRPC health check. Pure.

use std::borrow::Cow;

use convey_http_core::{ResponseHead, Trailers};
use thiserror::Error;

use super::message::{MessageFault, ServingStatus, status};

/// Maximum length of a text from the server in a reason, in characters.
const MAX_TEXT: usize = 200;

/// Names of the status codes of gRPC, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Reason why the response to a gRPC health check does not show that the server is up;
/// operator-facing message.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum GrpcFault {
    #[error("HTTP status {0}, expected 200 and a gRPC response")]
    HttpStatus(u16),
    #[error("the response is not gRPC: it has {}", content_type(.0.as_deref()))]
    NotGrpc(Option<String>),
    #[error("the gRPC response has no grpc-status")]
    NoStatus,
    #[error("the gRPC response has an invalid grpc-status: {0}")]
    InvalidStatus(String),
    #[error("gRPC status {code}{}{}", name_of(*code), after_colon(message))]
    Status { code: u32, message: String },
    #[error("the gRPC response has {0}")]
    Message(MessageFault),
    #[error("the gRPC response is longer than {} KiB", super::MAX_MESSAGE >> 10)]
    LongMessage,
    #[error("gRPC health status {0}, expected SERVING")]
    Serving(ServingStatus),
}

/// Checks that a head begins a gRPC response.
pub(super) fn check_head(head: &ResponseHead) -> Result<(), GrpcFault> {
    if head.status() != 200 {
        return Err(GrpcFault::HttpStatus(head.status()));
    }
    let found = head.field("content-type");
    if found.is_some_and(is_grpc) {
        return Ok(());
    }
    Err(GrpcFault::NotGrpc(found.map(|found| printable(&String::from_utf8_lossy(found)))))
}

/// Checks a complete response: its status, which is in the trailers or else in the head, and its
/// message.
pub(super) fn check(head: &ResponseHead, body: &[u8], trailers: Option<&Trailers>) -> Result<(), GrpcFault> {
    let of = |name: &str| {
        let in_trailers = trailers.and_then(|trailers| {
            trailers.fields().find(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))
        });
        in_trailers.map(|(_, value)| value).or_else(|| head.field(name))
    };
    let code = of("grpc-status").ok_or(GrpcFault::NoStatus)?;
    let text = String::from_utf8_lossy(code);
    let number = text.parse().ok().filter(|_| code.iter().all(u8::is_ascii_digit));
    match number.ok_or_else(|| GrpcFault::InvalidStatus(printable(&text)))? {
        0 => {}
        code => {
            let message = decoded(of("grpc-message").unwrap_or_default());
            return Err(GrpcFault::Status { code, message: printable(&message) });
        }
    }
    match status(body).map_err(GrpcFault::Message)? {
        ServingStatus::Serving => Ok(()),
        other => Err(GrpcFault::Serving(other)),
    }
}

/// Text for a message to operators: its beginning, without control characters.
pub(crate) fn printable(text: &str) -> String {
    let mut out: String = text.chars().take(MAX_TEXT).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_TEXT).is_some() {
        out.push_str("...");
    }
    out
}

/// Whether a content type is gRPC: `application/grpc`, also with a format or parameters.
fn is_grpc(kind: &[u8]) -> bool {
    let (beginning, rest) = kind.split_at(kind.len().min(b"application/grpc".len()));
    beginning.eq_ignore_ascii_case(b"application/grpc")
        && rest.first().is_none_or(|byte| matches!(byte, b'+' | b';' | b' '))
}

/// Decodes the percent encoding of a `grpc-message`. Invalid codes stay as they are.
fn decoded(message: &[u8]) -> Cow<'_, str> {
    if !message.contains(&b'%') {
        return String::from_utf8_lossy(message);
    }
    let (mut out, mut rest) = (Vec::with_capacity(message.len()), message);
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *byte == b'%');
        let code = code.and_then(|code| {
            let [high, low] = [code[0], code[1]].map(|digit| char::from(digit).to_digit(16));
            Some((high? * 16 + low?) as u8)
        });
        out.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

fn name_of(code: u32) -> String {
    let name = usize::try_from(code).ok().and_then(|code| CODES.get(code));
    name.map_or(String::new(), |name| format!(" ({name})"))
}

fn after_colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn content_type(found: Option<&str>) -> String {
    found.map_or("no content-type".to_owned(), |found| format!("content-type {found}"))
}

#[cfg(test)]
mod tests {
    use convey_http_core::{HeadLimits, HttpMethod, StreamResponse};

    use super::*;

    type TextField<'a> = (&'a str, &'a str);

    const SERVING: &[u8] = b"\0\0\0\0\x02\x08\x01";
    const TYPE: TextField<'_> = ("content-type", "application/grpc");

    fn bytes<'a>(fields: &'a [TextField<'a>]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
    }

    fn head(status: u16, fields: &[TextField<'_>]) -> ResponseHead {
        let start = StreamResponse { status, method: HttpMethod::Post, has_body: true };
        ResponseHead::of_stream(&start, bytes(fields), &HeadLimits::OF_RESPONSES).unwrap()
    }

    /// Verdict on a response with these fields, body and trailers.
    fn verdict(
        (status, fields): (u16, &[TextField<'_>]),
        body: &[u8],
        trailers: &[TextField<'_>],
    ) -> Result<(), String> {
        let head = head(status, fields);
        let trailers = Trailers::of_stream(bytes(trailers), &HeadLimits::OF_RESPONSES).unwrap();
        let verdict = check_head(&head).and_then(|()| check(&head, body, trailers.as_ref()));
        verdict.map_err(|fault| fault.to_string())
    }

    #[test]
    fn response_with_serving_and_status_0_passes() {
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC; v=1"] {
            let fields = [("content-type", kind)];
            assert_eq!(verdict((200, &fields), SERVING, &[("grpc-status", "0")]), Ok(()), "{kind}");
        }
        let empty = [("grpc-message", ""), ("grpc-status", "0")];
        assert_eq!(verdict((200, &[TYPE]), SERVING, &empty), Ok(()));
    }

    #[test]
    fn response_with_another_health_status_fails() {
        for (number, name) in [(0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN"), (9, "9")] {
            let body = [0, 0, 0, 0, 2, 8, number];
            let expected = format!("gRPC health status {name}, expected SERVING");
            assert_eq!(verdict((200, &[TYPE]), &body, &[("grpc-status", "0")]), Err(expected));
        }
        let none = verdict((200, &[TYPE]), b"", &[("grpc-status", "0")]);
        assert_eq!(none, Err("the gRPC response has no message".to_owned()));
    }

    #[test]
    fn grpc_status_fails_in_the_trailers_and_in_the_head() {
        let unimplemented = [("grpc-status", "12"), ("grpc-message", "unknown service%3A a%0Ab \u{e9}%zz%")];
        let expected = Err("gRPC status 12 (UNIMPLEMENTED): unknown service: a\\nb \u{e9}%zz%".to_owned());
        assert_eq!(verdict((200, &[TYPE]), b"", &unimplemented), expected);
        assert_eq!(verdict((200, &[TYPE]), SERVING, &unimplemented), expected);
        let trailers_only = [TYPE, unimplemented[0], unimplemented[1]];
        assert_eq!(verdict((200, &trailers_only), b"", &[]), expected);
        let alone = |code| verdict((200, &[TYPE]), b"", &[("grpc-status", code)]);
        assert_eq!(alone("5"), Err("gRPC status 5 (NOT_FOUND)".to_owned()));
        assert_eq!(alone("99"), Err("gRPC status 99".to_owned()));
        assert_eq!(alone("+5"), Err("the gRPC response has an invalid grpc-status: +5".to_owned()));
        assert_eq!(alone(""), Err("the gRPC response has an invalid grpc-status: ".to_owned()));
        let none = verdict((200, &[TYPE]), SERVING, &[("x", "y")]);
        assert_eq!(none, Err("the gRPC response has no grpc-status".to_owned()));
    }

    #[test]
    fn response_that_is_not_grpc_fails() {
        let of = |status, fields: &[TextField<'_>]| verdict((status, fields), b"", &[]).unwrap_err();
        assert_eq!(of(404, &[TYPE]), "HTTP status 404, expected 200 and a gRPC response");
        assert_eq!(of(200, &[]), "the response is not gRPC: it has no content-type");
        for kind in ["text/html", "application/grpc-web", "application/gr"] {
            let expected = format!("the response is not gRPC: it has content-type {kind}");
            assert_eq!(of(200, &[("content-type", kind)]), expected);
        }
    }

    #[test]
    fn text_of_a_server_is_shortened_and_escaped() {
        assert_eq!(printable("a\u{1b}[1m\nb"), "a\\u{1b}[1m\\nb");
        assert_eq!(printable(&"x".repeat(9_999)), format!("{}...", "x".repeat(200)));
        assert_eq!(printable(&"x".repeat(200)), "x".repeat(200));
    }
}
