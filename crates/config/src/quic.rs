//! Checks of `hash = "quic_cid"`.

use super::file::{ParsedBackend, ParsedFrontend};
use super::problem::{Placed, Report};
use convey_model::Protocol;

/// Ids without the hash that reads them, the hash without ids, and frontends without QUIC.
pub(super) fn check(backend: &ParsedBackend, frontends: &[ParsedFrontend], report: &Report<'_>) {
    let hash = backend.hash.as_ref().filter(|_| backend.hashes_quic());
    let Some(Placed { place, .. }) = hash else {
        if let Some(quic) = &backend.quic {
            report.warning(&quic.place, "has no effect without hash = \"quic_cid\"");
        }
        return;
    };
    if backend.quic.is_none() {
        report.error(place, "found \"quic_cid\", and no server has a quic_server_id");
    }
    let uses = |frontend: &&ParsedFrontend| frontend.backends().any(|name| name.value == backend.name);
    let mut used = frontends.iter().filter(uses).map(ParsedFrontend::protocol).peekable();
    if used.peek().is_some() && used.all(|protocol| protocol != Protocol::Udp) {
        report.warning(place, "has no effect: no UDP frontend uses this backend");
    }
}
