//! `[backends.NAME.tls]`: how convey shakes hands with servers.

use std::sync::Arc;

use super::tls::read_pair;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{boolean, choice, http_host, string};
use convey_model::{Authorities, BackendTls, TlsVersion};
use convey_tls::{TlsConnector, TlsFault, server_name};

/// Reads the table and the files that it names; `None` without one.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<Arc<BackendTls>>> {
    let is_there = backend.has("tls");
    let mut table = backend.table("tls");
    if !is_there {
        return None;
    }
    let place = table.place.clone();
    let skip_verify = table.or("skip_verify", false, boolean);
    let ca = table.optional("ca", string);
    if let Some(ca) = ca.as_ref().filter(|_| skip_verify) {
        report.warning(&ca.place, "has no effect with skip_verify");
    }
    let (chain, key) = (table.optional("certificate", string), table.optional("key", string));
    if let (None, Some(key)) = (&chain, &key) {
        report.error(&key.place, "needs certificate: the chain that the key belongs to");
    }
    let certificate =
        chain.as_ref().and_then(|chain| read_pair(chain, key.as_ref().unwrap_or(chain), report));
    let name = table.optional("server_name", http_host);
    if let Some(Placed { value, place }) = &name
        && server_name(Some(value), [0; 4].into()).is_err()
    {
        report.error(place, format!("found {value:?}; allowed: a name that a certificate can have"));
    }
    let min_version =
        table.or("min_version", TlsVersion::default(), choice(&TlsVersion::ALL, TlsVersion::name));
    table.finish();
    let authorities = if skip_verify { none() } else { authorities(ca, &place, report)? };
    let tls = BackendTls {
        authorities,
        server_name: name.map(|name| name.value),
        certificate,
        skip_verify,
        min_version,
    };
    check(&tls, &place, report);
    Some(Placed { value: Arc::new(tls), place })
}

fn none() -> Authorities {
    Authorities { path: None, certificates: Arc::default() }
}

/// The authorities of a file, or those that this host trusts.
pub(crate) fn authorities(
    ca: Option<Placed<String>>,
    place: &Place,
    report: &Report<'_>,
) -> Option<Authorities> {
    let Some(Placed { value, place }) = ca else { return authorities_of_host(place, report) };
    let (path, pem) = report.read_certificates(&place, &value)?;
    match convey_tls::certificates_of(&pem) {
        Ok(certificates) => Some(Authorities { path: Some(path), certificates: certificates.into() }),
        Err(fault) => {
            report.error(&place, format!("{}: {fault}", path.display()));
            None
        }
    }
}

fn authorities_of_host(place: &Place, report: &Report<'_>) -> Option<Authorities> {
    match convey_tls::authorities_of_host() {
        Ok(certificates) => Some(Authorities { path: None, certificates: certificates.into() }),
        Err(errors) => {
            let message = format!(
                "no certificate authority is installed on this host (package ca-certificates); set ca: {errors}"
            );
            report.error(place, message.trim_end_matches(": "));
            None
        }
    }
}

/// Reports what a handshake would fail with.
fn check(tls: &BackendTls, place: &Place, report: &Report<'_>) {
    let told = match TlsConnector::new(tls) {
        Ok(_) => return,
        Err(TlsFault::Certificate(_, fault)) => {
            let path = tls.certificate.as_ref().map(|pair| pair.chain_path.display().to_string());
            format!("certificate: {}: {fault}", path.unwrap_or_default())
        }
        Err(TlsFault::Authorities(fault)) => format!("ca: {fault}"),
        Err(TlsFault::Setting(key, fault)) => format!("{key}: {fault}"),
    };
    report.error(place, told);
}
