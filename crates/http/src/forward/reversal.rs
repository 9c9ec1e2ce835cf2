//! Translation of responses to requests that their route rewrites.

use convey_http_core::{ResponseReversal, ReverseRewrite, UrlScheme};
use convey_proxy::ClientStream;
use convey_snapshot::HttpRoute;
use convey_upstream::Permit;

use crate::request::HttpRequest;

/// Request that its route has rewritten for a server. The translation of its response is computed
/// only when a head of the response arrives: a transfer is polled often, and most polls move no
/// head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RewrittenRequest<'a> {
    rules: &'a ReverseRewrite,
    client: &'a ClientStream,
    request: &'a HttpRequest,
    route: &'a HttpRoute,
    permit: &'a Permit,
}

impl<'a> RewrittenRequest<'a> {
    /// Returns the request as rewritten for the server of the permit; `None`: the route translates
    /// no responses.
    pub(super) fn of(
        client: &'a ClientStream,
        request: &'a HttpRequest,
        route: &'a HttpRoute,
        permit: &'a Permit,
    ) -> Option<RewrittenRequest<'a>> {
        let rules = route.reverse.as_ref()?;
        Some(RewrittenRequest { rules, client, request, route, permit })
    }

    /// Translation of a response to this request.
    pub(crate) fn reversal(&self) -> ResponseReversal<'a> {
        let RewrittenRequest { rules, client, request, route, permit } = *self;
        let scheme = |is_https| if is_https { UrlScheme::Https } else { UrlScheme::Http };
        let client_host = request.head().host();
        ResponseReversal {
            rules,
            client_host,
            client_scheme: scheme(request.is_https()),
            server_host: route.rewrite_host.as_deref().unwrap_or(client_host),
            server: client.address_of(permit),
            server_scheme: scheme(permit.has_tls()),
        }
    }
}
