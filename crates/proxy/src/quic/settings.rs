//! What a connection may take, for the library.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};

use super::address_tokens;
use super::connection_ids::WorkerIds;
use super::crypto::{QUIC_V1, QuicClientState, QuicCrypto};
use super::paths::{MAX_DATAGRAM, PathControllers};
use super::steering::ConnectionIdLayout;
use convey_model::HttpLimits;
use convey_tls::TlsAcceptor;

/// How much of a request a stream may bring before a server takes it: as much as over HTTP/2.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same of all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Most bytes of answers that a connection keeps until its client has them.
const SEND_WINDOW: u64 = 1024 * 1024;

/// Streams in one direction: one for control, two for QPACK (RFC 9114, section 6.2), and some of kinds that nobody knows.
const ONE_WAY_STREAMS: u32 = 8;

/// How long nothing may come from a client, not even an answer to [`KEEP_ALIVE`].
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How often a client is asked whether it is there: one that waits for a slow answer has nothing to say.
const KEEP_ALIVE: Duration = Duration::from_secs(12);

/// Clients that wait to be let in at once. Each is looked at as soon as it has come.
const MAX_INCOMING: usize = 256;

/// Bytes of what such a client may have sent beyond its first packet, and of all of them.
const INCOMING_BUFFER: u64 = 16 * 1024;
const ALL_INCOMING_BUFFERS: u64 = 1024 * 1024;

/// The endpoint of one worker.
pub(super) fn of_endpoint(ids: ConnectionIdLayout) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.cid_generator(move || Box::new(WorkerIds::new(ids))).supported_versions(vec![QUIC_V1]);
    config
}

/// Settings of connections that are let in from now on.
pub(crate) struct ConnectionSettings {
    /// Without limits of connections: [`ConnectionSettings::of_client`] adds them.
    pub(super) config: ServerConfig,
    crypto: Arc<QuicCrypto>,
    streams: u32,
}

impl ConnectionSettings {
    /// Settings of one client. They last as long as its connection.
    pub(super) fn of_client(&self, client: QuicClientState) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        let mut transport = transport(self.streams);
        transport.congestion_controller_factory(Arc::new(PathControllers::new(client.paths.clone())));
        config.transport_config(Arc::new(transport));
        config.crypto = Arc::new(self.crypto.of_client(client));
        Arc::new(config)
    }
}

/// Settings of connections that are let in from now on; `None`: the frontend has no HTTP/3.
pub(super) fn of_connections(acceptor: &TlsAcceptor, limits: &HttpLimits) -> Option<ConnectionSettings> {
    let crypto = Arc::new(QuicCrypto::new(acceptor.quic()?)?);
    let mut config = ServerConfig::with_crypto(crypto.clone());
    config
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BUFFER)
        .incoming_buffer_size_total(ALL_INCOMING_BUFFERS);
    address_tokens::apply(&mut config);
    Some(ConnectionSettings { config, crypto, streams: limits.streams })
}

/// Limits of a connection with so many requests at once.
fn transport(streams: u32) -> TransportConfig {
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(MAX_DATAGRAM);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(ONE_WAY_STREAMS.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        .max_idle_timeout(IdleTimeout::try_from(MAX_SILENCE).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .mtu_discovery_config(Some(mtu))
        .datagram_receive_buffer_size(None);
    transport
}

/// What a connection is closed with in order (`H3_NO_ERROR`, RFC 9114, section 8.1).
pub(super) const NO_ERROR: VarInt = VarInt::from_u32(0x100);
