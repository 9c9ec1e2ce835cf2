//! State that the workers read: a snapshot, and the forwarding plan built from it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use convey_forward::View;
use convey_forward::plan::{
    ByView, Picked, Plan, PlannedFrontend, PlannedPool, PlannedServer, ServerPicker, tunnels,
};
use convey_model::Mode;
use convey_snapshot::{self as snapshot, Snapshot};

/// Snapshot and forwarding plan for the workers. The publisher of the snapshot creates this value
/// once for all workers.
#[derive(Debug)]
pub struct PacketState {
    /// Counters and settings.
    pub(super) snapshot: Arc<Snapshot>,
    /// Forwarding rules and their targets.
    pub(super) plan: Plan,
}

impl PacketState {
    /// Creates the state of a first snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> PacketState {
        let plan = plan(&snapshot);
        PacketState { snapshot, plan }
    }

    /// Creates the state of the next snapshot. Unchanged parts of the plan are reused.
    pub fn next(&self, snapshot: Arc<Snapshot>) -> PacketState {
        let plan = plan_after(&snapshot, Some(self));
        PacketState { snapshot, plan }
    }

    /// Returns a copy whose plan opens no new flows from these SNAT addresses.
    #[must_use]
    pub fn withholding(self, snat_withheld: Arc<[IpAddr]>) -> PacketState {
        PacketState { plan: Plan { snat_withheld, ..self.plan }, ..self }
    }

    /// Returns the snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the forwarding plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Builds the forwarding plan of the packet modes.
pub fn plan(snapshot: &Snapshot) -> Plan {
    plan_after(snapshot, None)
}

fn plan_after(snapshot: &Snapshot, before: Option<&PacketState>) -> Plan {
    let kept_pool = |(place, pool): (usize, &Arc<snapshot::Pool>)| {
        let before = before.filter(|before| {
            before.snapshot.pools.get(place).is_some_and(|before| Arc::ptr_eq(before, pool))
        });
        before.and_then(|before| before.plan.pools.get(place)).cloned()
    };
    let pools: Vec<Arc<PlannedPool>> = snapshot
        .pools
        .iter()
        .enumerate()
        .map(|at| kept_pool(at).unwrap_or_else(|| Arc::new(self::pool(at.1))))
        .collect();
    let servers: HashMap<u32, Arc<PlannedServer>> =
        pools.iter().flat_map(|pool| &pool.servers).map(|server| (server.id, server.clone())).collect();
    let pool_of: HashMap<*const snapshot::Pool, &Arc<PlannedPool>> =
        snapshot.pools.iter().map(Arc::as_ptr).zip(&pools).collect();
    let frontends: HashMap<u32, Arc<PlannedFrontend>> = snapshot
        .frontends
        .iter()
        .filter_map(|frontend| {
            let pool = pool_of.get(&Arc::as_ptr(&frontend.pool))?;
            Some((frontend.live.id, Arc::new(self::frontend(frontend, pool)?)))
        })
        .collect();
    let known = |frontend: &Arc<snapshot::Frontend>| frontends.get(&frontend.live.id).cloned();
    let proxied = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.is_proxied());
    let planned: Vec<_> = snapshot.frontends.iter().filter_map(known).collect();
    Plan {
        generation: snapshot.generation,
        tunnels: Arc::new(tunnels(&pools, &planned, &snapshot.network)),
        frontends: planned,
        listeners: snapshot.listeners().filter_map(|(at, frontend)| Some((*at, known(frontend)?))).collect(),
        pools,
        servers,
        server_endpoints: snapshot.server_endpoints.clone(),
        proxied: proxied.flat_map(|frontend| &frontend.config.listen).cloned().collect(),
        draining: snapshot.draining.clone(),
        stopping: snapshot.stopping,
        outlasting: snapshot.outlasting.clone(),
        network: snapshot.network.clone(),
        snat_withheld: Arc::default(),
        flow_timeouts: snapshot.flow_timeouts,
        min_path_mtu: snapshot.min_path_mtu,
    }
}

/// Builds the plan of a frontend; `None` if the frontend is not in a packet mode.
fn frontend(frontend: &snapshot::Frontend, pool: &Arc<PlannedPool>) -> Option<PlannedFrontend> {
    let config = &frontend.config;
    Some(PlannedFrontend {
        id: frontend.live.id,
        view: match config.mode {
            Mode::Proxy | Mode::Http => return None,
            Mode::Passthrough => View::BothSides,
            Mode::Dsr => View::ClientSide,
        },
        protocol: config.protocol,
        listen: config.listen.clone(),
        max_connections: config.max_connections,
        trusted_clients: config.trusted_clients.clone(),
        access: config.access.clone(),
        limits: config.limits,
        sources: frontend.sources.clone(),
        slots: frontend.live.slots.clone(),
        pool: pool.clone(),
    })
}

fn pool(pool: &Arc<snapshot::Pool>) -> PlannedPool {
    PlannedPool {
        servers: servers(pool).collect(),
        picker: Arc::new(PoolPicker(pool.clone())),
        is_hashed: pool.config.algorithm.hashes(),
        dsr: pool.config.dsr,
        tunnel: pool.config.tunnel,
        on_down: ByView {
            both_sides: pool.config.on_down_in(Mode::Passthrough),
            client_side: pool.config.on_down_in(Mode::Dsr),
        },
    }
}

fn servers(pool: &Arc<snapshot::Pool>) -> impl Iterator<Item = Arc<PlannedServer>> {
    pool.servers.iter().enumerate().map(|(index, server)| {
        Arc::new(PlannedServer {
            id: server.live.id,
            addr: server.config.addr,
            is_up: server.health.up,
            is_eligible: pool.is_eligible(index),
            max_connections: server.config.settings.max_connections,
            slots: server.live.slots.clone(),
        })
    })
}

/// Converts the pick of a pool to the type of the forwarding core.
pub fn picked(pick: snapshot::Pick) -> Picked {
    match pick {
        snapshot::Pick::Server(index) => Picked::Server(index),
        snapshot::Pick::Busy => Picked::Busy,
        snapshot::Pick::Nobody => Picked::Nobody,
    }
}

/// Picks servers by the balancing table of a pool.
struct PoolPicker(Arc<snapshot::Pool>);

impl ServerPicker for PoolPicker {
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked {
        picked(self.0.pick(client, vip, &[]))
    }

    fn named_by(&self, datagram: &[u8]) -> Option<usize> {
        self.0.named_by(datagram)
    }

    fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64 {
        self.0.hash(client, vip)
    }
}
