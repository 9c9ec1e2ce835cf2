//! Texts with variables, such as `{client_ip}`, for header values and redirects.

use std::borrow::Cow;
use std::fmt;

use crate::field_syntax::is_name;

macro_rules! variables {
    ($($variant:ident, $name:literal, $doc:literal;)+) => {
        /// Variable of a [`Template`]. The names are those of the access log.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Variable {
            $(#[doc = $doc] $variant,)+
            /// The first value of a header of the request: `{header:NAME}`.
            Header(Box<str>),
        }

        impl Variable {
            /// Names and meanings of all variables without an argument.
            pub const ALL: &[(&str, &str)] = &[$(($name, $doc)),+];

            fn without_argument(name: &str) -> Option<Variable> {
                match name {
                    $($name => Some(Variable::$variant),)+
                    _ => None,
                }
            }

            fn name(&self) -> &'static str {
                match self {
                    $(Variable::$variant => $name,)+
                    Variable::Header(_) => "header",
                }
            }
        }
    };
}

variables! {
    ClientIp, "client_ip", "The client's address; behind trusted proxies the one that they name.";
    ClientPort, "client_port", "The client's port.";
    Frontend, "frontend", "The frontend's name.";
    Host, "host", "The host that the request is for, without its port.";
    HttpVersion, "http_version", "HTTP version of the client: `1.0`, `1.1`, `2` or `3`.";
    ListenIp, "listen_ip", "The address that the client connected to.";
    ListenPort, "listen_port", "The port that the client connected to.";
    Method, "method", "The request's method.";
    Path, "path", "The request's path.";
    Query, "query", "The request's query, without the question mark.";
    RequestId, "request_id", "A random id of the request, 32 hexadecimal digits. A trusted proxy's `X-Request-ID` stays.";
    Route, "route", "The matching route.";
    Scheme, "scheme", "`http` or `https`: what the client uses.";
    Sni, "sni", "The server name that a TLS client sent.";
    Target, "target", "The request's path and query.";
    TlsCipher, "tls_cipher", "The cipher suite.";
    TlsClient, "tls_client", "The subject of the client's certificate.";
    TlsVersion, "tls_version", "TLS version between client and convey.";
    TraceId, "trace_id", "The trace that the request belongs to (W3C Trace Context).";
}

/// A text with variables. A variable is `{NAME}` or `{NAME:ARGUMENT}`, where NAME has only the
/// letters a to z and `_`. Other braces are text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Variable(Variable),
}

/// A variable that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVariable(Box<str>);

/// Values of variables for one request.
pub trait Variables {
    /// Value of a variable; `None`: the request has none, which is an empty text.
    fn value(&self, variable: &Variable) -> Option<Cow<'_, [u8]>>;
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// A variable does not exist.
    pub fn parse(text: &str) -> Result<Template, UnknownVariable> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, inner, after)) = split_variable(rest) {
            let variable = Variable::parse(inner).ok_or_else(|| UnknownVariable(inner.into()))?;
            pieces.extend((!before.is_empty()).then(|| Piece::Text(before.into())));
            pieces.push(Piece::Variable(variable));
            rest = after;
        }
        pieces.extend((!rest.is_empty()).then(|| Piece::Text(rest.into())));
        Ok(Template(pieces))
    }

    /// The text, if there are no variables.
    pub fn as_text(&self) -> Option<&str> {
        match &self.0[..] {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether the text has this variable.
    pub fn uses(&self, variable: &Variable) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Variable(used) if used == variable))
    }

    /// The text with the values of its variables. Control characters of values are left out.
    pub fn expand(&self, variables: &dyn Variables) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Variable(variable) => {
                    let value = variables.value(variable).unwrap_or_default();
                    out.extend(value.iter().filter(|byte| !byte.is_ascii_control()));
                }
            }
        }
        out
    }
}

impl Variable {
    /// Parses a variable without its braces.
    fn parse(inner: &str) -> Option<Variable> {
        match inner.split_once(':') {
            Some(("header", name)) if is_name(name.as_bytes()) => Some(Variable::Header(name.into())),
            Some(_) => None,
            None => Variable::without_argument(inner),
        }
    }
}

/// Splits a text at its first variable: the text before it, the variable without its braces, and the
/// text after it.
fn split_variable(text: &str) -> Option<(&str, &str, &str)> {
    for (at, _) in text.match_indices('{') {
        let inner = &text[at + 1..];
        let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let name = inner.bytes().take_while(|byte| is_of_name(*byte)).count();
        let end = match inner.as_bytes().get(name) {
            Some(b'}') => name,
            Some(b':') => {
                let argument = &inner.as_bytes()[name + 1..];
                let len = argument.iter().take_while(|byte| is_name(&[**byte])).count();
                if len == 0 || argument.get(len) != Some(&b'}') {
                    continue;
                }
                name + 1 + len
            }
            _ => continue,
        };
        if name > 0 {
            return Some((&text[..at], &inner[..end], &inner[end + 1..]));
        }
    }
    None
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Variable(Variable::Header(name)) => write!(f, "{{header:{name}}}"),
            Piece::Variable(variable) => write!(f, "{{{}}}", variable.name()),
        })
    }
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Variable::ALL.iter().map(|(name, _)| *name).collect();
        write!(f, "there is no variable {{{}}}; there are {}, header:NAME", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownVariable {}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Variables for Fixed {
        fn value(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
            match variable {
                Variable::ClientIp => Some(b"192.0.2.9"[..].into()),
                Variable::Header(name) if &**name == "X-A" => Some(b"a\r\nb"[..].into()),
                _ => None,
            }
        }
    }

    #[test]
    fn template_replaces_variables_and_keeps_other_braces() {
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("for={client_ip};x", "for=192.0.2.9;x"),
            ("{client_ip}{client_ip}", "192.0.2.9192.0.2.9"),
            ("{header:X-A}", "ab"),
            ("[{trace_id}]", "[]"),
            (r#"{"group":"a","max_age":1}"#, r#"{"group":"a","max_age":1}"#),
            ("{ client_ip} {} {A} {a b} {", "{ client_ip} {} {A} {a b} {"),
            ("{a:} {a:b c}", "{a:} {a:b c}"),
            ("{{client_ip}}", "{192.0.2.9}"),
        ];
        for (text, expected) in cases {
            let template = Template::parse(text).unwrap();
            assert_eq!(String::from_utf8(template.expand(&Fixed)).unwrap(), expected, "{text}");
            assert_eq!(template.to_string(), text);
        }
    }

    #[test]
    fn unknown_variable_is_named_with_the_known_ones() {
        for text in ["a {remote_addr}", "{header:A} {cookie:b}", "{client_ip:x}"] {
            let told = Template::parse(text).unwrap_err().to_string();
            assert!(told.starts_with("there is no variable {") && told.contains("client_ip, "), "{told}");
        }
    }
}
