//! Checks of a backend that need only the file.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{ParsedBackend, ParsedServer, hash, quic, source, tls, unix_socket};
use crate::file::value;
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use crate::tables::ParsedFrontend;
use convey_model::{Algorithm, HttpVersion, Mode, ProbeKind, Protocol, ProxyVersion};

impl ParsedBackend {
    /// Reports errors and warnings that do not depend on a mode. `is_used`: whether a frontend uses
    /// the backend.
    pub(crate) fn check(&self, is_used: bool, frontends: &[ParsedFrontend], report: &Report<'_>) {
        if !is_used {
            report.warning(&self.place, "no frontend uses this backend");
        }
        pool(self, is_used, report);
        source::check(self, report);
        unix_socket::check(self, report);
        quic::check(self, frontends, report);
        version_fits(self, frontends, report);
        if let Some(Placed { value: algorithm, .. }) = self.keys.algorithm {
            self.check_algorithm(algorithm, report);
        }
    }

    /// Reports keys that have no effect with this algorithm.
    pub(crate) fn check_algorithm(&self, algorithm: Algorithm, report: &Report<'_>) {
        algorithm_fits(self, algorithm, report);
    }

    /// Reports keys that do not fit the modes of the frontends that use the backend.
    pub(crate) fn check_modes(&self, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
        let users: Vec<(Mode, Protocol)> =
            used.iter().map(|(frontend, mode)| (*mode, frontend.protocol())).collect();
        for (place, only) in self.keys.of_some_modes() {
            match only {
                OnlyIn::Http => only_http(place, used, report),
                OnlyIn::Proxy | OnlyIn::Proxied | OnlyIn::ProxiedTcp | OnlyIn::ProxiedUdp => {
                    let fault = only.common_fault(" that uses this backend", &users);
                    fault.into_iter().for_each(|fault| report.warning(place, fault));
                }
            }
        }
        self.files.iter().for_each(|files| only_http(&files.place, used, report));
        self.affinity.iter().for_each(|affinity| only_http(&affinity.place, used, report));
        self.total.places().for_each(|place| only_http(place, used, report));
        ewma(self, used, report);
        shared_connections(self, report);
        grpc_version(self, used, report);
        hash::check(self, used, report);
        tls::check(self, used, report);
        source::check_modes(self, used, report);
        unix_socket::check_modes(self, used, report);
    }
}

/// Reports a key that has an effect only in mode http.
fn only_http(place: &Place, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_http()) {
        let (name, mode) = (&frontend.name, mode.name());
        report.error(place, format!("needs mode = \"http\"; frontend {name:?} is in {mode} mode"));
    }
}

/// Checks that `ewma` is used only in mode `http`, the only mode that measures response times.
fn ewma(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { value: Algorithm::Ewma, place }) = &backend.keys.algorithm else { return };
    if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_http()) {
        let (name, mode) = (&frontend.name, mode.name());
        let message = format!(
            "\"ewma\" needs response times, which only mode http measures; frontend {name:?} is in {mode} mode"
        );
        report.error(place, message);
    }
}

/// Reports PROXY headers in combination with HTTP/2 to servers. A PROXY header describes one
/// client, but an HTTP/2 connection is shared by all clients.
fn shared_connections(backend: &ParsedBackend, report: &Report<'_>) {
    let Some(Placed { value, place }) = &backend.keys.protocol else { return };
    if *value != HttpVersion::H1
        && let Some(send) = &backend.keys.send_proxy
    {
        let line = report.line(&send.place, place);
        let name = value.name();
        let message = format!(
            "{name:?} shares connections among clients, but the PROXY header of send_proxy ({line}) names only one client; keep one of them"
        );
        report.error(place, message);
    }
}

/// Warns of gRPC checks of servers that get their requests over HTTP/1.1: such a check passes
/// although no gRPC call of a client can succeed.
fn grpc_version(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let check = &backend.health_check;
    let is_grpc = matches!(check.default.kind, ProbeKind::Grpc(_)) && check.keys.port.is_none();
    let version = value(&backend.keys.protocol).unwrap_or_default();
    let gets_http1 = version == HttpVersion::H1
        && backend.files.is_none()
        && !used.is_empty()
        && used.iter().all(|(_, mode)| mode.is_http());
    if let Some(place) = check.kind_at.as_ref().filter(|_| is_grpc && gets_http1) {
        let message = "gRPC needs HTTP/2, but requests go to the servers over HTTP/1.1; set protocol = \"h2\" in the backend";
        report.warning(place, message);
    }
}

/// Reports version 1 of the PROXY protocol for UDP: version 1 is for TCP only.
fn version_fits(backend: &ParsedBackend, frontends: &[ParsedFrontend], report: &Report<'_>) {
    let Some(send) = backend.keys.send_proxy.as_ref().filter(|send| send.value == ProxyVersion::V1) else {
        return;
    };
    let uses = |frontend: &&ParsedFrontend| frontend.uses(&backend.name);
    let of_udp = |frontend: &&ParsedFrontend| frontend.protocol() == Protocol::Udp;
    if let Some(frontend) = frontends.iter().filter(uses).find(of_udp) {
        let message = format!(
            "found \"v1\", which is for TCP only, but frontend {:?} has protocol = \"udp\"; allowed: \"v2\"",
            frontend.name
        );
        report.error(&send.place, message);
    }
}

/// Warns of `hash` and `hash_key` with an algorithm that does not hash, and of `slow_start` with an
/// algorithm that hashes.
fn algorithm_fits(backend: &ParsedBackend, algorithm: Algorithm, report: &Report<'_>) {
    // With `quic_cid`, the algorithm applies to new clients; connection ids identify the servers of
    // the others.
    let hash = backend.hash.as_ref().filter(|_| !backend.hashes_quic());
    let hash_key = backend.keys.hash_key.as_ref().filter(|_| backend.affinity.is_none());
    let places = [hash.map(|hash| &hash.place), hash_key.map(|key| &key.place)];
    for place in places.into_iter().flatten().filter(|_| !algorithm.hashes()) {
        let message = format!("has no effect with algorithm {:?}, which does not hash", algorithm.name());
        report.warning(place, message);
    }
    let slow_start = backend.keys.slow_start.as_ref().filter(|time| !time.value.is_zero());
    if let Some(slow_start) = slow_start.filter(|_| algorithm.hashes()) {
        let message = format!(
            "has no effect with algorithm {:?}, which hashes: during a slow start clients would change servers all the time",
            algorithm.name()
        );
        report.warning(&slow_start.place, message);
    }
}

/// Checks that the backend has a server that can be chosen.
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
            report.warning(&backend.place, "all servers are backups, so the key `backup` has no effect");
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
            report.warning(&addr.place, format!("{text} is also the value of {} ({line})", first.key));
        }
        seen.entry(text).or_insert(&addr.place);
    }
    addrs_of_examples(backend, report);
    names_of_servers(backend, report);
    probed_ports(backend, report);
}

/// Reports an error if a backend has both `files` and servers.
fn no_servers(backend: &ParsedBackend, files: &Place, report: &Report<'_>) {
    let server = backend.servers.iter().find_map(|server| server.addr.as_ref());
    if let Some(server) = server {
        let line = report.line(files, &server.place);
        report.error(
            &server.place,
            format!("{} is also set ({line}), but a backend has either files or servers", files.key),
        );
    }
}

/// Checks that health checks have a port for servers without one.
fn probed_ports(backend: &ParsedBackend, report: &Report<'_>) {
    let is_probed =
        backend.health_check.default.kind != ProbeKind::None || backend.outlier_detection.is_some();
    if !is_probed || backend.health_check.keys.port.is_some() {
        return;
    }
    for addr in backend.servers.iter().filter_map(|server| server.addr.as_ref()) {
        if addr.value.keeps_port() {
            let message = format!(
                "found \"{}\" without a port, so health checks have no port; add the port, or set health_check.port (then each \
                 connection keeps the port that its client connected to)",
                addr.value
            );
            report.error(&addr.place, message);
        }
    }
}

/// Warns of addresses reserved for documentation (RFC 5737), such as the addresses in the sample
/// `config.toml`.
fn addrs_of_examples(backend: &ParsedBackend, report: &Report<'_>) {
    for Placed { value, place } in backend.servers.iter().filter_map(ParsedServer::ip) {
        if let IpAddr::V4(ip) = value.ip()
            && ip.is_documentation()
        {
            report.warning(&place, format!("{ip} is a documentation address: replace it with your server's"));
        }
    }
}

/// Reports server names that are reserved: a server known by host name reserves `NAME/...` for its
/// addresses.
fn names_of_servers(backend: &ParsedBackend, report: &Report<'_>) {
    for server in &backend.servers {
        let (Some((owner, _)), Some(addr)) = (server.name.split_once('/'), &server.addr) else { continue };
        let is_owner = |other: &&ParsedServer| other.name == owner && other.name_place().is_some();
        if let Some(owner) = backend.servers.iter().find(is_owner) {
            let message = format!(
                "the name is reserved for the addresses of server {:?}, which has a host name",
                owner.name
            );
            report.error(&addr.place, message);
        }
    }
}
