//! Choosing a server. Pure: tables are built from the configured servers and asked with a hash; the same
//! servers give the same choice on every machine.
//!
//! Tables hold only servers that may be chosen (see [`Member::eligible`]); what changes from one
//! connection to the next (open connections, servers at their limit) is asked through [`Loads`].

mod hash;
mod least_connections;
mod maglev;
mod ring;
mod round_robin;

pub use hash::{FlowHash, flow_hash};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::model::Algorithm;

/// One configured server as a table sees it. Its index in the slice given to [`build`] is what
/// [`Balancer::pick`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its identity: places on the ring and Maglev permutations follow from the address alone.
    pub addr: SocketAddr,
    /// Relative share; 0 is never picked.
    pub weight: u16,
    /// Healthy, and not a backup that is not needed.
    pub eligible: bool,
}

/// What a pick may ask about the servers at this very moment.
pub trait Loads {
    /// Whether the server can take the connection now: below its limit and not tried before.
    fn usable(&self, index: usize) -> bool;
    /// Its open connections.
    fn active(&self, index: usize) -> u32;
}

/// Chooses one of the servers a table was built from. Never blocks and never allocates.
pub trait Balancer: Send + Sync {
    /// The server for a flow; `None` when no eligible server is usable.
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize>;
}

/// Builds the table of an algorithm. `turn` is the position of round robin (and the tie-breaker of least
/// connections); it outlives the table, so that a rebuilt table carries on where the old one was.
pub fn build(algorithm: Algorithm, members: &[Member], turn: Arc<AtomicUsize>) -> Box<dyn Balancer> {
    match algorithm {
        Algorithm::RoundRobin => Box::new(round_robin::RoundRobin::new(members, turn)),
        Algorithm::LeastConnections => Box::new(least_connections::LeastConnections::new(members, turn)),
        Algorithm::Ring => Box::new(ring::HashRing::new(members)),
        Algorithm::Maglev => Box::new(maglev::Maglev::new(members)),
    }
}
