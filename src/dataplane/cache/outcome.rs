//! What the cache counts.

/// What has become of packets that the cache has looked at. Those of flows that it does not know are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// Sent on.
    Forwarded,
    /// Left to userspace: TCP of a known flow with SYN, FIN or RST.
    ChangesState,
    /// Left to userspace: of a known flow, and may go no further.
    Expired,
    /// Left to userspace: of a known flow, and longer than its next hop takes.
    TooBig,
    /// Left to userspace: of a known flow whose next hop leads nowhere.
    NoNextHop,
    /// Left to userspace: TCP or UDP to an address of ours with IP options, extension headers or wrong lengths, or in
    /// fragments.
    Unusual,
    /// Dropped: a SYN to a frontend from a network that begins too many connections.
    TooEarly,
}

impl Outcome {
    /// All, in the order of their numbers.
    pub const ALL: [Outcome; 7] = [
        Outcome::Forwarded,
        Outcome::ChangesState,
        Outcome::Expired,
        Outcome::TooBig,
        Outcome::NoNextHop,
        Outcome::Unusual,
        Outcome::TooEarly,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Forwarded => "forwarded",
            Outcome::ChangesState => "changes_state",
            Outcome::Expired => "ttl_exceeded",
            Outcome::TooBig => "too_big",
            Outcome::NoNextHop => "next_hop_unresolved",
            Outcome::Unusual => "unusual",
            Outcome::TooEarly => "syn_limited",
        }
    }
}

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
