//! Checks of the host that convey runs on.
//!
//! The caller passes facts about the host in [`Host`]. [`examine`] gathers further facts: links,
//! servers, rules, `/proc`. Functions without side effects judge the facts; each group of checks
//! has a file.

mod accept_queue;
mod certificates;
mod clock;
mod connect;
mod echo;
pub mod features;
mod ipv6_off;
mod kernel;
mod links_down;
mod misplaced;
mod neighbours;
mod overheard;
mod own_address;
mod path_mtu;
mod ports;
mod probing;
mod programs;
pub mod reported;
mod rules;
mod running;
mod servers;
mod snat;
mod status;
mod steered;
mod vip;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use convey_config::Config;
use convey_dataplane::net::{BpfFilter, XdpProgram};
use convey_model::{Listen, Mode, NetworkTables, NextHops, PathEnds};
use rustix::thread::{CapabilitySet, capabilities};

use self::kernel::KernelFacts;
use self::misplaced::ArpFacts;
use self::neighbours::LinkSeen;
use self::rules::RulesSeen;
use super::{Diagnosis, Examination, SkippedCheck};

pub use self::accept_queue::AcceptQueue;
pub use self::ports::TakenPort;
pub use self::running::{FileLimits, Running};
pub use self::servers::{Reached, TargetServer};
pub use self::status::RunningStatus;

/// Documentation addresses (RFC 5737, RFC 3849). Doctor looks up the route to these addresses to
/// find the route to distant clients.
const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// Facts about the host.
pub struct Host<'a> {
    /// The configuration file.
    pub file: &'a Path,
    /// Whether the file is only a list of servers.
    pub is_list: bool,
    /// Configuration from the file, with defaults from the host, and with host names of servers
    /// resolved.
    pub config: &'a Config,
    /// Whether the file names the SNAT addresses.
    pub has_named_snat: bool,
    /// Interfaces, routes, neighbours.
    pub tables: &'a NetworkTables,
    /// Next hops in `tables`.
    pub network: &'a NextHops,
    /// Descriptions of servers that packet modes and the kernel would reach by different routes.
    pub route_differences: Vec<String>,
    /// Servers of backends that frontends use.
    pub servers: Vec<TargetServer>,
    /// Listen addresses that another process holds.
    pub ports: Vec<TakenPort>,
    /// Accept queues of frontends.
    pub queues: Vec<AcceptQueue>,
    /// XDP programs on all interfaces.
    pub programs: Vec<XdpProgram>,
    /// BPF filters of other programs on the ingress of interfaces, by interface.
    pub filters: Vec<(String, BpfFilter)>,
    /// Current addresses of the servers' host names.
    pub names: BTreeMap<String, BTreeSet<String>>,
    /// Current time by the clock of this host.
    pub now: SystemTime,
    /// The running convey; `None` if no running convey answers.
    pub running: Option<Running>,
}

/// Outcome of a server's health check: `Ok` if it passed, `Err` if it failed; both with a
/// description.
pub type CheckWords = Result<String, String>;

/// Servers and VIPs for which a finding about this host or its links already explains the failure.
/// These servers and VIPs get no further findings.
#[derive(Debug, Default)]
pub struct Explained {
    /// Servers that do not receive our packets, or whose answers do not arrive.
    pub servers: BTreeSet<IpAddr>,
    /// VIPs that another host has as well, or whose interface is down.
    pub vips: BTreeSet<IpAddr>,
}

/// Examines this host for faults that keep clients from being served. `check` runs health checks of
/// servers. Returns the findings, and the servers and VIPs that they explain.
pub fn examine(
    host: &Host<'_>,
    check: impl Fn(&[TargetServer]) -> Vec<CheckWords>,
) -> (Examination, Explained) {
    let mut seen = Examination::default();
    let before = KernelFacts::read();
    let mut explained = Explained::default();
    let networks = links_down::networks();
    seen.findings.extend(links_down::down(host, &networks, &mut explained));
    let passed = interfaces(host);
    seen.findings.extend(ipv6_off::examine(host, ipv6_off::read().as_ref(), &passed, &mut explained));
    seen.findings.extend(ways::examine(host, &mut explained));
    seen.findings.extend(host.route_differences.iter().map(|line| ways::differs(line)));
    seen.findings.extend(vip::missing(host, &explained.vips, is_local));
    seen.findings.extend(own_address::examine(host, &networks, &mut explained));
    if host.config.frontends_where(Mode::has_snat).next().is_some() {
        let addresses = &host.config.passthrough.snat_addresses;
        seen.findings.extend(snat::missing(addresses, host.network, is_local));
    }
    seen.findings.extend(ports::taken(&host.ports));
    seen.findings.extend(accept_queue::full(&host.queues));
    let own = host.running.as_ref().map(Running::xdp).unwrap_or_default();
    let facts = ArpFacts { arp_ignore: &before.arp_ignore, passed: &passed };
    seen.findings.extend(misplaced::examine(host, &networks, &facts));
    let foreign = programs::foreign(&host.programs, &passed, &own);
    let filters: Vec<_> = host.filters.iter().filter(|(interface, _)| passed.contains(interface)).collect();
    let taken =
        foreign.iter().map(|one| &one.interface).chain(filters.iter().map(|(interface, _)| interface));
    explained.servers.extend(behind(host, &taken.collect()));
    seen.findings.extend(foreign.into_iter().map(programs::diagnosis));
    seen.findings.extend(filters.into_iter().map(|(interface, filter)| programs::filter(interface, filter)));

    let links = check_links(host, &mut explained, &mut seen);
    let (stale, behind_stale) = neighbours::stale(host, &links);
    seen.findings.extend(stale);
    explained.servers.extend(behind_stale);

    let RulesSeen { findings, servers, unseen } = rules::examine(host);
    seen.findings.extend(findings);
    seen.skipped.extend(unseen);
    explained.servers.extend(servers);

    let is_a_server_silent = probing::examine(host, (&links, &explained.servers), check, &mut seen);
    seen.findings.extend(kernel::diagnose(host, (&before, &KernelFacts::read()), is_a_server_silent));
    seen.findings.extend(clock::wall_clock(host.now, &files(host)));
    seen.skipped.extend(unchecked_reply_route(host));
    match &host.running {
        Some(running) => {
            let needs = "root, or the user of the running convey".to_owned();
            let is_unseen = running.descriptors.is_none();
            seen.skipped.extend(is_unseen.then_some(SkippedCheck { check: "descriptors", needs }));
            seen.findings.extend(of_running(host, running));
        }
        None => seen.skipped.extend(["descriptors", "table-full"].map(|check| SkippedCheck {
            check,
            needs: "a running convey that answers at its control socket".to_owned(),
        })),
    }
    (seen, explained)
}

/// Skipped check of the route to clients, if this host has no default route: doctor cannot know
/// then whether answers reach clients. Frontends in mode `dsr` do not need the check, because their
/// servers answer clients directly. `None`: nothing is skipped.
fn unchecked_reply_route(host: &Host<'_>) -> Option<SkippedCheck> {
    let frontends = host.config.frontends.iter().filter(|frontend| !frontend.mode.is_dsr());
    let mut vips = frontends.flat_map(|frontend| &frontend.listen).map(Listen::ip);
    let is_unknown = |vip: IpAddr| {
        let far = FAR.into_iter().find(|far| far.is_ipv4() == vip.is_ipv4());
        far.is_some_and(|far| host.network.hop_to(far).is_none())
    };
    let family = if vips.find(|vip| is_unknown(*vip))?.is_ipv4() { "IPv4" } else { "IPv6" };
    let needs = format!("a default route for {family}, if clients are on other networks than this host");
    Some(SkippedCheck { check: "client-route", needs })
}

/// Findings about the running convey: resources that are used up, outdated addresses, servers taken
/// out by operators, and certificates.
fn of_running(host: &Host<'_>, running: &Running) -> Vec<Diagnosis> {
    let upgrade = format!("convey upgrade --config {}", host.file.display());
    let old = clock::of_records(&running.status.addresses_of_names(), &host.names, &upgrade);
    let steered = running.steered();
    let certificates = running.certificates(host.now);
    running::used_up(host, running).into_iter().chain(old).chain(steered).chain(certificates).collect()
}

/// Configuration file and program, with their modification times. Both were saved in the past, so a
/// clock that is behind these times is wrong.
fn files(host: &Host<'_>) -> Vec<(PathBuf, SystemTime)> {
    let paths = [Some(host.file.to_owned()), std::env::current_exe().ok()].into_iter().flatten();
    paths.filter_map(|path| Some((path.clone(), path.metadata().ok()?.modified().ok()?))).collect()
}

/// Whether a local route covers an address, such as all of 127.0.0.0/8.
fn is_local(ip: IpAddr) -> bool {
    let file = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    let nonlocal = std::fs::read_to_string(format!("/proc/sys/net/{file}/ip_nonlocal_bind"));
    let may_bind_any = nonlocal.is_ok_and(|value| value.trim() != "0");
    !may_bind_any && std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether the address belongs to only one link. IPv6 link-local addresses do not, because the same
/// address may exist on several links.
fn is_of_link(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Interfaces that packets of convey pass.
fn interfaces(host: &Host<'_>) -> BTreeSet<String> {
    let vips: Vec<IpAddr> = vip::vips(host).into_iter().collect();
    let servers: Vec<IpAddr> = host.servers.iter().map(|server| server.addr.ip()).collect();
    let ends = PathEnds { sources: &host.config.passthrough.snat_addresses, servers: &servers };
    let passed = host.network.interfaces_for(&vips, ends);
    let names = host.tables.interfaces.iter().filter(|one| passed.contains(&one.index));
    names.map(|one| one.name.clone()).chain(host.config.passthrough.interfaces.iter().cloned()).collect()
}

/// Servers behind these interfaces.
fn behind(host: &Host<'_>, interfaces: &BTreeSet<&String>) -> BTreeSet<IpAddr> {
    let is_behind = |ip: &IpAddr| {
        let hop = host.network.hop_to(*ip);
        let link =
            host.tables.interfaces.iter().find(|one| hop.is_some_and(|hop| hop.interface == one.index));
        link.is_some_and(|link| interfaces.contains(&link.name))
    };
    host.servers.iter().map(|server| server.addr.ip()).filter(is_behind).collect()
}

/// Whether this process may open raw sockets.
fn may_send_raw() -> bool {
    capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::NET_RAW))
}

fn check_links(host: &Host<'_>, explained: &mut Explained, seen: &mut Examination) -> Vec<LinkSeen> {
    if !may_send_raw() {
        seen.skipped.extend(
            ["vip-duplicate", "neighbour-stale", "path-mtu"]
                .map(|check| SkippedCheck { check, needs: "root (CAP_NET_RAW)".to_owned() }),
        );
        return Vec::new();
    }
    let (links, failed) = neighbours::query_links(host);
    seen.skipped.extend(failed.into_iter().map(|needs| SkippedCheck { check: "vip-duplicate", needs }));
    for link in &links {
        for (vip, duplicate) in vip::owned_twice(host, &link.interface, &link.answers) {
            explained.vips.insert(vip);
            seen.findings.push(duplicate);
        }
    }
    links
}

impl Host<'_> {
    /// Adds to a finding the commands that set a key of `[passthrough]` and upgrade the running
    /// convey. Adds nothing if the key may be in another file.
    fn with_setting(&self, found: Diagnosis, key: &str, value: &str) -> Diagnosis {
        let file = self.file.display();
        let text = std::fs::read_to_string(self.file).unwrap_or_default();
        // The key may be in an included file.
        if self.is_list || text.contains("include") {
            return found;
        }
        let sets = |line: &str| {
            line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        let change = if text.lines().any(sets) {
            format!("sed -i 's/^\\( *{key} *= *\\).*/\\1{value}/' {file}")
        } else if text.lines().any(|line| line.trim() == "[passthrough]") {
            format!("sed -i '/^\\[passthrough\\]/a {key} = {value}' {file}")
        } else {
            format!("printf '\\n[passthrough]\\n{key} = {value}\\n' >> {file}")
        };
        found.fix(change).fix(format!("convey upgrade --config {file}"))
    }
}
