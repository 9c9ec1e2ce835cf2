//! Tracks which SNAT addresses servers see, and logs changes. Pure, except for the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use convey_forward::{SnatAddresses, SnatChoice, unused_snat_addresses};
use convey_model::NextHops;
use log::{info, warn};

/// Maximum number of servers that a log line lists.
const MAX_NAMED: usize = 3;

/// SNAT addresses that servers saw at the last check.
#[derive(Debug, Default)]
pub(super) struct SnatWatch {
    seen: BTreeMap<IpAddr, Vec<IpAddr>>,
    missing: BTreeSet<IpAddr>,
    /// Servers whose interface has addresses, but no SNAT address.
    far: BTreeSet<IpAddr>,
    /// Configured SNAT addresses that no server sees, with the reason.
    unused: BTreeMap<IpAddr, String>,
}

/// Line for the log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Warning(String),
    Info(String),
}

impl SnatWatch {
    /// Determines which SNAT addresses `servers` see now, and logs changes since the last call.
    pub(super) fn check(
        &mut self,
        network: &NextHops,
        servers: &BTreeSet<IpAddr>,
        choice: SnatChoice,
        addresses: SnatAddresses<'_>,
    ) {
        for line in self.lines(network, servers, choice, addresses) {
            match line {
                Line::Warning(text) => warn!("{text}"),
                Line::Info(text) => info!("{text}"),
            }
        }
    }

    fn lines(
        &mut self,
        network: &NextHops,
        servers: &BTreeSet<IpAddr>,
        choice: SnatChoice,
        addresses: SnatAddresses<'_>,
    ) -> Vec<Line> {
        let free = |server| choice.among_free(network, server, addresses);
        let addresses = addresses.all;
        let seen: BTreeMap<IpAddr, Vec<IpAddr>> = servers
            .iter()
            .map(|server| (*server, free(*server)))
            .filter(|(_, seen)| !seen.is_empty())
            .collect();
        let mut changes: BTreeMap<(&[IpAddr], &[IpAddr]), Vec<IpAddr>> = BTreeMap::new();
        for (server, now) in &seen {
            if let Some(before) = self.seen.get(server).filter(|before| *before != now) {
                changes.entry((&before[..], &now[..])).or_default().push(*server);
            }
        }
        let mut lines = Vec::new();
        for ((before, now), servers) in changes {
            let (before, now, servers) = (list(before), list(now), named(&servers));
            lines.push(Line::Info(format!(
                "new flows to {servers} get the SNAT address {now} instead of {before}"
            )));
        }
        let missing: BTreeSet<IpAddr> =
            seen.values().flatten().copied().filter(|ip| !network.is_own(*ip)).collect();
        for ip in missing.difference(&self.missing) {
            lines.push(Line::Warning(format!(
                "this host does not have the SNAT address {ip}: packets of servers to this address may not reach this host"
            )));
        }
        for ip in self.missing.difference(&missing).filter(|ip| network.is_own(**ip)) {
            lines.push(Line::Info(format!("this host has the SNAT address {ip} again")));
        }
        let far = servers.iter().copied().filter(|server| is_far(network, *server, addresses));
        let far: BTreeSet<IpAddr> = far.collect();
        let new: Vec<IpAddr> = far.difference(&self.far).copied().collect();
        if !new.is_empty() && choice == SnatChoice::Kernel {
            lines.push(Line::Warning(format!(
                "the interface that leads to {} had no SNAT address at the start, so packets of these servers may not come back: \
                 restart convey, or set passthrough.snat_addresses",
                named(&new)
            )));
        }
        let unused: BTreeMap<IpAddr, String> = match choice {
            SnatChoice::Named => unused_snat_addresses(network, servers, addresses).into_iter().collect(),
            SnatChoice::Kernel => BTreeMap::new(),
        };
        for (ip, reason) in unused.iter().filter(|(ip, reason)| self.unused.get(ip) != Some(reason)) {
            lines.push(Line::Warning(unused_line(*ip, reason)));
        }
        (self.seen, self.missing, self.far, self.unused) = (seen, missing, far, unused);
        lines
    }
}

/// Warning about a configured SNAT address that no server sees.
pub(super) fn unused_line(ip: IpAddr, reason: &str) -> String {
    format!("convey does not use the SNAT address {ip} (passthrough.snat_addresses): {reason}")
}

/// Whether the route to a server uses an interface that has addresses of the family, but none of
/// `addresses`.
fn is_far(network: &NextHops, server: IpAddr, addresses: &[IpAddr]) -> bool {
    let Some(hop) = network.hop_to(server) else { return false };
    let link = network.interfaces().iter().find(|link| link.index == hop.interface);
    let own = link.map_or(&[][..], |link| &link.details);
    let mut own =
        own.iter().filter(|own| own.ip.is_ipv4() == server.is_ipv4() && own.is_source(server)).peekable();
    let has_source = hop.source.is_some_and(|source| addresses.contains(&source));
    !has_source && own.peek().is_some() && own.all(|own| !addresses.contains(&own.ip))
}

/// Joins addresses for a log line: `10.0.0.1 or 10.0.0.2`.
fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}

/// The first of these servers, and the number of the others, for a log line.
pub(super) fn named(servers: &[IpAddr]) -> String {
    let first: Vec<String> = servers.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match servers.len().saturating_sub(MAX_NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::{interface, route};

    fn network(addresses: &[&str]) -> NextHops {
        NextHops::new(&[interface(1, addresses)], [route("10.1.0.0/24", 1, None)], &[])
    }

    #[test]
    fn server_behind_an_interface_without_snat_address_is_logged_once() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let links = [interface(1, &["10.1.0.1"]), interface(2, &["10.2.0.1"])];
        let routes = [route("10.1.0.0/24", 1, None), route("10.2.0.0/24", 2, None)];
        let network = NextHops::new(&links, routes, &[]);
        let mut watch = SnatWatch::default();
        let mut look = |servers: &[&str]| {
            let servers = servers.iter().map(|server| ip(server)).collect();
            watch.lines(&network, &servers, SnatChoice::Kernel, SnatAddresses::free(&[ip("10.1.0.1")])).len()
        };
        assert_eq!([look(&["10.1.0.9"]), look(&["10.1.0.9", "10.2.0.9"]), look(&["10.2.0.9"])], [0, 1, 0]);
    }

    #[test]
    fn named_address_that_no_server_sees_is_logged_once() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let links = [interface(1, &["10.1.0.1"]), interface(2, &["10.2.0.1"])];
        let routes = [route("10.1.0.0/24", 1, None), route("10.2.0.0/24", 2, None)];
        let network = NextHops::new(&links, routes, &[]);
        let addresses = ["10.1.0.1", "10.2.0.1"].map(ip);
        let mut watch = SnatWatch::default();
        let mut look = |servers: &[&str]| {
            let servers = servers.iter().map(|server| ip(server)).collect();
            watch.lines(&network, &servers, SnatChoice::Named, SnatAddresses::free(&addresses))
        };
        assert_eq!(look(&[]), []);
        let lines = look(&["10.1.0.9"]);
        let start =
            "convey does not use the SNAT address 10.2.0.1 (passthrough.snat_addresses): it belongs to";
        assert!(matches!(&lines[..], [Line::Warning(text)] if text.starts_with(start)), "{lines:?}");
        assert_eq!(look(&["10.1.0.9"]), []);
        assert_eq!(look(&["10.1.0.9", "10.2.0.9"]), []);
    }

    #[test]
    fn address_that_is_gone_is_logged_with_the_one_in_its_place() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let servers = BTreeSet::from([ip("10.1.0.8"), ip("10.1.0.9")]);
        let addresses = ["10.1.0.1", "10.1.0.5"].map(ip);
        let mut watch = SnatWatch::default();
        let mut look = |own: &[&str]| {
            watch.lines(&network(own), &servers, SnatChoice::Kernel, SnatAddresses::free(&addresses))
        };
        assert_eq!(look(&["10.1.0.5", "10.1.0.1"]), []);
        assert_eq!(look(&["10.1.0.5", "10.1.0.1"]), []);
        let line = "new flows to 10.1.0.8, 10.1.0.9 get the SNAT address 10.1.0.1 instead of 10.1.0.5";
        assert_eq!(look(&["10.1.0.1"]), [Line::Info(line.to_owned())]);
        let gone = look(&[]);
        assert!(
            gone.iter().any(|line| matches!(line, Line::Warning(text) if text.contains("10.1.0.1"))),
            "{gone:?}"
        );
        let back = look(&["10.1.0.1"]);
        assert!(
            back.contains(&Line::Info("this host has the SNAT address 10.1.0.1 again".to_owned())),
            "{back:?}"
        );
    }
}
