//! Servers that clients' failures take out for a time, and servers on their way back to their whole share. Pure.

use std::net::{IpAddr, SocketAddr};

use super::{ControlState, ServerEntry, key};
use crate::health::{Confirmation, Finding, HealthTransition, Warmup};
use convey_model::{
    AdminState, BackendConfig, ConnectFailures, HealthCheck, Listen, OutlierDetection, ProbeKind, Protocol,
    ServerKey, Timestamp,
};

impl ControlState {
    /// Takes note that clients could not connect, or were reset without an answer, several times in a row. A server
    /// goes down for it only if a probe confirms it: see [`ControlState::take_doubts`]. One is ejected for it at once, unless
    /// anybody could have made it up. Of a server that keeps clients' ports anybody can ask one that is closed.
    pub(crate) fn on_connect_failures(&mut self, failures: &ConnectFailures, now: Timestamp) {
        let is_forgeable = failures.is_forgeable || failures.server.addr.port() == 0;
        let failures = &ConnectFailures { is_forgeable, ..failures.clone() };
        let server = &failures.server;
        let Some(pool) = self.pools.get(&server.backend) else { return };
        let backend = pool.pool.config.clone();
        if !backend.is_failing_after(failures.in_a_row) {
            return;
        }
        let takes_connections = match &backend.outlier_detection {
            Some(outlier) if !failures.is_forgeable => {
                return self.eject(failures, &backend, outlier, now);
            }
            Some(outlier) => self.may_be_ejected(server, &backend, outlier),
            None => self.servers.get(server).is_some_and(|entry| entry.state.is_up()),
        };
        let Some(entry) = self.servers.get_mut(server).filter(|_| takes_connections) else { return };
        let tls = entry.check.tls.clone();
        let configured = entry.check.clone();
        let check = HealthCheck { tls, ..check_of_doubt(&backend, failures.protocol, server.addr) };
        if entry.doubt.raise(failures, check.timeout, now) {
            let from = if failures.is_forgeable { self.address_of_its_own(server) } else { None };
            self.doubts.push(Confirmation { server: server.clone(), check, configured, from });
        }
    }

    /// An address of ours that clients' packets to a server do not come from. The server's kernel may tell clients no
    /// more; a probe from there it tells all the same. Clients ask for that address; whether we have it shows when it is
    /// used.
    fn address_of_its_own(&self, server: &ServerKey) -> Option<IpAddr> {
        let frontends = self.config()?.frontends.iter().filter(|frontend| frontend.uses(&server.backend));
        let mut listen = frontends.flat_map(|frontend| &frontend.listen).map(Listen::ip);
        listen.find(|ip| ip.is_ipv4() == server.addr.is_ipv4() && !ip.is_unspecified())
    }

    /// The servers that clients fail at, each with a probe that is to be made at once.
    /// [`ControlState::on_confirmation`] takes its outcome.
    pub(crate) fn take_doubts(&mut self) -> Vec<Confirmation> {
        std::mem::take(&mut self.doubts)
    }

    /// Takes what a probe has found that was to confirm clients' failures.
    pub(crate) fn on_confirmation(&mut self, server: &ServerKey, found: Finding, now: Timestamp) {
        let Some(backend) = self.pools.get(&server.backend).map(|pool| pool.pool.config.clone()) else {
            return;
        };
        let Some(entry) = self.servers.get_mut(server) else { return };
        let Some(failures) = entry.doubt.resolve(found, entry.live.failures()) else { return };
        if let Some(outlier) = &backend.outlier_detection {
            self.eject(&failures, &backend, outlier, now);
        } else if let Some(change) = entry.state.on_confirmed_failures(&entry.check) {
            self.changed(server, change, why(&failures, "connects"), now);
        }
    }

    /// Ends ejections and lets shares grow.
    pub(super) fn pass_time(&mut self, now: Timestamp) {
        for server in std::mem::take(&mut self.timed) {
            let Some(entry) = self.servers.get_mut(&server) else { continue };
            if entry.ejection.on_time(now) {
                self.begin_anew(&server, now);
                self.tell(&server, HealthTransition::Returned, String::new());
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

    pub(super) fn eject(
        &mut self,
        failures: &ConnectFailures,
        backend: &BackendConfig,
        outlier: &OutlierDetection,
        now: Timestamp,
    ) {
        let (server, why) = (&failures.server, why(failures, "connections"));
        if !self.may_be_ejected(server, backend, outlier) {
            return;
        }
        let Some(entry) = self.servers.get_mut(server) else { return };
        let time = entry.ejection.begin(outlier, now);
        entry.ejected_for.clone_from(&why);
        entry.live.count_ejection();
        self.begin_anew(server, now);
        self.tell(server, HealthTransition::Ejected(time), why);
    }

    /// Whether it takes connections now, somebody else does, too, and not too many are out already.
    fn may_be_ejected(
        &self,
        server: &ServerKey,
        backend: &BackendConfig,
        outlier: &OutlierDetection,
    ) -> bool {
        let is_out = |key: &&ServerKey| {
            key.backend == server.backend && self.servers.get(key).is_some_and(ServerEntry::is_ejected)
        };
        let takes = |key: &ServerKey| {
            let is_up = self.servers.get(key).is_some_and(|entry| entry.state.is_up() && !entry.is_ejected());
            is_up && self.admin_state(key) == AdminState::Ready
        };
        let others =
            backend.servers.iter().filter(|other| other.settings.weight > 0).map(|other| key(backend, other));
        takes(server)
            && self.timed.iter().filter(is_out).count() < outlier.most_ejected(backend.servers.len())
            && others.into_iter().any(|other| other != *server && takes(&other))
    }
}

/// What a server is asked that clients fail at: as its backend has it. Servers that are ejected need no check; then only
/// failures that anybody can make up are doubted, which are refusals. `addr` is the server's; without a port, the backend
/// says which one to ask, and by what.
fn check_of_doubt(backend: &BackendConfig, protocol: Protocol, addr: SocketAddr) -> HealthCheck {
    let check = backend.health_check.clone();
    let keeps_ports = addr.port() == 0;
    if backend.outlier_detection.is_none() || (keeps_ports && check.kind != ProbeKind::None) {
        return check;
    }
    let kind = match protocol {
        Protocol::Tcp => ProbeKind::Tcp,
        Protocol::Udp => ProbeKind::Udp,
    };
    HealthCheck { kind, port: check.port.filter(|_| keeps_ports), ..check }
}

/// What clients' failures are called in the log.
fn why(ConnectFailures { in_a_row, error, .. }: &ConnectFailures, what: &str) -> String {
    format!("{in_a_row} {what} in a row failed: {error}")
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
