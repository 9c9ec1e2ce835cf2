//! Paths of health checks.

/// Network path of a health check's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProbeVia {
    /// Directly to the server's own address.
    #[default]
    Server,
    /// First to the server's address, then to the VIP. convey sends the second probe to this server
    /// in the same form as clients' packets in mode `dsr`.
    Vip,
}

impl ProbeVia {
    /// Both paths, in the order the documentation lists them.
    pub const ALL: [ProbeVia; 2] = [ProbeVia::Server, ProbeVia::Vip];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ProbeVia::Server => "server",
            ProbeVia::Vip => "vip",
        }
    }
}
