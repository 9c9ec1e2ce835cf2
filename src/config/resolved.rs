//! Servers that are known by name become servers with addresses. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Config, validate};
use crate::model::{Backend, Server};

impl Config {
    /// The names to look up.
    pub fn hosts(&self) -> BTreeSet<&str> {
        let named = self.backends.iter().flat_map(|backend| &backend.named);
        named.map(|named| named.host.as_str()).collect()
    }

    /// The backends, each with a server for every address that its names have now. Where such a server would be a
    /// frontend that the backend serves, it is left out; the second value tells of these in words for an operator.
    pub fn resolved(&self, addresses: impl Fn(&str) -> BTreeSet<IpAddr>) -> (Vec<Backend>, BTreeSet<String>) {
        let mut left_out = BTreeSet::new();
        let mut backends = self.backends.clone();
        for backend in &mut backends {
            for named in &backend.named {
                for server in addresses(&named.host).into_iter().map(|ip| named.at(ip)) {
                    match self.frontend_at(&server, &backend.name) {
                        None => backend.servers.push(server),
                        Some(frontend) => {
                            let (backend, name, addr) = (&backend.name, &server.name, server.addr);
                            left_out.insert(format!(
                                "server {backend}/{name} ({addr}) is left out: it is frontend {frontend} itself"
                            ));
                        }
                    }
                }
            }
            backend.servers.sort_by(|a, b| a.name.cmp(&b.name));
        }
        (backends, left_out)
    }

    /// The frontend of this backend that the server would be.
    fn frontend_at(&self, server: &Server, backend: &str) -> Option<&str> {
        let served = self.frontends.iter().filter(|frontend| frontend.backend == backend);
        let mut back =
            served.filter(|frontend| frontend.listen.iter().any(|l| validate::leads_back(server.addr, *l)));
        back.next().map(|frontend| frontend.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

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
        let (backends, left_out) = config.resolved(|host| {
            assert_eq!(host, "app.internal");
            addresses.iter().map(|ip| ip.parse().unwrap()).collect()
        });
        let servers = backends[0].servers.iter();
        (
            servers
                .map(|server| format!("{} {} {}", server.name, server.addr, server.settings.weight))
                .collect(),
            left_out,
        )
    }

    #[test]
    fn every_address_of_a_name_is_a_server_with_the_settings_of_the_name() {
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
    fn a_name_without_an_address_is_no_server() {
        assert_eq!(resolved(&[]).0, ["b 10.0.0.9:80 1"]);
    }

    #[test]
    fn an_address_that_leads_back_to_the_frontend_is_left_out_and_told() {
        let (servers, left_out) = resolved(&["127.0.0.1"]);
        assert_eq!(servers, ["b 10.0.0.9:80 1", "spare/127.0.0.1 127.0.0.1:81 1"]);
        let told = "server web/app/127.0.0.1 (127.0.0.1:80) is left out: it is frontend web itself";
        assert_eq!(left_out, BTreeSet::from([told.to_owned()]));
    }
}
