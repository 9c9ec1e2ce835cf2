//! Source NAT rules of this host that may pick convey's SNAT ports for other connections, such as
//! connections of containers or of networks behind this host.
//!
//! If such a connection goes to a server of passthrough, convey's guard drops the answers, because
//! they look like answers to convey's clients. [`of_host`] lists the rules of the host, `diagnose`
//! is pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use convey_config::Config;
use convey_model::{FrontendConfig, Interface, Listen, Mode, NextHops, Protocol};

use super::Diagnosis;
use super::ruleset::{CollidingRule, JudgedPacket, OwnPorts, PacketEnd, Ruleset};

/// Maximum wait for `nft` and `iptables-save` at the start. Kubernetes nodes have many rules.
const LISTING_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of servers for which the rules are evaluated. A rule for a single server is rare.
const MAX_SERVERS: usize = 1024;

/// Maximum number of servers named in a message.
const MAX_NAMED: usize = 4;

/// Findings for rules of this host that may pick convey's SNAT ports. Empty if the host does not
/// forward packets or does not track connections.
pub fn of_host(config: &Config, snat_addresses: &[IpAddr], network: &NextHops) -> Vec<Diagnosis> {
    if !translates(config) {
        return Vec::new();
    }
    let (sender, rules) = mpsc::channel();
    let listing = thread::Builder::new().name("rules".to_owned());
    if listing.spawn(move || sender.send(Ruleset::of_host().0)).is_err() {
        return Vec::new();
    }
    let rules = rules.recv_timeout(LISTING_TIMEOUT);
    rules.map(|rules| diagnose(&rules, config, snat_addresses, network)).unwrap_or_default()
}

/// Whether this host may apply source NAT to connections from other hosts to servers.
pub(super) fn translates(config: &Config) -> bool {
    let is_on = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/{name}")).is_ok_and(|value| value.trim() != "0")
    };
    config.frontends_where(Mode::has_snat).next().is_some()
        && (is_on("ipv4/ip_forward") || is_on("ipv6/conf/all/forwarding"))
        && is_on("netfilter/nf_conntrack_max")
}

/// Findings for rules that may give a connection to a server one of convey's SNAT ports.
pub(super) fn diagnose(
    rules: &Ruleset,
    config: &Config,
    snat_addresses: &[IpAddr],
    network: &NextHops,
) -> Vec<Diagnosis> {
    let (addresses, ports) = (snat_addresses.to_vec(), config.passthrough.snat_ports.clone());
    let own = OwnPorts { addresses, ports };
    let mut all: Vec<(CollidingRule, Vec<String>)> = Vec::new();
    for (server, protocol) in servers(config).into_iter().take(MAX_SERVERS) {
        let Some(link) = link_to(server.ip(), network) else { continue };
        let is_own = |ip: &IpAddr| own.addresses.contains(ip);
        if !link.addresses.iter().any(|ip| ip.is_ipv4() == server.is_ipv4() && is_own(ip)) {
            continue;
        }
        let packet = JudgedPacket {
            is_v6: server.is_ipv6(),
            protocol: protocol.name(),
            source: PacketEnd::Unknown,
            destination: PacketEnd::Host(server.ip()),
            destination_port: Some(server.port()).filter(|port| *port != 0),
            out_interface: Some(link.name.clone()),
            state: "new",
            ..JudgedPacket::default()
        };
        for rule in rules.colliding(&packet, &own) {
            let name = match server.port() {
                0 => server.ip().to_string(),
                _ => server.to_string(),
            };
            match all.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, servers)) => servers.push(name),
                None => all.push((rule, vec![name])),
            }
        }
    }
    all.into_iter().map(|(rule, servers)| diagnosis(config, rule, servers)).collect()
}

fn diagnosis(config: &Config, rule: CollidingRule, mut servers: Vec<String>) -> Diagnosis {
    servers.dedup();
    let more = servers.len().saturating_sub(MAX_NAMED);
    servers.truncate(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let ports = &config.passthrough.snat_ports;
    let (first, last) = (ports.start(), ports.end());
    let seen = format!(
        "{} may select source ports from passthrough.snat_ports ({first}-{last}) for connections of containers, or of \
         networks behind this host, to server {}{more}",
        rule.place(),
        servers.join(", ")
    );
    let others = OwnPorts { addresses: Vec::new(), ports: ports.clone() }.others();
    let remedy = match others {
        Some(others) => {
            let (first, last) = (others.start(), others.end());
            format!("Let such a rule select other ports (masquerade to :{first}-{last})")
        }
        None => "Give convey fewer ports (passthrough.snat_ports), and let such a rule select the others"
            .to_owned(),
    };
    let why = format!(
        "These connections time out: convey mistakes their answers for answers to its own clients, and drops them \
         (no_flow). {remedy}; docs/guides/packet-modes.md has an nftables table that stays when Docker changes its rules."
    );
    Diagnosis { fix: rule.fix, ..Diagnosis::warning("snat-masquerade", seen, why) }
}

/// Formats a finding as one line for the log.
pub fn line(found: &Diagnosis) -> String {
    let fix = found
        .fix
        .first()
        .map(|command| format!(" This command inserts such a rule before it: `{command}`"))
        .unwrap_or_default();
    format!("{}. {}{fix}", found.seen, found.why)
}

/// Servers of passthrough, with the protocol of each frontend. Port 0 means any port.
fn servers(config: &Config) -> BTreeSet<(SocketAddr, Protocol)> {
    let of_frontend = |frontend: &FrontendConfig| -> Vec<(SocketAddr, Protocol)> {
        let backends = frontend.backends().filter_map(|name| config.backend(name));
        let servers = backends.flat_map(|backend| &backend.servers);
        let ports: Vec<Listen> = frontend.listen.clone();
        let only = match ports.as_slice() {
            [listen] if listen.ports().len() == 1 => listen.first().port(),
            _ => 0,
        };
        servers.map(|server| (server.addr_for(only), frontend.protocol)).collect()
    };
    config.frontends_where(Mode::has_snat).flat_map(of_frontend).collect()
}

fn link_to(server: IpAddr, network: &NextHops) -> Option<&Interface> {
    let hop = network.hop_to(server)?;
    network.interfaces().iter().find(|link| link.index == hop.interface)
}

#[cfg(test)]
mod tests {
    use super::super::ruleset::{Tool, read_save};
    use super::*;
    use convey_model::fixture::{interface, route};

    fn found(settings: &str, rules: &str) -> Vec<Diagnosis> {
        let text = format!(
            "mode = 'passthrough'\nfrontends.web = {{ listen_addr = '10.1.0.1:80', backend = 'web' }}\n\
             backends.web.servers.a.addr = '10.2.0.2:80'\nbackends.web.servers.b.addr = '10.2.0.3:80'\n\
             backends.web.servers.c.addr = '10.3.0.2:80'\n[passthrough]\n{settings}\n"
        );
        let config = convey_config::parse("test.toml", &text).unwrap().config;
        let links = [interface(2, &["10.2.0.1"]), interface(3, &["10.3.0.1"])];
        let routes = [route("10.2.0.0/16", 2, None), route("10.3.0.0/16", 3, None)];
        let network = NextHops::new(&links, routes, &[]);
        let text = format!("*nat\n:POSTROUTING ACCEPT [0:0]\n{rules}COMMIT\n");
        let rules = Ruleset { tables: read_save(&text, Tool::Iptables) };
        diagnose(&rules, &config, &config.passthrough.snat_addresses, &network)
    }

    #[test]
    fn rule_that_picks_snat_ports_is_named_once_with_its_servers() {
        let masquerade = "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n";
        let all = found("snat_addresses = ['10.2.0.1']", masquerade);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].check, "snat-masquerade");
        assert!(
            all[0].seen.starts_with("rule 1 of chain POSTROUTING (iptables, table nat) may select source")
                && all[0].seen.contains("passthrough.snat_ports (33768-61000)")
                && all[0].seen.ends_with("to server 10.2.0.2:80, 10.2.0.3:80"),
            "{:?}",
            all[0]
        );
        assert!(line(&all[0]).ends_with("-j MASQUERADE --to-ports 1024-33767`"), "{}", line(&all[0]));
    }

    #[test]
    fn rule_is_not_named_where_its_connections_have_other_addresses_or_ports() {
        let elsewhere = "-A POSTROUTING -d 10.3.0.0/16 -j MASQUERADE\n";
        assert_eq!(found("snat_addresses = ['10.2.0.1']", elsewhere), []);
        let low = "-A POSTROUTING -s 172.17.0.0/16 -p tcp -j MASQUERADE --to-ports 1024-32767\n";
        assert_eq!(found("snat_addresses = ['10.2.0.1']", low), []);
        let settings = "snat_addresses = ['10.2.0.1']\nsnat_ports = \"20000-30000\"";
        assert_eq!(found(settings, low).len(), 1);
    }
}
