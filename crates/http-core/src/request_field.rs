//! Part of a request that identifies a client.

use std::fmt;

use crate::field_syntax::is_name;
use crate::{FieldTrust, RequestHead};

/// A header or a cookie, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestField {
    /// The first field with this name, which is case-insensitive.
    Header(Box<str>),
    /// The first cookie with this name.
    Cookie(Box<str>),
}

impl RequestField {
    /// Parses `header:NAME` or `cookie:NAME`; `None` for any other text.
    pub fn parse(text: &str) -> Option<RequestField> {
        let (kind, name) = text.split_once(':')?;
        let is_name = is_name(name.as_bytes());
        match kind {
            "header" if is_name => Some(RequestField::Header(name.into())),
            "cookie" if is_name => Some(RequestField::Cookie(name.into())),
            _ => None,
        }
    }

    /// Value of this part in a request; `None` if it is missing, empty, or a header that is not
    /// trusted.
    pub fn value<'a>(&self, head: &'a RequestHead, trust: FieldTrust<'_>) -> Option<&'a [u8]> {
        let value = match self {
            RequestField::Header(name) => trust.field(head, name),
            RequestField::Cookie(name) => cookies(head, name).next(),
        };
        value.filter(|value| !value.is_empty())
    }
}

impl fmt::Display for RequestField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestField::Header(name) => write!(f, "header:{name}"),
            RequestField::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

/// Values of the cookies with this name (RFC 6265, section 4.2.1).
pub fn cookies<'h, 'n>(head: &'h RequestHead, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
    let pairs = head.values("cookie").flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let at = pair.iter().position(|byte| *byte == b'=')?;
        (&pair[..at] == name.as_bytes()).then(|| &pair[at + 1..])
    })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::{HeadLimits, HeadReader};

    #[test]
    fn a_header_or_a_cookie_tells_a_client() {
        let head =
            "GET / HTTP/1.1\r\nHost: a\r\nX-User: u1\r\nCookie: a=1;  sid=abc=d ; sid=2\r\nX-None:\r\n\r\n";
        let head = HeadReader::default().request(&mut BytesMut::from(head), &HeadLimits::default());
        let head = head.unwrap().unwrap();
        for (text, expected) in [
            ("header:x-user", Some("u1")),
            ("header:X-None", None),
            ("header:X-Other", None),
            ("cookie:sid", Some("abc=d")),
            ("cookie:a", Some("1")),
            ("cookie:A", None),
        ] {
            let field = RequestField::parse(text).unwrap();
            assert_eq!(field.to_string(), text);
            assert_eq!(field.value(&head, FieldTrust::default()), expected.map(str::as_bytes), "{text}");
        }
        for wrong in ["", "x", "header:", "header:a b", "cookie:a=", "query:a"] {
            assert_eq!(RequestField::parse(wrong), None, "{wrong}");
        }
    }
}
