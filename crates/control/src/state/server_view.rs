//! Servers as snapshots show them. The view combines each server's state, its source, changes by
//! operators, and the host's network. Pure.

use std::sync::Arc;

use super::key;
use super::membership::Membership;
use super::operators::OperatorChanges;
use super::refused::RefusedServers;
use super::servers::ServerTable;
use convey_model::{AdminState, BackendConfig, Overlay, ServerKey};
use convey_snapshot::{Health, Pool, PoolLive, Server};

/// Parts of the state that decide how snapshots show a server.
#[derive(Clone, Copy)]
pub(super) struct ServerView<'a> {
    pub(super) servers: &'a ServerTable,
    pub(super) membership: &'a Membership,
    pub(super) operators: &'a OperatorChanges,
    pub(super) refused: &'a RefusedServers,
}

impl ServerView<'_> {
    /// Administrative state of a server: the stricter of the operator's state and the source's
    /// state.
    pub(super) fn admin_state(self, server: &ServerKey) -> AdminState {
        let set = self.operators.state_of(server).map_or(AdminState::Ready, |(state, _)| state);
        let drains = self.membership.is_draining(server);
        let of_source = if drains { AdminState::Drain } else { AdminState::Ready };
        set.max(of_source)
    }

    /// Whether an operator has put a server into maintenance, which also stops its checks.
    pub(super) fn is_in_maintenance(self, server: &ServerKey) -> bool {
        self.admin_state(server) == AdminState::Maint
    }

    /// Builds the pool of a backend. All servers of the backend must be in the table.
    pub(super) fn pool(
        self,
        config: &Arc<BackendConfig>,
        live: &Arc<PoolLive>,
        before: Option<&Pool>,
    ) -> Arc<Pool> {
        let servers = config.servers.iter().filter_map(|server| {
            let key = key(config, server);
            let entry = self.servers.get(&key)?;
            let health = match self.operators.state_of(&key) {
                Some((AdminState::Maint, overlay)) => in_maintenance(entry.health(), overlay),
                _ => self.refused.apply(&key, entry.health()),
            };
            let (admin, live) = (self.admin_state(&key), entry.live().clone());
            Some(Arc::new(Server { config: server.clone(), admin, health, live }))
        });
        Arc::new(Pool::new(config.clone(), servers.collect(), live.clone(), before))
    }
}

/// Health of a server in maintenance: down, regardless of its checks.
fn in_maintenance(health: Health, overlay: &Overlay) -> Health {
    let reason = format!("in maintenance, set by {}", overlay.by);
    Health { up: false, proven: true, reason, since: overlay.since, ..health }
}
