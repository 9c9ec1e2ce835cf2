//! Servers to which packet modes must not send, because of the host's routes, interfaces or IPsec
//! policies. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::key;
use super::servers::ServerTable;
use crate::UnreachableServers;
use crate::health::HealthTransition;
use convey_config::Config;
use convey_model::{BackendConfig, Mode, NextHops, ServerKey, Timestamp};
use convey_snapshot::Health;

/// Next hops of the host, and the servers to which no packets are sent.
#[derive(Default)]
pub(super) struct RefusedServers {
    network: Arc<NextHops>,
    /// Servers to which the data path cannot send.
    unreachable: UnreachableServers,
    refused: HashMap<ServerKey, RefusedServer>,
}

/// Reason why a server counts as down regardless of its checks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RefusedServer {
    /// Operator-facing reason.
    reason: String,
    since: Timestamp,
}

/// Change of a server's health with its reason: packets to the server are refused, or no longer
/// refused.
pub(super) type RefusalChange = (ServerKey, HealthTransition, String);

impl RefusedServers {
    pub(super) fn network(&self) -> &Arc<NextHops> {
        &self.network
    }

    pub(super) fn set_network(&mut self, network: Arc<NextHops>) {
        self.network = network;
    }

    /// Sets the servers to which the data path cannot send. Returns whether the set has changed.
    pub(super) fn set_unreachable(&mut self, unreachable: UnreachableServers) -> bool {
        let differ = self.unreachable != unreachable;
        self.unreachable = unreachable;
        differ
    }

    pub(super) fn contains(&self, server: &ServerKey) -> bool {
        self.refused.contains_key(server)
    }

    /// Health of a server for a snapshot. If packet modes cannot reach the server, it is down with
    /// the reason. Otherwise returns `health`.
    pub(super) fn apply(&self, server: &ServerKey, health: Health) -> Health {
        match self.refused.get(server) {
            Some(RefusedServer { reason, since }) => {
                Health { up: false, proven: true, reason: reason.clone(), since: *since, ..health }
            }
            None => health,
        }
    }

    /// Checks the next hop of each server that a frontend in a packet mode uses, and returns the
    /// changes. A refused server is also refused for frontends in other modes that use the same
    /// backend.
    pub(super) fn review<'a>(
        &mut self,
        config: &Config,
        backends: impl Iterator<Item = &'a BackendConfig>,
        servers: &ServerTable,
        now: Timestamp,
    ) -> Vec<RefusalChange> {
        let forwarded = config.backends_in(Mode::forwards_packets);
        let with_snat = config.backends_in(Mode::has_snat);
        let snat = config.snat_addresses();
        let mut before = std::mem::take(&mut self.refused);
        let mut changes = Vec::new();
        for backend in backends.filter(|backend| forwarded.contains(&*backend.name)) {
            for server in &backend.servers {
                let ip = server.addr.ip();
                let unreachable = || {
                    let is_ours = with_snat.contains(&*backend.name);
                    self.unreachable.get(&ip).filter(|_| is_ours).cloned()
                };
                let Some(reason) = self.network.refusal_of(ip, snat).or_else(unreachable) else { continue };
                let key = key(backend, server);
                let known = before.remove(&key);
                if known.as_ref().is_none_or(|known| known.reason != reason) {
                    let is_news = known.is_none() && servers.get(&key).is_some_and(|entry| entry.is_up());
                    let change = if is_news { HealthTransition::Down } else { HealthTransition::StillDown };
                    changes.push((key.clone(), change, reason.clone()));
                }
                let since = known.map_or(now, |known| known.since);
                self.refused.insert(key, RefusedServer { reason, since });
            }
        }
        for server in before.into_keys().filter(|server| !self.refused.contains_key(server)) {
            let Some(entry) = servers.get(&server) else { continue };
            let change = if entry.is_up() { HealthTransition::Up } else { HealthTransition::StillDown };
            changes.push((server, change, entry.reason().to_owned()));
        }
        changes
    }
}
