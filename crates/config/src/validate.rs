//! Checks that hold between the parts of a file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::file::{self, ParsedBackend, ParsedFile, ParsedFrontend, ParsedServer};
use super::hint;
use super::loops::{self, Listens};
use super::problem::{Place, Placed, Report};
use super::{announce, quic, requests, sni};
use convey_model::{Algorithm, Endpoint, Listen, Mode, ProbeKind, Protocol, ProxyVersion, overlap};

/// Reports what is wrong or odd about a file whose values are right one by one.
pub(super) fn check(file: &ParsedFile, report: &Report<'_>) {
    listen_addresses(file, report);
    file.check_acme(report);
    announce::check(file, report);
    let backends: HashMap<&str, &ParsedBackend> =
        file.backends.iter().map(|b| (b.name.as_str(), b)).collect();
    for frontend in &file.frontends {
        let mode = file::value(&frontend.mode).unwrap_or(file.mode);
        frontend.backends().for_each(|name| is_there(name, &backends, report));
        for needed in frontend.ready_needs.iter().filter(|needed| !frontend.uses(&needed.value)) {
            let (name, needed_name) = (&frontend.name, &needed.value);
            report
                .error(&needed.place, format!("no route of frontend {name} leads to backend {needed_name}"));
        }
        proxies(frontend, mode, report);
        requests::check(frontend, mode, report);
        sni::check(frontend, mode, report);
    }
    let used: HashSet<&str> =
        file.frontends.iter().flat_map(ParsedFrontend::backends).map(|name| name.value.as_str()).collect();
    for backend in &file.backends {
        let used = used.contains(backend.name.as_str());
        if !used {
            report.warning(&backend.place, "no frontend uses this backend");
        }
        pool(backend, used, report);
        quic::check(backend, &file.frontends, report);
        version_fits(backend, file, report);
        if let Some(Placed { value: algorithm, .. }) = backend.algorithm {
            algorithm_fits(backend, algorithm, report);
        }
    }
    // Which addresses this host has is another matter: see `validate_mode`.
    loops(file.frontends.iter(), &file.backends, &BTreeSet::new(), report);
}

/// No server leads back to a frontend that it serves, on a host with these addresses.
pub(super) fn loops<'a>(
    frontends: impl Iterator<Item = &'a ParsedFrontend>,
    backends: &[ParsedBackend],
    own: &BTreeSet<IpAddr>,
    report: &Report<'_>,
) {
    let listens = frontends.map(|frontend| {
        let backends: Vec<&str> = frontend.backends().map(|name| name.value.as_str()).collect();
        let listen = frontend.listen.iter().map(|listen| listen.value).collect();
        Listens { name: &frontend.name, protocol: frontend.protocol(), listen, backends }
    });
    let listens: Vec<Listens<'_>> = listens.collect();
    let servers = backends.iter().flat_map(|backend| {
        backend.servers.iter().filter_map(ParsedServer::ip).map(|server| (&*backend.name, server))
    });
    let servers: Vec<(&str, Placed<SocketAddr>)> = servers.collect();
    let addrs: Vec<(&str, SocketAddr)> =
        servers.iter().map(|(backend, server)| (*backend, server.value)).collect();
    for (found, (_, server)) in loops::loops(&listens, &addrs, own).into_iter().zip(&servers) {
        if let Some(found) = found {
            report.error(&server.place, found.describe(server.value));
        }
    }
}

/// Every address is listened on once in each protocol. A wildcard beside an address of the same port is right: the
/// address takes what is sent to it, in every mode.
fn listen_addresses(file: &ParsedFile, report: &Report<'_>) {
    let mut all: Vec<(Protocol, &Placed<Listen>)> = Vec::new();
    for frontend in &file.frontends {
        all.extend(frontend.listen.iter().map(|listen| (frontend.protocol(), listen)));
        if frontend.speaks_http3() {
            all.extend(frontend.listen.iter().map(|listen| (Protocol::Udp, listen)));
        }
    }
    all.sort_by_key(|(_, listen)| listen.place.at);
    let mut taken: HashMap<Endpoint, &Place> = HashMap::new();
    for (protocol, Placed { value, place }) in all {
        let endpoints = || value.addrs().map(|addr| Endpoint { protocol, addr });
        let is_statistics =
            |listen: &Endpoint| listen.protocol == Protocol::Tcp && overlap(listen.addr, file.stats.listen);
        // The first port of a range that is in the way says enough.
        if let Some((listen, first)) = endpoints().find_map(|listen| Some((listen, *taken.get(&listen)?))) {
            let line = report.line(first, place);
            report.error(place, format!("{listen} is taken by {} ({line})", first.key));
        } else if let Some(listen) = endpoints().find(is_statistics) {
            report.error(place, format!("{listen} is taken by the statistics ({})", file.stats.listen));
        }
        endpoints().for_each(|listen| _ = taken.entry(listen).or_insert(place));
    }
}

/// Servers without a port are probed at one that the file names.
fn probed_ports(backend: &ParsedBackend, report: &Report<'_>) {
    let is_probed = backend.health_check.kind != ProbeKind::None || backend.outlier_detection.is_some();
    if !is_probed || backend.health_check.port.is_some() {
        return;
    }
    for addr in backend.servers.iter().filter_map(|server| server.addr.as_ref()) {
        if addr.value.keeps_port() {
            let message = format!(
                "the port is missing, found \"{}\"; add it, or set health_check.port to use the port that each client connects to",
                addr.value
            );
            report.error(&addr.place, message);
        }
    }
}

/// The backend is there.
fn is_there(name: &Placed<String>, backends: &HashMap<&str, &ParsedBackend>, report: &Report<'_>) {
    if backends.contains_key(name.value.as_str()) {
        return;
    }
    let mut names: Vec<&str> =
        backends.keys().copied().filter(|name| !name.contains(char::is_control)).collect();
    names.sort_unstable();
    let meant = hint::did_you_mean(&name.value, names.iter().copied());
    let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    report.missing(&name.place, format!("no backend {:?}{meant} (backends: {there_are})", name.value));
}

/// A frontend that accepts PROXY headers has to say who may send them. In mode http the same proxies are believed what they say of
/// clients in requests.
fn proxies(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    let accept = frontend.accept_proxy.as_ref().filter(|accept| accept.value);
    match (accept, frontend.trusted_proxies.first()) {
        (Some(accept), None) => {
            let message = "needs trusted_proxies, such as [\"10.0.0.5\"]: whoever may send a PROXY header can pretend to be any \
                           client";
            report.error(&accept.place, message);
        }
        (None, Some(network)) if !mode.is_http() => {
            report.warning(&network.place, "has no effect without accept_proxy = true")
        }
        _ => {}
    }
}

/// Version 1 of the PROXY protocol knows TCP only.
fn version_fits(backend: &ParsedBackend, file: &ParsedFile, report: &Report<'_>) {
    let Some(send) = backend.send_proxy.as_ref().filter(|send| send.value == ProxyVersion::V1) else {
        return;
    };
    let uses = |frontend: &&ParsedFrontend| frontend.uses(&backend.name);
    let of_udp = |frontend: &&ParsedFrontend| frontend.protocol() == Protocol::Udp;
    if let Some(frontend) = file.frontends.iter().filter(uses).find(of_udp) {
        let message = format!(
            "found \"v1\", but frontend {:?} has protocol = \"udp\"; allowed: \"v2\", which goes before each datagram",
            frontend.name
        );
        report.error(&send.place, message);
    }
}

/// There is a server to choose, and it is clear which.
fn pool(backend: &ParsedBackend, used: bool, report: &Report<'_>) {
    if let Some(files) = &backend.files {
        return no_servers(backend, &files.place, report);
    }
    let nobody = if backend.discovery.is_some() {
        None
    } else if backend.servers.is_empty() {
        Some("no servers; write [backends.NAME.servers.NAME] with addr")
    } else if backend.servers.iter().all(|server| server.settings.weight == 0) {
        Some("every server has weight 0, so none gets a connection")
    } else {
        None
    };
    match nobody {
        Some(message) if used => report.missing(&backend.place, message),
        Some(message) => report.warning(&backend.place, message),
        None if backend.discovery.is_none()
            && backend.servers.iter().all(|server| server.settings.backup) =>
        {
            report.warning(&backend.place, "all servers are backups, so they serve as if none were");
        }
        None => {}
    }
    let mut addrs: Vec<_> = backend.servers.iter().filter_map(|server| server.addr.as_ref()).collect();
    addrs.sort_by_key(|addr| addr.place.at);
    let mut seen: HashMap<String, &Place> = HashMap::new();
    for addr in addrs {
        let text = addr.value.to_string();
        if let Some(first) = seen.get(&text) {
            let line = report.line(first, &addr.place);
            report.warning(&addr.place, format!("{text} is also {} ({line})", first.key));
        }
        seen.entry(text).or_insert(&addr.place);
    }
    addrs_of_examples(backend, report);
    names_of_servers(backend, report);
    probed_ports(backend, report);
}

/// A backend serves files or has servers.
fn no_servers(backend: &ParsedBackend, files: &Place, report: &Report<'_>) {
    let server = backend.servers.iter().find_map(|server| server.addr.as_ref());
    if let Some(server) = server {
        let line = report.line(files, &server.place);
        report.error(
            &server.place,
            format!("{} is set too ({line}): a backend serves files or has servers", files.key),
        );
    }
}

/// Addresses that documentation uses, and nobody else (RFC 5737): those of the `config.toml` that comes with convey.
fn addrs_of_examples(backend: &ParsedBackend, report: &Report<'_>) {
    for Placed { value, place } in backend.servers.iter().filter_map(ParsedServer::ip) {
        if let IpAddr::V4(ip) = value.ip()
            && ip.is_documentation()
        {
            report.warning(&place, format!("{ip} is an address for examples: write your server's"));
        }
    }
}

/// The servers that a name stands for are called after it.
fn names_of_servers(backend: &ParsedBackend, report: &Report<'_>) {
    for server in &backend.servers {
        let (Some((owner, _)), Some(addr)) = (server.name.split_once('/'), &server.addr) else { continue };
        let is_owner = |other: &&ParsedServer| other.name == owner && other.name_place().is_some();
        if let Some(owner) = backend.servers.iter().find(is_owner) {
            let message = format!("the servers of {:?}, which has a host name, are called so", owner.name);
            report.error(&addr.place, message);
        }
    }
}

/// Warns of `hash` and `hash_key` with an algorithm that does not hash, and of `slow_start` with one that
/// does.
pub(super) fn algorithm_fits(backend: &ParsedBackend, algorithm: Algorithm, report: &Report<'_>) {
    // Whatever chooses servers for new clients, connection ids say which one others have.
    let hash = backend.hash.as_ref().filter(|_| !backend.hashes_quic());
    let places = [hash.map(|hash| &hash.place), backend.hash_key.as_ref().map(|key| &key.place)];
    for place in places.into_iter().flatten().filter(|_| !algorithm.hashes()) {
        let message = format!("has no effect with algorithm {:?}, which does not hash", algorithm.name());
        report.warning(place, message);
    }
    let slow_start = backend.slow_start.as_ref().filter(|time| !time.value.is_zero());
    if let Some(slow_start) = slow_start.filter(|_| algorithm.hashes()) {
        let message = format!(
            "has no effect with algorithm {:?}, which hashes: clients would change servers all that time",
            algorithm.name()
        );
        report.warning(&slow_start.place, message);
    }
}
