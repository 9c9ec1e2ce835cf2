//! The frontends and servers that a reload took away, for as long as their flows may still finish. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use convey_config::Config;
use convey_model::{Endpoint, Mode, Timestamp};

/// Places of the packet modes that are no longer configured, and until when they are served.
#[derive(Debug, Default)]
pub(super) struct DrainDeadlines {
    listen: Deadlines,
    servers: Deadlines,
    /// The same as snapshots have it: each has the one before, unless something has changed.
    places: Arc<convey_model::DrainingEndpoints>,
}

type Deadlines = BTreeMap<Endpoint, Timestamp>;

impl DrainDeadlines {
    /// `after` takes the place of `before`. Frontends and servers that are gone with it are served for the time
    /// that connections have to finish. Those that have come back are no longer gone.
    pub(super) fn apply(&mut self, before: &Config, after: &Config, now: Timestamp) {
        let until = now.after(after.timeouts.drain);
        drain_removed(&mut self.listen, listen(before), listen(after), until);
        drain_removed(&mut self.servers, servers(before), servers(after), until);
        self.forget_those_due(now);
        self.list_places();
    }

    /// When the next place is due to go; `None` if nothing drains.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.listen.values().chain(self.servers.values()).min().copied()
    }

    /// Drops the places whose time is over. Returns whether there were any.
    pub(super) fn expire(&mut self, now: Timestamp) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.forget_those_due(now);
            self.list_places();
        }
        is_due
    }

    /// The places.
    pub(super) fn places(&self) -> Arc<convey_model::DrainingEndpoints> {
        self.places.clone()
    }

    fn forget_those_due(&mut self, now: Timestamp) {
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

/// Those of a backend speak what the frontends that use it speak.
fn servers(config: &Config) -> impl Iterator<Item = Endpoint> {
    let used = config.frontends_where(Mode::forwards_packets).flat_map(|frontend| {
        let backends = frontend.backends().filter_map(|name| config.backend(name));
        backends.map(|backend| (frontend.protocol, backend))
    });
    used.flat_map(|(protocol, backend)| {
        backend.servers.iter().map(move |server| Endpoint { protocol, addr: server.addr })
    })
}
