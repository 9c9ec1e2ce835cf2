//! `[backends.NAME.tls]`: TLS with servers.

use std::sync::Arc;

use super::ParsedBackend;
use crate::diff::{change, or};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::tables::ParsedFrontend;
use crate::tables::frontend::tls::{both, certificate_changes, read_pair};
use crate::values::{boolean, choice, http_host, string};
use convey_model::{Authorities, BackendConfig, BackendTls, Mode, Protocol, TlsVersion};
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
    check_handshake(&tls, &place, report);
    Some(Placed { value: Arc::new(tls), place })
}

fn none() -> Authorities {
    Authorities { path: None, certificates: Arc::default() }
}

/// Certificate authorities from a file, or those that this host trusts.
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

/// Reports TLS with servers in packet modes: only proxied connections can have it.
pub(super) fn check(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(tls) = &backend.tls else { return };
    let others =
        used.iter().find(|(frontend, mode)| mode.forwards_packets() || frontend.protocol() == Protocol::Udp);
    if let Some((frontend, mode)) = others {
        let message = format!(
            "needs connections that convey terminates; frontend {:?} is in {} mode with protocol {}",
            frontend.name,
            mode.name(),
            frontend.protocol().name()
        );
        report.error(&tls.place, message);
    }
}

/// Log text of the differences.
pub(super) fn changes(old: Option<&BackendTls>, new: Option<&BackendTls>) -> Vec<String> {
    let (old, new) = match both(old, new) {
        Ok(both) => both,
        Err(change) => return change.into_iter().collect(),
    };
    let BackendTls { authorities, server_name, certificate, skip_verify, min_version } = old;
    let mut changes = Vec::new();
    let authorities_of =
        |tls: &Authorities| or(tls.path.as_ref().map(|path| path.display().to_string()), "this host's");
    changes.extend(change("ca", authorities_of(authorities), authorities_of(&new.authorities)));
    if authorities.path == new.authorities.path
        && authorities != &new.authorities
        && !skip_verify
        && !new.skip_verify
    {
        changes.push("ca: authorities changed".to_owned());
    }
    let name = |name: &Option<String>| or(name.clone(), "the server's");
    changes.extend(change("server_name", name(server_name), name(&new.server_name)));
    changes.extend(certificate_changes(certificate.as_slice(), new.certificate.as_slice()));
    changes.extend(change("skip_verify", *skip_verify, new.skip_verify));
    changes.extend(change("min_version", min_version.name(), new.min_version.name()));
    changes.into_iter().map(|change| format!("tls.{change}")).collect()
}

/// Text for `convey check`.
pub(super) fn describe(backend: &BackendConfig, _: &[Mode]) -> String {
    let text = match backend.tls.as_ref().map(|tls| tls.skip_verify) {
        None => "",
        Some(false) => "; tls",
        Some(true) => "; tls, certificates not verified",
    };
    text.to_owned()
}

/// Reports settings that would make every handshake fail.
fn check_handshake(tls: &BackendTls, place: &Place, report: &Report<'_>) {
    let message = match TlsConnector::new(tls) {
        Ok(_) => return,
        Err(TlsFault::Certificate(_, fault)) => {
            let path = tls.certificate.as_ref().map(|pair| pair.chain_path.display().to_string());
            format!("certificate: {}: {fault}", path.unwrap_or_default())
        }
        Err(TlsFault::Authorities(fault)) => format!("ca: {fault}"),
        Err(TlsFault::Setting(key, fault)) => format!("{key}: {fault}"),
    };
    report.error(place, message);
}
