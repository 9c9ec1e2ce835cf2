//! Counters that cost the hot path one plain add on a line of its own core.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// Everything that is counted, per frontend, backend and server alike. A counter of something that cannot
/// happen to one of them stays zero there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Connections accepted, sessions begun (frontend) or given to a server (backend, server).
    Opened,
    /// Of those, the ones that ended.
    Closed,
    /// Bytes received from clients.
    BytesRx,
    /// Bytes sent to clients.
    BytesTx,
    /// Packets received from clients and forwarded (packet modes); datagrams of UDP in proxy mode.
    PacketsRx,
    /// Packets, or datagrams, sent to clients.
    PacketsTx,
    /// Attempts to connect to a server that failed; SYNs and datagrams that it refused (passthrough, UDP in proxy mode).
    ConnectFailures,
    /// Attempts repeated on another server; sessions that moved because a server refused.
    Retries,
    /// TCP handshakes that clients have begun with a server (packet modes).
    HandshakesBegun,
    /// Those that clients have completed.
    HandshakesCompleted,
    /// SYNs that came again before their handshake was complete.
    SynsRepeated,
    /// Connections whose large packets to a server do not arrive (packet modes).
    PathMtuToServer,
    /// The same of those to clients (passthrough).
    PathMtuToClient,
    /// Ended with nothing sent: no server of the backend was usable.
    NoServer,
    /// Ended with nothing sent: every server tried refused or timed out.
    ConnectFailed,
    /// Ended with nothing sent: no local port was left for a connection to a server.
    NoLocalPort,
    /// Ended with nothing sent: every server stayed at its limit.
    QueueTimeout,
    /// Ended because no byte moved for the idle timeout; packet modes: no packet came of an open connection (TCP).
    IdleTimeout,
    /// Ended because the client took its response too slowly while a server was held for it (mode http).
    ClientTooSlow,
    /// Ended with nothing sent: the client sent no byte in time.
    FirstByteTimeout,
    /// Ended by a reset from the client.
    ClientReset,
    /// Ended by a reset from the server.
    ServerReset,
    /// Ended by us with a reset, because the server was down (packet modes).
    ServerGone,
    /// Ended by us with a reset: the file became shorter, or could not be read any more, while it was sent (mode http).
    FileChanged,
    /// Ended by us with a reset: the response could not be compressed any further (mode http).
    CompressionFailed,
    /// Ended with nothing sent: the connection came from convey itself.
    Loop,
    /// Ended with nothing sent: the client's address had as many connections as it may.
    ClientLimit,
    /// Ended with nothing sent: the peer may not send PROXY headers here.
    ProxyUntrusted,
    /// Ended with nothing sent: it began with no PROXY header, or a wrong one.
    ProxyHeaderInvalid,
    /// Ended with nothing sent: its PROXY header did not come in time.
    ProxyHeaderTimeout,
    /// Ended with nothing sent but an alert: the TLS handshake failed.
    TlsHandshakeFailed,
    /// Ended with nothing sent: the TLS handshake took too long.
    TlsHandshakeTimeout,
    /// Ended with nothing sent: the client's source had as many TLS handshakes at once as it may.
    TlsHandshakeLimit,
    /// Ended with nothing sent: its ClientHello did not come in time, where routes go by it.
    HelloTimeout,
    /// Ended with nothing sent: it began like TLS, but not with a ClientHello that can be read in one way only.
    HelloInvalid,
    /// Ended with nothing sent: it did not begin with TLS, and the frontend has a backend for TLS alone.
    NotTls,
    /// Ended with nothing sent: no route is for what its client asks for.
    NoRoute,
    /// Refused over QUIC: the frontend had as many connections as it may, or the client its share of them. Over TCP it may wait.
    RefusedFull,
    /// Ended once an authority had seen the certificate that it looked for (ACME, RFC 8737).
    AcmeHandshake,
    /// Ended by us with a reset: a reload denied its client.
    AccessDenied,
    /// Ended by us with a reset: it was opened beyond the connections that its source may have (packet modes).
    SourceConnections,
    /// Ended by us: it drew too many bytes to addresses that its client had not proved (QUIC).
    UnprovenPaths,
    /// Cut when the drain timeout ran out.
    Cut,
    /// Ended by an operator.
    Killed,
    /// A session of UDP, ended to make room for another client's.
    Evicted,
    /// Times accepting paused because descriptors or memory ran out.
    AcceptBackoff,
    /// Datagrams dropped: no server was up, or those that were could not be reached.
    DroppedNoServer,
    /// Datagrams dropped: the frontend, or every server, had as many sessions as it may.
    DroppedFull,
    /// Datagrams dropped: this host had no descriptor, port or memory for another session.
    DroppedNoResources,
    /// Datagrams dropped: they would have begun a session while we stop, or at a frontend that was taken away.
    DroppedDraining,
    /// Datagrams dropped: they came from convey itself.
    DroppedLoop,
    /// Datagrams dropped: the client's address had as many sessions as it may.
    DroppedClientLimit,
    /// Datagrams dropped: the sender may not send PROXY headers here.
    DroppedProxyUntrusted,
    /// Datagrams dropped: they began with no PROXY header of version 2, or a wrong one.
    DroppedProxyHeader,
    /// Datagrams dropped: a broadcast or multicast address was asked.
    DroppedNotUnicast,
    /// Datagrams dropped: the way out had no room, or did not take them.
    DroppedUnsent,
    /// Datagrams dropped, or several at once: the address has got three times what came from it,
    /// and no client has proved it (QUIC).
    DroppedUnproven,
    /// Datagrams dropped by the kernel: they came faster than we took them.
    DroppedOverrun,
    /// Streams over HTTP/2 and HTTP/3 that we reset because nothing moved in time (mode http).
    DroppedIdle,
    /// Streams over HTTP/2 and HTTP/3 that we reset because the client took its response too slowly while a server was held for
    /// it (mode http).
    DroppedTooSlow,
    /// Refused: the client is denied. Connections and datagrams; packets in packet modes.
    RefusedAccess,
    /// The same: its source has as many connections as it may have.
    RefusedSourceConnections,
    /// The same: its source has begun too many of late.
    RefusedSourceRate,
    /// TLS handshakes that began a session.
    TlsHandshakes,
    /// Those that went on with an earlier one.
    TlsResumed,
    /// Requests whose head has come (mode http); at a server those that it was sent, retries included.
    Requests,
    /// Connections that changed their protocol (status 101).
    Responses1xx,
    /// Responses with such a status, those of convey's own included.
    Responses2xx,
    /// The same.
    Responses3xx,
    /// The same.
    Responses4xx,
    /// The same.
    Responses5xx,
    /// Requests that convey answered itself: they could be read in two ways, were no HTTP, or more than a limit allows.
    AnsweredMalformed,
    /// The same: the request did not come in time.
    AnsweredRequestTimeout,
    /// The same: no route leads anywhere.
    AnsweredNoRoute,
    /// The same: the client that a trusted proxy names may not come in.
    AnsweredAccess,
    /// Requests that convey answered itself: their host has another certificate than the one that the client's handshake was for.
    AnsweredMisdirected,
    /// The same: the client's source has sent too many requests of late.
    AnsweredRateLimit,
    /// The same: the route is a redirect.
    AnsweredRedirect,
    /// The same: a service says so that an application has added to convey's own.
    AnsweredLayer,
    /// The same: an authority looked for a token of an order that runs (ACME).
    AnsweredAcme,
    /// The same: no server was up.
    AnsweredNoServer,
    /// The same: every server that was tried refused or timed out.
    AnsweredConnectFailed,
    /// The same: no local port was left for a connection to a server.
    AnsweredNoLocalPort,
    /// The same: every server stayed at its limit.
    AnsweredQueueTimeout,
    /// The same: the server reset the connection.
    AnsweredServerReset,
    /// The same: the server sent something else than a response.
    AnsweredServerFault,
    /// The same: the server did not answer in time.
    AnsweredServerTimeout,
    /// The same: it got a file, or a part of one, or was told that it has it already.
    AnsweredFile,
    /// The same: there is no such file.
    AnsweredFileNotFound,
    /// The same: the file must not be read, or the directory not be listed.
    AnsweredFileForbidden,
    /// The same: files are got with `GET` and `HEAD` alone.
    AnsweredFileMethod,
    /// The same: the file is not the one that the request's condition is about.
    AnsweredFilePrecondition,
    /// The same: the file has none of the ranges.
    AnsweredFileRange,
    /// The same: the file could not be read, or this host has no descriptor for it.
    AnsweredFileFailed,
    /// Files of a backend that a worker had at hand, small ones in memory and others open.
    FileCacheHits,
    /// Those that it had to open.
    FileCacheMisses,
    /// Files that were no longer kept because others came for which there was no room.
    FileCacheEvictions,
    /// Bytes of memory that files took which a worker kept.
    FileCacheBytesKept,
    /// Of those, the bytes of files that are no longer kept.
    FileCacheBytesDropped,
    /// Responses that convey has begun to compress with `zstd` (mode http).
    CompressedZstd,
    /// The same with `br`.
    CompressedBrotli,
    /// The same with `gzip`.
    CompressedGzip,
    /// Responses that went as they were: there was no memory for another encoder.
    CompressionNoRoom,
    /// Bytes of bodies before they were compressed.
    CompressionBytesIn,
    /// Bytes of the same bodies afterwards.
    CompressionBytesOut,
}

impl Counter {
    const COUNT: usize = Counter::CompressionBytesOut as usize + 1;

    /// The ways a connection can end other than both sides closing, with the label that metrics and logs
    /// use.
    pub const ENDS: [(Counter, &'static str); 32] = [
        (Counter::NoServer, "no_server"),
        (Counter::ConnectFailed, "connect_failed"),
        (Counter::NoLocalPort, "no_local_port"),
        (Counter::QueueTimeout, "queue_timeout"),
        (Counter::IdleTimeout, "idle_timeout"),
        (Counter::ClientTooSlow, "client_too_slow"),
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
        (Counter::RefusedFull, "max_connections"),
        (Counter::AcmeHandshake, "acme_challenge"),
        (Counter::AccessDenied, "access_denied"),
        (Counter::SourceConnections, "source_connections"),
        (Counter::UnprovenPaths, "unproven_paths"),
        (Counter::Cut, "cut"),
        (Counter::Killed, "killed"),
        (Counter::Evicted, "evicted"),
    ];

    /// Why datagrams are dropped (UDP in proxy mode), and streams (mode http), with the label that
    /// metrics and logs use.
    pub const DROPS: [(Counter, &'static str); 14] = [
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
    ];

    /// Why a frontend turns clients away at the door, in every mode, with the label that metrics and logs use.
    pub const REFUSALS: [(Counter, &'static str); 3] = [
        (Counter::RefusedAccess, "access_denied"),
        (Counter::RefusedSourceConnections, "source_connections"),
        (Counter::RefusedSourceRate, "source_rate"),
    ];

    /// Responses by the class of their status.
    pub const RESPONSES: [(Counter, &'static str); 5] = [
        (Counter::Responses1xx, "1xx"),
        (Counter::Responses2xx, "2xx"),
        (Counter::Responses3xx, "3xx"),
        (Counter::Responses4xx, "4xx"),
        (Counter::Responses5xx, "5xx"),
    ];

    /// Why convey answers a request itself, with the label that metrics and logs use.
    pub const ANSWERS: [(Counter, &'static str); 23] = [
        (Counter::AnsweredMalformed, "malformed"),
        (Counter::AnsweredRequestTimeout, "request_timeout"),
        (Counter::AnsweredNoRoute, "no_route"),
        (Counter::AnsweredAccess, "access_denied"),
        (Counter::AnsweredMisdirected, "misdirected"),
        (Counter::AnsweredRateLimit, "rate_limit"),
        (Counter::AnsweredRedirect, "redirect"),
        (Counter::AnsweredLayer, "layer"),
        (Counter::AnsweredAcme, "acme_challenge"),
        (Counter::AnsweredNoServer, "no_server"),
        (Counter::AnsweredConnectFailed, "connect_failed"),
        (Counter::AnsweredNoLocalPort, "no_local_port"),
        (Counter::AnsweredQueueTimeout, "queue_timeout"),
        (Counter::AnsweredServerReset, "server_reset"),
        (Counter::AnsweredServerFault, "server_fault"),
        (Counter::AnsweredServerTimeout, "server_timeout"),
        (Counter::AnsweredFile, "file"),
        (Counter::AnsweredFileNotFound, "file_not_found"),
        (Counter::AnsweredFileForbidden, "file_forbidden"),
        (Counter::AnsweredFileMethod, "file_method"),
        (Counter::AnsweredFilePrecondition, "file_precondition"),
        (Counter::AnsweredFileRange, "file_range"),
        (Counter::AnsweredFileFailed, "file_failed"),
    ];

    /// Responses that convey has compressed, by their `Content-Encoding`.
    pub const COMPRESSED: [(Counter, &'static str); 3] = [
        (Counter::CompressedZstd, "zstd"),
        (Counter::CompressedBrotli, "br"),
        (Counter::CompressedGzip, "gzip"),
    ];

    /// The counter of responses with this status.
    pub fn of_status(status: u16) -> Counter {
        match status {
            ..200 => Counter::Responses1xx,
            200..300 => Counter::Responses2xx,
            300..400 => Counter::Responses3xx,
            400..500 => Counter::Responses4xx,
            500.. => Counter::Responses5xx,
        }
    }

    /// The label of an end or a refusal; empty for what is neither.
    pub fn label(self) -> &'static str {
        let mut all = Counter::ENDS.iter().chain(&Counter::REFUSALS);
        all.find(|(reason, _)| *reason == self).map_or("", |(_, label)| label)
    }

    /// The label of an answer; empty for what is none.
    pub fn answer_label(self) -> &'static str {
        Counter::ANSWERS.iter().find(|(answer, _)| *answer == self).map_or("", |(_, label)| label)
    }

    /// The label of a drop; empty for what is not one.
    pub fn drop_label(self) -> &'static str {
        Counter::DROPS.iter().find(|(drop, _)| *drop == self).map_or("", |(_, label)| label)
    }
}

/// The counters of one frontend, backend or server: one set for each core, summed by readers.
pub struct Traffic {
    cores: Box<[CachePadded<[AtomicU64; Counter::COUNT]>]>,
}

impl Traffic {
    /// Zeroes, for `cores` writers.
    pub fn new(cores: usize) -> Self {
        let zeroes = || CachePadded::new([const { AtomicU64::new(0) }; Counter::COUNT]);
        Traffic { cores: (0..cores).map(|_| zeroes()).collect() }
    }

    /// Adds to a counter of one core. Each core has a single writer, so this is a plain load and store:
    /// no locked instruction, no line shared with another core.
    #[inline]
    pub fn add(&self, core: usize, counter: Counter, n: u64) {
        let cell = &self.cores[core][counter as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The sum over all cores.
    pub fn sum(&self, counter: Counter) -> u64 {
        sum(&self.cores, counter)
    }

    /// Connections open now.
    pub fn current(&self) -> u64 {
        self.current_in(0..self.cores.len())
    }

    /// Connections open now that these cores opened and will close.
    pub fn current_in(&self, cores: Range<usize>) -> u64 {
        // Closed is read first: a connection that opens and closes in between must not make it negative.
        let closed = sum(&self.cores[cores.clone()], Counter::Closed);
        sum(&self.cores[cores], Counter::Opened).saturating_sub(closed)
    }
}

fn sum(cores: &[CachePadded<[AtomicU64; Counter::COUNT]>], counter: Counter) -> u64 {
    cores.iter().map(|core| core[counter as usize].load(Ordering::Relaxed)).sum()
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").field("current", &self.current()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_what_all_cores_added() {
        let traffic = Traffic::new(3);
        traffic.add(0, Counter::BytesRx, 5);
        traffic.add(2, Counter::BytesRx, 7);
        traffic.add(2, Counter::BytesTx, 1);
        assert_eq!(traffic.sum(Counter::BytesRx), 12);
        assert_eq!(traffic.sum(Counter::BytesTx), 1);
    }

    #[test]
    fn each_way_of_forwarding_knows_its_own_open_connections() {
        let traffic = Traffic::new(3);
        traffic.add(0, Counter::Opened, 1_000);
        traffic.add(1, Counter::Opened, 5);
        traffic.add(2, Counter::Opened, 3);
        traffic.add(2, Counter::Closed, 2);
        assert_eq!(
            (traffic.current_in(0..1), traffic.current_in(1..3), traffic.current()),
            (1_000, 6, 1_006)
        );
    }

    #[test]
    fn a_connection_may_end_on_another_core_than_it_began() {
        let traffic = Traffic::new(2);
        traffic.add(0, Counter::Opened, 2);
        traffic.add(1, Counter::Closed, 1);
        assert_eq!(traffic.current(), 1);
    }
}
