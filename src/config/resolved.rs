//! Servers that are known by name become servers with addresses. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Config;
use super::loops::{Listens, Loops};
use crate::model::{Backend, Mode};

impl Config {
    /// The names to look up.
    pub fn hosts(&self) -> BTreeSet<&str> {
        let named = self.backends.iter().flat_map(|backend| &backend.named);
        named.map(|named| named.host.as_str()).collect()
    }

    /// The backends, each with a server for every address that its names have now. Where such a server would lead back to
    /// a frontend that it serves, on a host with the addresses `own`, it is left out; the second value tells of these in
    /// words for an operator.
    pub fn resolved(
        &self,
        addresses: impl Fn(&str) -> BTreeSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
    ) -> (Vec<Backend>, BTreeSet<String>) {
        let proxied = self.frontends_in(Mode::Proxy).map(|frontend| Listens {
            name: &frontend.name,
            protocol: frontend.protocol,
            listen: frontend.listen.clone(),
            backend: &frontend.backend,
        });
        let mut loops = Loops::new(proxied.collect(), own);
        for backend in &self.backends {
            for server in &backend.servers {
                // One that leads back, since the host has got an address, stays: who wrote it is asked at the next reload.
                let _ = loops.add(&backend.name, server.addr);
            }
        }
        let (mut backends, mut left_out) = (self.backends.clone(), BTreeSet::new());
        for (resolved, backend) in backends.iter_mut().zip(&self.backends) {
            for named in &backend.named {
                for server in addresses(&named.host).into_iter().map(|ip| named.at(ip)) {
                    match loops.add(&backend.name, server.addr) {
                        Ok(()) => resolved.servers.push(server),
                        Err(found) => {
                            let (backend, name, why) =
                                (&backend.name, &server.name, found.describe(server.addr));
                            left_out.insert(format!("server {backend}/{name} is left out: {why}"));
                        }
                    }
                }
            }
            resolved.servers.sort_by(|a, b| a.name.cmp(&b.name));
        }
        (backends, left_out)
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
        let found = |host: &str| {
            assert_eq!(host, "app.internal");
            addresses.iter().map(|ip| ip.parse().unwrap()).collect()
        };
        let (backends, left_out) = config.resolved(found, &BTreeSet::from(["10.0.0.1".parse().unwrap()]));
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
        for own in ["127.0.0.1", "10.0.0.1"] {
            let (servers, left_out) = resolved(&[own]);
            assert_eq!(servers, ["b 10.0.0.9:80 1".to_owned(), format!("spare/{own} {own}:81 1")]);
            let told = format!(
                "server web/app/{own} is left out: {own}:80 is frontend \"web\" itself, which listens on 0.0.0.0:80"
            );
            assert_eq!(left_out, BTreeSet::from([told]));
        }
    }
}
