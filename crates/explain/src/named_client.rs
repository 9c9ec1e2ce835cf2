//! Client of a request in question that a trusted proxy sends. Pure.

use convey_http_core::NamedClient;

use super::question::{AskedPlace, ClientAddr};
use super::route::AskedRequest;

impl AskedPlace {
    /// Sets the client to the one that a trusted proxy names in this request, if the question is
    /// about such a proxy.
    pub(super) fn with_named_client(self, request: Option<&AskedRequest>) -> AskedPlace {
        let config = &self.frontend.config;
        let (Some(request), Some(http)) = (request, config.http.as_ref()) else { return self };
        if !config.is_http_proxy(self.peer.ip) {
            return self;
        }
        let named = http.client_address.client_of(request.head(), |ip| config.trusts_proxy(ip));
        let client = named.address().map_or(self.peer, |client| ClientAddr {
            ip: client.ip().to_canonical(),
            port: Some(client.port()),
        });
        AskedPlace { client, named: Some(named), ..self }
    }

    /// Text about the client of the request, and how convey knows it. `None`: the question is about
    /// no request of a trusted proxy.
    pub(super) fn naming(&self) -> Option<String> {
        let http = self.frontend.config.http.as_ref()?;
        let (field, peer, client) = (http.client_address.field_name()?, self.peer.ip, self.client.ip);
        Some(match self.named? {
            NamedClient::Address(_) => {
                format!("{client} is the client: named in {field} by trusted proxy {peer}")
            }
            NamedClient::Missing => {
                format!("{peer} is a trusted proxy, and the client: the request has no {field}")
            }
            NamedClient::NotAnAddress => {
                format!("{peer} is a trusted proxy, and the client: {field} does not end with an address")
            }
        })
    }

    /// Whether the request in question is a trusted proxy's own, so that limits do not apply to it.
    pub(super) fn is_of_proxy(&self) -> bool {
        self.named == Some(NamedClient::Missing)
    }
}
