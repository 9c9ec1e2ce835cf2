//! Events that are counted, with their labels.

use convey_http_core::ExchangePhase;

/// Events that are counted for each frontend, backend and server. A counter stays zero where its
/// event cannot happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Connections accepted and sessions begun (frontend), or connections and sessions assigned to
    /// a server (backend, server).
    Opened,
    /// Connections and sessions that ended.
    Closed,
    /// Bytes received from clients.
    BytesRx,
    /// Bytes sent to clients.
    BytesTx,
    /// Packets received from clients and forwarded (packet modes), or datagrams received from
    /// clients (UDP in proxy mode).
    PacketsRx,
    /// Packets or datagrams sent to clients.
    PacketsTx,
    /// Failed attempts to connect to a server; SYNs and datagrams that a server refused
    /// (passthrough, UDP in proxy mode).
    ConnectFailures,
    /// Attempts repeated on another server, and sessions that moved because a server refused them.
    Retries,
    /// TCP handshakes that clients began with a server (packet modes).
    HandshakesBegun,
    /// TCP handshakes that clients completed (packet modes).
    HandshakesCompleted,
    /// SYNs that clients repeated before the handshake was complete.
    SynsRepeated,
    /// Connections whose large packets to the server are lost (packet modes).
    PathMtuToServer,
    /// Connections whose large packets to the client are lost (passthrough).
    PathMtuToClient,
    /// Connections ended with nothing sent to the client: no server of the backend was usable.
    NoServer,
    /// Connections ended with nothing sent to the client: every server tried refused or timed out.
    ConnectFailed,
    /// Connections ended with nothing sent to the client: no local port was left for a connection
    /// to a server.
    NoLocalPort,
    /// Connections ended with nothing sent to the client: every server stayed at its connection
    /// limit.
    QueueTimeout,
    /// Connections ended by the idle timeout: no byte moved, or in packet modes, no packet of an
    /// open TCP connection arrived.
    IdleTimeout,
    /// Connections ended because the client read its response too slowly while the response held a
    /// server slot (mode http).
    ClientTooSlow,
    /// Connections ended because a request took longer than `timeouts.request`, and its response
    /// had begun (mode http).
    RequestDeadline,
    /// Connections ended with nothing sent to the client: the client sent no byte in time.
    FirstByteTimeout,
    /// Connections ended by a reset from the client.
    ClientReset,
    /// Connections ended by a reset from the server.
    ServerReset,
    /// Connections ended by convey with a reset: the server was down (packet modes).
    ServerGone,
    /// Connections ended by convey with a reset: the file became shorter or unreadable while it was
    /// sent (mode http).
    FileChanged,
    /// Connections ended by convey with a reset: compression of the response failed midway (mode
    /// http).
    CompressionFailed,
    /// Connections ended with nothing sent to the client: the connection came from convey itself.
    Loop,
    /// Connections ended with nothing sent to the client: the client's address had reached its
    /// limit of connections.
    ClientLimit,
    /// Connections ended with nothing sent to the client: the peer is not a trusted proxy, and may
    /// not send PROXY headers.
    ProxyUntrusted,
    /// Connections ended with nothing sent to the client: the PROXY header was missing or invalid.
    ProxyHeaderInvalid,
    /// Connections ended with nothing sent to the client: the PROXY header did not arrive in time.
    ProxyHeaderTimeout,
    /// Connections ended with nothing but an alert sent to the client: the TLS handshake failed.
    TlsHandshakeFailed,
    /// Connections ended with nothing sent to the client: the TLS handshake took too long.
    TlsHandshakeTimeout,
    /// Connections ended with nothing sent to the client: the client's source had reached its limit
    /// of concurrent TLS handshakes.
    TlsHandshakeLimit,
    /// Connections ended with nothing sent to the client: the ClientHello that routes depend on did
    /// not arrive in time.
    HelloTimeout,
    /// Connections ended with nothing sent to the client: the first bytes looked like TLS, but were
    /// not an unambiguous ClientHello.
    HelloInvalid,
    /// Connections ended with nothing sent to the client: the first bytes were not TLS, and the
    /// frontend has a backend for TLS only.
    NotTls,
    /// Connections ended with nothing sent to the client: no route matches the server name or
    /// protocol that the client requested.
    NoRoute,
    /// Connections ended with nothing sent to the client: a reload gave the frontend another mode
    /// while the connection waited for its share or a slot.
    ModeChanged,
    /// QUIC connections refused: the frontend had reached its limit of connections, or the client
    /// had reached its share. TCP connections wait instead.
    RefusedFull,
    /// Connections ended after an ACME authority had received the validation certificate (RFC
    /// 8737).
    AcmeHandshake,
    /// Connections ended by convey with a reset: a reload changed the access lists, and they deny
    /// the client.
    AccessDenied,
    /// Connections ended by convey with a reset: the connection exceeded the connection limit of
    /// its source (packet modes).
    SourceConnections,
    /// Connections ended by convey: too many bytes were sent to addresses that the client had not
    /// validated (QUIC).
    UnprovenPaths,
    /// Connections ended by convey when the drain timeout expired.
    Cut,
    /// Connections ended by an operator.
    Killed,
    /// UDP sessions evicted in favour of a session of another client.
    Evicted,
    /// Pauses in which convey accepted no connections, because descriptors or memory ran out.
    AcceptBackoff,
    /// Datagrams dropped: no server was up, or the servers that were up could not be reached.
    DroppedNoServer,
    /// Datagrams dropped: the frontend, or every server, had reached its limit of sessions.
    DroppedFull,
    /// Datagrams dropped: this host had no descriptor, port or memory for another session.
    DroppedNoResources,
    /// Datagrams dropped: they would have begun a session while convey stops, or at a frontend that
    /// a reload removed.
    DroppedDraining,
    /// Datagrams dropped: they came from convey itself.
    DroppedLoop,
    /// Datagrams dropped: the client's address had reached its limit of sessions.
    DroppedClientLimit,
    /// Datagrams dropped: the sender is not a trusted proxy, and may not send PROXY headers.
    DroppedProxyUntrusted,
    /// Datagrams dropped: the PROXY header of version 2 was missing or invalid.
    DroppedProxyHeader,
    /// Datagrams dropped: the destination was a broadcast or multicast address.
    DroppedNotUnicast,
    /// Datagrams dropped: the send buffer was full, or the send failed.
    DroppedUnsent,
    /// Datagrams dropped: the address of the client is not validated, and convey has already sent
    /// to this address three times the bytes that it received from the address (QUIC). Several
    /// datagrams sent together may count as one.
    DroppedUnproven,
    /// Datagrams dropped by the kernel: they arrived faster than convey read them.
    DroppedOverrun,
    /// Streams of HTTP/2 and HTTP/3 that convey reset because no byte moved in time (mode http).
    DroppedIdle,
    /// Streams of HTTP/2 and HTTP/3 that convey reset because the client read its response too
    /// slowly while the response held a server slot (mode http).
    DroppedTooSlow,
    /// Streams of HTTP/2 and HTTP/3 that convey reset because the request took longer than
    /// `timeouts.request`, and its response had begun (mode http).
    DroppedDeadline,
    /// Refused clients: the access lists deny the client. Counts connections and datagrams; in
    /// packet modes, packets.
    RefusedAccess,
    /// Refused clients: the source has reached its limit of connections.
    RefusedSourceConnections,
    /// Refused clients: the source has begun too many connections recently.
    RefusedSourceRate,
    /// Full TLS handshakes, each of which began a new session.
    TlsHandshakes,
    /// TLS handshakes that resumed an earlier session.
    TlsResumed,
    /// Requests whose head was received (mode http). For a server: requests sent to the server,
    /// including retries.
    Requests,
    /// Connections that switched protocols (status 101).
    Responses1xx,
    /// Responses with a status from 200 to 299, local replies included.
    Responses2xx,
    /// Responses with a status from 300 to 399, local replies included.
    Responses3xx,
    /// Responses with a status from 400 to 499, local replies included.
    Responses4xx,
    /// Responses with a status of 500 or above, local replies included.
    Responses5xx,
    /// Local reply: the request was ambiguous, was not HTTP, or exceeded a limit.
    AnsweredMalformed,
    /// Local reply: the request did not arrive in time.
    AnsweredRequestTimeout,
    /// Local reply: no route matches.
    AnsweredNoRoute,
    /// Local reply: the access lists deny the client address that a trusted proxy sent.
    AnsweredAccess,
    /// Local reply: the requested host has another certificate than the certificate that convey
    /// presented in the client's TLS handshake.
    AnsweredMisdirected,
    /// Local reply: the client's source has sent too many requests recently.
    AnsweredRateLimit,
    /// Local reply: all clients together have sent too many requests to the frontend or the route.
    AnsweredTotalRateLimit,
    /// Local reply: all clients together have sent too many requests to the backend.
    AnsweredBackendRateLimit,
    /// Local reply: the route is a redirect.
    AnsweredRedirect,
    /// Local reply: the route has a fixed response.
    AnsweredRespond,
    /// Local reply: an operator has put the frontend, the route or the backend into maintenance.
    AnsweredMaintenance,
    /// Local reply: the request was a preflight request of a page of another origin (CORS).
    AnsweredPreflight,
    /// Local reply: a layer that an embedding application added answered the request.
    AnsweredLayer,
    /// Local reply: an ACME authority requested the token of a pending order.
    AnsweredAcme,
    /// Local reply: no server was up.
    AnsweredNoServer,
    /// Local reply: every server that was tried refused or timed out.
    AnsweredConnectFailed,
    /// Local reply: no local port was left for a connection to a server.
    AnsweredNoLocalPort,
    /// Local reply: every server stayed at its connection limit.
    AnsweredQueueTimeout,
    /// Local reply: the server reset the connection.
    AnsweredServerReset,
    /// Local reply: the server sent an invalid response.
    AnsweredServerFault,
    /// Local reply: the server did not respond in time.
    AnsweredServerTimeout,
    /// Local reply: the request took longer than its time limit.
    AnsweredRequestDeadline,
    /// Local reply: a file, a part of a file, or status 304 (not modified).
    AnsweredFile,
    /// Local reply: the file does not exist.
    AnsweredFileNotFound,
    /// Local reply: the file must not be read, or the directory must not be listed.
    AnsweredFileForbidden,
    /// Local reply: files allow only `GET` and `HEAD`.
    AnsweredFileMethod,
    /// Local reply: the file does not meet the request's precondition.
    AnsweredFilePrecondition,
    /// Local reply: the file has none of the requested ranges.
    AnsweredFileRange,
    /// Local reply: the file could not be read, or this host has no descriptor for it.
    AnsweredFileFailed,
    /// Local replies with a status of 500 or above, for any reason.
    Answered5xx,
    /// Requests that ended early or got a local reply in phase `request_head` (mode http).
    EarlyRequestHead,
    /// Requests that ended early or got a local reply in phase `access` (mode http).
    EarlyAccess,
    /// Requests that ended early or got a local reply in phase `route` (mode http).
    EarlyRoute,
    /// Requests that ended early or got a local reply in phase `limits` (mode http).
    EarlyLimits,
    /// Requests that ended early or got a local reply in phase `layers` (mode http).
    EarlyLayers,
    /// Requests that ended early or got a local reply in phase `pick` (mode http).
    EarlyPick,
    /// Requests that ended early or got a local reply in phase `connect` (mode http).
    EarlyConnect,
    /// Requests that ended early or got a local reply in phase `upstream_request` (mode http).
    EarlyUpstreamRequest,
    /// Requests that ended early or got a local reply in phase `response_head` (mode http).
    EarlyResponseHead,
    /// Requests that ended early or got a local reply in phase `bodies` (mode http).
    EarlyBodies,
    /// Requests that ended early or got a local reply in phase `tunnel` (mode http).
    EarlyTunnel,
    /// Cache hits of a backend's files: a small file was in memory, or a larger file was open.
    FileCacheHits,
    /// Cache misses: files that a worker had to open.
    FileCacheMisses,
    /// Files evicted from the cache to make room for other files.
    FileCacheEvictions,
    /// Total size of the files that workers have put into the cache so far, in bytes of memory.
    FileCacheBytesKept,
    /// Total size of the files that have left the cache so far, in bytes of memory.
    FileCacheBytesDropped,
    /// Responses that convey began to compress with `zstd` (mode http).
    CompressedZstd,
    /// Responses that convey began to compress with `br` (mode http).
    CompressedBrotli,
    /// Responses that convey began to compress with `gzip` (mode http).
    CompressedGzip,
    /// Responses sent uncompressed, because no memory was left for another encoder.
    CompressionNoRoom,
    /// Bytes of bodies before compression.
    CompressionBytesIn,
    /// Bytes of bodies after compression.
    CompressionBytesOut,
}

impl Counter {
    pub(super) const COUNT: usize = Counter::CompressionBytesOut as usize + 1;

    /// Reasons why a connection ends, except a close by both sides. Each has the label that metrics
    /// and logs use.
    pub const ENDS: [(Counter, &'static str); 34] = [
        (Counter::NoServer, "no_server"),
        (Counter::ConnectFailed, "connect_failed"),
        (Counter::NoLocalPort, "no_local_port"),
        (Counter::QueueTimeout, "queue_timeout"),
        (Counter::IdleTimeout, "idle_timeout"),
        (Counter::ClientTooSlow, "client_too_slow"),
        (Counter::RequestDeadline, "request_deadline"),
        (Counter::FirstByteTimeout, "first_byte_timeout"),
        (Counter::ClientReset, "client_reset"),
        (Counter::ServerReset, "server_reset"),
        (Counter::ServerGone, "server_gone"),
        (Counter::FileChanged, "file_changed"),
        (Counter::CompressionFailed, "compression_failed"),
        (Counter::Loop, "loop"),
        (Counter::ClientLimit, "client_limit"),
        (Counter::ProxyUntrusted, "proxy_untrusted"),
        (Counter::ProxyHeaderInvalid, "proxy_header_invalid"),
        (Counter::ProxyHeaderTimeout, "proxy_header_timeout"),
        (Counter::TlsHandshakeFailed, "tls_handshake_failed"),
        (Counter::TlsHandshakeTimeout, "tls_handshake_timeout"),
        (Counter::TlsHandshakeLimit, "tls_handshake_limit"),
        (Counter::HelloTimeout, "hello_timeout"),
        (Counter::HelloInvalid, "hello_invalid"),
        (Counter::NotTls, "not_tls"),
        (Counter::NoRoute, "no_route"),
        (Counter::ModeChanged, "mode_changed"),
        (Counter::RefusedFull, "max_connections"),
        (Counter::AcmeHandshake, "acme_challenge"),
        (Counter::AccessDenied, "access_denied"),
        (Counter::SourceConnections, "source_connections"),
        (Counter::UnprovenPaths, "unproven_paths"),
        (Counter::Cut, "cut"),
        (Counter::Killed, "killed"),
        (Counter::Evicted, "evicted"),
    ];

    /// Reasons why convey drops datagrams (UDP in proxy mode) and resets streams (mode http). Each
    /// has the label that metrics and logs use.
    pub const DROPS: [(Counter, &'static str); 15] = [
        (Counter::DroppedNoServer, "no_server"),
        (Counter::DroppedFull, "max_connections"),
        (Counter::DroppedNoResources, "no_resources"),
        (Counter::DroppedDraining, "draining"),
        (Counter::DroppedLoop, "loop"),
        (Counter::DroppedClientLimit, "client_limit"),
        (Counter::DroppedProxyUntrusted, "proxy_untrusted"),
        (Counter::DroppedProxyHeader, "proxy_header_invalid"),
        (Counter::DroppedNotUnicast, "not_unicast"),
        (Counter::DroppedUnsent, "transmit_failed"),
        (Counter::DroppedUnproven, "unproven_address"),
        (Counter::DroppedOverrun, "receive_overrun"),
        (Counter::DroppedIdle, "idle_timeout"),
        (Counter::DroppedTooSlow, "client_too_slow"),
        (Counter::DroppedDeadline, "request_deadline"),
    ];

    /// Reasons why a frontend refuses clients, in every mode. Each has the label that metrics and
    /// logs use.
    pub const REFUSALS: [(Counter, &'static str); 3] = [
        (Counter::RefusedAccess, "access_denied"),
        (Counter::RefusedSourceConnections, "source_connections"),
        (Counter::RefusedSourceRate, "source_rate"),
    ];

    /// Counters of responses, by the class of their status.
    pub const RESPONSES: [(Counter, &'static str); 5] = [
        (Counter::Responses1xx, "1xx"),
        (Counter::Responses2xx, "2xx"),
        (Counter::Responses3xx, "3xx"),
        (Counter::Responses4xx, "4xx"),
        (Counter::Responses5xx, "5xx"),
    ];

    /// Reasons for local replies. Each has the label that metrics and logs use.
    pub const ANSWERS: [(Counter, &'static str); 29] = [
        (Counter::AnsweredMalformed, "malformed"),
        (Counter::AnsweredRequestTimeout, "request_timeout"),
        (Counter::AnsweredNoRoute, "no_route"),
        (Counter::AnsweredAccess, "access_denied"),
        (Counter::AnsweredMisdirected, "misdirected"),
        (Counter::AnsweredRateLimit, "rate_limit"),
        (Counter::AnsweredTotalRateLimit, "total_rate_limit"),
        (Counter::AnsweredBackendRateLimit, "backend_rate_limit"),
        (Counter::AnsweredRedirect, "redirect"),
        (Counter::AnsweredRespond, "respond"),
        (Counter::AnsweredMaintenance, "maintenance"),
        (Counter::AnsweredPreflight, "cors_preflight"),
        (Counter::AnsweredLayer, "layer"),
        (Counter::AnsweredAcme, "acme_challenge"),
        (Counter::AnsweredNoServer, "no_server"),
        (Counter::AnsweredConnectFailed, "connect_failed"),
        (Counter::AnsweredNoLocalPort, "no_local_port"),
        (Counter::AnsweredQueueTimeout, "queue_timeout"),
        (Counter::AnsweredServerReset, "server_reset"),
        (Counter::AnsweredServerFault, "server_fault"),
        (Counter::AnsweredServerTimeout, "server_timeout"),
        (Counter::AnsweredRequestDeadline, "request_deadline"),
        (Counter::AnsweredFile, "file"),
        (Counter::AnsweredFileNotFound, "file_not_found"),
        (Counter::AnsweredFileForbidden, "file_forbidden"),
        (Counter::AnsweredFileMethod, "file_method"),
        (Counter::AnsweredFilePrecondition, "file_precondition"),
        (Counter::AnsweredFileRange, "file_range"),
        (Counter::AnsweredFileFailed, "file_failed"),
    ];

    /// Requests that ended early or got a local reply, by the phase that they had reached. Each
    /// phase has the label that metrics and logs use.
    pub const EARLY_ENDS: [(Counter, &'static str); 11] = [
        (Counter::EarlyRequestHead, ExchangePhase::RequestHead.label()),
        (Counter::EarlyAccess, ExchangePhase::Access.label()),
        (Counter::EarlyRoute, ExchangePhase::Route.label()),
        (Counter::EarlyLimits, ExchangePhase::Limits.label()),
        (Counter::EarlyLayers, ExchangePhase::Layers.label()),
        (Counter::EarlyPick, ExchangePhase::Pick.label()),
        (Counter::EarlyConnect, ExchangePhase::Connect.label()),
        (Counter::EarlyUpstreamRequest, ExchangePhase::UpstreamRequest.label()),
        (Counter::EarlyResponseHead, ExchangePhase::ResponseHead.label()),
        (Counter::EarlyBodies, ExchangePhase::Bodies.label()),
        (Counter::EarlyTunnel, ExchangePhase::Tunnel.label()),
    ];

    /// Counters of compressed responses, by their `Content-Encoding`.
    pub const COMPRESSED: [(Counter, &'static str); 3] = [
        (Counter::CompressedZstd, "zstd"),
        (Counter::CompressedBrotli, "br"),
        (Counter::CompressedGzip, "gzip"),
    ];

    /// Counter of responses with this status.
    pub fn of_status(status: u16) -> Counter {
        match status {
            ..200 => Counter::Responses1xx,
            200..300 => Counter::Responses2xx,
            300..400 => Counter::Responses3xx,
            400..500 => Counter::Responses4xx,
            500.. => Counter::Responses5xx,
        }
    }

    /// Counter of requests that ended early or got a local reply in this phase; `None` if the
    /// request was over.
    pub fn of_early_end(phase: ExchangePhase) -> Option<Counter> {
        Counter::EARLY_ENDS.get(phase as usize).map(|(counter, _)| *counter)
    }

    /// Label of the reason for an end or a refusal; empty for other counters.
    pub fn label(self) -> &'static str {
        let mut all = Counter::ENDS.iter().chain(&Counter::REFUSALS);
        all.find(|(reason, _)| *reason == self).map_or("", |(_, label)| label)
    }

    /// Label of the reason for a local reply; empty for other counters.
    pub fn answer_label(self) -> &'static str {
        Counter::ANSWERS.iter().find(|(answer, _)| *answer == self).map_or("", |(_, label)| label)
    }

    /// Label of the reason for a drop; empty for other counters.
    pub fn drop_label(self) -> &'static str {
        Counter::DROPS.iter().find(|(drop, _)| *drop == self).map_or("", |(_, label)| label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_before_the_end_has_a_counter_with_its_label() {
        for phase in ExchangePhase::ALL {
            let counter = Counter::of_early_end(phase);
            let labelled = Counter::EARLY_ENDS.iter().find(|(_, label)| *label == phase.label());
            assert_eq!(counter, labelled.map(|(counter, _)| *counter));
            assert_eq!(counter.is_none(), phase == ExchangePhase::End);
        }
    }
}
