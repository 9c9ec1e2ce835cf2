//! What a handshake has agreed on.

use rustls::{CommonState, HandshakeKind, ProtocolVersion};

use crate::certificate;

/// What a handshake has agreed on, for logs and servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFacts {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The suite as the RFCs name it, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    /// The protocol within (ALPN); empty if they agreed on none.
    pub protocol: String,
    /// The name that the client asked for; empty: none.
    pub server_name: String,
    /// The subject of the client's certificate; empty without one.
    pub client_subject: String,
    /// Whether the session goes on from an earlier one.
    pub is_resumed: bool,
}

impl SessionFacts {
    /// Of a connection over TCP or QUIC (`state`), whose client asked for this name.
    pub fn of(state: &CommonState, server_name: Option<&str>) -> SessionFacts {
        let suite = state.negotiated_cipher_suite();
        let certificate = state.peer_certificates().and_then(|chain| chain.first());
        SessionFacts {
            version: match state.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "",
            },
            cipher_suite: suite
                .and_then(|suite| suite.suite().as_str().map(str::to_owned))
                .unwrap_or_default(),
            protocol: String::from_utf8_lossy(state.alpn_protocol().unwrap_or_default()).into_owned(),
            server_name: server_name.unwrap_or_default().to_owned(),
            client_subject: certificate.map(|der| certificate::subject(der)).unwrap_or_default(),
            is_resumed: state.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }
}
