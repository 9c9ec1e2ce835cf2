//! Algorithms that choose a server, and the data that hashing algorithms hash. Pure.

/// Percentage of a server's weight that is in effect outside of a slow start: all of it.
pub const WHOLE: u8 = 100;

/// Algorithm that chooses a server for a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Smooth weighted round robin: servers take turns, and the turns of a heavy server are spread
    /// out.
    RoundRobin,
    /// The server with the fewest open connections for its weight.
    LeastConnections,
    /// Power of two choices: draws two servers at random by weight, and takes the server with fewer
    /// open connections for its weight (Mitzenmacher, "The Power of Two Choices in Randomized Load
    /// Balancing", 2001).
    PowerOfTwo,
    /// Power of two choices by latency: draws two servers at random by weight, and compares their
    /// open requests and their latency, a moving average of response times that follows peaks. Mode
    /// `http` only: other modes do not see responses.
    Ewma,
    /// Consistent hash ring.
    Ring,
    /// Maglev lookup table (Eisenbud et al., NSDI 2016, section 3.4).
    Maglev,
}

impl Algorithm {
    /// All algorithms, in the order the documentation lists them.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::RoundRobin,
        Algorithm::LeastConnections,
        Algorithm::PowerOfTwo,
        Algorithm::Ewma,
        Algorithm::Ring,
        Algorithm::Maglev,
    ];

    /// Default algorithm. Packet modes hash (`gets_packets`), so that all packets of a connection
    /// go to the same server even if no worker has a record of the flow.
    pub(crate) fn default_for(gets_packets: bool) -> Algorithm {
        if gets_packets { Algorithm::Ring } else { Algorithm::RoundRobin }
    }

    /// Whether the choice depends only on the addresses and ports of the client and of convey.
    pub fn hashes(self) -> bool {
        match self {
            Algorithm::Ring | Algorithm::Maglev => true,
            Algorithm::RoundRobin | Algorithm::LeastConnections => false,
            Algorithm::PowerOfTwo | Algorithm::Ewma => false,
        }
    }

    /// Whether each choice reads the open connections of servers.
    pub fn reads_open_connections(self) -> bool {
        match self {
            Algorithm::LeastConnections | Algorithm::PowerOfTwo | Algorithm::Ewma => true,
            Algorithm::RoundRobin | Algorithm::Ring | Algorithm::Maglev => false,
        }
    }

    /// Name of the algorithm in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::RoundRobin => "round_robin",
            Algorithm::LeastConnections => "least_connections",
            Algorithm::PowerOfTwo => "power_of_two",
            Algorithm::Ewma => "ewma",
            Algorithm::Ring => "ring",
            Algorithm::Maglev => "maglev",
        }
    }
}

/// Fields of a connection that the hashing algorithms hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashOn {
    /// The client's address: all connections of one client go to one server.
    Source,
    /// Client address and port, VIP and port: connections of one client spread over the servers.
    Tuple,
    /// Like [`HashOn::Tuple`], unless the connection id of a QUIC packet names a server: see
    /// [`QuicConfig`](crate::QuicConfig).
    QuicCid,
}

impl HashOn {
    /// Default of a backend without the setting `hash`.
    pub(crate) fn default_for(gets_packets: bool) -> HashOn {
        if gets_packets { HashOn::Tuple } else { HashOn::Source }
    }

    /// All options, in the order the documentation lists them.
    pub const ALL: [HashOn; 3] = [HashOn::Source, HashOn::Tuple, HashOn::QuicCid];

    /// Name of the option in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HashOn::Source => "source",
            HashOn::Tuple => "tuple",
            HashOn::QuicCid => "quic_cid",
        }
    }
}

/// Part of a server's identity that the hashing algorithms hash. Servers with equal keys in two
/// backends get the same clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKey {
    /// Address and port of the server.
    #[default]
    AddrPort,
    /// Address of the server without its port: a server gets the same clients on every port.
    Addr,
    /// Name of the server: it keeps its clients when its address changes.
    Name,
}

impl HashKey {
    /// All keys, in the order the documentation lists them.
    pub const ALL: [HashKey; 3] = [HashKey::AddrPort, HashKey::Addr, HashKey::Name];

    /// Name of the key in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HashKey::AddrPort => "addr_port",
            HashKey::Addr => "addr",
            HashKey::Name => "name",
        }
    }
}
