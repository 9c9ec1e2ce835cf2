//! Frontends and servers that a reload removed.

use std::collections::BTreeSet;

use crate::Endpoint;

/// Addresses that a reload removed from the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainingEndpoints {
    /// Addresses that clients connected to.
    pub listen: BTreeSet<Endpoint>,
    /// Addresses of servers.
    pub servers: BTreeSet<Endpoint>,
}
