//! What is known about a request: the values of variables.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::{FieldTrust, RequestHead, UrlScheme, Variable, Variables};

/// A request, as far as its route and its variables depend on it.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// Head of the request.
    pub head: &'a RequestHead,
    /// Trust in the headers that describe the client. Headers that are not trusted count as absent.
    pub trust: FieldTrust<'a>,
    /// Scheme that the client uses.
    pub scheme: UrlScheme,
    /// Client; behind trusted proxies the one that they name.
    pub client: SocketAddr,
    /// Address that the client connected to; `None`: unknown.
    pub listen: Option<SocketAddr>,
    /// Name of the frontend.
    pub frontend: &'a str,
    /// Name of the route; empty: none is known yet.
    pub route: &'a str,
    /// HTTP version of the client: `1.0`, `1.1`, `2` or `3`.
    pub http_version: &'a str,
    /// Id of the request; empty: it has none.
    pub request_id: &'a str,
    /// Id of the trace that the request belongs to; `None`: none.
    pub trace_id: Option<u128>,
    /// TLS between the client and convey; `None`: none.
    pub tls: Option<TlsFacts<'a>>,
}

/// TLS of a client's connection. Parts that the connection does not have are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct TlsFacts<'a> {
    /// Version, such as `1.3`.
    pub version: &'a str,
    /// Cipher suite.
    pub cipher: &'a str,
    /// Subject of the client's certificate.
    pub client: &'a str,
    /// Server name that the client sent (SNI).
    pub sni: &'a str,
}

impl<'a> RequestFacts<'a> {
    /// Returns facts for the choice of a route: head, scheme and client.
    pub fn new(
        head: &'a RequestHead,
        trust: FieldTrust<'a>,
        scheme: UrlScheme,
        client: SocketAddr,
    ) -> RequestFacts<'a> {
        RequestFacts {
            head,
            trust,
            scheme,
            client,
            listen: None,
            frontend: "",
            route: "",
            http_version: "",
            request_id: "",
            trace_id: None,
            tls: None,
        }
    }
}

impl Variables for RequestFacts<'_> {
    fn value(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        let number = |number: u16| Cow::Owned(number.to_string().into_bytes());
        let text = |text: String| Cow::Owned(text.into_bytes());
        let tls = self.tls.unwrap_or_default();
        let value = match variable {
            Variable::ClientIp => text(self.client.ip().to_string()),
            Variable::ClientPort => number(self.client.port()),
            Variable::Frontend => self.frontend.as_bytes().into(),
            Variable::Host => self.head.host_without_port().into(),
            Variable::HttpVersion => self.http_version.as_bytes().into(),
            Variable::ListenIp => text(self.listen?.ip().to_string()),
            Variable::ListenPort => number(self.listen?.port()),
            Variable::Method => self.head.method_token().into(),
            Variable::Path => self.head.path().into(),
            Variable::Query => {
                let query = &self.head.path_and_query()[self.head.path().len()..];
                query.strip_prefix(b"?")?.into()
            }
            Variable::RequestId => self.request_id.as_bytes().into(),
            Variable::Route => self.route.as_bytes().into(),
            Variable::Scheme => self.scheme.name().as_bytes().into(),
            Variable::Sni => tls.sni.as_bytes().into(),
            Variable::Target => self.head.path_and_query().into(),
            Variable::TlsCipher => tls.cipher.as_bytes().into(),
            Variable::TlsClient => tls.client.as_bytes().into(),
            Variable::TlsVersion => tls.version.as_bytes().into(),
            Variable::TraceId => text(format!("{:032x}", self.trace_id?)),
            Variable::Header(name) => self.trust.field(self.head, name)?.into(),
        };
        Some(value)
    }
}
