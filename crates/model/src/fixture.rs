//! Words made by hand, for tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::{
    Algorithm, Backend, DsrKind, Frontend, HashKey, HashOn, HealthCheck, Mode, ProbeKind, Protocol, Server,
    ServerSettings,
};

/// A server of weight 1 without a limit.
pub fn server(name: &str, addr: &str) -> Server {
    let addr = addr.parse().unwrap();
    Server { name: name.into(), addr, settings: ServerSettings::default() }
}

/// A backend with round robin.
pub fn backend(name: &str, servers: Vec<Server>) -> Backend {
    let second = Duration::from_secs(1);
    let health_check =
        HealthCheck { kind: ProbeKind::Tcp, port: None, interval: second, timeout: second, rise: 1, fall: 1 };
    Backend {
        name: name.into(),
        algorithm: Algorithm::RoundRobin,
        hash: HashOn::Source,
        hash_key: HashKey::default(),
        health_check,
        outlier_detection: None,
        slow_start: Duration::ZERO,
        on_down: None,
        dsr: DsrKind::L3,
        servers,
        named: vec![],
    }
}

/// A frontend in proxy mode without a limit.
pub fn frontend(name: &str, listen: &[&str], backend: &str) -> Frontend {
    Frontend {
        name: name.into(),
        mode: Mode::Proxy,
        protocol: Protocol::Tcp,
        listen: listen.iter().map(|addr| addr.parse().unwrap()).collect(),
        backend: backend.into(),
        max_connections: None,
        max_connections_per_client: None,
        trusted_clients: vec![],
    }
}
