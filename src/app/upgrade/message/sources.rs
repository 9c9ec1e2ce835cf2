//! Messages for names and sources of servers in an upgrade. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use convey_control::{KnownName, KnownSource};
use convey_model::{
    Algorithm, DiscoveredServer, DiscoverySource, KubernetesCluster, KubernetesService, Protocol, ServerAddr,
    ServicePort, SourceSettings,
};
use serde::{Deserialize, Serialize};

use super::Transport;

/// Message form of a [`KnownName`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct NameMessage {
    host: String,
    /// Addresses of the name. Port 0 means that the name has no port.
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    from_hosts: bool,
    #[serde(default)]
    fault: Option<String>,
}

/// Message form of a [`KnownSource`], without its servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct SourceMessage {
    kubernetes: ServiceMessage,
    #[serde(default)]
    weight: Option<u16>,
    #[serde(default)]
    max_connections: Option<u32>,
    #[serde(default)]
    algorithm: Option<String>,
    #[serde(default)]
    slow_start: Option<Duration>,
    #[serde(default)]
    fault: Option<String>,
}

/// Message form of a [`KubernetesService`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ServiceMessage {
    namespace: String,
    name: String,
    port: PortMessage,
    protocol: Option<Transport>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum PortMessage {
    Number(u16),
    Name(String),
}

/// Server of the source that was sent last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct SourceServerMessage {
    name: String,
    addr: SocketAddr,
    #[serde(default)]
    draining: bool,
    #[serde(default)]
    zone: Option<String>,
}

impl From<&KnownName> for NameMessage {
    fn from(known: &KnownName) -> NameMessage {
        let KnownName { host, addresses, from_hosts, fault } = known.clone();
        let addresses = addresses.into_iter().map(|addr| addr.0).collect();
        NameMessage { host, addresses, from_hosts, fault }
    }
}

impl From<NameMessage> for KnownName {
    fn from(message: NameMessage) -> KnownName {
        let NameMessage { host, addresses, from_hosts, fault } = message;
        let addresses = addresses.into_iter().map(ServerAddr).collect();
        KnownName { host, addresses, from_hosts, fault }
    }
}

impl From<&KnownSource> for SourceMessage {
    fn from(known: &KnownSource) -> SourceMessage {
        let DiscoverySource::Kubernetes(service) = known.source.clone();
        let KubernetesService { namespace, name, port, protocol, cluster } = service;
        let port = match port {
            ServicePort::Number(number) => PortMessage::Number(number),
            ServicePort::Name(name) => PortMessage::Name(name),
        };
        let protocol = protocol.map(|protocol| match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
        });
        let KubernetesCluster { kubeconfig, context } = cluster;
        let SourceSettings { weight, max_connections, algorithm, slow_start } = known.settings;
        let algorithm = algorithm.map(|algorithm| algorithm.name().to_owned());
        let kubernetes = ServiceMessage { namespace, name, port, protocol, kubeconfig, context };
        SourceMessage {
            kubernetes,
            weight,
            max_connections,
            algorithm,
            slow_start,
            fault: known.fault.clone(),
        }
    }
}

impl From<SourceMessage> for KnownSource {
    /// Converts to a source without servers.
    fn from(message: SourceMessage) -> KnownSource {
        let ServiceMessage { namespace, name, port, protocol, kubeconfig, context } = message.kubernetes;
        let port = match port {
            PortMessage::Number(number) => ServicePort::Number(number),
            PortMessage::Name(name) => ServicePort::Name(name),
        };
        let protocol = protocol.map(|protocol| match protocol {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        });
        let cluster = KubernetesCluster { kubeconfig, context };
        let service = KubernetesService { namespace, name, port, protocol, cluster };
        let named = |name: String| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        let settings = SourceSettings {
            weight: message.weight,
            max_connections: message.max_connections,
            algorithm: message.algorithm.and_then(named),
            slow_start: message.slow_start,
        };
        let (source, servers) = (DiscoverySource::Kubernetes(service), Vec::new());
        KnownSource { source, servers, settings, fault: message.fault }
    }
}

impl From<&DiscoveredServer> for SourceServerMessage {
    fn from(server: &DiscoveredServer) -> SourceServerMessage {
        let DiscoveredServer { name, addr, is_draining: draining, zone } = server.clone();
        SourceServerMessage { name, addr, draining, zone }
    }
}

impl From<SourceServerMessage> for DiscoveredServer {
    fn from(message: SourceServerMessage) -> DiscoveredServer {
        let SourceServerMessage { name, addr, draining: is_draining, zone } = message;
        DiscoveredServer { name, addr, is_draining, zone }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn sent(message: &Message) -> Message {
        serde_json::from_str(&serde_json::to_string(message).unwrap()).unwrap()
    }

    #[test]
    fn names_and_sources_arrive_as_they_were() {
        let addresses = ["10.0.0.3:0", "[2001:db8::1]:8080"].map(|addr| ServerAddr(addr.parse().unwrap()));
        let fault = Some("timed out".to_owned());
        let name = KnownName { host: "app".into(), addresses: addresses.into(), from_hosts: true, fault };
        let Message::Name(message) = sent(&Message::Name((&name).into())) else { panic!() };
        assert_eq!(KnownName::from(message), name);

        let ports = [ServicePort::Name("80".into()), ServicePort::Number(80)];
        for (port, protocol) in ports.into_iter().zip([None, Some(Protocol::Udp)]) {
            let cluster = KubernetesCluster { kubeconfig: Some("/etc/k".into()), context: Some("c".into()) };
            let service =
                KubernetesService { namespace: "n".into(), name: "web".into(), port, protocol, cluster };
            let settings = SourceSettings {
                weight: Some(0),
                max_connections: Some(9),
                algorithm: Some(Algorithm::Maglev),
                slow_start: Some(Duration::from_millis(1_500)),
            };
            let source = DiscoverySource::Kubernetes(service);
            let known = KnownSource { source, servers: vec![], settings, fault: Some("refused".into()) };
            let Message::Source(message) = sent(&Message::Source((&known).into())) else { panic!() };
            assert_eq!(KnownSource::from(message), known);
        }
        let addr = "10.0.0.3:80".parse().unwrap();
        let server =
            DiscoveredServer { name: "web-1".into(), addr, is_draining: true, zone: Some("z".into()) };
        let Message::SourceServer(message) = sent(&Message::SourceServer((&server).into())) else { panic!() };
        assert_eq!(DiscoveredServer::from(message), server);
    }
}
