//! What a reload cannot add to a process that runs. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::config::Config;
use crate::model::{Endpoint, Frontend, Listen, Mode};

/// What a process was started with.
pub(super) struct Started<'a> {
    /// Whether it proxies connections.
    pub(super) proxies: bool,
    /// Whether it forwards packets.
    pub(super) forwards: bool,
    /// Its addresses that servers see in passthrough mode.
    pub(super) snat_addresses: &'a [IpAddr],
    /// Where it has proxied connections, which may still be open.
    pub(super) proxied: &'a BTreeSet<Endpoint>,
}

impl Started<'_> {
    /// Why `wanted` can only take the place of `running` by a restart, in words for an operator.
    pub(super) fn refuse(&self, running: &Config, wanted: &Config) -> Option<String> {
        let forwarded = running.packet_frontends().flat_map(Frontend::endpoints).collect();
        wanted.frontends.iter().find_map(|frontend| {
            let why = self.obstacle(frontend, &forwarded)?;
            Some(format!("frontend {}: {} mode needs a restart: {why}", frontend.name, frontend.mode.name()))
        })
    }

    fn obstacle(&self, frontend: &Frontend, forwarded: &BTreeSet<Endpoint>) -> Option<String> {
        if frontend.mode == Mode::Proxy {
            return (!self.proxies).then(|| "no frontend was in it at the start".to_owned());
        }
        if !self.forwards {
            return Some("no frontend was in a packet mode at the start".to_owned());
        }
        let has_snat =
            |listen: &Listen| self.snat_addresses.iter().any(|ip| ip.is_ipv4() == listen.is_ipv4());
        if frontend.mode == Mode::Passthrough && !frontend.listen.iter().all(has_snat) {
            return Some("there was no SNAT address of its family at the start".to_owned());
        }
        // The host's stack would no longer see what belongs to connections that it has.
        let mut new = frontend.endpoints().filter(|listen| !forwarded.contains(listen));
        let taken = new.find(|listen| self.has_proxied(*listen))?;
        Some(format!("connections to {taken} that were proxied would be cut"))
    }

    fn has_proxied(&self, listen: Endpoint) -> bool {
        let wildcard =
            |addr: SocketAddr| addr.ip().is_unspecified() && addr.is_ipv4() == listen.addr.is_ipv4();
        let same = |addr: SocketAddr| {
            addr.port() == listen.addr.port() && (addr.ip() == listen.addr.ip() || wildcard(addr))
        };
        self.proxied.iter().any(|at| at.protocol == listen.protocol && same(at.addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const PROXY: &str = "proxy 10.0.0.1:80";

    /// A frontend a line: mode and address, and `udp` if it is.
    fn config(frontends: &[&str]) -> Config {
        let mut text = String::from("backends.pool.servers.a.addr = '10.0.0.9:80'\n");
        for (number, frontend) in frontends.iter().enumerate() {
            let (mode, addr) = frontend.split_once(' ').unwrap();
            let (addr, protocol) = addr.split_once(' ').unwrap_or((addr, "tcp"));
            text += &format!(
                "[frontends.f{number}]\nmode = '{mode}'\nprotocol = '{protocol}'\nlisten_addr = '{addr}'\n\
                 backend = 'pool'\n"
            );
        }
        parse("test.toml", &text).unwrap().config
    }

    /// What is said to a reload, where the process was started with the frontends that run.
    fn refused(running: &[&str], snat_address: &str, wanted: &[&str]) -> Option<String> {
        let running = config(running);
        let proxied = running.frontends_in(Mode::Proxy).flat_map(Frontend::endpoints).collect();
        let started = Started {
            proxies: running.frontends_in(Mode::Proxy).next().is_some(),
            forwards: running.packet_frontends().next().is_some(),
            snat_addresses: &[snat_address.parse().unwrap()],
            proxied: &proxied,
        };
        started.refuse(&running, &config(wanted))
    }

    #[test]
    fn a_frontend_in_a_mode_that_runs_needs_no_restart() {
        let both = [PROXY, "passthrough 10.0.0.1:81", "dsr 10.0.0.1:82"];
        assert_eq!(refused(&both[..2], "10.0.0.1", &both), None);
        assert_eq!(refused(&both, "10.0.0.1", &both[1..]), None);
    }

    #[test]
    fn the_first_frontend_of_a_kind_needs_one() {
        assert_eq!(
            refused(&[PROXY], "10.0.0.1", &[PROXY, "dsr 10.0.0.1:81"]).unwrap(),
            "frontend f1: dsr mode needs a restart: no frontend was in a packet mode at the start"
        );
        assert_eq!(
            refused(&["dsr 10.0.0.1:81"], "10.0.0.1", &["dsr 10.0.0.1:81", PROXY]).unwrap(),
            "frontend f1: proxy mode needs a restart: no frontend was in it at the start"
        );
        assert_eq!(
            refused(&["dsr 10.0.0.1:81"], "2001:db8::1", &["passthrough 10.0.0.1:81"]).unwrap(),
            "frontend f0: passthrough mode needs a restart: there was no SNAT address of its family at the start"
        );
    }

    #[test]
    fn what_was_proxied_is_not_taken_away_from_its_connections() {
        let refused = |proxied: &str, taken: &str| {
            let other = "dsr 10.0.0.1:82";
            refused(&[proxied, other], "10.0.0.1", &[other, taken])
        };
        let why = "frontend f1: dsr mode needs a restart: connections to 10.0.0.1:80 that were proxied would be cut";
        assert_eq!(refused(PROXY, "dsr 10.0.0.1:80").unwrap(), why);
        assert_eq!(refused("proxy 0.0.0.0:80", "dsr 10.0.0.1:80").unwrap(), why);
        for beside in ["dsr 10.0.0.1:80 udp", "dsr 10.0.0.1:81", "dsr 10.0.0.2:80"] {
            assert_eq!(refused(PROXY, beside), None, "{beside}");
        }
        assert_eq!(refused("proxy [::]:80", "dsr 10.0.0.1:80"), None);
        let why = "frontend f1: dsr mode needs a restart: connections to 10.0.0.1:80/udp that were proxied would be cut";
        assert_eq!(refused("proxy 0.0.0.0:80 udp", "dsr 10.0.0.1:80 udp").unwrap(), why);
    }

    #[test]
    fn an_address_beside_a_wildcard_from_the_start_stays() {
        let both = ["proxy 0.0.0.0:80", "dsr 10.0.0.1:80"];
        assert_eq!(refused(&both, "10.0.0.1", &both), None);
    }
}
