//! Time limits of proxied connections. Pure.

use std::time::Duration;

/// Time limits of every proxied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Time limit for one attempt to connect to a server, and for the wait for a server that is at
    /// its connection limit.
    pub connect: Duration,
    /// Time without a byte in either direction after which a connection is closed.
    pub idle: Duration,
    /// Time limit for the head of a server's response. A request without a response head in this
    /// time fails. Mode `http` only.
    pub response: Duration,
    /// Time limit for a whole request, from the first byte of its head to the end of its response;
    /// `None`: no limit. Mode `http` only.
    pub request: Option<Duration>,
    /// Maximum time in which a client reads nothing of a response, although bytes of it are
    /// waiting. convey then resets the stream or the connection. Mode `http` only.
    pub send: Duration,
    /// Maximum time in which the host of a server acknowledges none of the bytes in flight. convey
    /// then considers the host gone and closes the connections to it.
    pub tcp_user_timeout: Duration,
    /// Time without a datagram in either direction after which a UDP session ends.
    pub udp_idle: Duration,
    /// Time limit for open connections to finish when convey stops.
    pub drain: Duration,
    /// Time for which convey still serves after SIGTERM, while `/readyz` reports that it is not
    /// ready.
    pub drain_delay: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            response: Duration::from_secs(60),
            request: None,
            send: Duration::from_secs(60),
            tcp_user_timeout: Duration::from_secs(30),
            udp_idle: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}
