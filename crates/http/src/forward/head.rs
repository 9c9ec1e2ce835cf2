//! Head of a request on its way to a server.

use bytes::BytesMut;
use convey_http_core::{BodyFraming, ClientIdentity, OutgoingRequest, RequestChanges};
use convey_model::UnixSocket;
use convey_upstream::Permit;

use super::Forwarding;
use crate::buffer;
use crate::http2::OutgoingStream;
use crate::request::HttpRequest;

impl Forwarding<'_, '_> {
    /// Head of the request for the server of the permit, as text of HTTP/1.1.
    pub(super) fn head_as_text(&self, permit: &Permit) -> Vec<u8> {
        let mut head = buffer::take_spare();
        self.with_outgoing(permit, |request| request.write(&mut head));
        head
    }

    /// Sends the head of the request on a stream to the server of the permit.
    pub(super) fn begin_stream(&self, permit: &Permit, stream: &mut OutgoingStream) {
        self.with_outgoing(permit, |request| stream.begin(request));
    }

    /// Calls `send` with the request as the server gets it.
    fn with_outgoing(&self, permit: &Permit, send: impl FnOnce(&OutgoingRequest<'_>)) {
        let (request, route) = (self.request, self.route);
        let frontend = request.frontend();
        let tls = self.client.tls();
        let server = self.client.address_of(permit);
        // A request of HTTP/1.0 without a host gets the server's address, which a unix socket lacks.
        let localhost = UnixSocket::of(server).filter(|_| request.head().host().is_empty());
        let localhost = localhost.map(|_| &b"localhost"[..]);
        let changes = RequestChanges {
            client: ClientIdentity {
                ip: request.peer().ip(),
                scheme: if tls.is_some() { "https" } else { "http" },
                subject: tls.map(|tls| &*tls.client_subject).filter(|subject| !subject.is_empty()),
                is_trusted: request.is_peer_trusted(),
            },
            forwarded: frontend.http.as_ref().map_or_else(Default::default, |http| http.forwarded),
            server,
            host: route.rewrite_host.as_deref().or(localhost),
            path: route.rewrite.as_ref(),
            fields: &request.changes(route),
        };
        send(&OutgoingRequest::new(request.head(), &changes));
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
