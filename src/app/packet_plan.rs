//! Determines the resources that packet modes need on this host, from the configuration and the
//! kernel's tables. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context, bail, ensure};
use convey_config::Config;
use convey_dataplane::Selection;
use convey_forward::{
    Dispatch, FlowCache, Forwarder, Loops, NatPorts, PortSplit, Settings, SnatChoice, WorkerPeers,
};
use convey_model::{
    Addr, BackendConfig, Endpoint, FrontendConfig, Interface, InterfaceAddress, Listen, Mode, NextHops,
    PacketSettings, PathEnds,
};

use super::{dispatch_seed, snat_watch};

/// Maximum number of spare SNAT addresses per address family. A spare can replace an address that
/// servers see now.
const MAX_SPARE: usize = 8;

/// Number of workers: the configured number, otherwise one per core except one. In passthrough
/// mode, each worker needs SNAT ports that no frontend at these addresses uses: at least a quarter
/// of an even share, or its clients would soon find no port. Validation of the file checks a
/// configured number.
pub(super) fn workers(config: &Config, cores: usize, snat_addresses: &[IpAddr]) -> usize {
    if let Some(workers) = config.passthrough.workers {
        return workers.into();
    }
    let wanted = cores.saturating_sub(1).max(1);
    if snat_addresses.is_empty() {
        return wanted;
    }
    let (ports, taken) = (&config.passthrough.snat_ports, taken(config, snat_addresses));
    let has_ports = |workers: &usize| {
        let fewest = PortSplit::new(ports.clone(), *workers as u16).fewest_without(&taken);
        fewest > 0 && 4 * fewest >= (ports.len() - taken.len()) / workers
    };
    (1..=wanted.min(ports.len())).rev().find(has_ports).unwrap_or(1)
}

/// Interfaces on which to capture: the configured ones, otherwise all that have a VIP or lead to a
/// server.
pub(super) fn interfaces(config: &Config, network: &NextHops) -> anyhow::Result<Vec<Interface>> {
    let named = &config.passthrough.interfaces;
    let servers = servers(config, Mode::forwards_packets);
    let ends = PathEnds { sources: &config.passthrough.snat_addresses, servers: &servers };
    let chosen = passed(named, &vips(config), ends, network);
    if let Some(missing) = named.iter().find(|name| chosen.iter().all(|interface| interface.name != **name)) {
        bail!("there is no interface {missing} (passthrough.interfaces)");
    }
    if chosen.is_empty() {
        bail!(
            "no Ethernet interface has a VIP or leads to a server; name the interfaces in passthrough.interfaces"
        );
    }
    Ok(chosen)
}

/// Interfaces that packets use: the configured ones that exist. If none is configured, all that
/// have a VIP or lead from a source address to a server of `ends`.
pub(super) fn passed(
    named: &[String],
    vips: &[IpAddr],
    ends: PathEnds<'_>,
    network: &NextHops,
) -> Vec<Interface> {
    let all = network.interfaces().iter();
    if !named.is_empty() {
        return all.filter(|interface| named.contains(&interface.name)).cloned().collect();
    }
    let indices = network.interfaces_for(vips, ends);
    all.filter(|interface| indices.contains(&interface.index)).cloned().collect()
}

/// Method that selects the SNAT addresses of servers.
pub(super) fn snat_choice(config: &Config) -> SnatChoice {
    if config.passthrough.snat_addresses.is_empty() { SnatChoice::Kernel } else { SnatChoice::Named }
}

/// SNAT addresses that servers may see: the configured ones. If none is configured, for each family
/// of a passthrough frontend, the addresses of the interfaces towards its servers; VIPs only if
/// there is no other address. Addresses that servers see now come first.
pub(super) fn snat_addresses(config: &Config, network: &NextHops) -> anyhow::Result<Vec<IpAddr>> {
    let passthrough = config.frontends_where(Mode::has_snat).flat_map(|frontend| &frontend.listen);
    let families: BTreeSet<bool> = passthrough.map(|listen| !listen.is_ipv4()).collect();
    let named = &config.passthrough.snat_addresses;
    if families.is_empty() || !named.is_empty() {
        return Ok(if families.is_empty() { Vec::new() } else { named.clone() });
    }
    let (vips, servers) = (vips(config), servers(config, Mode::has_snat));
    let mut addresses = Vec::new();
    for is_ipv6 in families {
        let of_family: Vec<IpAddr> = servers.iter().copied().filter(|ip| ip.is_ipv6() == is_ipv6).collect();
        addresses.extend(snat_addresses_towards(&of_family, is_ipv6, &vips, network)?);
    }
    Ok(addresses)
}

fn snat_addresses_towards(
    servers: &[IpAddr],
    is_ipv6: bool,
    vips: &[IpAddr],
    network: &NextHops,
) -> anyhow::Result<Vec<IpAddr>> {
    let towards = network.interfaces_for(&[], PathEnds { sources: &[], servers });
    ensure!(
        !towards.is_empty(),
        "no route over an Ethernet interface leads to a server, so convey cannot choose a SNAT address: add a route to the servers, or set \
         passthrough.snat_addresses"
    );
    let of_routes: BTreeSet<IpAddr> =
        servers.iter().filter_map(|server| network.hop_to(*server)?.source).collect();
    let interfaces = network.interfaces().iter();
    let of_routes = &of_routes;
    let own = interfaces.flat_map(|interface| {
        let is_towards = towards.contains(&interface.index);
        interface.details.iter().filter(move |own| is_towards || of_routes.contains(&own.ip))
    });
    let own: Vec<&InterfaceAddress> = own
        .filter(|own| match own.ip {
            IpAddr::V4(_) => !is_ipv6,
            IpAddr::V6(ip) => is_ipv6 && !ip.is_unicast_link_local(),
        })
        .collect();
    let is_vip = |own: &InterfaceAddress| vips.contains(&own.ip);
    let is_lasting = |own: &InterfaceAddress| !(own.is_tentative || is_ipv6 && own.is_secondary);
    let tiers: [Vec<IpAddr>; 3] = [
        own.iter().filter(|own| !is_vip(own) && is_lasting(own)).map(|own| own.ip).collect(),
        own.iter().filter(|own| !is_vip(own)).map(|own| own.ip).collect(),
        own.iter().map(|own| own.ip).collect(),
    ];
    let family = if is_ipv6 { "global IPv6" } else { "IPv4" };
    let fit = tiers.into_iter().find(|tier| !tier.is_empty()).with_context(|| {
        format!("the interfaces towards the servers have no {family} address: add one, or set passthrough.snat_addresses")
    })?;
    let seen = servers.iter().filter_map(|server| network.source_to(*server, |ip| fit.contains(&ip)));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in seen.chain(fit.iter().copied().take(MAX_SPARE)) {
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    Ok(addresses)
}

/// Returns a function that checks whether a server sees a SNAT address now, or the configuration
/// names the address.
pub(super) fn needs_snat_address(
    config: &Config,
    network: &NextHops,
    addresses: &[IpAddr],
) -> impl Fn(IpAddr) -> bool + use<> {
    let is_named = snat_choice(config) == SnatChoice::Named;
    let seen: BTreeSet<IpAddr> =
        snat_of_servers(config, network, addresses).into_values().flatten().collect();
    let first = addresses.first().copied();
    move |ip| is_named || seen.contains(&ip) || seen.is_empty() && first == Some(ip)
}

/// The servers of passthrough mode that see each SNAT address. A server is not listed for an
/// address that the server sees only while all ports of its other addresses are in use.
pub(super) fn snat_of_servers(
    config: &Config,
    network: &NextHops,
    addresses: &[IpAddr],
) -> BTreeMap<IpAddr, Vec<IpAddr>> {
    let choice = snat_choice(config);
    let servers = servers(config, Mode::has_snat).into_iter();
    servers.map(|server| (server, choice.among(network, server, addresses))).collect()
}

/// Configured SNAT addresses that no server of passthrough mode sees, each with a warning.
pub(super) fn unused_snat_addresses(config: &Config, network: &NextHops) -> Vec<(IpAddr, String)> {
    let servers = servers(config, Mode::has_snat).into_iter().collect();
    let unused = convey_forward::unused_snat_addresses(network, &servers, &config.passthrough.snat_addresses);
    unused.into_iter().map(|(ip, reason)| (ip, snat_watch::unused_line(ip, &reason))).collect()
}

/// Returns the configuration completed for this host with interfaces, SNAT addresses and workers.
pub(super) fn resolve(mut config: Config, network: &NextHops, cores: usize) -> anyhow::Result<Config> {
    let interfaces = interfaces(&config, network)?;
    let addresses = snat_addresses(&config, network)?;
    config.passthrough.workers = Some(workers(&config, cores, &addresses) as u16);
    if snat_choice(&config) == SnatChoice::Kernel {
        let seen = snat_of_servers(&config, network, &addresses);
        let is_seen = |ip: &&IpAddr| seen.is_empty() || seen.values().any(|seen| seen.contains(ip));
        config.passthrough.snat_addresses = addresses.iter().filter(is_seen).copied().collect();
    }
    config.passthrough.interfaces = interfaces.into_iter().map(|interface| interface.name).collect();
    Ok(config)
}

/// Traffic that this process captures: packets to the frontends, and the replies of servers to the
/// SNAT addresses.
pub(super) fn selection<'a>(
    settings: &PacketSettings,
    snat_addresses: &[IpAddr],
    frontends: impl IntoIterator<Item = (&'a FrontendConfig, &'a BackendConfig)>,
) -> Selection {
    Selection::new(frontends, snat_addresses.iter().copied(), settings.snat_ports.clone())
}

/// Endpoints of the frontends in DSR mode.
pub(super) fn dsr<'a>(frontends: impl IntoIterator<Item = &'a FrontendConfig>) -> BTreeSet<Endpoint> {
    let dsr = frontends.into_iter().filter(|frontend| frontend.mode.is_dsr());
    dsr.flat_map(FrontendConfig::endpoints).collect()
}

/// Pairs of each frontend and each of its backends.
pub(super) fn with_backends(config: &Config) -> impl Iterator<Item = (&FrontendConfig, &BackendConfig)> {
    config.frontends.iter().flat_map(|frontend| {
        let backends = frontend.backends().filter_map(|name| config.backend(name));
        backends.map(move |backend| (frontend, backend))
    })
}

/// Rule that assigns packets to workers.
pub(super) fn dispatch(config: &Config, workers: usize, snat_addresses: &[IpAddr]) -> Dispatch {
    let replies =
        (!snat_addresses.is_empty()).then(|| (snat_addresses, split(config, workers, snat_addresses)));
    let workers_own_ports = replies.is_some() && workers > 1;
    Dispatch::new(workers as u16, replies).with_seed(dispatch_seed::get(workers_own_ports))
}

/// Sizes of the forwarding core.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwarderSizes {
    pub(super) workers: usize,
    /// Maximum number of flows of all workers together.
    pub(super) max_flows: u32,
}

/// Creates one forwarder per worker, each with its part of the flows and of the SNAT ports.
/// `secret` returns unpredictable seeds.
pub(super) fn forwarders(
    config: &Config,
    sizes: ForwarderSizes,
    snat_addresses: &[IpAddr],
    mut cache: impl FnMut() -> Option<Box<dyn FlowCache>>,
    secret: fn() -> u64,
) -> Vec<Forwarder> {
    let ForwarderSizes { workers, max_flows } = sizes;
    let addresses: Vec<Addr> = snat_addresses.iter().map(|ip| (*ip).into()).collect();
    let choice = snat_choice(config);
    let (split, loops) = (split(config, workers, snat_addresses), Loops::new(secret()));
    let together = WorkerPeers::together(workers).into_iter().enumerate();
    let settings = together.map(|(worker, others)| Settings {
        ports: (!addresses.is_empty())
            .then(|| NatPorts::of_worker(addresses.clone(), &split, worker as u16, secret()))
            .map(|ports| ports.choosing(choice)),
        capacity: max_flows.div_ceil(workers as u32),
        workers: others,
        seed: secret(),
        cache: cache(),
        loops: loops.clone(),
    });
    settings.map(Forwarder::new).collect()
}

/// Divides the SNAT ports among the workers, except the ports that frontends use at the SNAT
/// addresses. If a reload adds a frontend at one of the divided ports, all of its clients go to one
/// worker.
pub(super) fn split(config: &Config, workers: usize, snat_addresses: &[IpAddr]) -> PortSplit {
    let ports = &config.passthrough.snat_ports;
    PortSplit::new(ports.clone(), workers as u16).without(taken(config, snat_addresses))
}

/// Ports in the SNAT range that frontends of any mode use at these addresses.
fn taken(config: &Config, snat_addresses: &[IpAddr]) -> BTreeSet<u16> {
    let listen = config.frontends.iter().flat_map(|frontend| &frontend.listen);
    let ports = listen.filter(|listen| snat_addresses.contains(&listen.ip())).flat_map(Listen::ports);
    ports.filter(|port| config.passthrough.snat_ports.contains(port)).collect()
}

fn vips(config: &Config) -> Vec<IpAddr> {
    let listen = config.frontends_where(Mode::forwards_packets).flat_map(|frontend| &frontend.listen);
    listen.map(Listen::ip).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Addresses of the servers of all frontends whose mode satisfies `modes`.
pub(super) fn servers(config: &Config, modes: fn(Mode) -> bool) -> Vec<IpAddr> {
    let used = config.backends_in(modes);
    let backends = config.backends.iter().filter(|backend| used.contains(backend.name.as_str()));
    let servers = backends.flat_map(|backend| &backend.servers);
    servers.map(|server| server.addr.ip()).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::{interface, route};

    fn parse(text: &str) -> Config {
        convey_config::parse("test.toml", text).unwrap().config
    }

    fn worker_count(mode: Mode, settings: &str, cores: usize) -> usize {
        let text = format!(
            "mode = '{}'\nfrontends.web = {{ listen_addr = '10.0.0.1:80', backend = 'web' }}\n\
             backends.web.servers.a.addr = '10.0.0.2:80'\n[passthrough]\n{settings}",
            mode.name()
        );
        let snat_addresses: &[IpAddr] = match mode {
            Mode::Passthrough => &["10.0.0.1".parse().unwrap()],
            Mode::Proxy | Mode::Dsr | Mode::Http => &[],
        };
        workers(&parse(&text), cores, snat_addresses)
    }

    #[test]
    fn workers_follow_cores_minus_one_and_snat_ports() {
        let few = "snat_ports = \"40000-40002\"";
        for (mode, settings, cores, expected) in [
            (Mode::Passthrough, "", 1, 1),
            (Mode::Passthrough, "", 2, 1),
            (Mode::Passthrough, "", 64, 63),
            (Mode::Passthrough, few, 64, 3),
            (Mode::Passthrough, few, 3, 2),
            (Mode::Passthrough, "snat_ports = \"79-84\"", 64, 4),
            (Mode::Passthrough, "snat_ports = \"80-84\"", 64, 2),
            (Mode::Dsr, few, 64, 63),
            (Mode::Dsr, "workers = 100", 2, 100),
        ] {
            assert_eq!(worker_count(mode, settings, cores), expected, "{mode:?} {settings} {cores}");
        }
    }

    #[test]
    fn ports_of_frontends_elsewhere_take_no_worker_its_snat_ports() {
        let text = "mode = 'passthrough'\nfrontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                    frontends.rtp = { mode = 'MODE', listen_addr = 'AT:34000-35000', backend = 'rtp' }\n\
                    backends.web.servers.a.addr = '10.0.0.2:80'\nbackends.rtp.servers.a.addr = '10.0.0.2:34000'\n\
                    backends.rtp.health_check.kind = 'none'\n";
        let snat = ["10.0.0.7".parse().unwrap()];
        for (mode, at, expected) in [
            ("proxy", "10.0.0.1", 63),
            ("dsr", "10.0.0.1", 63),
            ("passthrough", "10.0.0.1", 63),
            ("proxy", "10.0.0.7", 38),
            ("dsr", "10.0.0.7", 38),
        ] {
            let config = parse(&text.replace("MODE", mode).replace("AT", at));
            assert_eq!(workers(&config, 64, &snat), expected, "{mode} at {at}");
        }
    }

    /// One backend per mode. Servers of both families are behind eth2, DSR servers behind eth3.
    const MIXED: &str = r#"
        frontends.relayed = { listen_addr = "10.0.0.1:80", backend = "relayed" }
        frontends.v4 = { mode = "passthrough", listen_addr = "10.0.0.1:81", backend = "v4" }
        frontends.v6 = { mode = "passthrough", listen_addr = "[2001:db8::1]:81", backend = "v6" }
        frontends.direct = { mode = "dsr", listen_addr = "10.0.0.1:82", backend = "direct" }
        backends.relayed.servers.a.addr = "10.4.0.2:80"
        backends.v4.servers.a.addr = "10.2.0.2:80"
        backends.v6.servers.a.addr = "[2001:db8:2::2]:80"
        backends.direct.servers.a.addr = "10.3.0.2:82"
    "#;

    fn network() -> NextHops {
        let interfaces = [
            interface(1, &["10.0.0.1", "2001:db8::1"]),
            interface(2, &["fe80::2", "10.2.0.1", "2001:db8:2::1"]),
            interface(3, &["10.3.0.1"]),
            interface(4, &["10.4.0.1"]),
        ];
        let routes = [
            route("10.2.0.0/16", 2, None),
            route("2001:db8:2::/48", 2, None),
            route("10.3.0.0/16", 3, None),
            route("10.4.0.0/16", 4, None),
        ];
        NextHops::new(&interfaces, routes, &[])
    }

    #[test]
    fn proxied_frontends_need_no_capture_and_no_snat() {
        let (config, network) = (parse(MIXED), network());
        let names: Vec<String> = interfaces(&config, &network).unwrap().into_iter().map(|i| i.name).collect();
        assert_eq!(names, ["eth1", "eth2", "eth3"]);
        let expected: [IpAddr; 2] = ["10.2.0.1".parse().unwrap(), "2001:db8:2::1".parse().unwrap()];
        assert_eq!(snat_addresses(&config, &network).unwrap(), expected);
        let dsr = parse(&MIXED.replace("passthrough", "dsr"));
        assert!(snat_addresses(&dsr, &network).unwrap().is_empty());
    }

    #[test]
    fn servers_on_two_networks_see_an_address_of_each() {
        let text =
            MIXED.replace("10.2.0.2:80\"", "10.2.0.2:80\"\nbackends.v4.servers.b.addr = \"10.3.0.2:80\"");
        let (config, network) = (parse(&text), network());
        let addresses = snat_addresses(&config, &network).unwrap();
        let seen = snat_of_servers(&config, &network, &addresses);
        for (server, address) in
            [("10.2.0.2", "10.2.0.1"), ("10.3.0.2", "10.3.0.1"), ("2001:db8:2::2", "2001:db8:2::1")]
        {
            let [server, address]: [IpAddr; 2] = [server, address].map(|ip| ip.parse().unwrap());
            assert_eq!(seen[&server], [address], "{server}");
        }
        let resolved = resolve(config, &network, 4).unwrap().passthrough.snat_addresses;
        assert_eq!(
            resolved,
            ["10.2.0.1", "10.3.0.1", "2001:db8:2::1"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
    }

    #[test]
    fn vips_and_temporary_addresses_are_snat_addresses_only_without_others() {
        let text = MIXED.replace("10.0.0.1:81", "10.2.0.9:81");
        let addresses = |addresses: &[&str], temporary: &[&str]| {
            let mut two = interface(2, addresses);
            two.details
                .iter_mut()
                .for_each(|own| own.is_secondary = temporary.contains(&&*own.ip.to_string()));
            let routes = [route("10.2.0.0/16", 2, None), route("2001:db8:2::/48", 2, None)];
            snat_addresses(&parse(&text), &NextHops::new(&[two], routes, &[])).unwrap()
        };
        let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let six = ["2001:db8:2::1", "2001:db8:2::7"];
        assert_eq!(
            addresses(&["10.2.0.9", "10.2.0.1", six[0], six[1]], &six[..1]),
            ips(&["10.2.0.1", six[1]])
        );
        assert_eq!(addresses(&["10.2.0.9", six[0]], &six[..1]), ips(&["10.2.0.9", six[0]]));
    }

    #[test]
    fn unset_passthrough_settings_are_derived_from_the_host() {
        let config = resolve(parse(MIXED), &network(), 4).unwrap();
        let settings = &config.passthrough;
        assert_eq!(settings.interfaces, ["eth1", "eth2", "eth3"]);
        assert_eq!(settings.snat_addresses, snat_addresses(&parse(MIXED), &network()).unwrap());
        assert_eq!(settings.workers, Some(3));
        assert_eq!(resolve(config.clone(), &network(), 64).unwrap(), config, "what the file says stays");

        let nowhere = resolve(parse(MIXED), &NextHops::default(), 4).unwrap_err().to_string();
        assert!(nowhere.starts_with("no Ethernet interface"), "{nowhere}");
    }

    #[test]
    fn frontend_port_at_a_snat_address_is_no_snat_port() {
        let text = MIXED.replace("10.0.0.1:81", "10.2.0.1:50051").replace("10.0.0.1:82", "10.0.0.1:50052");
        let (config, snat) =
            (parse(&text.replace("10.3.0.2:82", "10.3.0.2:50052")), "10.2.0.1".parse().unwrap());
        let split = split(&config, 3, &[snat]);
        assert_eq!(split.owner(50051), None);
        assert!([50050, 50052].iter().all(|port| split.owner(*port).is_some()));
    }

    #[test]
    fn each_frontend_is_captured_as_its_mode_wants() {
        let config = parse(MIXED);
        let selection = |snat: &[IpAddr]| selection(&config.passthrough, snat, with_backends(&config));
        let mixed = selection(&["10.2.0.1".parse().unwrap()]);
        let ports: Vec<u16> = mixed.frontends.iter().map(|listen| listen.addr.port()).collect();
        assert_eq!(ports, [81, 82, 81]);
        let servers: Vec<String> = mixed.replies.unwrap().servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.2.0.2:80", "[2001:db8:2::2]:80"]);
        assert_eq!(selection(&[]).replies, None);
    }
}
