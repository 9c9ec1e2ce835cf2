//! Reads interfaces, routes, neighbours and sockets from `ip` and `ss`.

use std::fs;
use std::net::IpAddr;

use serde_json::Value as Json;

use crate::iproute::{addresses, ip, output};
use crate::server::facts::{HostLink, ReplyRoute, ServerSocket};

pub(super) fn links() -> Result<Vec<HostLink>, String> {
    Ok(ip(&["addr", "show", "up"])?.iter().map(link).collect())
}

/// Route to an address; `None` if there is no route.
pub(super) fn route_to(to: IpAddr, from: Option<IpAddr>) -> Result<Option<ReplyRoute>, String> {
    let (to, from) = (to.to_string(), from.map(|ip| ip.to_string()));
    let mut arguments = vec!["route", "get", &to];
    arguments.extend(from.iter().flat_map(|from| ["from", from.as_str()]));
    // The command fails if there is no route.
    let Ok(routes) = ip(&arguments) else { return Ok(None) };
    let way = |route: &Json| {
        let address = |key: &str| route[key].as_str().and_then(|text| text.parse().ok());
        let is_unicast = route["type"].as_str().is_none_or(|kind| kind == "unicast");
        let interface = route["dev"].as_str().filter(|_| is_unicast)?.to_owned();
        // The gateway may be of the other family; then it is in `via`.
        let via = || route["via"]["host"].as_str().and_then(|text| text.parse().ok());
        Some(ReplyRoute { interface, router: address("gateway").or_else(via), source: address("prefsrc") })
    };
    Ok(routes.first().and_then(way).filter(|way| way.interface != "lo"))
}

pub(super) fn has_routers(vip: IpAddr) -> Result<bool, String> {
    let version = if vip.is_ipv4() { "-4" } else { "-6" };
    let routes = ip(&[version, "route", "show"])?;
    Ok(routes.iter().any(|route| route.get("gateway").is_some() || route.get("nexthops").is_some()))
}

/// Neighbours whose Ethernet address is known.
pub(super) fn neighbours() -> Result<Vec<(IpAddr, String)>, String> {
    let known = |it: &Json| Some((it["dst"].as_str()?.parse().ok()?, it["lladdr"].as_str()?.to_owned()));
    Ok(ip(&["neigh", "show"])?.iter().filter_map(known).collect())
}

/// Listening sockets.
pub(super) fn sockets() -> Result<Vec<ServerSocket>, String> {
    Ok(output("ss", &["-H", "-l", "-n", "-t", "-u", "-p"])?.lines().filter_map(socket).collect())
}

/// Port of the socket that decapsulates GUE, in either family, from a line such as `port 6080 gue`.
/// `None` if the module `fou` is missing.
pub(super) fn gue_port() -> Option<u16> {
    let port = |line: &str| line.strip_prefix("port ")?.split_once(" gue")?.0.trim().parse().ok();
    let of = |family: &str| {
        output("ip", &[family, "fou", "show"]).ok()?.lines().find_map(|line| port(line.trim()))
    };
    of("-4").or_else(|| of("-6"))
}

fn link(it: &Json) -> HostLink {
    let name = it["ifname"].as_str().unwrap_or_default().to_owned();
    let setting = |setting: &str| {
        let of = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/{setting}")).ok()?;
            text.trim().parse::<u8>().ok()
        };
        of("all").max(of(&name)).unwrap_or(0)
    };
    HostLink {
        is_loopback: it["link_type"] == "loopback",
        mtu: it["mtu"].as_u64().and_then(|mtu| mtu.try_into().ok()).unwrap_or(0),
        addresses: addresses(it),
        index: it["ifindex"].as_u64().and_then(|index| index.try_into().ok()).unwrap_or(0),
        mac: it["address"].as_str().and_then(mac),
        arp_ignore: setting("arp_ignore"),
        arp_announce: setting("arp_announce"),
        rp_filter: setting("rp_filter"),
        name,
    }
}

/// Parses an Ethernet address, such as `02:00:0a:4d:00:01`.
fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().ok()
}

/// Parses a line of `ss`, such as `tcp LISTEN 0 511 10.0.0.11:80 0.0.0.0:*
/// users:(("nginx",pid=12,fd=6))`.
fn socket(line: &str) -> Option<ServerSocket> {
    let mut fields = line.split_whitespace();
    let (protocol, local) = (fields.next()?.to_owned(), fields.nth(3)?);
    let (address, port) = local.rsplit_once(':')?;
    // If the socket is bound to an interface, `%` and the name of the interface follow the address.
    let address = address.split('%').next()?.trim_matches(['[', ']']);
    let address = if address == "*" { None } else { Some(address.parse().ok()?) };
    let process = fields.nth(1).and_then(process).unwrap_or_else(|| "a process".to_owned());
    Some(ServerSocket { protocol, address, port: port.parse().ok()?, process })
}

fn process(users: &str) -> Option<String> {
    let (name, rest) = users.split_once("((\"")?.1.split_once('"')?;
    let number = rest.split_once("pid=")?.1.split(',').next()?;
    Some(format!("{name} (process {number})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_as_ss_prints_them() {
        for (line, address, port, process) in [
            (
                "tcp   LISTEN 0      511    10.77.0.11:80   0.0.0.0:*    users:((\"nginx\",pid=12,fd=6),(\"nginx\",pid=13,fd=6))",
                Some("10.77.0.11"),
                80,
                "nginx (process 12)",
            ),
            ("tcp LISTEN 0 128 *:22 *:* users:((\"sshd\",pid=1,fd=3))", None, 22, "sshd (process 1)"),
            ("tcp LISTEN 0 128 [::]:443 [::]:*", Some("::"), 443, "a process"),
            ("udp UNCONN 0 0 127.0.0.53%lo:53 0.0.0.0:*", Some("127.0.0.53"), 53, "a process"),
            ("udp UNCONN 0 0 [fe80::1]%eth0:546 [::]:*", Some("fe80::1"), 546, "a process"),
        ] {
            let read = socket(line).unwrap();
            assert_eq!((read.address, read.port), (address.map(|ip| ip.parse().unwrap()), port));
            assert_eq!(read.process, process);
        }
        assert_eq!(socket(""), None);
    }
}
