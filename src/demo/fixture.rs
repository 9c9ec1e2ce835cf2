//! Configurations made by hand, for the tests beside.

use std::time::Duration;

use crate::config::{Config, Stats};
use crate::model::{Backend, Frontend, Mode, PacketSettings, Protocol, Timeouts};
use crate::snapshot::fixture;

/// A proxy whose statistics are served at 127.0.0.1:8090.
pub(super) fn config(frontends: Vec<Frontend>, backends: Vec<Backend>) -> Config {
    let second = Duration::from_secs(1);
    Config {
        frontends,
        backends,
        stats: Stats { listen: "127.0.0.1:8090".parse().unwrap() },
        timeouts: Timeouts {
            connect: second,
            idle: second,
            tcp_user_timeout: second,
            udp_idle: second,
            drain: second,
        },
        passthrough: PacketSettings::default(),
        name_servers: vec![],
        allow_local: false,
    }
}

/// A backend with round robin over servers of weight 1, given by name and address.
pub(super) fn backend(name: &str, servers: &[(&str, &str)]) -> Backend {
    fixture::backend(name, servers.iter().map(|(name, addr)| fixture::server(name, addr)).collect())
}

/// A frontend without a limit.
pub(super) fn frontend(name: &str, listen: &[&str], backend: &str) -> Frontend {
    let listen = listen.iter().map(|addr| addr.parse().unwrap()).collect();
    Frontend {
        name: name.into(),
        mode: Mode::Proxy,
        protocol: Protocol::Tcp,
        listen,
        backend: backend.into(),
        max_connections: None,
        max_connections_per_client: None,
        trusted_clients: vec![],
    }
}
