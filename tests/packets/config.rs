//! The configuration of a story.

use std::fmt::Write;

use convey::demo::lab::Role;

use crate::case::Family;
use crate::network::PORT;

/// A frontend `web` and a backend `pool`: servers by number, each with further lines.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) servers: Vec<(u8, &'static str)>,
    pub(crate) port: u16,
    pub(crate) frontend: &'static str,
    pub(crate) backend: &'static str,
    pub(crate) health: &'static str,
    pub(crate) passthrough: &'static str,
}

/// Servers are taken to be up.
pub(crate) const UNCHECKED: &str = "kind = \"none\"";

impl Config {
    /// Servers 1 to `servers`, chosen by hash of addresses and ports, whose health is checked five times a
    /// second.
    pub(crate) fn new(servers: u8) -> Config {
        Config {
            servers: (1..=servers).map(|number| (number, "")).collect(),
            port: PORT,
            frontend: "",
            backend: "algorithm = \"maglev\"\nhash = \"tuple\"",
            health: "kind = \"tcp\"\ninterval = 0.2\ntimeout = 0.2\nfall = 2\nrise = 1",
            passthrough: "",
        }
    }

    /// The same for UDP on a port; health is still checked by TCP.
    pub(crate) fn udp(port: u16, servers: u8) -> Config {
        Config { port, frontend: "protocol = \"udp\"", ..Config::new(servers) }
    }

    pub(crate) fn text(&self, family: Family) -> String {
        let Config { servers, port, frontend, backend, health, passthrough } = self;
        let mut text = format!(
            "[frontends.web]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n{frontend}\n[backends.pool]\n{backend}\n\
             [backends.pool.health_check]\n{health}\n[passthrough]\n{passthrough}\n",
            family.vip(*port)
        );
        for (number, lines) in servers {
            let addr = std::net::SocketAddr::new(family.address(Role::Server(*number)), *port);
            writeln!(text, "[backends.pool.servers.s{number}]\naddr = \"{addr}\"\n{lines}").unwrap();
        }
        text
    }
}
