//! Time limits of proxied connections. Pure.

use std::time::Duration;

/// Time limits of every proxied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of one attempt to connect to a server, and of the wait for a server that is at its
    /// connection limit.
    pub connect: Duration,
    /// Time without a byte in either direction after which a connection is closed.
    pub idle: Duration,
    /// Time in which a server must send the head of its response, or the request fails. Mode `http`
    /// only.
    pub response: Duration,
    /// Time after which a server's host that acknowledges nothing counts as gone, and its
    /// connections are closed.
    pub tcp_user_timeout: Duration,
    /// Time without a datagram in either direction after which a UDP session ends.
    pub udp_idle: Duration,
    /// Time for open connections to finish when convey stops.
    pub drain: Duration,
    /// Time for which convey still serves after SIGTERM, while `/readyz` sends clients elsewhere.
    pub drain_delay: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            response: Duration::from_secs(60),
            tcp_user_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}
