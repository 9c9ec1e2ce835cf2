//! Snapshots made by hand, for the tests of those who read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Frontend, FrontendLive, Health, Pool, PoolLive, Server, ServerLive, Snapshot};
use convey_model::{ServerEndpoints, Timestamp, WHOLE};

pub use convey_model::fixture::{backend, server};

/// Up since the program started.
pub fn up() -> Health {
    Health { up: true, reason: "connected".into(), since: Timestamp(0), ejected: None, percent: WHOLE }
}

/// Down since some time after the program started.
pub fn down(reason: &str, after: Duration) -> Health {
    Health { up: false, reason: reason.into(), since: Timestamp(0).after(after), ..up() }
}

/// A backend that nobody has used.
pub fn pool(name: &str, servers: Vec<(convey_model::Server, Health)>) -> Arc<Pool> {
    let config = backend(name, servers.iter().map(|(server, _)| server.clone()).collect());
    let servers = servers
        .into_iter()
        .map(|(config, health)| {
            Arc::new(Server { config, health, live: Arc::new(ServerLive::new(number(), 1)) })
        })
        .collect();
    Arc::new(Pool::new(Arc::new(config), servers, Arc::new(PoolLive::new(1)), None))
}

/// A frontend without a limit that nobody has connected to.
pub fn frontend(name: &str, listen: &[&str], pool: &Arc<Pool>) -> Arc<Frontend> {
    let config = convey_model::fixture::frontend(name, listen, &pool.config.name);
    Arc::new(Frontend { config, pool: pool.clone(), live: Arc::new(FrontendLive::new(number(), 1)) })
}

/// A state of these frontends and pools, counted by one core.
pub fn snapshot(frontends: Vec<Arc<Frontend>>, pools: Vec<Arc<Pool>>) -> Snapshot {
    let listeners =
        frontends.iter().flat_map(|f| f.config.endpoints().map(|endpoint| (endpoint, f.clone()))).collect();
    let servers = pools.iter().flat_map(|pool| pool.servers.iter().map(|s| (s.live.id, s.clone()))).collect();
    let server_endpoints = ServerEndpoints::of(frontends.iter().map(|f| (&f.config, &*f.pool.config))).into();
    Snapshot { listeners, frontends, pools, servers, server_endpoints, ..Snapshot::empty(1) }
}

/// One that no other server or frontend has.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
