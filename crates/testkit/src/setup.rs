//! Configuration of a test.

use std::fmt;
use std::net::SocketAddr;

use super::Loopback;

/// A configuration with a frontend `web` in front of a backend `pool` whose servers are not probed,
/// and statistics. Lines can be added to each table.
#[derive(Clone)]
pub struct Setup {
    listen: String,
    stats: SocketAddr,
    frontend: String,
    backend: String,
    health: String,
    timeouts: String,
    servers: String,
    more: String,
}

impl Setup {
    /// Creates a configuration without servers, on the addresses of this network.
    pub fn new(lab: &Loopback) -> Setup {
        Setup {
            listen: format!("{:?}", lab.vip().to_string()),
            stats: lab.stats(),
            frontend: String::new(),
            backend: String::new(),
            health: "kind = \"none\"".to_owned(),
            timeouts: String::new(),
            servers: String::new(),
            more: String::new(),
        }
    }

    /// Sets several addresses of the frontend.
    pub fn listen(mut self, addrs: &[SocketAddr]) -> Setup {
        self.listen = format!("{:?}", addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>());
        self
    }

    /// Sets several addresses of the frontend, with ranges of ports.
    pub fn listen_on(mut self, places: &[String]) -> Setup {
        self.listen = format!("{places:?}");
        self
    }

    /// Adds lines to the frontend.
    pub fn frontend(mut self, lines: &str) -> Setup {
        self.frontend = lines.to_owned();
        self
    }

    /// Adds lines to the backend.
    pub fn backend(mut self, lines: &str) -> Setup {
        self.backend = lines.to_owned();
        self
    }

    /// Adds lines to the health check.
    pub fn health(mut self, lines: &str) -> Setup {
        self.health = lines.to_owned();
        self
    }

    /// Adds lines to the timeouts.
    pub fn timeouts(mut self, lines: &str) -> Setup {
        self.timeouts = lines.to_owned();
        self
    }

    /// Adds a server, with further lines.
    pub fn server(mut self, name: &str, addr: impl fmt::Display, lines: &str) -> Setup {
        self.servers.push_str(&format!("[backends.pool.servers.{name}]\naddr = \"{addr}\"\n{lines}\n"));
        self
    }

    /// Adds further tables.
    pub fn and(mut self, tables: &str) -> Setup {
        self.more.push_str(tables);
        self
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { listen, stats, frontend, backend, health, timeouts, servers, more } = self;
        let (ip, port) = (stats.ip(), stats.port());
        writeln!(f, "[frontends.web]\nlisten_addr = {listen}\nbackend = \"pool\"\n{frontend}")?;
        writeln!(f, "[backends.pool]\n{backend}\n[backends.pool.health_check]\n{health}\n{servers}")?;
        writeln!(f, "[timeouts]\n{timeouts}\n[stats]\nlisten_addr = \"{ip}\"\nport = {port}\n{more}")
    }
}
