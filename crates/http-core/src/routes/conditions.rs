//! Conditions of a route beside host and path: on the method, headers, the query and cookies.

use std::cmp::Reverse;
use std::fmt;

use crate::cors::preflight_method;
use crate::request_field::cookies;
use crate::{FieldTrust, RequestHead, TextPattern};

/// Conditions of a route on a request. All of them have to hold. The default has no conditions, and
/// holds for every request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteConditions {
    /// Methods, one of which the request has; empty: any. Methods are case-sensitive.
    pub methods: Vec<Box<str>>,
    /// Whether a preflight request for one of the methods meets the condition on the method, too: with
    /// it, a browser asks whether it may send such a request.
    pub takes_preflight: bool,
    /// Conditions on headers, whose names are case-insensitive.
    pub headers: Vec<NamedCondition>,
    /// Conditions on parameters of the query, after percent-decoding.
    pub query: Vec<NamedCondition>,
    /// Conditions on cookies (RFC 6265, section 4.2.1).
    pub cookies: Vec<NamedCondition>,
    /// Length of the networks that the client has to be in; `None`: any client. The table does not
    /// check it, it only lets longer ones go first: the caller knows the client.
    pub source_len: Option<u8>,
}

/// Condition on the values of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCondition {
    /// Name of a header, a parameter or a cookie.
    pub name: Box<str>,
    /// Condition on its values.
    pub value: ValueCondition,
}

/// Condition on the values of a name. A name may occur several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueCondition {
    /// One of the values is this text.
    Is(Box<str>),
    /// The expression matches a part of one of the values.
    Matches(TextPattern),
    /// The name occurs, with any value.
    Present,
    /// The name does not occur.
    Absent,
}

impl RouteConditions {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        *self == RouteConditions::default()
    }

    /// Whether a request meets the conditions, apart from `source_len`. Headers that are not trusted
    /// count as absent.
    pub fn hold_for(&self, head: &RequestHead, trust: FieldTrust<'_>) -> bool {
        let is_listed = |token: &[u8]| self.methods.iter().any(|method| method.as_bytes() == token);
        let has_method = self.methods.is_empty()
            || is_listed(head.method_token())
            || self.takes_preflight && preflight_method(head).is_some_and(is_listed);
        has_method
            && self.headers.iter().all(|header| header.value.holds_for(trust.values(head, &header.name)))
            && self.query.iter().all(|part| part.value.holds_for(parameters(head, &part.name)))
            && self.cookies.iter().all(|cookie| cookie.value.holds_for(cookies(head, &cookie.name)))
    }

    /// Whether each request that meets `other` also meets these conditions, apart from `source_len`.
    pub fn include(&self, other: &RouteConditions) -> bool {
        let methods = self.methods.is_empty()
            || !other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method));
        let includes = |mine: &[NamedCondition], theirs: &[NamedCondition], is_same_name: NameComparison| {
            mine.iter().all(|mine| {
                let named = theirs.iter().filter(|theirs| is_same_name(&mine.name, &theirs.name));
                named.into_iter().any(|theirs| mine.value.includes(&theirs.value))
            })
        };
        methods
            && includes(&self.headers, &other.headers, str::eq_ignore_ascii_case)
            && includes(&self.query, &other.query, str::eq)
            && includes(&self.cookies, &other.cookies, str::eq)
    }

    /// Order among routes with the same host and path, as in the Gateway API: a method goes before
    /// none, then more headers, more parameters, more cookies, and longer networks.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        Reverse((
            !self.methods.is_empty(),
            self.headers.len(),
            self.query.len(),
            self.cookies.len(),
            self.source_len.map_or(0, |len| u16::from(len) + 1),
        ))
    }
}

impl fmt::Display for NamedCondition {
    /// Formats as `X-A = b`, `X-A ~ regex`, `X-A` or `no X-A`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamedCondition { name, value } = self;
        match value {
            ValueCondition::Is(text) => write!(f, "{name} = {text}"),
            ValueCondition::Matches(pattern) => write!(f, "{name} ~ {}", pattern.as_str()),
            ValueCondition::Present => f.write_str(name),
            ValueCondition::Absent => write!(f, "no {name}"),
        }
    }
}

type NameComparison = fn(&str, &str) -> bool;

impl ValueCondition {
    fn holds_for<V: AsRef<[u8]>>(&self, mut values: impl Iterator<Item = V>) -> bool {
        match self {
            ValueCondition::Is(text) => values.any(|value| value.as_ref() == text.as_bytes()),
            ValueCondition::Matches(pattern) => values.any(|value| pattern.matches(value.as_ref())),
            ValueCondition::Present => values.next().is_some(),
            ValueCondition::Absent => values.next().is_none(),
        }
    }

    /// Whether each value that meets `other` also meets this condition.
    fn includes(&self, other: &ValueCondition) -> bool {
        self == other
            || match (self, other) {
                (ValueCondition::Present, other) => *other != ValueCondition::Absent,
                (ValueCondition::Matches(pattern), ValueCondition::Is(text)) => {
                    pattern.matches(text.as_bytes())
                }
                _ => false,
            }
    }
}

/// Values of a parameter of the query. A parameter without `=` is empty.
fn parameters<'a>(head: &'a RequestHead, name: &'a str) -> impl Iterator<Item = Vec<u8>> {
    let query = head.path_and_query()[head.path().len()..].strip_prefix(b"?").unwrap_or_default();
    query.split(|byte| *byte == b'&').filter_map(move |part| {
        let end = part.iter().position(|byte| *byte == b'=').unwrap_or(part.len());
        let is_named = is_decoded(&part[..end], name.as_bytes());
        is_named.then(|| decoded(part.get(end + 1..).unwrap_or_default()).collect())
    })
}

fn is_decoded(text: &[u8], wanted: &[u8]) -> bool {
    decoded(text).eq(wanted.iter().copied())
}

/// Decodes a part of a query as forms encode it: `+` is a space. A broken encoding stays as it is.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, len) = match rest {
            [] => return None,
            [b'+', ..] => (b' ', 1),
            [b'%', high, low, ..] => match crate::head::hex_pair(*high, *low) {
                Some(byte) => (byte, 3),
                None => (b'%', 1),
            },
            [byte, ..] => (*byte, 1),
        };
        rest = &rest[len..];
        Some(byte)
    })
}
