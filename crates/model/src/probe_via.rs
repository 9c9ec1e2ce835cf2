//! Paths of health checks.

/// Path of a health check's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProbeVia {
    /// Straight to the server's own address.
    #[default]
    Server,
    /// To the server's address, and then like clients' packets in mode `dsr`: to the VIP, sent to
    /// this server.
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
