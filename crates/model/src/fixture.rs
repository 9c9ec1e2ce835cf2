//! Fixtures of the model, for tests. The fixtures of `config` and `snapshot` build on these.
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod network;

use std::net::IpAddr;
use std::time::Duration;

use convey_http_core::HostPattern;

use crate::{
    BackendConfig, DiscoverySource, FrontendConfig, HealthCheck, Interface, KubernetesCluster,
    KubernetesService, Mode, ProbeKind, Route, RouteHop, ServerConfig, ServerSettings, ServicePort,
    SniRouteConfig, Timeouts,
};

const SECOND: Duration = Duration::from_secs(1);

/// A server of weight 1 without a limit.
pub fn server(name: &str, addr: &str) -> ServerConfig {
    let addr = addr.parse().unwrap();
    ServerConfig { name: name.into(), addr, settings: ServerSettings::default() }
}

/// Health check with one probe a second, in which a single result changes the state of a server.
pub fn health_check(kind: ProbeKind) -> HealthCheck {
    HealthCheck { interval: SECOND, timeout: SECOND, rise: 1, fall: 1, ..HealthCheck::new(kind) }
}

/// Backend in proxy mode with default settings and [`health_check`].
pub fn backend(name: &str, servers: Vec<ServerConfig>) -> BackendConfig {
    let health_check = health_check(ProbeKind::Tcp);
    BackendConfig { health_check, servers, ..BackendConfig::new(name, false) }
}

/// Frontend in proxy mode with default settings.
pub fn frontend(name: &str, listen: &[&str], backend: &str) -> FrontendConfig {
    let listen = listen.iter().map(|addr| addr.parse().unwrap()).collect();
    FrontendConfig::new(name, Mode::Proxy, listen, backend)
}

/// Route of TLS connections with this server name to another backend.
pub fn sni_route(host: &str, backend: &str) -> SniRouteConfig {
    let name = SniRouteConfig::name_of(Some(host), None);
    let host = HostPattern::parse(host).unwrap();
    SniRouteConfig { name, host, alpn: None, backend: backend.to_owned() }
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

/// Timeouts of a second each.
pub fn timeouts() -> Timeouts {
    Timeouts {
        connect: SECOND,
        idle: SECOND,
        response: SECOND,
        request: None,
        send: SECOND,
        tcp_user_timeout: SECOND,
        udp_idle: SECOND,
        drain: SECOND,
        drain_delay: SECOND,
    }
}

/// Ethernet interface that is up. Its name is `eth` and the index; its Ethernet address also ends
/// with the index.
pub fn interface(index: u32, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
    Interface::ethernet(index, &format!("eth{index}"), [2, 0, 0, 0, 1, index as u8], addresses)
}

/// Route of the table main to a network such as `10.0.0.0/8`, through an interface, and through
/// `gateway` if set.
pub fn route(network: &str, interface: u32, gateway: Option<IpAddr>) -> Route {
    let (prefix, len) = network.split_once('/').unwrap();
    Route::of_main(prefix.parse().unwrap(), len.parse().unwrap(), vec![RouteHop::by(interface, gateway)])
}
