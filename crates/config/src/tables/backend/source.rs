//! `source` of a backend: addresses that connections to servers come from.

use std::net::IpAddr;

use super::{BackendKeys, ParsedBackend, ParsedServer};
use crate::mode::{family, is_like};
use crate::problem::{Placed, Report};
use crate::tables::ParsedFrontend;
use convey_model::{BackendConfig, Mode};

/// Text of `convey check`, such as `; source 10.0.0.1`.
pub(super) fn describe(backend: &BackendConfig) -> String {
    let sources: Vec<String> = backend.source.iter().map(IpAddr::to_string).collect();
    if sources.is_empty() { String::new() } else { format!("; source {}", sources.join(", ")) }
}

/// Reports a second source address of the same family, and servers without a source address of
/// their family.
pub(super) fn check(backend: &ParsedBackend, report: &Report<'_>) {
    let BackendKeys { source, .. } = &backend.keys;
    let Some(first) = source.first() else { return };
    for (index, Placed { value, place }) in source.iter().enumerate() {
        if let Some(other) = source[..index].iter().find(|other| is_like(other.value, *value)) {
            let message =
                format!("{} is already the {} source; a backend has one", other.value, family(*value));
            report.error(place, message);
        }
    }
    for server in backend.servers.iter().filter_map(ParsedServer::ip) {
        let ip = server.value.ip();
        if !source.iter().any(|source| is_like(source.value, ip)) {
            let line = report.line(&first.place, &server.place);
            let (other, own) = (family(first.value), family(ip));
            let message = format!(
                "{ip} is an {own} address, but the source {} ({line}) is {other}; add an {own} address to the source",
                first.value
            );
            report.error(&server.place, message);
        }
    }
}

/// Reports a source in packet modes, whose packets have other source addresses.
pub(super) fn check_modes(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(source) = backend.keys.source.first() else { return };
    let Some((frontend, mode)) = used.iter().find(|(_, mode)| mode.forwards_packets()) else { return };
    let instead = match mode.has_snat() {
        true => "; that mode takes its addresses from passthrough.snat_addresses",
        false => ", in which servers see the clients' addresses",
    };
    let (name, mode) = (&frontend.name, mode.name());
    report.error(
        &source.place,
        format!("needs mode proxy or http, but frontend {name:?} is in {mode} mode{instead}"),
    );
}
