//! Checks of kernel settings and counters: rp_filter, arp_ignore, conntrack.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use convey_model::{Listen, Mode};

use super::Host;
use super::vip::{holder, vips};
use crate::{Diagnosis, iproute};

/// Kernel settings and counters from `/proc`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KernelFacts {
    /// Effective `rp_filter` of each interface.
    pub(super) rp_filter: BTreeMap<String, u8>,
    /// Effective `arp_ignore` of each interface.
    pub(super) arp_ignore: BTreeMap<String, u8>,
    /// Packets that rp_filter has dropped so far.
    pub(super) reverse_path_drops: u64,
    /// Number of connections in conntrack, and its limit; `None` if conntrack is not loaded.
    pub(super) conntrack: Option<(u64, u64)>,
}

impl KernelFacts {
    /// Reads the current settings and counters.
    pub(super) fn read() -> KernelFacts {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let conntrack = |name| number(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
        let netstat = fs::read_to_string("/proc/net/netstat").unwrap_or_default();
        KernelFacts {
            rp_filter: per_interface("rp_filter"),
            arp_ignore: per_interface("arp_ignore"),
            reverse_path_drops: counter(&netstat, "IPReversePathFilter").unwrap_or_default(),
            conntrack: conntrack("count").zip(conntrack("max")),
        }
    }
}

/// Effective value of a setting on each interface: the larger of the interface's value and the
/// value of `all`.
fn per_interface(name: &str) -> BTreeMap<String, u8> {
    const FOLDER: &str = "/proc/sys/net/ipv4/conf";
    let value = |interface: &str| -> Option<u8> {
        fs::read_to_string(format!("{FOLDER}/{interface}/{name}")).ok()?.trim().parse().ok()
    };
    let all = value("all").unwrap_or_default();
    let folders = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names = folders.filter_map(|folder| folder.file_name().into_string().ok());
    let real = names.filter(|name| !["all", "default", "lo"].contains(&name.as_str()));
    real.filter_map(|interface| Some((value(&interface)?.max(all), interface)))
        .map(|(value, interface)| (interface, value))
        .collect()
}

/// Counter of `/proc/net/netstat`, which consists of pairs of lines: names and values.
fn counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).find_map(|pair| {
        let [names, values] = pair else { return None };
        let at = names.split(' ').position(|of| of == name)?;
        values.split(' ').nth(at)?.parse().ok()
    })
}

/// Findings for settings that keep packets from arriving. The facts were read before and after
/// doctor probed the servers.
pub(super) fn diagnose(
    host: &Host<'_>,
    (before, after): (&KernelFacts, &KernelFacts),
    is_a_server_silent: bool,
) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = Vec::new();
    let matters = is_a_server_silent || host.config.frontends_where(Mode::is_proxied).next().is_some();
    let dropped = reverse_path(before, after).filter(|_| matters);
    if dropped.is_none() {
        found.extend(second_leg(host, after, egress_interface));
    }
    found.extend(dropped);
    found.extend(unanswered(host, after));
    found.extend(after.conntrack.and_then(|(count, max)| conntrack(count, max)));
    found
}

/// Finding for packets dropped by a strict rp_filter. Packet modes receive packets before rp_filter
/// does, so the setting matters only for proxy mode and health checks.
fn reverse_path(before: &KernelFacts, after: &KernelFacts) -> Option<Diagnosis> {
    let dropped = after.reverse_path_drops.saturating_sub(before.reverse_path_drops);
    let strict: Vec<&String> =
        after.rp_filter.iter().filter(|(_, value)| **value == 1).map(|(interface, _)| interface).collect();
    if dropped == 0 || strict.is_empty() {
        return None;
    }
    let names: Vec<&str> = strict.iter().map(|name| name.as_str()).collect();
    let seen = format!(
        "rp_filter dropped {dropped} packets during this check; it is strict (1) on {}",
        names.join(", ")
    );
    let why = "A strict rp_filter drops packets that arrive on another interface than the one through which answers leave. If clients or \
               servers have two paths to this host, rp_filter has to be loose (2).";
    let settings: Vec<String> =
        names.iter().map(|name| format!("net.ipv4.conf.{name}.rp_filter=2")).collect();
    Some(Diagnosis::error("rp-filter", seen, why).fix(format!("sysctl -w {}", settings.join(" "))))
}

/// Interface on which this host sends answers from a VIP to the address `to`.
fn egress_interface(vip: IpAddr, to: IpAddr) -> Option<String> {
    let found = iproute::ip(&["route", "get", &to.to_string(), "from", &vip.to_string()]).ok()?;
    Some(found.first()?["dev"].as_str()?.to_owned())
}

/// Finding for interfaces that have a VIP and a strict rp_filter, if answers to clients on other
/// networks leave by another interface.
fn second_leg(
    host: &Host<'_>,
    facts: &KernelFacts,
    egress_interface: impl Fn(IpAddr, IpAddr) -> Option<String>,
) -> Option<Diagnosis> {
    let far = super::FAR.into_iter().find(IpAddr::is_ipv4)?;
    let mut found: BTreeMap<&str, (IpAddr, String)> = BTreeMap::new();
    for frontend in host.config.frontends_where(Mode::is_proxied) {
        for vip in frontend.listen.iter().filter(|listen| listen.is_ipv4()).map(Listen::ip) {
            let Some(link) = holder(&host.tables.interfaces, vip) else { continue };
            let is_strict = facts.rp_filter.get(&link.name) == Some(&1);
            if !is_strict || link.loopback || link.mac.is_none() || found.contains_key(&*link.name) {
                continue;
            }
            if let Some(exit) = egress_interface(vip, far).filter(|exit| *exit != link.name) {
                found.insert(&link.name, (vip, exit));
            }
        }
    }
    let (name, (vip, exit)) = found.first_key_value()?;
    let seen = format!(
        "rp_filter is strict (1) on {name}, which has the VIP {vip}, but answers to clients on other networks leave through {exit}"
    );
    let why = "The kernel drops packets of these clients that arrive on the interface of the VIP. If clients have two paths to this \
               host, rp_filter has to be loose (2).";
    let settings: Vec<String> =
        found.keys().map(|name| format!("net.ipv4.conf.{name}.rp_filter=2")).collect();
    Some(Diagnosis::warning("rp-filter", seen, why).fix(format!("sysctl -w {}", settings.join(" "))))
}

/// Findings for VIPs whose interface answers no ARP request.
fn unanswered(host: &Host<'_>, facts: &KernelFacts) -> Vec<Diagnosis> {
    const NEVER: u8 = 8;
    let judge = |vip| {
        let name = &holder(&host.tables.interfaces, vip)?.name;
        if vip.is_ipv6() || facts.arp_ignore.get(name) != Some(&NEVER) {
            return None;
        }
        let seen = format!("arp_ignore = 8 on {name}, the interface with the VIP {vip}");
        let why = "This host answers no ARP requests on this interface, so clients and routers on the link do not find the VIP.";
        let all = "net.ipv4.conf.all.arp_ignore=0";
        Some(
            Diagnosis::error("arp-ignore", seen, why)
                .fix(format!("sysctl -w {all} net.ipv4.conf.{name}.arp_ignore=0")),
        )
    };
    vips(host).into_iter().filter_map(judge).collect()
}

fn conntrack(count: u64, max: u64) -> Option<Diagnosis> {
    if max == 0 || count * 100 < max * 95 {
        return None;
    }
    let seen = format!("conntrack tracks {count} connections of at most {max}");
    let why = "Once the table is full, the kernel drops packets of new connections (\"nf_conntrack: table full\" in its log).";
    let fix = format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(4));
    Some(Diagnosis::error("conntrack-full", seen, why).fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_name() {
        let text =
            "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 1 22\nIpExt: InNoRoutes X\nIpExt: 3 4\n";
        assert_eq!(counter(text, "IPReversePathFilter"), Some(22));
        assert_eq!(counter(text, "X"), Some(4));
        assert_eq!(counter(text, "Y"), None);
    }

    #[test]
    fn conntrack_is_told_of_before_it_is_full() {
        assert_eq!(conntrack(94_999, 100_000), None);
        assert_eq!(conntrack(10, 0), None);
        let found = conntrack(95_000, 100_000).unwrap();
        assert_eq!(found.fix, ["sysctl -w net.netfilter.nf_conntrack_max=400000"]);
    }
}
