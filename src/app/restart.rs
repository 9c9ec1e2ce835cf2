//! Detects changes of the configuration that need a restart, because a reload cannot apply them.
//! Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use convey_config::Config;
use convey_forward::PortSplit;
use convey_model::{Endpoint, FrontendConfig, Listen, Mode, overlap};

/// Properties of the process that cannot change after its start.
pub(super) struct Started<'a> {
    /// Whether the process proxies connections.
    pub(super) proxies: bool,
    /// Whether the process forwards packets.
    pub(super) forwards: bool,
    /// SNAT addresses that servers see in passthrough mode.
    pub(super) snat: Option<Snat<'a>>,
    /// Endpoints on which connections were proxied. Some of these connections may still be open.
    pub(super) proxied: &'a BTreeSet<Endpoint>,
}

/// Addresses and ports that servers see in place of the client's.
#[derive(Clone, Copy)]
pub(super) struct Snat<'a> {
    pub(super) addresses: &'a [IpAddr],
    /// Division of the ports among the workers.
    pub(super) split: &'a PortSplit,
}

impl Snat<'_> {
    /// SNAT ports that these frontends listen on.
    fn taken_by<'b>(self, frontends: impl IntoIterator<Item = &'b FrontendConfig>) -> BTreeSet<u16> {
        let listen = frontends.into_iter().flat_map(|frontend| &frontend.listen);
        let ports = listen.filter(|listen| self.addresses.contains(&listen.ip())).flat_map(Listen::ports);
        ports.filter(|port| self.split.owner(*port).is_some()).collect()
    }
}

impl Started<'_> {
    /// Operator-facing reason why the change from `running` to `wanted` needs a restart. `None` if
    /// a reload can apply it.
    pub(super) fn refuse(&self, running: &Config, wanted: &Config) -> Option<String> {
        let forwarded =
            running.frontends_where(Mode::forwards_packets).flat_map(FrontendConfig::endpoints).collect();
        let of_mode = wanted.frontends.iter().find_map(|frontend| {
            let why = self.obstacle(frontend, &forwarded)?;
            Some(format!("frontend {}: {} mode needs a restart: {why}", frontend.name, frontend.mode.name()))
        });
        of_mode.or_else(|| self.lack_of_ports(running, wanted)).or_else(|| new_root(running, wanted))
    }

    /// Reason if the ports of new frontends leave a worker without SNAT ports. A port of a frontend
    /// at a SNAT address cannot be a SNAT port; a restart would divide the remaining ports anew.
    /// Frontends that `wanted` removes keep their ports while they drain.
    fn lack_of_ports(&self, running: &Config, wanted: &Config) -> Option<String> {
        let snat = self.snat?;
        let mut taken = snat.taken_by(&running.frontends);
        if snat.split.fewest_without(&taken) == 0 {
            // A worker lacks ports already, and a reload can only free some.
            return None;
        }
        let all = snat.taken_by(running.frontends.iter().chain(&wanted.frontends));
        if snat.split.fewest_without(&all) > 0 {
            return None;
        }
        wanted.frontends.iter().find_map(|frontend| {
            let before = taken.len();
            taken.extend(snat.taken_by([frontend]));
            if taken.len() == before {
                return None;
            }
            let message = "its ports need a restart: they are SNAT ports of this process now, and without them one of its threads would have no SNAT port";
            (snat.split.fewest_without(&taken) == 0).then(|| format!("frontend {}: {message}", frontend.name))
        })
    }

    fn obstacle(&self, frontend: &FrontendConfig, forwarded: &BTreeSet<Endpoint>) -> Option<String> {
        match frontend.mode {
            Mode::Proxy | Mode::Http => {
                (!self.proxies).then(|| "no frontend was in proxy or http mode at the start".to_owned())
            }
            Mode::Passthrough | Mode::Dsr => self.obstacle_to_packets(frontend, forwarded),
        }
    }

    fn obstacle_to_packets(
        &self,
        frontend: &FrontendConfig,
        forwarded: &BTreeSet<Endpoint>,
    ) -> Option<String> {
        if !self.forwards {
            return Some("no frontend was in a packet mode at the start".to_owned());
        }
        let addresses = self.snat.map_or(&[][..], |snat| snat.addresses);
        let has_snat = |listen: &Listen| addresses.iter().any(|ip| ip.is_ipv4() == listen.is_ipv4());
        if frontend.mode.has_snat() && !frontend.listen.iter().all(has_snat) {
            return Some(
                "convey had no SNAT address of the frontend's address family at the start".to_owned(),
            );
        }
        // The host's stack has open connections at this endpoint. Their packets would no longer
        // reach it.
        let mut new = frontend.endpoints().filter(|listen| !forwarded.contains(listen));
        let taken = new.find(|listen| self.has_proxied(*listen))?;
        Some(format!("a reload would cut the proxied connections to {taken}"))
    }

    fn has_proxied(&self, listen: Endpoint) -> bool {
        self.proxied.iter().any(|at| at.protocol == listen.protocol && overlap(at.addr, listen.addr))
    }
}

/// Reason why a new files directory needs a restart under Landlock; `None` if no directory is new.
/// A directory needs a restart even if the process can already read it: otherwise a reload could
/// serve system directories such as /etc, which the process may read only for its own use.
fn new_root(running: &Config, wanted: &Config) -> Option<String> {
    if !running.privileges.landlock {
        return None;
    }
    let roots = |config: &'_ Config| -> Vec<PathBuf> {
        config.backends.iter().filter_map(|backend| Some(backend.files.as_ref()?.root.clone())).collect()
    };
    let before = roots(running);
    let is_new = |root: &PathBuf| !before.iter().any(|served| root.starts_with(served));
    let root = roots(wanted).into_iter().find(is_new)?;
    let root = root.display();
    Some(format!(
        "files {root} need a restart: with privileges.landlock, a reload can only serve directories that convey serves already"
    ))
}

/// Removes the frontends of packet modes, which the process has handed over to another process.
pub(super) fn without_packets(config: &Config) -> Config {
    let mut config = config.clone();
    config.frontends.retain(|frontend| frontend.mode.is_proxied());
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_config::parse;

    const PROXY: &str = "proxy 10.0.0.1:80";

    /// Configuration with one frontend per element: mode and address, followed by `udp` for UDP.
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

    /// Reason why a reload from `running` to `wanted` is refused. The process was started with the
    /// frontends in `running`.
    fn refused(running: &[&str], snat_address: &str, wanted: &[&str]) -> Option<String> {
        let running = config(running);
        let proxied = running.frontends_where(Mode::is_proxied).flat_map(FrontendConfig::endpoints).collect();
        let split = PortSplit::new(40_000..=40_008, 3).without([40_000]);
        let started = Started {
            proxies: running.frontends_where(Mode::is_proxied).next().is_some(),
            forwards: running.frontends_where(Mode::forwards_packets).next().is_some(),
            snat: Some(Snat { addresses: &[snat_address.parse().unwrap()], split: &split }),
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
            "frontend f1: proxy mode needs a restart: no frontend was in proxy or http mode at the start"
        );
        assert_eq!(
            refused(&["dsr 10.0.0.1:81"], "2001:db8::1", &["passthrough 10.0.0.1:81"]).unwrap(),
            "frontend f0: passthrough mode needs a restart: convey had no SNAT address of the frontend's address family at the start"
        );
    }

    #[test]
    fn proxied_address_needs_a_restart_to_become_dsr() {
        let refused = |proxied: &str, taken: &str| {
            let other = "dsr 10.0.0.1:82";
            refused(&[proxied, other], "10.0.0.1", &[other, taken])
        };
        let why = "frontend f1: dsr mode needs a restart: a reload would cut the proxied connections to 10.0.0.1:80";
        assert_eq!(refused(PROXY, "dsr 10.0.0.1:80").unwrap(), why);
        assert_eq!(refused("proxy 0.0.0.0:80", "dsr 10.0.0.1:80").unwrap(), why);
        for beside in ["dsr 10.0.0.1:80 udp", "dsr 10.0.0.1:81", "dsr 10.0.0.2:80"] {
            assert_eq!(refused(PROXY, beside), None, "{beside}");
        }
        assert_eq!(refused("proxy [::]:80", "dsr 10.0.0.1:80"), None);
        let why = "frontend f1: dsr mode needs a restart: a reload would cut the proxied connections to 10.0.0.1:80/udp";
        assert_eq!(refused("proxy 0.0.0.0:80 udp", "dsr 10.0.0.1:80 udp").unwrap(), why);
    }

    #[test]
    fn ports_that_would_leave_a_worker_none_for_snat_need_a_restart() {
        let web = "passthrough 10.0.0.7:80";
        let added = |ports: &str| {
            let range = format!("passthrough 10.0.0.1:{ports}");
            refused(&[web, PROXY], "10.0.0.1", &[web, PROXY, &range])
        };
        let why = "frontend f2: its ports need a restart: they are SNAT ports of this process now, and without them one of \
                   its threads would have no SNAT port";
        for all_of_a_worker in ["40001-40002", "40003-40005", "40002-40006", "40006-40010"] {
            assert_eq!(added(all_of_a_worker).as_deref(), Some(why), "{all_of_a_worker}");
        }
        for some in ["40000-40001", "40004-40007", "40009-40019"] {
            assert_eq!(added(some), None, "{some}");
        }
        let elsewhere = "passthrough 10.0.0.2:40000-40008";
        assert_eq!(refused(&[web], "10.0.0.1", &[web, elsewhere]), None);
        let proxied = refused(&[web, PROXY], "10.0.0.1", &[web, PROXY, "proxy 10.0.0.1:40003-40005"]);
        assert_eq!(proxied.as_deref(), Some(why), "in whatever mode");
    }

    #[test]
    fn ports_that_drain_are_not_for_snat_yet() {
        let at = |ports: &str| format!("passthrough 10.0.0.1:{ports}");
        let refused = |before: &str, after: &str| refused(&[&at(before)], "10.0.0.1", &[&at(after)]);
        assert!(refused("40003-40004", "40005-40006").is_some());
        assert_eq!(refused("40003-40005", "40003-40004"), None, "what helps is not refused");
    }

    #[test]
    fn an_address_beside_a_wildcard_from_the_start_stays() {
        let both = ["proxy 0.0.0.0:80", "dsr 10.0.0.1:80"];
        assert_eq!(refused(&both, "10.0.0.1", &both), None);
    }

    #[test]
    fn reload_with_landlock_serves_no_directory_that_was_not_served() {
        let none = BTreeSet::new();
        let started = Started { proxies: true, forwards: false, snat: None, proxied: &none };
        let with = |landlock: bool, root: &str| {
            let text = format!(
                "privileges.landlock = {landlock}\nbackends.pool.files = '{root}'\n\
                 [frontends.web]\nmode = 'http'\nlisten_addr = '10.0.0.1:80'\nbackend = 'pool'\n"
            );
            parse("config.toml", &text).unwrap().config
        };
        let running = with(true, "/srv/www");
        for root in ["/srv/www", "/srv/www/sub"] {
            assert_eq!(started.refuse(&running, &with(true, root)), None);
        }
        for root in ["/etc", "/srv", "/srv/www2"] {
            let refused = started.refuse(&running, &with(true, root)).unwrap();
            assert!(refused.starts_with(&format!("files {root} need a restart")), "{refused}");
        }
        assert_eq!(started.refuse(&with(false, "/srv/www"), &with(false, "/etc")), None);
    }
}
