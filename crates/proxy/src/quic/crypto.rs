//! TLS within QUIC (RFC 9001). Wraps the TLS of the QUIC library, to get facts that the library
//! does not expose: the cipher suite and session resumption.

use std::any::Any;
use std::io::Cursor;
use std::sync::Arc;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn::rustls;
use quinn::rustls::AlertDescription;
use quinn::rustls::quic::{DirectionalKeys, KeyChange, Secrets, ServerConnection, Version};
use quinn::{ConnectionId, Side, TransportErrorCode};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;

use super::observed_key::{ObservedKey, PacketObserver};
use super::paths::ClientPaths;
use super::unproven::ClientAddress;
use convey_tls::{SessionFacts, initial_suite};

/// The only supported version of QUIC (RFC 9000).
pub(super) const QUIC_V1: u32 = 1;

/// TLS settings of a frontend for QUIC. Delegates everything except TLS sessions to the QUIC
/// library.
pub(super) struct QuicCrypto {
    tls: Arc<rustls::ServerConfig>,
    library: Arc<QuicServerConfig>,
    initial: rustls::quic::Suite,
    /// Client whose connection has these settings; `None` in the settings of the frontend.
    client: Option<QuicClientState>,
}

/// Address and network paths of the client of one connection.
#[derive(Clone)]
pub(super) struct QuicClientState {
    pub(super) address: Arc<ClientAddress>,
    pub(super) paths: Arc<ClientPaths>,
}

impl QuicCrypto {
    /// Creates the settings of a frontend. Returns `None` if its TLS settings do not allow TLS 1.3.
    pub(super) fn new(tls: Arc<rustls::ServerConfig>) -> Option<QuicCrypto> {
        let initial = initial_suite()?;
        // Creates a session as a test, because `start_session` cannot return an error later.
        ServerConnection::new(tls.clone(), Version::V1, Vec::new()).ok()?;
        let library = Arc::new(QuicServerConfig::with_initial(tls.clone(), initial).ok()?);
        Some(QuicCrypto { tls, library, initial, client: None })
    }

    /// Returns the settings for the connection of one client. The client's address counts as
    /// validated when the first packet with a handshake key arrives.
    pub(super) fn of_client(&self, client: QuicClientState) -> QuicCrypto {
        let QuicCrypto { tls, library, initial, .. } = self;
        let (tls, library, initial) = (tls.clone(), library.clone(), *initial);
        QuicCrypto { tls, library, initial, client: Some(client) }
    }

    /// Begins a session with these encoded transport parameters.
    fn session(&self, parameters: Vec<u8>) -> QuicSession {
        let connection = ServerConnection::new(self.tls.clone(), Version::V1, parameters)
            .expect("settings that have begun a session begin another");
        let tls = TlsState::Open(Box::new(connection));
        QuicSession {
            tls,
            initial: self.initial,
            next: None,
            is_notified: false,
            client: self.client.clone(),
        }
    }
}

impl ServerConfig for QuicCrypto {
    fn initial_keys(&self, version: u32, to: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        if version != QUIC_V1 {
            return Err(UnsupportedVersion);
        }
        self.library.initial_keys(version, to)
    }

    fn retry_tag(&self, version: u32, to: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.library.retry_tag(version, to, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        let mut ours = Vec::new();
        parameters.write(&mut ours);
        Box::new(self.session(ours))
    }
}

/// TLS session of one client. Its `handshake_data` are [`SessionFacts`].
struct QuicSession {
    tls: TlsState,
    initial: rustls::quic::Suite,
    /// Secrets for the next update of the 1-RTT keys.
    next: Option<Secrets>,
    /// Whether the library has been notified that the ClientHello is complete.
    is_notified: bool,
    client: Option<QuicClientState>,
}

/// State of the TLS handshake. After its end, a server of TLS 1.3 within QUIC has nothing more to
/// read or to write, so its memory is freed: an idle connection has no use for it.
enum TlsState {
    Open(Box<ServerConnection>),
    Over(SessionFacts),
}

impl TlsState {
    fn facts(&self) -> SessionFacts {
        match self {
            TlsState::Open(connection) => SessionFacts::of(connection, connection.server_name()),
            TlsState::Over(facts) => facts.clone(),
        }
    }

    fn open(&self) -> Option<&ServerConnection> {
        match self {
            TlsState::Open(connection) => Some(connection),
            TlsState::Over(_) => None,
        }
    }
}

impl QuicSession {
    /// Wraps the 1-RTT packet keys, so that the client's paths count the packets.
    fn counting(&self, keys: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        let Some(QuicClientState { paths, .. }) = &self.client else { return keys };
        let counting = |key| observed(key, paths.clone());
        KeyPair { local: counting(keys.local), remote: counting(keys.remote) }
    }
}

impl Session for QuicSession {
    fn initial_keys(&self, to: &ConnectionId, _: Side) -> Keys {
        let keys = self.initial.keys(to, rustls::Side::Server, Version::V1);
        both(keys.local, keys.remote)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.is_notified.then(|| Box::new(self.tls.facts()) as Box<dyn Any>)
    }

    /// Not used: the client's certificate is part of the facts.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.tls.open()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    /// Not used: only clients need to know whether the server has accepted early data.
    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls.open().is_some_and(|connection| connection.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let TlsState::Open(connection) = &mut self.tls else {
            // A client sends no message after the handshake (RFC 9001, sections 4.4 and 6).
            return Err(TransportError {
                code: TransportErrorCode::crypto(AlertDescription::UnexpectedMessage.into()),
                frame: None,
                reason: "a TLS message after the handshake".to_owned(),
            });
        };
        connection.read_hs(bytes).map_err(|error| TransportError {
            code: match connection.alert() {
                Some(alert) => TransportErrorCode::crypto(alert.into()),
                None => TransportErrorCode::PROTOCOL_VIOLATION,
            },
            frame: None,
            reason: error.to_string(),
        })?;
        // rustls does not signal that it has read the whole ClientHello, so this is inferred from
        // the results of its parsing.
        let has_hello = connection.alpn_protocol().is_some()
            || connection.server_name().is_some()
            || !connection.is_handshaking();
        let is_news = has_hello && !self.is_notified;
        self.is_notified |= has_hello;
        Ok(is_news)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let theirs = self.tls.open().and_then(|connection| connection.quic_transport_parameters());
        let read = |bytes| TransportParameters::read(Side::Server, &mut Cursor::new(bytes));
        Ok(theirs.map(read).transpose()?)
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let TlsState::Open(connection) = &mut self.tls else { return None };
        let Some(change) = connection.write_hs(out) else {
            // The library calls this until nothing is left to write, such as session tickets.
            if out.is_empty() && !connection.is_handshaking() {
                self.tls = TlsState::Over(self.tls.facts());
            }
            return None;
        };
        let keys = match change {
            KeyChange::Handshake { keys } => {
                let mut keys = both(keys.local, keys.remote);
                if let Some(QuicClientState { address, .. }) = self.client.clone() {
                    keys.packet.remote = observed(keys.packet.remote, address);
                }
                return Some(keys);
            }
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        };
        let Keys { header, packet } = both(keys.local, keys.remote);
        Some(Keys { header, packet: self.counting(packet) })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(self.counting(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) }))
    }

    /// Not used: a server does not receive Retry packets.
    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    /// Not used by convey.
    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// Validates the client's address at the first packet with handshake keys. A client can derive
/// these keys only if it receives packets at its address (RFC 9000, section 8.1).
impl PacketObserver for Arc<ClientAddress> {
    fn on_decrypted(&self, _: usize) {
        self.prove();
    }
}

fn observed(key: Box<dyn PacketKey>, observer: impl PacketObserver + 'static) -> Box<dyn PacketKey> {
    Box::new(ObservedKey { key, observer })
}

fn both(local: DirectionalKeys, remote: DirectionalKeys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
        packet: KeyPair { local: Box::new(local.packet), remote: Box::new(remote.packet) },
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair as CertificateKey};
    use rustls::RootCertStore;
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::quic::ClientConnection;
    use rustls::version::TLS13;

    use super::*;

    /// Begins a client's session with a server.
    fn sessions() -> (ClientConnection, QuicSession) {
        let key = CertificateKey::generate().unwrap();
        let names = CertificateParams::new(["a.example".to_owned()]).unwrap();
        let certificate = names.self_signed(&key).unwrap().der().clone();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(default_provider());
        let settings = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], private)
            .unwrap();
        let mut trusted = RootCertStore::empty();
        trusted.add(certificate).unwrap();
        let of_client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let name = "a.example".try_into().unwrap();
        let client = ClientConnection::new(Arc::new(of_client), Version::V1, name, Vec::new()).unwrap();
        (client, QuicCrypto::new(Arc::new(settings)).unwrap().session(Vec::new()))
    }

    /// Passes on the messages of both sides until neither has more.
    fn shake_hands(client: &mut ClientConnection, server: &mut QuicSession) {
        loop {
            let mut asked = Vec::new();
            while client.write_hs(&mut asked).is_some() {}
            if asked.is_empty() {
                return;
            }
            server.read_handshake(&asked).unwrap();
            loop {
                let mut message = Vec::new();
                let keys = server.write_handshake(&mut message);
                if keys.is_none() && message.is_empty() {
                    break;
                }
                client.read_hs(&message).unwrap();
            }
        }
    }

    #[test]
    fn session_keeps_only_its_facts_after_the_handshake() {
        let (mut client, mut server) = sessions();
        assert!(server.is_handshaking() && server.handshake_data().is_none());
        shake_hands(&mut client, &mut server);
        assert!(!server.is_handshaking() && !client.is_handshaking());
        assert!(matches!(server.tls, TlsState::Over(_)) && size_of::<QuicSession>() <= 360);
        let facts = server.handshake_data().unwrap().downcast::<SessionFacts>().unwrap();
        assert_eq!((&*facts.server_name, facts.version), ("a.example", "TLSv1.3"));
        assert!(server.next_1rtt_keys().is_some());
        // A KeyUpdate within TLS.
        let refused = server.read_handshake(&[24, 0, 0, 1, 0]).unwrap_err();
        assert_eq!(refused.code, TransportErrorCode::crypto(10));
    }
}
