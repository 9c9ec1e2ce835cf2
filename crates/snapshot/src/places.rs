//! Index of frontends and servers in a snapshot. Pure.

use std::sync::Arc;

use convey_model::Endpoint;
use foldhash::HashMap;

use super::{Frontend, Pool, Server, Snapshot};

/// Frontends by listening endpoint, and servers by number. A change of health does not change the
/// index, so all snapshots of a configuration share it. Thus the cost of a change of health does
/// not depend on the size of the configuration.
#[derive(Debug, Default)]
pub struct Places {
    listeners: HashMap<Endpoint, usize>,
    servers: HashMap<u32, ServerPlace>,
}

#[derive(Debug, Clone, Copy)]
struct ServerPlace {
    pool: usize,
    index: usize,
}

impl Places {
    /// Builds the index of these frontends and servers.
    pub fn new(frontends: &[Arc<Frontend>], pools: &[Arc<Pool>]) -> Places {
        let endpoints = |(place, frontend)| {
            let frontend: &Arc<Frontend> = frontend;
            frontend.config.endpoints().map(move |endpoint| (endpoint, place))
        };
        let servers = |(pool, of)| {
            let of: &Arc<Pool> = of;
            let place =
                move |(index, server): (usize, &Arc<Server>)| (server.live.id, ServerPlace { pool, index });
            of.servers.iter().enumerate().map(place)
        };
        Places {
            listeners: frontends.iter().enumerate().flat_map(endpoints).collect(),
            servers: pools.iter().enumerate().flat_map(servers).collect(),
        }
    }
}

impl Snapshot {
    /// Frontend that listens on this endpoint.
    pub fn listener(&self, at: &Endpoint) -> Option<&Arc<Frontend>> {
        self.frontends.get(*self.places.listeners.get(at)?)
    }

    /// All listening endpoints, each with its frontend.
    pub fn listeners(&self) -> impl Iterator<Item = (&Endpoint, &Arc<Frontend>)> {
        self.places.listeners.iter().filter_map(|(at, place)| Some((at, self.frontends.get(*place)?)))
    }

    /// Server with this number.
    pub fn server(&self, id: u32) -> Option<&Arc<Server>> {
        let place = self.places.servers.get(&id)?;
        self.pools.get(place.pool)?.servers.get(place.index)
    }

    /// Servers of all backends.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.pools.iter().flat_map(|pool| &pool.servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn lookups_in_a_snapshot_return_exact_matches() {
        let servers = |name, at| vec![(fixture::server(name, at), fixture::up())];
        let pools = vec![
            fixture::pool("web", servers("a", "127.0.0.1:1")),
            fixture::pool("dns", servers("b", "127.0.0.1:2")),
        ];
        let frontends = vec![
            fixture::frontend("web", &["10.0.0.1:80", "10.0.0.1:81"], &pools[0]),
            fixture::frontend("dns", &["10.0.0.1:53"], &pools[1]),
        ];
        let snapshot = fixture::snapshot(frontends, pools);
        let at = |port: u16| Endpoint::tcp(([10, 0, 0, 1], port).into());
        let found = |port| snapshot.listener(&at(port)).map(|frontend| frontend.config.name.as_str());
        assert_eq!([80, 81, 53, 82].map(found), [Some("web"), Some("web"), Some("dns"), None]);
        assert_eq!(snapshot.listeners().count(), 3);
        for server in snapshot.servers() {
            assert!(snapshot.server(server.live.id).is_some_and(|found| Arc::ptr_eq(found, server)));
        }
        assert!(snapshot.server(u32::MAX).is_none());
    }
}
