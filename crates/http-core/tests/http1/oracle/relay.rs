//! Messages as convey forwards them: by the relay as bytes, and by the frame path in frames that
//! are encoded again.

use bytes::BytesMut;
use convey_http_core::{
    BodyEncoder, BodyPiece, ClientConnection, ClientIdentity, Exchange, ExchangeEnd, FieldRules,
    ForwardedFields, Malformed, OutgoingRequest, OutgoingResponse, RequestChanges, RequestHead, ServerFault,
    Trailers,
};

use super::convey::Response;
use super::{Limits, pieces};

/// Response that the relay has forwarded.
#[derive(Debug)]
pub(crate) struct Relayed {
    pub(crate) to_client: Vec<u8>,
    pub(crate) fault: Option<ServerFault>,
    pub(crate) end: ExchangeEnd,
}

/// Forwards the response to a request as bytes, as between two connections of HTTP/1. The server
/// closes its connection after these bytes.
pub(crate) fn response_bytes(
    request: &RequestHead,
    bytes: &[u8],
    sizes: &[usize],
    limits: Limits,
) -> Relayed {
    let mut exchange = Exchange::new(request);
    exchange.limit_response(limits.head);
    exchange.state_mut().note_request_end();
    let (mut received, mut to_client) = (BytesMut::new(), Vec::new());
    let mut forward = || {
        for piece in pieces(bytes, sizes) {
            received.extend_from_slice(piece);
            pass_bytes(&mut exchange, &mut received, &mut to_client)?;
        }
        match exchange.state().is_response_whole() {
            true => Ok(()),
            false => exchange.server_closed(),
        }
    };
    let fault = forward().err();
    Relayed { to_client, fault, end: exchange.state().end() }
}

fn pass_bytes(
    exchange: &mut Exchange,
    received: &mut BytesMut,
    out: &mut Vec<u8>,
) -> Result<(), ServerFault> {
    if exchange.state().awaits_head() {
        let (read, head) = exchange.head_from_server(received, out)?;
        let _ = received.split_to(read);
        let Some(head) = head else { return Ok(()) };
        exchange.write_head(&OutgoingResponse::new(&head, &FieldRules::default()), out);
    }
    if !exchange.removes_chunks() {
        let len = exchange.from_server(received)?;
        out.extend_from_slice(&received.split_to(len));
        return Ok(());
    }
    loop {
        let (len, is_over) = match exchange.piece_from_server(received)? {
            BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => return Ok(()),
            BodyPiece::Data(len) => {
                out.extend_from_slice(&received[..len]);
                (len, false)
            }
            BodyPiece::Framing(len) | BodyPiece::Trailers(len) => (len, false),
            BodyPiece::End(len) => (len, true),
        };
        let _ = received.split_to(len);
        if is_over {
            return Ok(());
        }
    }
}

/// Encodes a whole response to a request in frames.
pub(crate) fn response_frames(request: &RequestHead, response: &Response) -> Vec<u8> {
    let (mut out, none) = (Vec::new(), FieldRules::default());
    let connection = response.state.client_connection();
    for head in response.heads.iter().filter(|head| !head.is_interim() || request.is_http11()) {
        let outgoing = OutgoingResponse::new(head, &none);
        match head.is_interim() {
            true => outgoing.write(ClientConnection::Stays, &mut out),
            false => {
                outgoing.write(connection, &mut out);
                let data = response.messages.all.last().map_or(&[][..], |message| &message.data);
                encode(outgoing.body_encoder(connection), data, response.trailers.as_ref(), &mut out);
            }
        }
    }
    out
}

/// Writes the head of a request for a server.
pub(crate) fn write_request_head(head: &RequestHead, out: &mut Vec<u8>) {
    let rules = FieldRules::default();
    let changes = RequestChanges {
        client: ClientIdentity {
            ip: [192, 0, 2, 1].into(),
            scheme: "http",
            subject: None,
            is_trusted: false,
        },
        forwarded: ForwardedFields { x_forwarded: true, forwarded: true, subject: false },
        server: ([10, 0, 0, 2], 80).into(),
        host: None,
        path: None,
        fields: &rules,
    };
    OutgoingRequest::new(head, &changes).write(out);
}

/// Encodes a body in frames.
pub(crate) fn encode(encoder: BodyEncoder, data: &[u8], trailers: Option<&Trailers>, out: &mut Vec<u8>) {
    data.chunks(7).for_each(|piece| encoder.data(piece, out));
    encoder.end(trailers, out);
}

/// Forwards a request's body from bytes in pieces. Returns its bytes, and whether the request is
/// whole.
pub(crate) fn request_bytes(
    head: &RequestHead,
    body: &[u8],
    sizes: &[usize],
    limits: Limits,
) -> Result<(Vec<u8>, bool), Malformed> {
    let (mut exchange, mut out) = (Exchange::new(head), Vec::new());
    if let Some(most) = limits.body {
        exchange.limit_body(most);
    }
    for piece in pieces(body, sizes) {
        let len = exchange.from_client(piece)?;
        out.extend_from_slice(&piece[..len]);
    }
    Ok((out, exchange.state().is_request_whole()))
}
