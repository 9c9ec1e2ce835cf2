//! Shortages that evict flows, and counts of TCP handshakes.

/// Counts of TCP handshakes since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handshakes {
    /// SYNs of clients, including repeated SYNs and SYNs of refused flows.
    pub begun: u64,
    /// Completed handshakes.
    pub finished: u64,
    /// Flows that were evicted in less time than a handshake takes.
    pub displaced: u64,
}

/// Shortage of a resource, because of which convey evicts a flow in favour of a new one. Its label
/// is used in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Shortage {
    /// Connection table.
    Table,
    /// SNAT ports towards a server.
    SnatPorts,
    /// Connection slots of a frontend or a server (`max_connections`).
    ConnectionSlots,
}

impl Shortage {
    /// All shortages, in the order of their numbers.
    pub const ALL: [Shortage; Shortage::ConnectionSlots as usize + 1] =
        [Shortage::Table, Shortage::SnatPorts, Shortage::ConnectionSlots];

    /// Label of the shortage; lower case with underscores.
    pub const fn label(self) -> &'static str {
        match self {
            Shortage::Table => "table",
            Shortage::SnatPorts => "snat_ports",
            Shortage::ConnectionSlots => "connection_slots",
        }
    }
}
