//! Facts of a TLS handshake.

use rustls::{CommonState, HandshakeKind, ProtocolVersion};

use crate::certificate;

/// Facts of a TLS handshake, for logs and servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFacts {
    /// Version of TLS: `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// Cipher suite as the RFCs name it, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: String,
    /// Protocol within TLS (ALPN); empty if none was negotiated.
    pub protocol: String,
    /// Server name that the client requested (SNI); empty if it sent none.
    pub server_name: String,
    /// Subject of the client's certificate; empty without a certificate.
    pub client_subject: String,
    /// Whether the client resumed an earlier session.
    pub is_resumed: bool,
}

impl SessionFacts {
    /// Collects the facts of a handshake over TCP or QUIC, from the state of rustls. `server_name`
    /// is the name that the client requested.
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
