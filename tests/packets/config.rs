//! Configuration of a test.

use std::fmt::Write;

use convey_lab::Role;

use crate::case::Case;
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
    pub(crate) timeouts: &'static str,
    /// Whether the usual frontend exists.
    pub(crate) web: bool,
}

/// Port of an unused frontend: there has to be one.
const UNUSED: u16 = 88;

/// Servers count as up.
pub(crate) const UNCHECKED: &str = "kind = \"none\"";

impl Config {
    /// Servers 1 to `servers`, selected by hash of addresses and ports, with five health checks a
    /// second.
    pub(crate) fn new(servers: u8) -> Config {
        Config {
            servers: (1..=servers).map(|number| (number, "")).collect(),
            port: PORT,
            frontend: "",
            backend: "algorithm = \"maglev\"\nhash = \"tuple\"",
            health: "kind = \"tcp\"\ninterval = 0.2\ntimeout = 0.2\nfall = 2\nrise = 1",
            passthrough: "",
            timeouts: "",
            web: true,
        }
    }

    /// Configuration for UDP on a port; health is still checked by TCP.
    pub(crate) fn udp(port: u16, servers: u8) -> Config {
        Config { port, frontend: "protocol = \"udp\"", ..Config::new(servers) }
    }

    pub(crate) fn text(&self, Case { family, offload, .. }: Case) -> String {
        let Config { servers, port, frontend, backend, health, passthrough, timeouts, web } = self;
        let (unused, unused_address) = (family.vip(UNUSED), family.address(Role::Server(1)));
        let unused_address = std::net::SocketAddr::new(unused_address, UNUSED);
        let mut text = format!(
            "[backends.pool]\n{backend}\n[backends.pool.health_check]\n{health}\n\
             [passthrough]\noffload = \"{offload}\"\n{passthrough}\n[timeouts]\n{timeouts}\n\
             [frontends.unused]\nlisten_addr = \"{unused}\"\nbackend = \"unused\"\n\
             [backends.unused.servers]\nx.addr = \"{unused_address}\"\n",
        );
        if *web {
            let vip = family.vip(*port);
            writeln!(text, "[frontends.web]\nlisten_addr = \"{vip}\"\nbackend = \"pool\"\n{frontend}")
                .unwrap();
        }
        for (number, lines) in servers {
            let addr = std::net::SocketAddr::new(family.address(Role::Server(*number)), *port);
            writeln!(text, "[backends.pool.servers.s{number}]\naddr = \"{addr}\"\n{lines}").unwrap();
        }
        text
    }
}
