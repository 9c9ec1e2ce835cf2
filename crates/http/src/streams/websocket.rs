//! Handshake of WebSocket with a server of HTTP/1.1, for clients that use a stream (RFC 6455,
//! section 4; RFC 8441, section 5).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use convey_http_core::ResponseHead;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Id that the digest of a key includes (RFC 6455, section 1.3).
const ID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Returns a random `Sec-WebSocket-Key`.
pub(crate) fn new_key() -> String {
    STANDARD.encode(convey_random::secret::<16>())
}

/// Whether a server that switches to WebSocket has the right `Sec-WebSocket-Accept` for this key.
/// A wrong one may come from a cache, or from a server that knows no WebSocket.
pub(crate) fn is_accepted(key: &[u8], response: &ResponseHead) -> bool {
    let expected = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, ID].concat()));
    response.field("sec-websocket-accept") == Some(expected.as_bytes())
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use convey_http_core::{HeadLimits, HeadReader, HttpMethod};

    use super::*;

    fn response(accept: &str) -> ResponseHead {
        let head = format!("HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {accept}\r\n\r\n");
        let mut received = BytesMut::from(&*head);
        let head = HeadReader::default().response(&mut received, HttpMethod::Get, &HeadLimits::OF_RESPONSES);
        head.unwrap().unwrap()
    }

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn accept_is_the_digest_of_the_key() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert!(is_accepted(key, &response("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        assert!(!is_accepted(key, &response("s3pPLMBiTxaQ9kYGzzhZRbK+xOp=")));
        assert!(!is_accepted(new_key().as_bytes(), &response("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
    }

    #[test]
    fn keys_have_sixteen_random_bytes() {
        let (key, other) = (new_key(), new_key());
        assert_eq!(STANDARD.decode(&key).unwrap().len(), 16);
        assert_ne!(key, other);
    }
}
