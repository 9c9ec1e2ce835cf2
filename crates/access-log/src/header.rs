//! Headers of requests and responses that a format names. Pure.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::style::Style;

/// Maximum length of a header's value in a line, in bytes. Longer values are cut.
pub const MAX_HEADER_VALUE: usize = 1_024;

/// Prefixes of fields that name a header.
const PREFIXES: [(&str, HeaderOf); 2] =
    [("request_header:", HeaderOf::Request), ("response_header:", HeaderOf::Response)];

/// Message that has a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderOf {
    /// Request, as the client sent it.
    Request,
    /// Response, as the client gets it.
    Response,
}

/// Header in a format, such as `{request_header:User-Agent}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderField {
    /// Message that has the header.
    pub of: HeaderOf,
    /// Name, in the case of the configuration. Names are case-insensitive.
    pub name: Arc<str>,
}

/// Fields of a request's head.
pub trait RequestHeaders: fmt::Debug {
    /// Calls `each` with the value of each header with this name, in order. The case of names does
    /// not matter.
    fn each_value<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));
}

/// Facts about responses that a format needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WantedOfResponse {
    /// Names of headers.
    names: Vec<Arc<str>>,
    /// Whether the format has the length of the body.
    has_body_len: bool,
}

/// Facts about a response that a format needs, kept until the line is written.
#[derive(Debug)]
pub struct LoggedResponse {
    wanted: Arc<WantedOfResponse>,
    /// Values by the index of their names; `None`: the response has no such header.
    values: Vec<Option<Box<[u8]>>>,
    head_len: u64,
}

impl HeaderField {
    /// Parses the name of a field. Returns `None` if it is not the name of a header's field.
    pub(super) fn parse(field: &str) -> Option<HeaderField> {
        PREFIXES.into_iter().find_map(|(prefix, of)| {
            let name = field.strip_prefix(prefix)?;
            Some(HeaderField { of, name: name.into() })
        })
    }

    /// Whether the name is a token (RFC 9110, section 5.6.2).
    pub(super) fn is_valid(&self) -> bool {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !self.name.is_empty() && self.name.bytes().all(is_token)
    }

    /// Writes the value in `request` or `response`.
    pub(super) fn write(
        &self,
        to: &mut impl Style,
        request: Option<&dyn RequestHeaders>,
        response: Option<&LoggedResponse>,
    ) {
        let value = match self.of {
            HeaderOf::Request => request.and_then(|request| {
                let mut joined = JoinedValue::new(&self.name);
                request.each_value(&self.name, &mut |value| joined.add(value));
                joined.value
            }),
            HeaderOf::Response => response.and_then(|response| response.value(&self.name)).map(Cow::Borrowed),
        };
        match value {
            Some(value) => to.word(cut(&value)),
            None => to.none(),
        }
    }
}

impl fmt::Display for HeaderField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = PREFIXES.iter().find(|(_, of)| *of == self.of).map_or("", |(prefix, _)| prefix);
        write!(f, "{prefix}{}", self.name)
    }
}

impl WantedOfResponse {
    /// Facts for these headers of a format. `None` if nothing is needed.
    pub(super) fn of<'a>(
        headers: impl Iterator<Item = &'a HeaderField>,
        has_body_len: bool,
    ) -> Option<WantedOfResponse> {
        let of_response = headers.filter(|header| header.of == HeaderOf::Response);
        let names: Vec<_> = of_response.map(|header| header.name.clone()).collect();
        (has_body_len || !names.is_empty()).then_some(WantedOfResponse { names, has_body_len })
    }
}

impl LoggedResponse {
    /// Keeps the wanted facts of a response. `fields` are those that the client gets, and
    /// `head_len` is the length of its head in bytes.
    pub fn keep<'a>(
        wanted: Arc<WantedOfResponse>,
        fields: impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)>,
        head_len: u64,
    ) -> LoggedResponse {
        let mut values: Vec<_> = wanted.names.iter().map(|name| JoinedValue::new(name)).collect();
        if !values.is_empty() {
            for (name, value) in fields {
                let same =
                    |wanted: &&mut JoinedValue<'_, '_>| wanted.name.as_bytes().eq_ignore_ascii_case(name);
                values.iter_mut().filter(same).for_each(|wanted| wanted.add_owned(value.clone()));
            }
        }
        let values = values.into_iter().map(|joined| joined.value.map(|value| cut(&value).into())).collect();
        LoggedResponse { wanted, values, head_len }
    }

    /// Length of the response's head in bytes.
    pub(super) fn head_len(&self) -> u64 {
        self.head_len
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        let at = self.wanted.names.iter().position(|wanted| wanted.eq_ignore_ascii_case(name))?;
        self.values.get(at)?.as_deref()
    }
}

/// Value of a header that may occur several times (RFC 9110, section 5.3).
struct JoinedValue<'n, 'a> {
    name: &'n str,
    value: Option<Cow<'a, [u8]>>,
}

impl<'n, 'a> JoinedValue<'n, 'a> {
    fn new(name: &'n str) -> JoinedValue<'n, 'a> {
        JoinedValue { name, value: None }
    }

    fn add(&mut self, value: &'a [u8]) {
        self.add_owned(Cow::Borrowed(value));
    }

    fn add_owned(&mut self, value: Cow<'a, [u8]>) {
        match &mut self.value {
            None => self.value = Some(value),
            // The line has room for no more.
            Some(values) if values.len() > MAX_HEADER_VALUE => {}
            Some(values) => {
                // HTTP/2 may split a cookie (RFC 9113, section 8.2.3).
                let separator: &[u8] = if self.name.eq_ignore_ascii_case("cookie") { b"; " } else { b", " };
                let values = values.to_mut();
                values.extend_from_slice(separator);
                values.extend_from_slice(cut(&value));
            }
        }
    }
}

fn cut(value: &[u8]) -> &[u8] {
    &value[..value.len().min(MAX_HEADER_VALUE)]
}
