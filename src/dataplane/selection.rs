//! Which traffic is ours: what the capture filter lets in and the guard keeps from the host's stack.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::model::{Backend, Frontend};
use crate::snapshot::Draining;

/// The traffic that is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Where clients connect to.
    pub frontends: BTreeSet<SocketAddr>,
    /// Where they no longer do, but connections go on: what begins there is the host's.
    pub draining: BTreeSet<SocketAddr>,
    /// What servers answer; `None` if they answer clients directly (DSR).
    pub replies: Option<Replies>,
}

/// Replies that come back to us: from a server to a port of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replies {
    /// Who sends them.
    pub servers: BTreeSet<SocketAddr>,
    /// Our addresses that servers see as their clients'.
    pub snat_addresses: BTreeSet<IpAddr>,
    /// The ports on them that are ours.
    pub snat_ports: RangeInclusive<u16>,
}

impl Selection {
    /// What is forwarded in DSR mode.
    pub fn dsr<'a>(frontends: impl IntoIterator<Item = &'a Frontend>) -> Selection {
        let frontends = frontends.into_iter().flat_map(|frontend| frontend.listen.iter().copied()).collect();
        Selection { frontends, draining: BTreeSet::new(), replies: None }
    }

    /// What is forwarded in passthrough mode.
    pub fn passthrough<'a>(
        frontends: impl IntoIterator<Item = &'a Frontend>,
        backends: impl IntoIterator<Item = &'a Backend>,
        snat_addresses: impl IntoIterator<Item = IpAddr>,
        snat_ports: RangeInclusive<u16>,
    ) -> Selection {
        let servers = backends.into_iter().flat_map(|backend| &backend.servers);
        let replies = Replies {
            servers: servers.map(|server| server.addr).collect(),
            snat_addresses: snat_addresses.into_iter().collect(),
            snat_ports,
        };
        Selection { replies: Some(replies), ..Selection::dsr(frontends) }
    }

    /// The same, and what drains.
    pub fn with(mut self, draining: &Draining) -> Selection {
        self.draining.extend(draining.listen.iter().map(|gone| gone.addr));
        if let Some(replies) = &mut self.replies {
            replies.servers.extend(draining.servers.iter().map(|gone| gone.addr));
        }
        self
    }

    /// Where clients' packets go that are ours.
    pub fn listen(&self) -> impl Iterator<Item = &SocketAddr> {
        self.frontends.iter().chain(&self.draining)
    }
}
