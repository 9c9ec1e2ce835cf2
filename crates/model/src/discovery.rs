//! Service discovery: servers from a source outside of the file, such as the endpoints of a
//! Kubernetes Service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::server_ip::{is_local, is_of_one_machine};
use crate::{Algorithm, Protocol, ServerConfig, ServerSettings};

/// Discovery settings of a backend, for servers in addition to those of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Source of the servers.
    pub source: DiscoverySource,
    /// Settings of each discovered server.
    pub settings: ServerSettings,
    /// Zone of this convey: servers of other zones are backups; `None`: zones do not matter.
    pub zone: Option<String>,
}

impl DiscoveryConfig {
    /// Configuration of a discovered server. Settings from the source (`said`) override those of
    /// the file.
    pub fn server(&self, found: &DiscoveredServer, said: &SourceSettings) -> ServerConfig {
        let is_elsewhere = self.zone.is_some() && found.zone.is_some() && self.zone != found.zone;
        let settings = ServerSettings {
            weight: said.weight.unwrap_or(self.settings.weight),
            backup: self.settings.backup || is_elsewhere,
            // An annotation on a Service must not raise a limit of the file.
            max_connections: said.max_connections.into_iter().chain(self.settings.max_connections).min(),
        };
        ServerConfig { name: found.name.clone(), addr: found.addr, settings }
    }
}

/// Source of discovered servers. Backends with equal sources share the results.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiscoverySource {
    /// A Service of a Kubernetes cluster.
    Kubernetes(KubernetesService),
}

impl DiscoverySource {
    /// Configuration key of the source's kind.
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

/// Port of a Kubernetes Service, whose endpoints come from its EndpointSlices.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Port of the Service.
    pub port: ServicePort,
    /// Protocol of the port; `None`: TCP or UDP, because frontends of both protocols use the
    /// backend.
    pub protocol: Option<Protocol>,
    /// Cluster of the Service.
    pub cluster: KubernetesCluster,
}

impl fmt::Display for KubernetesService {
    /// Formats as `default/web:http`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// Access to the API server of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KubernetesCluster {
    /// File with the API server's address and credentials. `None`: in a pod, the service account of
    /// the pod; outside of a pod, `KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context in that file; `None`: the file's current context.
    pub context: Option<String>,
}

/// Port of a Service, by name or number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServicePort {
    /// Name of the port in the Service.
    Name(String),
    /// Number of the port on which pods listen.
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

/// Server that a source reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiscoveredServer {
    /// Name, unique within the source, and stable for the server's lifetime.
    pub name: String,
    /// Address and port of the server.
    pub addr: SocketAddr,
    /// Whether the server is terminating: it finishes its connections and gets no new ones.
    pub is_draining: bool,
    /// Zone of the server, if the source reports one.
    pub zone: Option<String>,
}

/// Settings that a source has for its servers and their backend. They override the file; `None`:
/// the file applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceSettings {
    /// Weight of each server.
    pub weight: Option<u16>,
    /// Connection limit of each server.
    pub max_connections: Option<u32>,
    /// Algorithm that chooses a server.
    pub algorithm: Option<Algorithm>,
    /// Time in which a recovered server ramps up to its full share.
    pub slow_start: Option<Duration>,
}

/// Latest state of a source. A newer state replaces the older one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiscoveryState {
    /// Servers with unique names; `None`: the source has not answered yet.
    pub servers: Option<Vec<DiscoveredServer>>,
    /// Settings from the source.
    pub settings: SourceSettings,
    /// Operator-facing reason why the source cannot be reached; `None`: the source is reachable.
    pub fault: Option<String>,
    /// Operator-facing reasons why entries of the source are not usable as servers.
    pub notes: BTreeSet<String>,
    /// Number of failed requests to the source so far.
    pub failures: u64,
}

impl DiscoveryState {
    /// Removes servers at unusable addresses. Without `allow_local`, also removes servers at
    /// addresses that mean a different machine on each host: see [`crate::Lookup::without_local`].
    #[must_use]
    pub fn with_usable(mut self, allow_local: bool) -> DiscoveryState {
        self.leave_out(|ip| !is_of_one_machine(ip), "such an address does not belong to a single machine");
        if !allow_local {
            self.leave_out(is_local, "loopback and link-local addresses need dns.allow_local = true");
        }
        self
    }

    /// Removes servers at refused addresses, and notes why.
    fn leave_out(&mut self, is_refused: impl Fn(IpAddr) -> bool, why: &str) {
        let Some(servers) = &mut self.servers else { return };
        let before = servers.len();
        let first = servers.iter().find(|server| is_refused(server.addr.ip())).cloned();
        servers.retain(|server| !is_refused(server.addr.ip()));
        if let Some(DiscoveredServer { name, addr, .. }) = first {
            let which = match before - servers.len() - 1 {
                0 => "is not used as a server".to_owned(),
                1 => "and 1 more endpoint are not used as servers".to_owned(),
                others => format!("and {others} more endpoints are not used as servers"),
            };
            self.notes.insert(format!("{name} ({}) {which}: {why}", addr.ip()));
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
    fn servers_of_other_zones_are_backups() {
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
            notes[0].starts_with("0.0.0.0:80 (0.0.0.0) and 1 more endpoint are not used as servers: such"),
            "{notes:?}"
        );
        assert!(
            notes[1].starts_with("127.0.0.1:80 (127.0.0.1) and 1 more endpoint are not used as servers"),
            "{notes:?}"
        );
    }
}
