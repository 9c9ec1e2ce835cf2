//! Servers that clients' failures take out for a time, and servers on their way back to their whole share. Pure.

use std::net::{IpAddr, SocketAddr};

use super::{ControlState, key};
use crate::health::{Confirmation, Finding, HealthTransition};
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
        let Some(backend) = self.pools.config(&server.backend) else { return };
        if !backend.is_failing_after(failures.in_a_row) {
            return;
        }
        let takes_connections = match &backend.outlier_detection {
            Some(outlier) if !failures.is_forgeable => {
                return self.eject(failures, &backend, outlier, now);
            }
            Some(outlier) => self.may_be_ejected(server, &backend, outlier),
            None => self.servers.get(server).is_some_and(|entry| entry.is_up()),
        };
        let Some(entry) = self.servers.get_mut(server).filter(|_| takes_connections) else { return };
        let configured = entry.check().clone();
        let tls = configured.tls.clone();
        let check = HealthCheck { tls, ..check_of_doubt(&backend, failures.protocol, server.addr) };
        if entry.raise_doubt(failures, check.timeout, now) {
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
        let Some(backend) = self.pools.config(&server.backend) else { return };
        let Some(entry) = self.servers.get_mut(server) else { return };
        let Some(failures) = entry.resolve_doubt(found) else { return };
        if let Some(outlier) = &backend.outlier_detection {
            return self.eject(&failures, &backend, outlier, now);
        }
        let why = why(&failures, "connects");
        if let Some(change) = entry.on_confirmed_failures(&why, now) {
            self.changed(server, change, why, now);
        }
    }

    /// Ends ejections and lets shares grow.
    pub(super) fn pass_time(&mut self, now: Timestamp) {
        for server in self.servers.take_timed() {
            let Some(entry) = self.servers.get_mut(&server) else { continue };
            if entry.end_ejection(now) {
                self.begin_anew(&server, now);
                self.note_change(&server, HealthTransition::Returned, String::new());
            } else if let Some(backend) = self.pools.config(&server.backend)
                && entry.warm_up(backend.time_to_warm_up(), now)
            {
                self.pools.mark_stale(&server.backend);
            }
            self.servers.time(&server);
        }
    }

    /// A server was taken out, or takes connections again: slowly, if it is meant to.
    pub(super) fn begin_anew(&mut self, server: &ServerKey, now: Timestamp) {
        let Some(backend) = self.pools.config(&server.backend) else { return };
        if let Some(entry) = self.servers.get_mut(server) {
            entry.begin_anew(backend.time_to_warm_up(), now);
        }
        self.servers.time(server);
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
        let time = entry.eject(outlier, &why, now);
        self.begin_anew(server, now);
        self.note_change(server, HealthTransition::Ejected(time), why);
    }

    /// Whether it takes connections now, somebody else does, too, and not too many are out already.
    fn may_be_ejected(
        &self,
        server: &ServerKey,
        backend: &BackendConfig,
        outlier: &OutlierDetection,
    ) -> bool {
        let takes = |key: &ServerKey| {
            let takes_connections = self.servers.get(key).is_some_and(|entry| entry.takes_connections());
            takes_connections && self.view().admin_state(key) == AdminState::Ready
        };
        let others =
            backend.servers.iter().filter(|other| other.settings.weight > 0).map(|other| key(backend, other));
        takes(server)
            && self.servers.ejected(&server.backend) < outlier.most_ejected(backend.servers.len())
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
