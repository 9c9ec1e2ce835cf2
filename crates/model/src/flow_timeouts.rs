//! How long a connection without a packet is remembered.

use std::time::Duration;

/// How long a flow of the packet modes may be silent before it is forgotten, by the state of its
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTimeouts {
    /// The handshake is not complete.
    pub half_open: Duration,
    /// DSR: the handshake is complete, and no data has passed since.
    pub handshake_only: Duration,
    /// Both sides may send.
    pub established: Duration,
    /// One side has finished, the other may send.
    pub half_closed: Duration,
    /// Both sides have finished, the last acknowledgement has not been seen.
    pub closing: Duration,
    /// Both sides have finished and said so.
    pub time_wait: Duration,
    /// One side has reset the connection.
    pub closed: Duration,
    /// UDP: the client has not sent again after it was answered; in DSR, where answers are not seen, after
    /// its first datagram.
    pub udp_single: Duration,
    /// UDP: it has.
    pub udp_stream: Duration,
}

impl FlowTimeouts {
    /// Each with its name in the configuration, in the order of the documentation.
    pub fn named(&self) -> [(&'static str, Duration); 9] {
        let FlowTimeouts {
            half_open,
            handshake_only,
            established,
            half_closed,
            closing,
            time_wait,
            closed,
            udp_single,
            udp_stream,
        } = *self;
        [
            ("half_open", half_open),
            ("handshake_only", handshake_only),
            ("established", established),
            ("half_closed", half_closed),
            ("closing", closing),
            ("time_wait", time_wait),
            ("closed", closed),
            ("udp_single", udp_single),
            ("udp_stream", udp_stream),
        ]
    }
}

impl Default for FlowTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        FlowTimeouts {
            // Longer than the longest wait between two SYNs of Linux (32 s): a slow client's retry is still
            // the same connection. Forged SYNs do not count on it, they are evicted first.
            half_open: seconds(60),
            // RFC 5382, REQ-5, partially open connections: in DSR nobody can tell whether the server has answered.
            handshake_only: seconds(4 * 60),
            // RFC 5382, REQ-5: no less than this, so that keepalives sent every two hours keep a connection.
            established: seconds(2 * 3600 + 4 * 60),
            // RFC 5382, REQ-5, transitory connections.
            half_closed: seconds(4 * 60),
            // Linux keeps a socket in TIME-WAIT for as long. While the server does, its SNAT port must rest.
            closing: seconds(60),
            time_wait: seconds(60),
            // Segments that were on their way when the reset passed.
            closed: seconds(10),
            // One question and its answer, as with DNS. Linux keeps an unanswered flow for as long.
            udp_single: seconds(30),
            // RFC 4787, REQ-5: no less than two minutes, five recommended.
            udp_stream: seconds(300),
        }
    }
}
