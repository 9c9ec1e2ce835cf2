//! Turns servers known by host name or from a discovery source into servers with addresses. Pure.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::Config;
use super::loops::{Listens, loops};
use convey_model::{
    BackendConfig, DiscoveredServer, DiscoverySource, Mode, ServerAddr, ServerConfig, ServerKey,
    SourceSettings,
};

/// Address that does not become a server, because the server would lead back to a frontend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Name of the backend.
    pub backend: String,
    /// Name of the server in the file, or kind of the discovery source.
    pub name: String,
    /// Address of the server.
    pub addr: SocketAddr,
    /// Operator-facing text about the loop.
    pub why: String,
}

impl LeftOut {
    /// Log lines about addresses that did not become servers, one line for each server name.
    pub fn lines(all: BTreeSet<LeftOut>) -> Vec<String> {
        let all: Vec<LeftOut> = all.into_iter().collect();
        let names = all.chunk_by(|a, b| (&a.backend, &a.name) == (&b.backend, &b.name));
        names.map(|of_name| of_name[0].line(of_name.len())).collect()
    }

    /// Log line about this address. `count` is the number of left-out addresses of the same name,
    /// including this one.
    pub fn line(&self, count: usize) -> String {
        let LeftOut { backend, name, addr, why } = self;
        let server = format!("server {backend}/{name}/{}", addr.ip());
        match count {
            ..=1 => format!("{server} is not used: {why}"),
            2 => format!("{server} and 1 more address of {backend}/{name} are not used: {why}"),
            _ => format!("{server} and {} more addresses of {backend}/{name} are not used: {why}", count - 1),
        }
    }
}

/// Functions that look up host names and discovery sources.
pub struct FoundServers<N, D> {
    /// Returns the current addresses of a host name.
    pub addresses: N,
    /// Returns the current result of a discovery source.
    pub discovered: D,
}

/// Result of a discovery source.
#[derive(Debug, Clone, Copy, Default)]
pub struct FoundBySource<'a> {
    /// Servers, sorted by name.
    pub servers: &'a [DiscoveredServer],
    /// Settings for the servers, from the source.
    pub settings: SourceSettings,
}

/// Backends with all of their servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Backends, each with a server for every address and every discovered server.
    pub backends: Vec<BackendConfig>,
    /// Addresses that did not become servers, because they would lead back to a frontend that uses
    /// them.
    pub left_out: BTreeSet<LeftOut>,
    /// Servers that get no new connections, according to their source.
    pub draining: HashSet<ServerKey>,
}

impl Config {
    /// Host names to look up.
    pub fn hosts(&self) -> BTreeSet<&str> {
        let named = self.backends.iter().flat_map(|backend| &backend.named);
        named.map(|named| named.host.as_str()).collect()
    }

    /// Discovery sources to watch.
    pub fn sources(&self) -> BTreeSet<&DiscoverySource> {
        self.backends.iter().filter_map(|backend| Some(&backend.discovery.as_ref()?.source)).collect()
    }

    /// Backends with their current servers: one for each address of a host name, and one for each
    /// server of a discovery source. The result omits servers that would lead back to a frontend
    /// that uses them. `own` has the addresses of this host.
    pub fn resolved<'a, N, D>(&self, known: &FoundServers<N, D>, own: &BTreeSet<IpAddr>) -> Resolved
    where
        N: Fn(&str) -> BTreeSet<ServerAddr>,
        D: Fn(&DiscoverySource) -> FoundBySource<'a>,
    {
        let proxied = self.frontends_where(Mode::is_proxied).map(|frontend| Listens {
            name: &frontend.name,
            protocol: frontend.protocol,
            listen: frontend.listen.clone(),
            backends: frontend.backends().collect(),
        });
        let proxied: Vec<Listens<'_>> = proxied.collect();
        let written = self
            .backends
            .iter()
            .flat_map(|backend| backend.servers.iter().map(|server| (&*backend.name, server.addr)));
        let mut servers: Vec<(&str, SocketAddr)> = written.collect();
        let count = servers.len();
        let (mut of_names, mut draining) = (Vec::new(), HashSet::new());
        let names = |backend: &BackendConfig| {
            let all = backend.servers.iter().map(|server| server.name.clone());
            all.chain(backend.named.iter().map(|named| named.name.clone())).collect()
        };
        let taken: Vec<HashSet<String>> = self.backends.iter().map(names).collect();
        for (index, backend) in self.backends.iter().enumerate() {
            for named in &backend.named {
                for server in (known.addresses)(&named.host).into_iter().map(|addr| named.at(addr)) {
                    servers.push((&backend.name, server.addr));
                    of_names.push((index, &*named.name, server));
                }
            }
            let Some(discovery) = &backend.discovery else { continue };
            let FoundBySource { servers: all, settings } = (known.discovered)(&discovery.source);
            for found in all {
                let server = discovery.server(found, &settings);
                let Some(server) = called_uniquely(server, &taken[index]) else { continue };
                if found.is_draining {
                    let (backend, server, addr) = (backend.name.clone(), server.name.clone(), server.addr);
                    draining.insert(ServerKey { backend, server, addr });
                }
                servers.push((&backend.name, server.addr));
                of_names.push((index, discovery.source.kind(), server));
            }
        }
        let (mut backends, mut left_out) = (self.backends.clone(), BTreeSet::new());
        // A server of the file may lead back because the host got a new address. The server stays;
        // the next reload reports it.
        let found = loops(&proxied, &servers, own).into_iter().skip(count);
        for ((index, name, server), found) in of_names.into_iter().zip(found) {
            let (backend, addr) = (&mut backends[index], server.addr);
            match found {
                None => backend.servers.push(server),
                Some(found) => {
                    let (backend, name, why) = (backend.name.clone(), name.to_owned(), found.describe(addr));
                    left_out.insert(LeftOut { backend, name, addr, why });
                }
            }
        }
        for backend in &mut backends {
            backend.servers.sort_by(|a, b| a.name.cmp(&b.name));
            let Some(discovery) = &backend.discovery else { continue };
            let said = (known.discovered)(&discovery.source).settings;
            backend.algorithm = said.algorithm.unwrap_or(backend.algorithm);
            backend.slow_start = said.slow_start.unwrap_or(backend.slow_start);
        }
        Resolved { backends, left_out, draining }
    }
}

/// Gives a discovered server a unique name: its own name, or its address if a server of the file
/// has the same name. Returns `None` if both are taken.
fn called_uniquely(mut server: ServerConfig, taken: &HashSet<String>) -> Option<ServerConfig> {
    if taken.contains(&server.name) {
        server.name = server.addr.to_string();
    }
    (!taken.contains(&server.name)).then_some(server)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use convey_model::Algorithm;

    const FILE: &str = r#"
        frontends.web = { listen_addr = "0.0.0.0:80", backend = "web" }
        [backends.web.servers]
        b = { addr = "10.0.0.9:80" }
        app = { addr = "App.internal:80", weight = 7, backup = true, max_connections = 3 }
        spare = { addr = "app.internal:81" }
    "#;

    fn resolved(addresses: &[&str]) -> (Vec<String>, BTreeSet<String>) {
        let config = parse("test.toml", FILE).unwrap().config;
        assert_eq!(config.hosts(), BTreeSet::from(["app.internal"]));
        let found = |host: &str| {
            assert_eq!(host, "app.internal");
            addresses.iter().map(|ip| ServerAddr::from(ip.parse::<IpAddr>().unwrap())).collect()
        };
        let known =
            FoundServers { addresses: found, discovered: |_: &DiscoverySource| FoundBySource::default() };
        let own = BTreeSet::from(["10.0.0.1".parse().unwrap()]);
        let Resolved { backends, left_out, .. } = config.resolved(&known, &own);
        let servers = backends[0].servers.iter();
        (
            servers
                .map(|server| format!("{} {} {}", server.name, server.addr, server.settings.weight))
                .collect(),
            left_out.iter().map(|left_out| left_out.line(1)).collect(),
        )
    }

    #[test]
    fn each_address_of_a_name_is_a_server_with_its_settings() {
        let (servers, left_out) = resolved(&["10.0.0.3", "2001:db8::3"]);
        assert_eq!(
            servers,
            [
                "app/10.0.0.3 10.0.0.3:80 7",
                "app/2001:db8::3 [2001:db8::3]:80 7",
                "b 10.0.0.9:80 1",
                "spare/10.0.0.3 10.0.0.3:81 1",
                "spare/2001:db8::3 [2001:db8::3]:81 1",
            ]
        );
        assert_eq!(left_out, BTreeSet::new());
    }

    #[test]
    fn discovered_servers_are_added_and_configured_ones_keep_their_names() {
        let file =
            FILE.to_owned() + "[backends.web.kubernetes]\nservice = 'shop/web'\nport = 'http'\nweight = 5\n";
        let config = parse("test.toml", &file).unwrap().config;
        let found = |name: &str, addr: &str, is_draining| DiscoveredServer {
            name: name.into(),
            addr: addr.parse().unwrap(),
            is_draining,
            zone: None,
        };
        let all = [
            found("app", "10.1.0.2:80", false),
            found("b", "10.1.0.1:80", true),
            found("web-1", "10.1.0.3:80", false),
            found("web-2", "10.0.0.1:80", false),
        ];
        let settings = SourceSettings { algorithm: Some(Algorithm::PowerOfTwo), ..SourceSettings::default() };
        let known = FoundServers {
            addresses: |_: &str| BTreeSet::new(),
            discovered: |source: &DiscoverySource| {
                assert_eq!(source.to_string(), "kubernetes shop/web:http");
                FoundBySource { servers: &all, settings }
            },
        };
        let resolved = config.resolved(&known, &BTreeSet::from(["10.0.0.1".parse().unwrap()]));
        assert_eq!(resolved.backends[0].algorithm, Algorithm::PowerOfTwo);
        let servers = resolved.backends[0].servers.iter();
        let servers: Vec<String> = servers
            .map(|server| format!("{} {} {}", server.name, server.addr, server.settings.weight))
            .collect();
        let expected = [
            "10.1.0.1:80 10.1.0.1:80 5",
            "10.1.0.2:80 10.1.0.2:80 5",
            "b 10.0.0.9:80 1",
            "web-1 10.1.0.3:80 5",
        ];
        assert_eq!(servers, expected);
        let draining: Vec<&str> = resolved.draining.iter().map(|server| &*server.server).collect();
        assert_eq!(draining, ["10.1.0.1:80"]);
        let line = resolved.left_out.first().unwrap().line(1);
        assert!(
            line.starts_with(
                "server web/kubernetes/10.0.0.1 is not used: 10.0.0.1:80 would send connections back"
            ),
            "{line}"
        );
    }

    #[test]
    fn a_name_without_an_address_is_no_server() {
        assert_eq!(resolved(&[]).0, ["b 10.0.0.9:80 1"]);
    }

    #[test]
    fn resolved_address_that_loops_back_is_left_out_with_a_reason() {
        for own in ["127.0.0.1", "10.0.0.1"] {
            let (servers, left_out) = resolved(&[own]);
            assert_eq!(servers, ["b 10.0.0.9:80 1".to_owned(), format!("spare/{own} {own}:81 1")]);
            let told = format!(
                "server web/app/{own} is not used: {own}:80 would send connections back to frontend \"web\", which listens on 0.0.0.0:80"
            );
            assert_eq!(left_out, BTreeSet::from([told]));
        }
    }

    #[test]
    fn left_out_addresses_are_reported_in_one_line_per_name() {
        let left_out = |name: &str, host: u8| {
            let addr = ([127, 0, 0, host], 80).into();
            LeftOut { backend: "web".into(), name: name.into(), addr, why: "it leads back".into() }
        };
        let all = BTreeSet::from([left_out("app", 1), left_out("app", 2), left_out("spare", 1)]);
        let expected = [
            "server web/app/127.0.0.1 and 1 more address of web/app are not used: it leads back",
            "server web/spare/127.0.0.1 is not used: it leads back",
        ];
        assert_eq!(LeftOut::lines(all), expected);
    }
}
