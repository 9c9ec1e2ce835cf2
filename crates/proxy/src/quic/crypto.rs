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
        let connection = ServerConnection::new(self.tls.clone(), Version::V1, ours)
            .expect("settings that have begun a session begin another");
        let client = self.client.clone();
        Box::new(QuicSession { connection, initial: self.initial, next: None, is_notified: false, client })
    }
}

/// TLS session of one client. Its `handshake_data` are [`SessionFacts`].
struct QuicSession {
    connection: ServerConnection,
    initial: rustls::quic::Suite,
    /// Secrets for the next update of the 1-RTT keys.
    next: Option<Secrets>,
    /// Whether the library has been notified that the ClientHello is complete.
    is_notified: bool,
    client: Option<QuicClientState>,
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
        let facts = || SessionFacts::of(&self.connection, self.connection.server_name());
        self.is_notified.then(|| Box::new(facts()) as Box<dyn Any>)
    }

    /// Not used: the client's certificate is part of the facts.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.connection.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    /// Not used: only clients need to know whether the server has accepted early data.
    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.connection.read_hs(bytes).map_err(|error| TransportError {
            code: match self.connection.alert() {
                Some(alert) => TransportErrorCode::crypto(alert.into()),
                None => TransportErrorCode::PROTOCOL_VIOLATION,
            },
            frame: None,
            reason: error.to_string(),
        })?;
        // rustls does not signal that it has read the whole ClientHello, so this is inferred from
        // the results of its parsing.
        let has_hello = self.connection.alpn_protocol().is_some()
            || self.connection.server_name().is_some()
            || !self.is_handshaking();
        let is_news = has_hello && !self.is_notified;
        self.is_notified |= has_hello;
        Ok(is_news)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let theirs = self.connection.quic_transport_parameters();
        let read = |bytes| TransportParameters::read(Side::Server, &mut Cursor::new(bytes));
        Ok(theirs.map(read).transpose()?)
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let keys = match self.connection.write_hs(out)? {
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
