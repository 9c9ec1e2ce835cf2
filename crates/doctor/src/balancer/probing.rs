//! Probes servers with connections, pings and health checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use convey_model::ProbeKind;

use super::neighbours::LinkSeen;
use super::overheard::Overheard;
use super::path_mtu::{self, PathSize};
use super::servers::{self, Hints, Reached, TargetServer};
use super::{CheckWords, Host, connect, may_send_raw};
use crate::{Diagnosis, Examination, SkippedCheck};

/// Maximum wait for a server. The kernel repeats a lost SYN, and takes up to three seconds to
/// resolve a neighbour.
const PATIENCE: Duration = Duration::from_millis(3_500);

/// Maximum wait for a connection to a port that is not in the configuration.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of probed servers.
const MAX_SERVERS: usize = 128;

/// Maximum number of ports that doctor probes because of port ranges.
const MAX_PORTS: usize = 256;

/// Probes the servers, and adds findings to `seen`. A silent server that another finding has
/// `explained` gets no finding. Returns whether any server gave no answer.
pub(super) fn examine(
    host: &Host<'_>,
    (links, explained): (&[LinkSeen], &BTreeSet<IpAddr>),
    check: impl Fn(&[TargetServer]) -> Vec<CheckWords>,
    seen: &mut Examination,
) -> bool {
    let some = &host.servers[..host.servers.len().min(MAX_SERVERS)];
    if some.len() < host.servers.len() {
        let needs = format!(
            "at most {MAX_SERVERS} servers: doctor checked only the first {MAX_SERVERS} of {}",
            host.servers.len()
        );
        seen.skipped.push(SkippedCheck { check: "servers", needs });
    }
    let own: Vec<IpAddr> =
        host.tables.interfaces.iter().flat_map(|one| one.addresses.iter().copied()).collect();
    let overheard = Overheard::listen();
    // Connections and pings may each take seconds, so they run in parallel.
    let (reached, sizes) = thread::scope(|scope| {
        let reached = scope.spawn(|| reach(some, &own, &overheard));
        let sizes = sizes(host, some, explained);
        (reached.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), sizes)
    });
    seen.findings.extend(path_mtu::diagnose(host, &sizes));
    let is_there = |ip: IpAddr| {
        let on_link = links.iter().any(|link| link.answers.get(&ip).is_some_and(|macs| !macs.is_empty()));
        on_link || sizes.iter().any(|size| size.server == ip && size.largest.is_some())
    };
    let mut is_silent = false;
    for server in some {
        let Some(reached) = reached.get(&server.name) else { continue };
        let is_unanswered = matches!(reached, Reached::Silent | Reached::Unreachable(_));
        is_silent |= is_unanswered;
        if is_unanswered && explained.contains(&server.addr.ip()) {
            continue;
        }
        let open_ports =
            if *reached == Reached::Refused { open_ports(server, some, &own) } else { Vec::new() };
        let file = named_in(host, server.probed()).then(|| host.file.display().to_string());
        let hints = Hints { is_there: is_there(server.addr.ip()), open_ports, file };
        seen.findings.extend(servers::diagnose(server, reached, &hints));
    }
    let is_open = |server: &&TargetServer| reached.get(&server.name) == Some(&Reached::Opened);
    seen.findings.extend(closed_ports(some.iter().filter(is_open), &own));
    seen.findings.extend(mute(some.iter().filter(is_open), &check));
    let is_checked = |server: &&TargetServer| match server.check.kind {
        ProbeKind::Http(_) | ProbeKind::Grpc(_) => is_open(server),
        ProbeKind::Udp => !explained.contains(&server.addr.ip()),
        ProbeKind::None | ProbeKind::Tcp => false,
    };
    let checked: Vec<TargetServer> = some.iter().filter(is_checked).cloned().collect();
    for (server, words) in checked.iter().zip(check(&checked)) {
        seen.findings.extend(words.err().map(|words| servers::wrong_reply(server, &words)));
    }
    is_silent
}

/// Findings for servers that refuse connections to ports of a range.
fn closed_ports<'a>(servers: impl Iterator<Item = &'a TargetServer>, own: &[IpAddr]) -> Vec<Diagnosis> {
    let all = servers.flat_map(|server| server.more_ports.iter().map(move |port| (server, *port)));
    let all: Vec<(&TargetServer, u16)> = all.take(MAX_PORTS).collect();
    let targets: Vec<SocketAddr> =
        all.iter().map(|(server, port)| (server.addr.ip(), *port).into()).collect();
    let reached = connect::all(&targets, SHORT_PATIENCE, own);
    let mut by_server: BTreeMap<&str, (&TargetServer, Vec<u16>, usize)> = BTreeMap::new();
    for ((server, port), reached) in all.into_iter().zip(reached) {
        let (_, refused, tried) = by_server.entry(&server.name).or_insert((server, Vec::new(), 0));
        *tried += 1;
        refused.extend((reached == Reached::Refused).then_some(port));
    }
    let found = by_server.into_values();
    found.filter_map(|(server, refused, tried)| servers::closed_ports(server, &refused, tried)).collect()
}

/// Findings for servers of mode http that answer no request, if the health check of the server does
/// not send requests.
fn mute<'a>(
    servers: impl Iterator<Item = &'a TargetServer>,
    check: impl Fn(&[TargetServer]) -> Vec<CheckWords>,
) -> Vec<Diagnosis> {
    let asked = servers.filter_map(|server| {
        let request = server.request.clone()?;
        Some(TargetServer { check: request, ..server.clone() })
    });
    let asked: Vec<TargetServer> = asked.collect();
    let answers = asked.iter().zip(check(&asked));
    answers.filter_map(|(server, words)| Some(servers::mute(server, &words.err()?))).collect()
}

/// Whether the configuration file itself contains this address. False if the address is in an
/// included file, or comes from a host name.
fn named_in(host: &Host<'_>, address: SocketAddr) -> bool {
    let text = std::fs::read_to_string(host.file).unwrap_or_default();
    text.contains(&format!("\"{address}\""))
}

/// Outcomes of connections to servers that accept TCP, by server name.
fn reach(servers: &[TargetServer], own: &[IpAddr], overheard: &Overheard) -> BTreeMap<String, Reached> {
    let tcp: Vec<&TargetServer> = servers.iter().filter(|server| server.uses_tcp).collect();
    let targets: Vec<SocketAddr> = tcp.iter().map(|server| server.probed()).collect();
    let mut reached = connect::all(&targets, PATIENCE, own);
    let rejections = overheard.rejections();
    for (target, reached) in targets.iter().zip(&mut reached) {
        if *reached == Reached::Silent
            && let Some((by, how)) = rejections.get(target).filter(|(by, _)| !own.contains(by))
        {
            *reached = Reached::Rejected { by: *by, how: how.clone() };
        }
    }
    tcp.into_iter().map(|server| server.name.clone()).zip(reached).collect()
}

/// Pings servers to find their path MTUs. Servers that are already `explained` are not pinged.
fn sizes(host: &Host<'_>, servers: &[TargetServer], explained: &BTreeSet<IpAddr>) -> Vec<PathSize> {
    if !may_send_raw() {
        return Vec::new();
    }
    let ips: BTreeSet<IpAddr> = servers.iter().map(|server| server.addr.ip()).collect();
    let ips: Vec<IpAddr> = ips.into_iter().filter(|ip| !explained.contains(ip)).collect();
    path_mtu::examine(host, &ips)
}

/// Other ports of a server that accept connections.
fn open_ports(server: &TargetServer, all: &[TargetServer], own: &[IpAddr]) -> Vec<u16> {
    let ports = servers::other_ports(server, all);
    let at: Vec<SocketAddr> = ports.iter().map(|port| (server.addr.ip(), *port).into()).collect();
    let reached = connect::all(&at, SHORT_PATIENCE, own);
    ports
        .into_iter()
        .zip(reached)
        .filter(|(_, reached)| *reached == Reached::Opened)
        .map(|(port, _)| port)
        .collect()
}
