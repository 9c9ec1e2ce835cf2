//! Versions of the PROXY protocol.

/// Version of the PROXY header, which precedes the client's first byte and names the client to a
/// server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// A line of text; TCP only.
    V1,
    /// Binary, with additional fields (TLVs).
    V2,
}

impl ProxyVersion {
    /// Both versions, in the order the documentation lists them.
    pub const ALL: [ProxyVersion; 2] = [ProxyVersion::V1, ProxyVersion::V2];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ProxyVersion::V1 => "v1",
            ProxyVersion::V2 => "v2",
        }
    }
}
