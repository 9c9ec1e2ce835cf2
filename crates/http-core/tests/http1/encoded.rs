//! Messages that convey encodes in HTTP/1, as hyper reads them.

use convey_http_core::{
    BodyEncoder, ClientConnection, FieldRules, HeadLimits, HttpMethod, OutgoingResponse, RequestHead,
    ResponseHead, StreamRequest, StreamResponse, Trailers,
};
use proptest::prelude::*;

use super::oracle::{Field, Limits, Message, Start, convey, hyper, parsed_request, relay, sorted};

/// Fields that convey adds to a message.
const ADDED: [&str; 8] = [
    "connection",
    "content-length",
    "forwarded",
    "host",
    "transfer-encoding",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// Body in frames.
#[derive(Debug, Clone)]
struct Frames {
    data: Vec<Vec<u8>>,
    trailers: Vec<(String, String)>,
    /// Whether the head has a `Content-Length`.
    has_length: bool,
}

impl Frames {
    fn data(&self) -> Vec<u8> {
        self.data.concat()
    }

    fn trailers(&self) -> Option<Trailers> {
        Trailers::of_stream(pairs(&self.trailers), &HeadLimits::OF_REQUEST_TRAILERS).unwrap()
    }

    /// Fields of a head with these fields.
    fn head_fields(&self, fields: &[(String, String)]) -> Vec<(String, String)> {
        let length = ("content-length".to_owned(), self.data().len().to_string());
        fields.iter().cloned().chain(Some(length).filter(|_| self.has_length)).collect()
    }

    fn encode(&self, encoder: BodyEncoder, out: &mut Vec<u8>) {
        self.data.iter().for_each(|data| encoder.data(data, out));
        encoder.end(self.trailers().as_ref(), out);
    }

    /// Trailers that arrive: HTTP/1 has none without chunks.
    fn arriving_trailers(&self, has_chunks: bool) -> Vec<Field> {
        if has_chunks { sorted(pairs(&self.trailers)) } else { Vec::new() }
    }
}

fn pairs(fields: &[(String, String)]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("x[a-z_]{0,3}|cache-control|server", "([!-~\u{e9}]([ -~]{0,6}[!-~])?)?"), 0..4)
}

prop_compose! {
    fn frames()(
        data in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        trailers in fields(),
        has_length: bool,
    ) -> Frames {
        Frames { data, trailers, has_length }
    }
}

/// Compares a message that hyper has read, and the same message as convey reads it.
fn assert_message(seen: &[Message], by_convey: &[Message], expected: &Message) {
    assert_eq!(seen, by_convey);
    let seen: Vec<Message> = seen.iter().map(|message| message.clone().without(&ADDED)).collect();
    assert_eq!(&seen[..], std::slice::from_ref(expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn encoded_request_is_the_request_that_hyper_reads(
        method in "GET|HEAD|POST|DELETE|PURGE",
        path in "/[a-z_~/]{0,3}(%2F)?(\\?[a-z=&]{0,5})?",
        fields in fields(),
        frames in frames(),
    ) {
        let all = frames.head_fields(&fields);
        let has_body = !frames.has_length || !frames.data().is_empty();
        let request = StreamRequest {
            method: method.as_bytes(),
            scheme: Some(b"https"),
            authority: Some(b"a.example:81"),
            path: path.as_bytes(),
            has_body,
            tunnel: None,
        };
        let head = RequestHead::of_stream(&request, pairs(&all), &HeadLimits::default()).unwrap();
        let mut out = Vec::new();
        relay::write_request_head(&head, &mut out);
        frames.encode(BodyEncoder::new(head.framing()), &mut out);
        let start = Start::request(method.as_bytes(), path.as_bytes(), b"a.example:81");
        let mut expected = Message::new(start, pairs(&fields));
        (expected.data, expected.is_whole) = (frames.data()[..].into(), true);
        expected.trailers = frames.arriving_trailers(!frames.has_length);
        let again = convey::requests(&out, &[], Limits::OF_REQUESTS);
        prop_assert_eq!(again.messages.rest, 0);
        assert_message(&hyper::requests(&out), &again.messages.all, &expected);
    }

    #[test]
    fn encoded_response_is_the_response_that_hyper_reads(
        is_head: bool,
        status in prop::sample::select(vec![200, 204, 304, 404, 599]),
        fields in fields(),
        frames in frames(),
        connection in prop::sample::select(vec![
            ClientConnection::Stays,
            ClientConnection::StaysHttp10,
            ClientConnection::Closes,
            ClientConnection::ClosesWithoutChunks,
        ]),
    ) {
        let all = frames.head_fields(&fields);
        let method = if is_head { HttpMethod::Head } else { HttpMethod::Get };
        let has_body = !is_head && status != 204 && status != 304;
        let response = StreamResponse { status, method, has_body };
        let head = ResponseHead::of_stream(&response, pairs(&all), &HeadLimits::OF_RESPONSES).unwrap();
        let rules = FieldRules::default();
        let outgoing = OutgoingResponse::new(&head, &rules);
        let mut out = Vec::new();
        outgoing.write(connection, &mut out);
        let mut expected = Message::new(Start::Response { status }, pairs(&fields));
        expected.is_whole = true;
        if has_body {
            frames.encode(outgoing.body_encoder(connection), &mut out);
            let has_chunks = !frames.has_length && connection != ClientConnection::ClosesWithoutChunks;
            (expected.data, expected.trailers) = (frames.data()[..].into(), frames.arriving_trailers(has_chunks));
        }
        let request = parsed_request(if is_head { "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" } else { "GET / HTTP/1.1\r\nHost: a\r\n\r\n" });
        let again = convey::response(&request, &out, &[], Limits::OF_RESPONSES);
        prop_assert_eq!(again.messages.rest, 0);
        assert_message(&hyper::response(&request, &out), &again.messages.all, &expected);
    }
}
