//! IPv6 that is disabled in the kernel although the configuration uses it. The judgement is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use convey_model::Interface;

use super::vip::{holder, vips};
use super::{Explained, Host};
use crate::Diagnosis;

const FOLDER: &str = "/proc/sys/net/ipv6/conf";

/// Whether IPv6 is disabled (`disable_ipv6`), for each interface; `None` if the kernel has no IPv6.
pub(super) fn read() -> Option<BTreeMap<String, bool>> {
    let names =
        fs::read_dir(FOLDER).ok()?.flatten().filter_map(|folder| folder.file_name().into_string().ok());
    let value = |name: String| {
        let text = fs::read_to_string(format!("{FOLDER}/{name}/disable_ipv6")).ok()?;
        Some((name, text.trim() == "1"))
    };
    Some(names.filter_map(value).collect())
}

/// Findings for interfaces without IPv6 that frontends or servers with IPv6 addresses need. VIPs
/// and servers that are missing for that reason are added to `explained`. `passed` are the
/// interfaces that the configuration uses.
pub(super) fn examine(
    host: &Host<'_>,
    disabled: Option<&BTreeMap<String, bool>>,
    passed: &BTreeSet<String>,
    explained: &mut Explained,
) -> Vec<Diagnosis> {
    let mut listens = host.config.frontends.iter().flat_map(|frontend| &frontend.listen);
    let is_wanted = listens.any(|listen| !listen.is_ipv4());
    let is_lost = |ip: &IpAddr| ip.is_ipv6() && !ip.is_loopback() && host.network.hop_to(*ip).is_none();
    let is_held = |vip: &IpAddr| holder(&host.tables.interfaces, *vip).is_some();
    let missing: Vec<IpAddr> = vips(host).into_iter().filter(|vip| is_lost(vip) && !is_held(vip)).collect();
    let servers = host.servers.iter().map(|server| server.addr.ip());
    let lost: Vec<IpAddr> = servers.filter(is_lost).collect();
    if !is_wanted && lost.is_empty() {
        return Vec::new();
    }
    let Some(disabled) = disabled else {
        explained.vips.extend(missing);
        explained.servers.extend(lost);
        let seen = "IPv6 is disabled in the kernel, but the configuration has IPv6 addresses";
        let why = "Remove `ipv6.disable=1` from the kernel command line, and reboot this host.";
        return vec![Diagnosis::error("ipv6-disabled", seen, why)];
    };
    let is_off = |link: &&Interface| disabled.get(&link.name).copied().unwrap_or_default();
    let real =
        || host.tables.interfaces.iter().filter(|link| link.mac.is_some() && !link.loopback && link.up);
    let off: Vec<&Interface> = real().filter(is_off).collect();
    let of_ours: Vec<&Interface> = off.iter().copied().filter(|link| passed.contains(&link.name)).collect();
    // On other interfaces, such as bridges of containers, IPv6 may be off on purpose.
    let is_elsewhere = of_ours.is_empty() && off.len() < real().count();
    // Clients reach a wildcard address through any interface with IPv6.
    let is_reached = missing.is_empty() && lost.is_empty() && off.len() < real().count();
    if off.is_empty() || is_elsewhere || is_reached {
        return Vec::new();
    }
    let off = if of_ours.is_empty() { off } else { of_ours };
    explained.vips.extend(missing.iter().copied());
    explained.servers.extend(lost);
    vec![diagnosis(&off, &missing)]
}

fn diagnosis(off: &[&Interface], vips: &[IpAddr]) -> Diagnosis {
    let names: Vec<&str> = off.iter().map(|link| link.name.as_str()).collect();
    let seen = format!("IPv6 is disabled (`disable_ipv6`) on {}", names.join(", "));
    let why = "The IPv6 addresses in the configuration cannot be reached. The setting has also removed other IPv6 addresses and routes: \
               configure them again, as at boot.";
    let settings: Vec<String> =
        names.iter().map(|name| format!("net.ipv6.conf.{name}.disable_ipv6=0")).collect();
    let mut found =
        Diagnosis::error("ipv6-disabled", seen, why).fix(format!("sysctl -w {}", settings.join(" ")));
    // With several interfaces, doctor cannot know which of them should have the VIP.
    if let [name] = names[..] {
        for vip in vips {
            found = found.fix(format!("ip -6 addr add {vip}/128 dev {name} nodad preferred_lft 0"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_turn_ipv6_on_and_bring_back_the_vip() {
        let eth = |n: u8| Interface::ethernet(n.into(), &format!("eth{n}"), [n; 6], Vec::new());
        let vip = ["fd00::100".parse().unwrap()];
        let found = diagnosis(&[&eth(0)], &vip);
        let add = "ip -6 addr add fd00::100/128 dev eth0 nodad preferred_lft 0";
        assert_eq!(found.fix, ["sysctl -w net.ipv6.conf.eth0.disable_ipv6=0", add]);
        let found = diagnosis(&[&eth(0), &eth(1)], &vip);
        assert_eq!(
            found.fix,
            ["sysctl -w net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.eth1.disable_ipv6=0"]
        );
    }
}
