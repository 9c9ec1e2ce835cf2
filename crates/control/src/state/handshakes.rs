//! Detection of servers that complete no handshakes, while other servers of the same backend
//! complete handshakes (packet modes). Pure.

use std::collections::BTreeSet;

use super::{ControlState, key};
use crate::health::{HandshakesSeen, SilentServer};
use convey_model::{BackendConfig, ConnectFailures, Mode, Protocol, ServerKey, Timestamp};

impl ControlState {
    /// Names of backends whose handshakes can be observed.
    pub(crate) fn backends_with_handshakes(&self) -> Vec<String> {
        let frontends =
            self.config().into_iter().flat_map(|config| config.frontends_where(Mode::forwards_packets));
        let used: BTreeSet<String> = frontends
            .filter(|frontend| frontend.protocol == Protocol::Tcp)
            .flat_map(|frontend| frontend.backends().map(str::to_owned))
            .collect();
        used.into_iter().collect()
    }

    /// Checks each server of a backend for handshakes that clients start and the server does not
    /// complete. Ejects such a server if the backend has outlier detection; otherwise returns an
    /// operator-facing message about it. Call it about once a second.
    pub(crate) fn check_handshakes(&mut self, name: &str, now: Timestamp) -> Vec<String> {
        let Some(backend) = self.pools.config(name) else { return Vec::new() };
        let seen: Vec<(ServerKey, HandshakesSeen)> = backend
            .servers
            .iter()
            .filter_map(|server| {
                let server = key(&backend, server);
                let seen = self.servers.get_mut(&server)?.count_handshakes();
                Some((server, seen))
            })
            .collect();
        let least = backend.outlier_detection.clone().unwrap_or_default().consecutive_failures;
        let mut messages = Vec::new();
        for ((server, own), others) in seen.iter().zip(others(&seen)) {
            let Some(entry) = self.servers.get_mut(server) else { continue };
            if let Some(silent) = entry.evaluate_handshakes(*own, others, least, now) {
                messages.extend(self.eject_or_report(server, &backend, silent, now));
            }
            if let Some(entry) = self.servers.get(server) {
                entry.publish_handshakes();
            }
        }
        messages
    }

    /// Ejects a server that answers no client. If its backend has no outlier detection, returns an
    /// operator-facing message instead.
    fn eject_or_report(
        &mut self,
        server: &ServerKey,
        backend: &BackendConfig,
        SilentServer { begun, repeated }: SilentServer,
        now: Timestamp,
    ) -> Option<String> {
        let error = format!(
            "no handshake completed ({begun} started, {repeated} SYNs repeated), while other servers complete handshakes; \
             check the server's VIP, NAT, gateway and firewall"
        );
        let Some(outlier) = &backend.outlier_detection else {
            return Some(format!(
                "server {server} answers no client: {error}; `outlier_detection` can eject such a server"
            ));
        };
        let in_a_row = u32::try_from(begun).unwrap_or(u32::MAX);
        let (server, protocol) = (server.clone(), Protocol::Tcp);
        let failures = ConnectFailures { server, in_a_row, error, protocol, is_forgeable: false };
        self.eject(&failures, backend, outlier, now);
        if let Some(entry) = self.servers.get_mut(&failures.server) {
            entry.forgive_handshakes(now);
        }
        None
    }
}

/// For each server, the sum of the handshakes of all other servers in `seen`.
fn others(seen: &[(ServerKey, HandshakesSeen)]) -> Vec<HandshakesSeen> {
    let sum = |sum: &mut HandshakesSeen, one: &HandshakesSeen| {
        let before = *sum;
        *sum = sum.and(*one);
        Some(before)
    };
    let seen = || seen.iter().map(|(_, seen)| seen);
    let before = seen().scan(HandshakesSeen::default(), sum);
    let behind: Vec<_> = seen().rev().scan(HandshakesSeen::default(), sum).collect();
    before.zip(behind.into_iter().rev()).map(|(before, behind)| before.and(behind)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::HandshakeCounts;

    #[test]
    fn the_others_of_each_server_are_all_but_itself() {
        let seen: Vec<_> = (0..5u16)
            .map(|n| {
                let counts = HandshakeCounts { begun: 1 << n, completed: 0, repeated: 10 };
                let server = ServerKey {
                    backend: "web".into(),
                    server: n.to_string(),
                    addr: ([10, 0, 0, 1], n).into(),
                };
                (server, HandshakesSeen { counts, completing: 1 << n, repeating: 0 })
            })
            .collect();
        for (n, others) in others(&seen).into_iter().enumerate() {
            assert_eq!((others.counts.begun, others.counts.repeated), (31 - (1 << n), 40));
            assert_eq!(others.completing, 31 - (1 << n));
        }
        assert_eq!(others(&[]), []);
    }
}
