//! Configurations for tests.

use std::fmt;
use std::net::SocketAddr;

use super::Loopback;

/// Configuration with a frontend `web`, a backend `pool` whose servers have no health checks, and
/// statistics. Tests can add lines to each table.
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
    /// Creates a configuration without servers. Its addresses belong to the network of `lab`.
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

    /// Creates a configuration in mode `http` with the server `a` at `lab.server(1)`.
    pub fn http(lab: &Loopback) -> Setup {
        Setup::new(lab).frontend("mode = \"http\"").server("a", lab.server(1), "")
    }

    /// Replaces the frontend's address by these addresses.
    pub fn listen(mut self, addrs: &[SocketAddr]) -> Setup {
        self.listen = format!("{:?}", addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>());
        self
    }

    /// Replaces the frontend's address by these addresses, which may contain port ranges.
    pub fn listen_on(mut self, places: &[String]) -> Setup {
        self.listen = format!("{places:?}");
        self
    }

    /// Sets additional lines of the frontend.
    pub fn frontend(mut self, lines: &str) -> Setup {
        self.frontend = lines.to_owned();
        self
    }

    /// Sets additional lines of the backend.
    pub fn backend(mut self, lines: &str) -> Setup {
        self.backend = lines.to_owned();
        self
    }

    /// Sets the lines of the health check, in place of `kind = "none"`.
    pub fn health(mut self, lines: &str) -> Setup {
        self.health = lines.to_owned();
        self
    }

    /// Sets additional lines of the timeouts.
    pub fn timeouts(mut self, lines: &str) -> Setup {
        self.timeouts = lines.to_owned();
        self
    }

    /// Adds a server, with additional lines.
    pub fn server(mut self, name: &str, addr: impl fmt::Display, lines: &str) -> Setup {
        self.servers.push_str(&format!("[backends.pool.servers.{name}]\naddr = \"{addr}\"\n{lines}\n"));
        self
    }

    /// Adds tables at the end of the configuration.
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
