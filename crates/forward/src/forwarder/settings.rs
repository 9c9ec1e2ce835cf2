//! Settings of a forwarder.

use crate::{FlowCache, Loops, NatPorts, WorkerPeers};

/// Settings of a [`Forwarder`](crate::Forwarder).
#[derive(Debug)]
pub struct Settings {
    /// SNAT ports of this worker; `None` if no frontend is in mode `passthrough`.
    pub ports: Option<NatPorts>,
    /// Maximum number of flows.
    pub capacity: u32,
    /// Handle of this worker to the state that workers share.
    pub workers: WorkerPeers,
    /// Secret for hashes: an attacker who has it can make keys collide in the table.
    pub seed: u64,
    /// Flow cache that forwards packets of open flows, if there is one.
    pub cache: Option<Box<dyn FlowCache>>,
    /// Recently seen first packets, shared by all workers to detect forwarding loops.
    pub loops: Loops,
}

impl Settings {
    /// Settings of a single worker without SNAT ports or a flow cache; `seed` is a secret.
    pub fn alone(capacity: u32, seed: u64) -> Settings {
        let (workers, loops) = (WorkerPeers::alone(), Loops::new(seed));
        Settings { ports: None, capacity, workers, seed, cache: None, loops }
    }
}
