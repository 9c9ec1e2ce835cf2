//! What the cache counts of those whose packets it forwards.

/// What was sent from clients to a server, and back. Lengths are those of frames with their Ethernet header; a super-frame is
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets to the server.
    pub packets_to_server: u64,
    /// Their bytes.
    pub bytes_to_server: u64,
    /// Packets to clients.
    pub packets_to_client: u64,
    /// Their bytes.
    pub bytes_to_client: u64,
}

/// `struct traffic` of `bpf/maps.h`.
impl From<[u64; 4]> for Traffic {
    fn from(counters: [u64; 4]) -> Traffic {
        let [packets_to_server, bytes_to_server, packets_to_client, bytes_to_client] = counters;
        Traffic { packets_to_server, bytes_to_server, packets_to_client, bytes_to_client }
    }
}
