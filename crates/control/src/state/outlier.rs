//! Outlier detection: ejection of servers after failed client connections, and slow start of
//! servers that return. Pure.

use std::net::{IpAddr, SocketAddr};

use super::{ControlState, key};
use crate::health::{Confirmation, Finding, HealthTransition};
use convey_model::{
    AdminState, BackendConfig, ConnectFailures, HealthCheck, Listen, OutlierDetection, ProbeKind, Protocol,
    ServerKey, Timestamp,
};

impl ControlState {
    /// Applies consecutive failures of clients: failed connects, or resets without an answer.
    ///
    /// Without outlier detection, the server goes down only if a probe confirms the failures: see
    /// [`ControlState::take_doubts`]. With outlier detection, the server is ejected immediately,
    /// unless the failures can be forged. Failures of a server without a configured port count as
    /// forgeable, because clients choose the port and can choose a closed one.
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

    /// Further source address for a confirming probe: a listen address of a frontend. No packets of
    /// clients come from this address. The server's kernel limits ICMP errors separately for each
    /// address, so a refusal can still arrive at this address. The address may be missing on this
    /// host; the probe from it then fails.
    fn address_of_its_own(&self, server: &ServerKey) -> Option<IpAddr> {
        let frontends = self.config()?.frontends.iter().filter(|frontend| frontend.uses(&server.backend));
        let mut listen = frontends.flat_map(|frontend| &frontend.listen).map(Listen::ip);
        listen.find(|ip| ip.is_ipv4() == server.addr.is_ipv4() && !ip.is_unspecified())
    }

    /// Takes the confirming probes to send immediately, for servers at which connections of clients
    /// fail. Pass the outcome of each probe to [`ControlState::on_confirmation`].
    pub(crate) fn take_doubts(&mut self) -> Vec<Confirmation> {
        std::mem::take(&mut self.doubts)
    }

    /// Applies the finding of a confirming probe.
    pub(crate) fn on_confirmation(&mut self, server: &ServerKey, found: Finding, now: Timestamp) {
        let Some(backend) = self.pools.config(&server.backend) else { return };
        let Some(entry) = self.servers.get_mut(server) else { return };
        let Some(failures) = entry.resolve_doubt(found) else { return };
        if let Some(outlier) = &backend.outlier_detection {
            return self.eject(&failures, &backend, outlier, now);
        }
        let why = failure_reason(&failures, "connects");
        if let Some(change) = entry.on_confirmed_failures(&why, now) {
            self.changed(server, change, why, now);
        }
    }

    /// Ends ejections and advances slow starts.
    pub(super) fn pass_time(&mut self, now: Timestamp) {
        for server in self.servers.take_timed() {
            let Some(entry) = self.servers.get_mut(&server) else { continue };
            if entry.end_ejection(now) {
                self.restart(&server, now);
                self.note_change(&server, HealthTransition::Returned, String::new());
            } else if let Some(backend) = self.pools.config(&server.backend)
                && entry.warm_up(backend.time_to_warm_up(), now)
            {
                self.pools.mark_stale(&server.backend);
            }
            self.servers.time(&server);
        }
    }

    /// Resets the failures of a server that went out of service or returned. A server that returns
    /// begins its slow start, if one is configured.
    pub(super) fn restart(&mut self, server: &ServerKey, now: Timestamp) {
        let Some(backend) = self.pools.config(&server.backend) else { return };
        if let Some(entry) = self.servers.get_mut(server) {
            entry.restart(backend.time_to_warm_up(), now);
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
        let (server, why) = (&failures.server, failure_reason(failures, "connections"));
        if !self.may_be_ejected(server, backend, outlier) {
            return;
        }
        let Some(entry) = self.servers.get_mut(server) else { return };
        let time = entry.eject(outlier, &why, now);
        self.restart(server, now);
        self.note_change(server, HealthTransition::Ejected(time), why);
    }

    /// Whether outlier detection may eject the server: the server and at least one other server
    /// take connections, and the backend has not reached its limit of ejected servers.
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

/// Check for a probe that confirms failures of clients at a server. Without outlier detection, it
/// is the backend's health check. With outlier detection, the backend may have no health check.
/// Then only failures that can be forged need confirmation; they are refusals, so a connect or a
/// datagram is enough. If `addr` has no port, the backend's check sets the port and the kind.
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

/// Operator-facing reason for an ejection or a server that goes down: the failures of clients.
fn failure_reason(ConnectFailures { in_a_row, error, .. }: &ConnectFailures, what: &str) -> String {
    format!("{in_a_row} {what} in a row failed: {error}")
}
