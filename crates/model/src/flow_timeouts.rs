//! Timeouts of flows in the packet modes.

use std::time::Duration;

/// Idle time after which a flow of the packet modes expires, by the state of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTimeouts {
    /// The handshake is not complete.
    pub half_open: Duration,
    /// DSR: the handshake is complete, and no data has followed.
    pub handshake_only: Duration,
    /// Both sides may send: the handshake is complete, and no side has closed.
    pub established: Duration,
    /// One side has sent its FIN, the other may still send.
    pub half_closed: Duration,
    /// Both sides have sent a FIN, the last acknowledgement is still missing.
    pub closing: Duration,
    /// Both sides have closed, and their FINs are acknowledged.
    pub time_wait: Duration,
    /// One side has reset the connection.
    pub closed: Duration,
    /// UDP: the client has not sent again after the first answer. In DSR, where convey does not see
    /// answers, the timeout applies after the client's first datagram.
    pub udp_single: Duration,
    /// UDP: the client has sent again.
    pub udp_stream: Duration,
}

impl Default for FlowTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        FlowTimeouts {
            // Longer than Linux's longest wait between two SYNs (32 s), so that a late SYN of a
            // slow client belongs to the same connection. The long timeout does not help SYN
            // floods, because half-open flows are evicted first.
            half_open: seconds(60),
            // RFC 5382, REQ-5, partially open connections. In DSR, convey cannot see whether the
            // server has answered.
            handshake_only: seconds(4 * 60),
            // Minimum of RFC 5382, REQ-5. It is long enough for keepalives every two hours.
            established: seconds(2 * 3600 + 4 * 60),
            // RFC 5382, REQ-5, transitory connections.
            half_closed: seconds(4 * 60),
            // As long as Linux keeps a socket in TIME-WAIT. The server's SNAT port must not be
            // reused during that time.
            closing: seconds(60),
            time_wait: seconds(60),
            // Time for segments that were in flight when convey forwarded the reset.
            closed: seconds(10),
            // Enough for one query and its answer, as with DNS. Linux uses the same timeout for an
            // unanswered flow.
            udp_single: seconds(30),
            // RFC 4787, REQ-5: the minimum is two minutes, the recommendation five.
            udp_stream: seconds(300),
        }
    }
}
