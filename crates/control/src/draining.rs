//! Frontends and servers that a reload removed and whose flows may still continue. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use convey_config::Config;
use convey_model::{Endpoint, Mode, Timestamp};

/// Removed frontends and servers of the packet modes, with the end of their drain timeout.
#[derive(Debug, Default)]
pub(super) struct DrainDeadlines {
    listen: Deadlines,
    servers: Deadlines,
    /// Endpoints of the draining frontends and servers. Snapshots share the value until it changes.
    places: Arc<convey_model::DrainingEndpoints>,
}

type Deadlines = BTreeMap<Endpoint, Timestamp>;

impl DrainDeadlines {
    /// Applies a reload from `before` to `after`. Removed frontends and servers are served until
    /// the drain timeout expires. Frontends and servers that return no longer drain.
    pub(super) fn apply(&mut self, before: &Config, after: &Config, now: Timestamp) {
        let until = now.after(after.timeouts.drain);
        drain_removed(&mut self.listen, listen(before), listen(after), until);
        drain_removed(&mut self.servers, servers(before), servers(after), until);
        self.remove_due(now);
        self.list_places();
    }

    /// Time at which the next drain timeout expires; `None` if nothing drains.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.listen.values().chain(self.servers.values()).min().copied()
    }

    /// Drops the frontends and servers whose drain timeout has expired. Returns whether any were
    /// dropped.
    pub(super) fn expire(&mut self, now: Timestamp) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.remove_due(now);
            self.list_places();
        }
        is_due
    }

    /// Endpoints of the frontends and servers that drain.
    pub(super) fn places(&self) -> Arc<convey_model::DrainingEndpoints> {
        self.places.clone()
    }

    fn remove_due(&mut self, now: Timestamp) {
        self.listen.retain(|_, until| *until > now);
        self.servers.retain(|_, until| *until > now);
    }

    fn list_places(&mut self) {
        let (listen, servers) = (self.listen.keys().copied(), self.servers.keys().copied());
        let places = convey_model::DrainingEndpoints { listen: listen.collect(), servers: servers.collect() };
        if *self.places != places {
            self.places = Arc::new(places);
        }
    }
}

fn drain_removed(
    gone: &mut Deadlines,
    before: impl Iterator<Item = Endpoint>,
    after: impl Iterator<Item = Endpoint>,
    until: Timestamp,
) {
    gone.extend(before.map(|place| (place, until)));
    for place in after {
        gone.remove(&place);
    }
}

fn listen(config: &Config) -> impl Iterator<Item = Endpoint> {
    config.frontends_where(Mode::forwards_packets).flat_map(|frontend| frontend.endpoints())
}

/// Endpoints of servers, with the protocols of the frontends that use them.
fn servers(config: &Config) -> impl Iterator<Item = Endpoint> {
    let used = config.frontends_where(Mode::forwards_packets).flat_map(|frontend| {
        let backends = frontend.backends().filter_map(|name| config.backend(name));
        backends.map(|backend| (frontend.protocol, backend))
    });
    used.flat_map(|(protocol, backend)| {
        backend.servers.iter().map(move |server| Endpoint { protocol, addr: server.addr })
    })
}
