//! Servers that clients' failures take out for a time, and servers on their way back to their whole share.

use super::{ServerEntry, State, key};
use crate::health::{Change, Warmup};
use crate::model::{Backend, ConnectFailures, OutlierDetection, ServerKey, Timestamp};

impl State {
    /// Takes the news that clients could not connect, or were reset without an answer, several times in a row.
    pub fn on_connect_failures(&mut self, failures: &ConnectFailures, now: Timestamp) {
        let ConnectFailures { server, in_a_row, error } = failures;
        let Some(pool) = self.pools.get(&server.backend) else { return };
        let backend = pool.pool.config.clone();
        if backend.failure_limit().is_none_or(|limit| *in_a_row < limit) {
            return;
        }
        let why = |what: &str| format!("{in_a_row} {what} in a row failed: {error}");
        if let Some(outlier) = &backend.outlier_detection {
            return self.eject(server, &backend, outlier, why("connections"), now);
        }
        let Some(entry) = self.servers.get_mut(server) else { return };
        if let Some(change) = entry.state.on_connect_failures(*in_a_row, &entry.check) {
            self.changed(server, change, why("connects"), now);
        }
    }

    /// Ends ejections and lets shares grow.
    pub(super) fn pass_time(&mut self, now: Timestamp) {
        for server in std::mem::take(&mut self.timed) {
            let Some(entry) = self.servers.get_mut(&server) else { continue };
            if entry.ejection.on_time(now) {
                self.begin_anew(&server, now);
                self.tell(&server, Change::Returned, String::new());
            } else if let (Some(warmup), Some(pool)) = (entry.warmup, self.pools.get_mut(&server.backend)) {
                entry.warmup = warmup.on_time(pool.pool.config.time_to_warm_up(), now);
                pool.stale |= entry.warmup.map(|warmup| warmup.percent()) != Some(warmup.percent());
            }
            self.time(&server);
        }
    }

    /// A server was taken out, or takes connections again: slowly, if it is meant to.
    pub(super) fn begin_anew(&mut self, server: &ServerKey, now: Timestamp) {
        let Some(slow_start) = self.pools.get(&server.backend).map(|pool| pool.pool.config.time_to_warm_up())
        else {
            return;
        };
        if let Some(entry) = self.servers.get_mut(server) {
            entry.live.begin_row();
            let takes = entry.state.is_up() && !entry.is_ejected();
            entry.warmup = if takes { Warmup::begin(slow_start, now) } else { None };
        }
        self.time(server);
    }

    /// Sees to it that time reaches a server if it changes anything there.
    fn time(&mut self, server: &ServerKey) {
        if self.servers.get(server).is_some_and(|entry| entry.due().is_some()) {
            self.timed.insert(server.clone());
        }
    }

    fn eject(
        &mut self,
        server: &ServerKey,
        backend: &Backend,
        outlier: &OutlierDetection,
        why: String,
        now: Timestamp,
    ) {
        if !self.may_be_ejected(server, backend, outlier) {
            return;
        }
        let Some(entry) = self.servers.get_mut(server) else { return };
        let time = entry.ejection.begin(outlier, now);
        entry.ejected_for.clone_from(&why);
        entry.live.count_ejection();
        self.begin_anew(server, now);
        self.tell(server, Change::Ejected(time), why);
    }

    /// Whether it takes connections now, somebody else does, too, and not too many are out already.
    fn may_be_ejected(&self, server: &ServerKey, backend: &Backend, outlier: &OutlierDetection) -> bool {
        let is_out = |key: &&ServerKey| {
            key.backend == server.backend && self.servers.get(key).is_some_and(ServerEntry::is_ejected)
        };
        let takes = |key: &ServerKey| {
            self.servers.get(key).is_some_and(|entry| entry.state.is_up() && !entry.is_ejected())
        };
        let others =
            backend.servers.iter().filter(|other| other.settings.weight > 0).map(|other| key(backend, other));
        takes(server)
            && self.timed.iter().filter(is_out).count() < outlier.most_ejected(backend.servers.len())
            && others.into_iter().any(|other| other != *server && takes(&other))
    }
}

impl ServerEntry {
    /// When time changes something; `None` if it does not.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.ejection.until().into_iter().chain(self.warmup.map(|warmup| warmup.due())).min()
    }

    fn is_ejected(&self) -> bool {
        self.ejection.until().is_some()
    }
}
