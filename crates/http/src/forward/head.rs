//! Head of a request on its way to a server.

use bytes::BytesMut;
use convey_http_core::{BodyFraming, ClientIdentity, OutgoingRequest, RequestChanges};
use convey_upstream::Permit;

use super::Forwarding;
use crate::buffer;
use crate::ends::ServerEnd;
use crate::request::HttpRequest;

impl Forwarding<'_, '_> {
    /// Sends the head of the request over HTTP/2, or returns it as HTTP/1.1 text. For HTTP/2, the
    /// returned text is empty.
    pub(super) fn begin(&self, permit: &Permit, server: &mut ServerEnd) -> Vec<u8> {
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
        let request = OutgoingRequest::new(request.head(), &changes);
        match server {
            ServerEnd::Stream(stream) => {
                stream.begin(&request);
                Vec::new()
            }
            ServerEnd::Socket(_) => {
                let mut head = buffer::take_spare();
                request.write(&mut head);
                head
            }
        }
    }
}

/// Number of bytes of the request's body that have not been read from the client; 0 if the length
/// of the body is unknown.
pub(super) fn missing(request: &HttpRequest, received: &BytesMut) -> u64 {
    match request.head().framing() {
        BodyFraming::Length(len) => len.saturating_sub(received.len() as u64),
        _ => 0,
    }
}
