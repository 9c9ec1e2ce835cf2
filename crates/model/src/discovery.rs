//! Servers that a source outside of the file knows, such as the endpoints of a Kubernetes Service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::server_ip::{is_local, is_of_one_machine};
use crate::{Algorithm, Protocol, ServerConfig, ServerSettings};

/// Where a backend has servers from, besides those of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Who knows them.
    pub source: DiscoverySource,
    /// Those of each server.
    pub settings: ServerSettings,
    /// Servers of other zones are backups; `None`: zones do not matter.
    pub zone: Option<String>,
}

impl DiscoveryConfig {
    /// The server that was discovered. What its source says of servers goes before the file.
    pub fn server(&self, found: &DiscoveredServer, said: &SourceSettings) -> ServerConfig {
        let is_elsewhere = self.zone.is_some() && found.zone.is_some() && self.zone != found.zone;
        let settings = ServerSettings {
            weight: said.weight.unwrap_or(self.settings.weight),
            backup: self.settings.backup || is_elsewhere,
            // Whoever may annotate a Service raises no limit of the file.
            max_connections: said.max_connections.into_iter().chain(self.settings.max_connections).min(),
        };
        ServerConfig { name: found.name.clone(), addr: found.addr, settings }
    }
}

/// Who knows servers. Backends with equal sources share what is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiscoverySource {
    /// A Service of a Kubernetes cluster.
    Kubernetes(KubernetesService),
}

impl DiscoverySource {
    /// The key of a backend that has one.
    pub fn kind(&self) -> &'static str {
        match self {
            DiscoverySource::Kubernetes(_) => "kubernetes",
        }
    }
}

impl fmt::Display for DiscoverySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscoverySource::Kubernetes(service) => write!(f, "kubernetes {service}"),
        }
    }
}

/// A port of a Service, as the EndpointSlices of a cluster have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of its ports.
    pub port: ServicePort,
    /// The protocol of that port; `None`: frontends of both have the backend, so either will do.
    pub protocol: Option<Protocol>,
    /// The cluster.
    pub cluster: KubernetesCluster,
}

impl fmt::Display for KubernetesService {
    /// Such as `default/web:http`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// How the API server of a cluster is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KubernetesCluster {
    /// The file that says where it is and who we are; `None`: in a pod its service account, else `KUBECONFIG` or
    /// `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// One of the contexts of that file; `None`: its current one.
    pub context: Option<String>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServicePort {
    /// Its name in the Service.
    Name(String),
    /// The number at which pods listen.
    Number(u16),
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServicePort::Name(name) => f.write_str(name),
            ServicePort::Number(number) => number.fmt(f),
        }
    }
}

/// A server that a source knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiscoveredServer {
    /// Unique within its source, and the same as long as it is the same server.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Whether it gets no new connections: it finishes those it has, and ends.
    pub is_draining: bool,
    /// Where it runs, if the source says so.
    pub zone: Option<String>,
}

/// What a source says of its servers and of their backend. It goes before the file; `None`: the file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceSettings {
    /// The weight of each server.
    pub weight: Option<u16>,
    /// The connections of each server at once.
    pub max_connections: Option<u32>,
    /// How a server is chosen.
    pub algorithm: Option<Algorithm>,
    /// How long a server that comes back takes to its whole share.
    pub slow_start: Option<Duration>,
}

/// What is known of a source now. A newer one takes the place of an older one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiscoveryState {
    /// Its servers, each name once; `None`: it has not said yet.
    pub servers: Option<Vec<DiscoveredServer>>,
    /// What it says of them.
    pub settings: SourceSettings,
    /// Why it cannot be asked now, in words for an operator; `None`: it can.
    pub fault: Option<String>,
    /// What it has that is no server, and why: words for an operator.
    pub notes: BTreeSet<String>,
    /// How often it could not be asked so far.
    pub failures: u64,
}

impl DiscoveryState {
    /// This state without servers at addresses that can be none, and unless `allow_local` without those that mean another machine
    /// to each host: see [`crate::Lookup::without_local`].
    #[must_use]
    pub fn with_usable(mut self, allow_local: bool) -> DiscoveryState {
        self.leave_out(|ip| !is_of_one_machine(ip), "not the address of one machine");
        if !allow_local {
            self.leave_out(is_local, "an address of this host or link (dns.allow_local)");
        }
        self
    }

    /// Removes the servers at such addresses, and notes why.
    fn leave_out(&mut self, is_refused: impl Fn(IpAddr) -> bool, why: &str) {
        let Some(servers) = &mut self.servers else { return };
        let before = servers.len();
        let first = servers.iter().find(|server| is_refused(server.addr.ip())).cloned();
        servers.retain(|server| !is_refused(server.addr.ip()));
        if let Some(DiscoveredServer { name, addr, .. }) = first {
            let others = match before - servers.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} more like it"),
            };
            self.notes.insert(format!("{name} ({}){others} is no server: {why}", addr.ip()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, addr: &str, zone: Option<&str>) -> DiscoveredServer {
        let addr = addr.parse().unwrap();
        DiscoveredServer { name: name.into(), addr, is_draining: false, zone: zone.map(str::to_owned) }
    }

    #[test]
    fn servers_of_other_zones_are_backups_and_those_without_a_zone_are_not() {
        let service = KubernetesService {
            namespace: "default".into(),
            name: "web".into(),
            port: ServicePort::Name("http".into()),
            protocol: None,
            cluster: KubernetesCluster::default(),
        };
        let source = DiscoverySource::Kubernetes(service);
        assert_eq!(source.to_string(), "kubernetes default/web:http");
        let config = |zone: Option<&str>| DiscoveryConfig {
            source: source.clone(),
            settings: ServerSettings::default(),
            zone: zone.map(str::to_owned),
        };
        let is_backup = |ours: Option<&str>, theirs: Option<&str>| {
            config(ours)
                .server(&found("a", "10.0.0.3:80", theirs), &SourceSettings::default())
                .settings
                .backup
        };
        assert!(is_backup(Some("a"), Some("b")));
        assert!(
            !is_backup(Some("a"), Some("a")) && !is_backup(Some("a"), None) && !is_backup(None, Some("b"))
        );
    }

    #[test]
    fn servers_at_unusable_addresses_are_left_out_with_a_note() {
        let addresses = ["127.0.0.1:80", "10.0.0.3:80", "[fe80::1]:80", "0.0.0.0:80", "[::ffff:10.0.0.4]:80"];
        let servers = addresses.map(|addr| found(addr, addr, None));
        let all = DiscoveryState { servers: Some(servers.into()), ..DiscoveryState::default() };
        let count = |state: &DiscoveryState| state.servers.as_ref().map(Vec::len);
        let (usable, with_local) = (all.clone().with_usable(false), all.with_usable(true));
        assert_eq!((count(&usable), count(&with_local)), (Some(1), Some(3)));
        let notes: Vec<&String> = usable.notes.iter().collect();
        assert!(
            notes[0].starts_with("0.0.0.0:80 (0.0.0.0) and 1 more like it is no server: not"),
            "{notes:?}"
        );
        assert!(
            notes[1].starts_with("127.0.0.1:80 (127.0.0.1) and 1 more like it is no server"),
            "{notes:?}"
        );
    }
}
