//! What becomes of flows that are too many.

/// What has become of TCP handshakes since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handshakes {
    /// Handshakes that clients have begun, whether or not there was room for their flow; each time that their SYN came.
    pub begun: u64,
    /// Handshakes that were completed.
    pub finished: u64,
    /// Those whose flow gave way to another in less time than it takes to complete one.
    pub displaced: u64,
}

/// The resource that is short, so that a flow gives way to a new one. Its label is the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Shortage {
    /// Places in the connection table.
    Table,
    /// SNAT ports towards a server.
    SnatPorts,
    /// Connection slots of a frontend or a server (`max_connections`).
    ConnectionSlots,
}

impl Shortage {
    /// Every one, in the order of their numbers.
    pub const ALL: [Shortage; Shortage::ConnectionSlots as usize + 1] =
        [Shortage::Table, Shortage::SnatPorts, Shortage::ConnectionSlots];

    /// Lower case with underscores.
    pub const fn label(self) -> &'static str {
        match self {
            Shortage::Table => "table",
            Shortage::SnatPorts => "snat_ports",
            Shortage::ConnectionSlots => "connection_slots",
        }
    }
}
