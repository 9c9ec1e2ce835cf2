//! Servers that packet modes must not send to, because of the host's routes, interfaces or IPsec
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

/// Next hops of the host, and the servers that packets are not sent to.
#[derive(Default)]
pub(super) struct RefusedServers {
    network: Arc<NextHops>,
    /// Servers that the data path cannot send to.
    unreachable: UnreachableServers,
    refused: HashMap<ServerKey, RefusedServer>,
}

/// Reason why a server counts as down, whatever its checks find.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RefusedServer {
    /// Operator-facing message.
    reason: String,
    since: Timestamp,
}

/// Change of a server's health because packets to it are refused, or no longer are, with its
/// reason.
pub(super) type RefusalChange = (ServerKey, HealthTransition, String);

impl RefusedServers {
    pub(super) fn network(&self) -> &Arc<NextHops> {
        &self.network
    }

    pub(super) fn set_network(&mut self, network: Arc<NextHops>) {
        self.network = network;
    }

    /// Sets the servers that the data path cannot send to. Returns whether they changed.
    pub(super) fn set_unreachable(&mut self, unreachable: UnreachableServers) -> bool {
        let differ = self.unreachable != unreachable;
        self.unreachable = unreachable;
        differ
    }

    pub(super) fn contains(&self, server: &ServerKey) -> bool {
        self.refused.contains_key(server)
    }

    /// Returns the health of a server for a snapshot: down if it is refused.
    pub(super) fn apply(&self, server: &ServerKey, health: Health) -> Health {
        match self.refused.get(server) {
            Some(RefusedServer { reason, since }) => {
                Health { up: false, proven: true, reason: reason.clone(), since: *since, ..health }
            }
            None => health,
        }
    }

    /// Checks the next hop of each server of a frontend in a packet mode. A server refused there is
    /// also refused for frontends of its backend in other modes. Returns the changes.
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
