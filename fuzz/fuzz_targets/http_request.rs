//! Any bytes from a client of HTTP/1: the accepted requests do not depend on how the bytes are cut,
//! and each is written for a server as one request with that body, and nothing behind it.

#![no_main]

use std::net::IpAddr;

use bytes::BytesMut;
use convey_http_core::{
    BodyFraming, BodyProgress, BodyReader, ClientIdentity, FieldRules, ForwardedFields, HeadLimits, HeadReader, Malformed,
    OutgoingRequest, RequestChanges, RequestHead,
};
use libfuzzer_sys::fuzz_target;

const LIMITS: HeadLimits = HeadLimits { bytes: 4_096, fields: 32 };

fuzz_target!(|bytes: &[u8]| {
    let mut received = BytesMut::from(bytes);
    let at_once = HeadReader::default().request(&mut received, &LIMITS);
    byte_by_byte(bytes, &at_once, received.len());
    let Ok(Some(head)) = at_once else { return };
    assert!(!head.path().is_empty() && head.path_and_query().len() >= head.path().len());
    let body = body_of(head.framing(), &received);
    if let Some(body) = body {
        forwarded(&head, body);
    }
});

/// A head does not depend on how its bytes arrive, and the bytes after it stay.
fn byte_by_byte(bytes: &[u8], expected: &Result<Option<RequestHead>, Malformed>, left: usize) {
    let (mut reader, mut received) = (HeadReader::default(), BytesMut::new());
    for (at, byte) in bytes.iter().enumerate() {
        received.extend_from_slice(&[*byte]);
        match reader.request(&mut received, &LIMITS) {
            Ok(None) => {}
            Ok(Some(head)) => {
                let expected = expected.as_ref().expect("accepted").as_ref().expect("whole");
                assert_eq!((head.path_and_query(), head.framing()), (expected.path_and_query(), expected.framing()));
                assert_eq!(bytes.len() - at - 1, left);
                return;
            }
            Err(why) => return assert_eq!(expected.as_ref().map(Option::is_some), Err(&why)),
        }
    }
    assert!(matches!(expected, Ok(None)));
}

/// The bytes of a body that is whole, which ends at the same byte however it is cut.
fn body_of(framing: BodyFraming, bytes: &[u8]) -> Option<&[u8]> {
    let at_once = BodyReader::new(framing).advance(bytes);
    let mut reader = BodyReader::new(framing);
    let mut slowly = Ok(BodyProgress::All);
    for (at, byte) in bytes.iter().enumerate() {
        match reader.advance(&[*byte]) {
            Ok(BodyProgress::All) => {}
            Ok(BodyProgress::Ends(len)) => {
                slowly = Ok(BodyProgress::Ends(at + len));
                break;
            }
            Err(why) => {
                slowly = Err(why);
                break;
            }
        }
    }
    if !bytes.is_empty() {
        assert_eq!(at_once, slowly);
    }
    match at_once {
        Ok(BodyProgress::Ends(len)) => Some(&bytes[..len]),
        _ => None,
    }
}

fn forwarded(head: &RequestHead, body: &[u8]) {
    let rules = FieldRules::default();
    let changes = RequestChanges {
        client: ClientIdentity { ip: IpAddr::from([192, 0, 2, 1]), scheme: "http", subject: Some("CN=a"), is_trusted: true },
        forwarded: ForwardedFields { x_forwarded: true, forwarded: true, subject: true },
        server: std::net::SocketAddr::from(([10, 0, 0, 2], 80)),
        host: None,
        path: None,
        fields: &rules,
    };
    let mut written = Vec::new();
    OutgoingRequest::new(head, &changes).write(&mut written);
    let head_len = written.len();
    written.extend_from_slice(body);
    let mut received = BytesMut::from(&written[..]);
    let limits = HeadLimits { bytes: usize::MAX, fields: usize::MAX };
    let again = HeadReader::default().request(&mut received, &limits).expect("accepted").expect("whole");
    assert_eq!(written.len() - received.len(), head_len);
    assert_eq!(again.method_token(), head.method_token());
    assert_eq!(again.path_and_query(), head.path_and_query());
    // A server gets its own address where the client has named no host.
    let host = if head.host().is_empty() { &b"10.0.0.2:80"[..] } else { head.host() };
    assert_eq!((again.framing(), again.host()), (head.framing(), host));
    assert_eq!(BodyReader::new(again.framing()).advance(&received), Ok(BodyProgress::Ends(body.len())));
}
