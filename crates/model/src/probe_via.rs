//! Which way health checks go.

/// The way of a health check's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProbeVia {
    /// To the server's own address.
    #[default]
    Server,
    /// That, and then as clients' packets go in mode `dsr`: to the VIP, sent to this server.
    Vip,
}

impl ProbeVia {
    /// Both, in the order the documentation lists them.
    pub const ALL: [ProbeVia; 2] = [ProbeVia::Server, ProbeVia::Vip];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ProbeVia::Server => "server",
            ProbeVia::Vip => "vip",
        }
    }
}
