//! Head of a request on its way to a server.

use bytes::BytesMut;
use convey_http_core::{BodyFraming, ClientIdentity, RequestChanges, write_request};
use convey_upstream::Permit;

use super::Forwarding;
use crate::request::HttpRequest;

impl Forwarding<'_, '_> {
    /// Returns the head of the request for the server.
    pub(super) fn head_for_server(&self, permit: &Permit) -> Vec<u8> {
        let (request, route) = (self.request, self.route);
        let frontend = request.frontend();
        let tls = self.client.tls();
        let changes = RequestChanges {
            client: ClientIdentity {
                ip: request.peer().ip(),
                scheme: if tls.is_some() { "https" } else { "http" },
                subject: tls.map(|tls| &*tls.client_subject).filter(|subject| !subject.is_empty()),
                is_trusted: request.is_peer_trusted(),
            },
            forwarded: frontend.http.as_ref().map_or_else(Default::default, |http| http.forwarded),
            server: self.client.address_of(permit),
            host: route.rewrite_host.as_deref(),
            path: route.prefix.as_ref().zip(route.rewrite_path.as_deref()),
            fields: &request.changes(&route.request),
        };
        let mut head = Vec::with_capacity(512);
        write_request(request.head(), &changes, &mut head);
        head
    }
}

/// Bytes of the request's body that have not been read from the client; 0 if its length is unknown.
pub(super) fn missing(request: &HttpRequest, received: &BytesMut) -> u64 {
    match request.head().framing() {
        BodyFraming::Length(len) => len.saturating_sub(received.len() as u64),
        _ => 0,
    }
}
