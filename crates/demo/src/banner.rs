//! Start text of `convey demo`: servers, frontends and a command to copy. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use convey_config::Config;
use convey_model::Protocol;

use super::servers::is_local;

/// Start text with the running servers, and a command that sends a few requests to the first TCP
/// frontend.
pub fn banner(config: &Config) -> String {
    let mut text = convey_config::describe(config);
    for server in config.backends.iter().flat_map(|backend| &backend.servers) {
        if !is_local(server.addr) {
            text.push_str(&format!(
                "server {} is not on this machine: the demo did not start it\n",
                server.addr
            ));
        }
    }
    let mut for_curl = config.frontends.iter().filter(|frontend| frontend.protocol == Protocol::Tcp);
    if let Some(addr) = for_curl.next().and_then(|frontend| frontend.listen.first()) {
        let url = format!("http://{}/", reachable(addr.first()));
        text.push_str(&format!("\ntry it:\n  for i in $(seq 12); do curl -s {url}; done\n\n"));
    }
    text
}

/// Address at which a client on this machine reaches a listen address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_config::fixture::config;
    use convey_model::fixture::{backend, frontend, server};

    #[test]
    fn the_banner_tells_which_servers_it_did_not_start() {
        let web = backend("web", vec![server("a", "127.0.0.1:8081"), server("far", "192.0.2.1:80")]);
        let banner = banner(&config(vec![frontend("web", &["127.0.0.1:8080"], "web")], vec![web]));
        assert!(banner.contains("server 192.0.2.1:80 is not on this machine"), "{banner}");
        assert!(!banner.contains("127.0.0.1:8081 is not"), "{banner}");
    }

    #[test]
    fn the_line_to_copy_works_when_a_frontend_listens_on_all_addresses() {
        for (listen, url) in [
            ("0.0.0.0:80", "curl -s http://127.0.0.1:80/;"),
            ("[::]:80", "curl -s http://[::1]:80/;"),
            ("192.0.2.7:80", "curl -s http://192.0.2.7:80/;"),
        ] {
            let config = config(vec![frontend("web", &[listen], "web")], vec![]);
            assert!(banner(&config).contains(url), "{}", banner(&config));
        }
    }
}
