//! Checks of `hash = "quic_cid"`.

use super::file::{ParsedBackend, ParsedFrontend};
use super::hint::listed;
use super::problem::{Place, Placed, Report};
use convey_model::Protocol;

/// So many servers are named in a warning.
const MAX_NAMED: usize = 8;

/// Ids without the hash that reads them, the hash without ids, and frontends without QUIC.
pub(super) fn check(backend: &ParsedBackend, frontends: &[ParsedFrontend], report: &Report<'_>) {
    let hash = backend.hash.as_ref().filter(|_| backend.hashes_quic());
    let Some(Placed { place, .. }) = hash else {
        if let Some(quic) = &backend.quic {
            report.warning(&quic.place, "has no effect without hash = \"quic_cid\"");
        }
        return;
    };
    match &backend.quic {
        None => report.error(place, "found \"quic_cid\", and no server has a quic_server_id"),
        Some(_) => without_id(backend, place, report),
    }
    let uses = |frontend: &&ParsedFrontend| frontend.backends().any(|name| name.value == backend.name);
    let mut used = frontends.iter().filter(uses).map(ParsedFrontend::protocol).peekable();
    if used.peek().is_some() && used.all(|protocol| protocol != Protocol::Udp) {
        report.warning(place, "has no effect: no UDP frontend uses this backend");
    }
}

/// Warns of servers whose clients lose them with their address.
fn without_id(backend: &ParsedBackend, place: &Place, report: &Report<'_>) {
    let without = backend.servers.iter().filter(|server| server.quic_server_id.is_none());
    let mut names: Vec<String> = without.map(|server| format!("{:?}", server.name)).collect();
    names.extend(backend.discovery.as_ref().map(|found| format!("those of {}", found.value.source.kind())));
    if !names.is_empty() {
        let names = listed(names.into_iter(), MAX_NAMED);
        report.warning(
            place,
            format!("clients that change their address lose servers without quic_server_id: {names}"),
        );
    }
}
