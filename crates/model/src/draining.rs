//! Frontends and servers that a reload took away.

use std::collections::BTreeSet;

use crate::Endpoint;

/// Addresses that are no longer configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainingEndpoints {
    /// Where clients connected to.
    pub listen: BTreeSet<Endpoint>,
    /// Where servers are.
    pub servers: BTreeSet<Endpoint>,
}
