//! Words made by hand, for tests. The fixtures of `config` and `snapshot` build on these.
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod network;

use std::net::IpAddr;
use std::time::Duration;

use crate::{
    BackendConfig, DiscoverySource, FrontendConfig, HealthCheck, Interface, KubernetesCluster,
    KubernetesService, Mode, ProbeKind, Route, RouteHop, ServerConfig, ServerSettings, ServicePort, Timeouts,
};

const SECOND: Duration = Duration::from_secs(1);

/// A server of weight 1 without a limit.
pub fn server(name: &str, addr: &str) -> ServerConfig {
    let addr = addr.parse().unwrap();
    ServerConfig { name: name.into(), addr, settings: ServerSettings::default() }
}

/// A check each second, of which one result decides.
pub fn health_check(kind: ProbeKind) -> HealthCheck {
    HealthCheck { interval: SECOND, timeout: SECOND, rise: 1, fall: 1, ..HealthCheck::new(kind) }
}

/// A backend of proxy mode with the defaults, but for [`health_check`].
pub fn backend(name: &str, servers: Vec<ServerConfig>) -> BackendConfig {
    let health_check = health_check(ProbeKind::Tcp);
    BackendConfig { health_check, servers, ..BackendConfig::new(name, false) }
}

/// A frontend in proxy mode with the defaults.
pub fn frontend(name: &str, listen: &[&str], backend: &str) -> FrontendConfig {
    let listen = listen.iter().map(|addr| addr.parse().unwrap()).collect();
    FrontendConfig::new(name, Mode::Proxy, listen, backend)
}

/// Port 80 of a Kubernetes Service of this name in the namespace `shop`.
pub fn kubernetes_source(name: &str) -> DiscoverySource {
    DiscoverySource::Kubernetes(KubernetesService {
        namespace: "shop".into(),
        name: name.into(),
        port: ServicePort::Number(80),
        protocol: None,
        cluster: KubernetesCluster::default(),
    })
}

/// A second each.
pub fn timeouts() -> Timeouts {
    Timeouts {
        connect: SECOND,
        idle: SECOND,
        response: SECOND,
        tcp_user_timeout: SECOND,
        udp_idle: SECOND,
        drain: SECOND,
        drain_delay: SECOND,
    }
}

/// An Ethernet interface that is up. Its name is `eth` and the index, which its Ethernet address ends with, too.
pub fn interface(index: u32, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Interface::ethernet(index, &format!("eth{index}"), [2, 0, 0, 0, 1, index as u8], addresses)
}

/// A route of the table main to a network such as `10.0.0.0/8`. It leads by an interface, and by a router if there is
/// one.
pub fn route(network: &str, interface: u32, gateway: Option<IpAddr>) -> Route {
    let (prefix, len) = network.split_once('/').unwrap();
    Route::of_main(prefix.parse().unwrap(), len.parse().unwrap(), vec![RouteHop::by(interface, gateway)])
}
