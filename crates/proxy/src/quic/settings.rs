//! QUIC transport settings and limits of connections.

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

/// Flow control window of a stream in bytes, equal to that of HTTP/2. The window limits the request
/// bytes that convey buffers until a server accepts them.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Flow control window of all streams of a connection together, in bytes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Upper bound of the unacknowledged response bytes that a connection buffers.
const SEND_WINDOW: u64 = 1024 * 1024;

/// Unidirectional streams that a client may open: one for control, two for QPACK (RFC 9114, section
/// 6.2), and some of unknown types.
const ONE_WAY_STREAMS: u32 = 8;

/// Idle timeout of a connection. It expires if the client does not answer even the packets of
/// [`KEEP_ALIVE`].
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Interval of keep-alive packets. The packets prevent the idle timeout while a client waits for a
/// slow response and sends nothing itself.
const KEEP_ALIVE: Duration = Duration::from_secs(12);

/// Upper bound of the clients that wait for admission. A small number suffices, because convey
/// decides on each client as soon as it arrives.
const MAX_INCOMING: usize = 256;

/// Upper bound of the bytes that the library buffers for one waiting client, beyond its first
/// packet.
const INCOMING_BUFFER: u64 = 16 * 1024;
const ALL_INCOMING_BUFFERS: u64 = 1024 * 1024;

/// Returns the settings of the QUIC endpoint of one worker.
pub(super) fn of_endpoint(ids: ConnectionIdLayout) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.cid_generator(move || Box::new(WorkerIds::new(ids))).supported_versions(vec![QUIC_V1]);
    config
}

/// Settings of new connections of a frontend.
pub(crate) struct ConnectionSettings {
    /// Settings without the transport limits, which [`ConnectionSettings::of_client`] adds.
    pub(super) config: ServerConfig,
    crypto: Arc<QuicCrypto>,
    streams: u32,
}

impl ConnectionSettings {
    /// Returns the settings for the connection of one client.
    pub(super) fn of_client(&self, client: QuicClientState) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        let mut transport = transport(self.streams);
        transport.congestion_controller_factory(Arc::new(PathControllers::new(client.paths.clone())));
        config.transport_config(Arc::new(transport));
        config.crypto = Arc::new(self.crypto.of_client(client));
        Arc::new(config)
    }
}

/// Returns the settings of new connections; `None` if the frontend does not serve HTTP/3.
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

/// Returns the transport limits of a connection. `streams` is the number of concurrent requests.
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

/// Error code of an orderly close (`H3_NO_ERROR`, RFC 9114, section 8.1).
pub(super) const NO_ERROR: VarInt = VarInt::from_u32(0x100);
