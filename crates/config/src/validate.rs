//! Checks that involve several parts of a file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::file::{self, ParsedFile};
use super::hint;
use super::loops::{self, Listens};
use super::problem::{Place, Placed, Report};
use super::tables::{ParsedBackend, ParsedFrontend, ParsedServer, affinity, announce, frontend, retry};
use convey_model::{Endpoint, Listen, Protocol, overlap};

/// Reports errors and warnings about a file in which each value is valid by itself.
pub(super) fn check(file: &ParsedFile, report: &Report<'_>) {
    listen_addresses(file, report);
    file.check_acme(report);
    announce::check(file, report);
    let backends: HashMap<&str, &ParsedBackend> =
        file.backends.iter().map(|b| (b.name.as_str(), b)).collect();
    for frontend in &file.frontends {
        let mode = file::value(&frontend.mode).unwrap_or(file.mode);
        frontend.backends().for_each(|name| is_there(name, &backends, report));
        frontend::check(frontend, mode, report);
    }
    let used: HashSet<&str> =
        file.frontends.iter().flat_map(ParsedFrontend::backends).map(|name| name.value.as_str()).collect();
    for backend in &file.backends {
        let used = used.contains(backend.name.as_str());
        backend.check(used, &file.frontends, report);
    }
    affinity::check_names(&file.frontends, &file.backends, report);
    retry::check(file, report);
    // Only loopback addresses are checked here; `validate_mode` checks the other addresses of this
    // host.
    loops(file.frontends.iter(), &file.backends, &BTreeSet::new(), report);
}

/// Reports forwarding loops: servers whose address belongs to a frontend that uses them, directly
/// or through other frontends. `own` has the addresses of the host.
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

/// Reports addresses on which two frontends listen with the same protocol. A wildcard and a
/// specific address may share a port, because the specific address takes precedence in every mode.
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
        // One error, about the first conflicting port of a range, is enough.
        if let Some((listen, first)) = endpoints().find_map(|listen| Some((listen, *taken.get(&listen)?))) {
            let line = report.line(first, place);
            report.error(place, format!("{listen} is taken by {} ({line})", first.key));
        } else if let Some(listen) = endpoints().find(is_statistics) {
            report.error(place, format!("{listen} is taken by the statistics ({})", file.stats.listen));
        }
        endpoints().for_each(|listen| _ = taken.entry(listen).or_insert(place));
    }
}

/// Reports a backend that does not exist.
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
