//! Logs changes, and records them in the event log.

use std::collections::BTreeSet;
use std::sync::Arc;

use log::{Level, log};

use super::Task;
use crate::EventLevel::{Error, Info, Warn};
use crate::lines::{MAX_LISTED, kind_of, of_name, of_server, of_source};
use crate::state::HealthChange;
use crate::{DiscoveryChange, EventKind, EventLevel, LogLine, NameChange};
use convey_config::listed;
use convey_model::AdminState;
use convey_snapshot::{Frontend, Server, Snapshot};

impl<D> Task<D> {
    /// Logs a line, and records it in the event log.
    pub(super) fn log_event(&self, kind: EventKind, level: EventLevel, line: &str) {
        log!(log_level(level), "{line}");
        self.events.record(kind, level, (self.now)(), line);
    }

    fn log_line(&self, kind: EventKind, line: &LogLine) {
        self.log_event(kind, line.level, &line.text);
    }

    pub(super) fn log_name_change(&self, change: &NameChange) {
        self.log_line(EventKind::Name, &of_name(change));
    }

    pub(super) fn log_source_change(&self, change: &DiscoveryChange) {
        if change.is_logged {
            self.log_line(EventKind::Name, &of_source(change));
        }
    }

    pub(super) fn log_health_change(&self, change: &HealthChange) {
        self.log_line(kind_of(&change.change), &of_server(change));
    }

    /// Logs the servers that have left the link since `before`, although their mode needs the link,
    /// and servers that have returned to the link. A configuration file with a server off the link
    /// is refused.
    pub(super) fn log_off_link_servers(&self, before: &Snapshot) {
        let now = self.snapshot.load();
        if Arc::ptr_eq(&before.network, &now.network) && Arc::ptr_eq(&before.places, &now.places) {
            return;
        }
        let (before, now) = (before.off_link(), now.off_link());
        for server in now.difference(&before) {
            let line = format!(
                "server {server} is no longer on the link, which dsr = \"l2\" requires: it gets no packets"
            );
            self.log_event(EventKind::Health, Warn, &line);
        }
        for server in before.difference(&now) {
            self.log_event(EventKind::Health, Info, &format!("server {server} is on the link again"));
        }
    }

    /// Logs the backends that have lost their last server since `before`, and backends that have a
    /// server again.
    pub(super) fn log_empty_backends(&self, before: &Snapshot) {
        let now = self.snapshot.load();
        let are_same = Arc::ptr_eq(&before.places, &now.places);
        let empty = |snapshot: &Snapshot, other: &Snapshot| -> BTreeSet<String> {
            let is_other = |(place, frontend): &(usize, &Arc<Frontend>)| {
                !are_same || !other.frontends.get(*place).is_some_and(|other| Arc::ptr_eq(frontend, other))
            };
            let others = snapshot.frontends.iter().enumerate().filter(is_other);
            let used = others.flat_map(|(_, frontend)| frontend.pools());
            used.filter(|pool| pool.eligible() == 0).map(|pool| pool.config.name.clone()).collect()
        };
        let (before, now) = (empty(before, &now), empty(&now, before));
        for backend in now.difference(&before) {
            let Some(servers) = self.state.never_answered(backend) else {
                let taken_out = self.taken_out(backend);
                let line =
                    format!("backend {backend} has no server left{taken_out}: its clients are refused");
                self.log_event(EventKind::Backend, Error, &line);
                continue;
            };
            let (servers, file) = (listed(servers.into_iter(), MAX_LISTED), self.file.path.display());
            let line = format!(
                "no server of backend {backend} has answered yet, so its clients are refused: {servers}; start the servers, \
                 or correct their addresses in {file}"
            );
            self.log_event(EventKind::Backend, Error, &line);
        }
        for backend in before.difference(&now) {
            self.log_event(EventKind::Backend, Info, &format!("backend {backend} serves again"));
        }
    }

    /// Log text with the number of a backend's servers that operators have taken out of service;
    /// empty if there are none.
    fn taken_out(&self, backend: &str) -> String {
        let snapshot = self.snapshot.load();
        let mut pools = snapshot.frontends.iter().flat_map(|frontend| frontend.pools());
        let Some(pool) = pools.find(|pool| pool.config.name == backend) else {
            return String::new();
        };
        let said = |server: &Server| self.state.overlays().state_of(backend, &server.config.name);
        let is_out =
            |server: &&Arc<Server>| said(server).is_some_and(|(state, _)| state != AdminState::Ready);
        match pool.servers.iter().filter(is_out).count() {
            0 => String::new(),
            out => format!(" (taken out by operators: {out} of {})", pool.servers.len()),
        }
    }
}

/// Log level of an event.
fn log_level(level: EventLevel) -> Level {
    match level {
        EventLevel::Info => Level::Info,
        EventLevel::Warn => Level::Warn,
        EventLevel::Error => Level::Error,
    }
}
