//! Servers that packet modes must not send to, by the host's routes, interfaces and IPsec policies. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ControlState, key};
use crate::UnreachableServers;
use crate::health::HealthTransition;
use convey_config::Config;
use convey_model::{BackendConfig, Mode, NextHops, ServerKey, Timestamp};
use convey_snapshot::Health;

/// Why a server counts as down, whatever its checks find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedServer {
    /// In words for an operator.
    reason: String,
    since: Timestamp,
}

impl RefusedServer {
    pub(super) fn apply(&self, health: Health) -> Health {
        Health { up: false, proven: true, reason: self.reason.clone(), since: self.since, ..health }
    }
}

impl ControlState {
    /// Takes over the next hops, as [`ControlState::set_network`] does. Servers that packet modes must not send to now count as
    /// down.
    pub fn on_network(&mut self, network: impl Into<Arc<NextHops>>, now: Timestamp) {
        self.set_network(network);
        self.refuse_servers_again(now);
    }

    /// Has the servers of passthrough count as down that the data path cannot send to. Returns whether they are others than before.
    pub(crate) fn set_unreachable(&mut self, unreachable: UnreachableServers, now: Timestamp) -> bool {
        if self.unreachable == unreachable {
            return false;
        }
        self.unreachable = unreachable;
        self.is_stale = true;
        self.refuse_servers_again(now);
        true
    }

    fn refuse_servers_again(&mut self, now: Timestamp) {
        if let Some(config) = self.config.take() {
            let backends: Vec<_> = self.pools.values().map(|entry| entry.pool.config.clone()).collect();
            self.refuse_servers(&config, backends.iter().map(|backend| &**backend), now);
            self.config = Some(config);
        }
    }

    /// Looks at the way to each server of a frontend in a packet mode. A backend that a frontend in another mode has, too, has no
    /// such server there either.
    pub(super) fn refuse_servers<'a>(
        &mut self,
        config: &Config,
        backends: impl Iterator<Item = &'a BackendConfig>,
        now: Timestamp,
    ) {
        let forwarded = config.backends_in(Mode::forwards_packets);
        let with_snat = config.backends_in(Mode::has_snat);
        let snat = config.snat_addresses();
        let mut before = std::mem::take(&mut self.refused);
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
                    let is_up = self.servers.get(&key).is_some_and(|entry| entry.state.is_up());
                    let is_news = known.is_none() && is_up;
                    let change = if is_news { HealthTransition::Down } else { HealthTransition::StillDown };
                    self.tell(&key, change, reason.clone());
                }
                let since = known.map_or(now, |known| known.since);
                self.refused.insert(key, RefusedServer { reason, since });
            }
        }
        let returned: Vec<ServerKey> =
            before.into_keys().filter(|server| !self.refused.contains_key(server)).collect();
        for server in returned {
            let Some(entry) = self.servers.get(&server) else { continue };
            let (is_up, reason) = (entry.state.is_up(), entry.reason.clone());
            let change = if is_up { HealthTransition::Up } else { HealthTransition::StillDown };
            self.tell(&server, change, reason);
        }
    }
}

/// Refused servers, each with its reason.
pub(super) type RefusedServers = HashMap<ServerKey, RefusedServer>;
