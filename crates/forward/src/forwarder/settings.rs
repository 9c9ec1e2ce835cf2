//! Settings of a forwarder.

use crate::{FlowCache, Loops, NatPorts, WorkerPeers};

/// How a [`Forwarder`](crate::Forwarder) forwards.
#[derive(Debug)]
pub struct Settings {
    /// SNAT ports of this worker; `None` if no frontend is forwarded by passthrough.
    pub ports: Option<NatPorts>,
    /// Most flows at once.
    pub capacity: u32,
    /// This worker among those that share the limits of frontends and servers.
    pub workers: WorkerPeers,
    /// A secret: somebody who knows it can aim at collisions in the table.
    pub seed: u64,
    /// What forwards the packets of open flows in our place, if there is something.
    pub cache: Option<Box<dyn FlowCache>>,
    /// What all workers know of packets that may come back.
    pub loops: Loops,
}

impl Settings {
    /// Of the only worker, without SNAT ports or a flow cache; `seed` is a secret.
    pub fn alone(capacity: u32, seed: u64) -> Settings {
        let (workers, loops) = (WorkerPeers::alone(), Loops::new(seed));
        Settings { ports: None, capacity, workers, seed, cache: None, loops }
    }
}
