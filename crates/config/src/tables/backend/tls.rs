//! `[backends.NAME.tls]`: TLS to servers.

use std::sync::Arc;

use super::ParsedBackend;
use crate::diff::{below, change, or};
use crate::file::value;
use crate::keys::keys;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::ParsedFrontend;
use crate::tables::frontend::tls::{both, certificate_changes, read_pair};
use crate::values::{boolean, choice, http_host, string};
use convey_model::{Authorities, BackendConfig, BackendTls, Mode, Protocol, TlsVersion};
use convey_tls::{TlsConnector, TlsFault, server_name};

/// `[backends.NAME.tls]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[backends.NAME.tls]", docs: TlsKeys::DOCS };

keys! {
    /// The keys of `[backends.NAME.tls]` with plain values.
    struct TlsKeys => BackendTls, from (_unused: (), default);

    also authorities = default.authorities; {
        changes: authority_changes,
        docs: AUTHORITY_DOCS,
    };

    key "server_name" => server_name: String {
        read: http_host,
        unset: "the server's",
        kind: "the server name that convey sends (SNI) and expects in the servers' certificates",
        default: "the server's host name, or its address",
        sample: r#"#server_name = "app.internal"           # example; by default the server's host name, or its address"#,
        example: "'app.internal'",
    };

    also certificate = default.certificate; {
        changes: |old, new| certificate_changes(old.certificate.as_slice(), new.certificate.as_slice()),
        docs: CERTIFICATE_DOCS,
    };

    key "skip_verify" => skip_verify: bool {
        read: boolean,
        kind: "boolean: whether convey accepts any certificate",
        default: "false",
        sample: "#skip_verify = false                    # true accepts any certificate",
        example: "true",
    };

    key "min_version" => min_version: TlsVersion {
        read: choice(&TlsVersion::ALL, TlsVersion::name),
        kind: r#"`"1.2"` or `"1.3"`"#,
        default: r#"`"1.2"`"#,
        sample: r#"#min_version = "1.2"                    # or "1.3""#,
        example: "'1.3'",
    };
}

/// `ca` in the reference.
const AUTHORITY_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "ca",
    kind: "a file in PEM: the authorities that issue the certificates of servers",
    default: "those that this host trusts",
    sample: r#"#ca = "ca.pem"                          # example; by default the authorities that this host trusts"#,
    example: "'CA'",
    ..KeyDoc::USUAL
})];

/// Keys of the certificate that convey presents to servers, in the reference.
const CERTIFICATE_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "certificate",
        kind: "a file in PEM: the certificate that convey presents",
        default: "none",
        sample: r#"#certificate = "convey.pem"             # example; the certificate that convey presents; by default none"#,
        example: "'SITE.pem'\nkey = 'SITE.key'",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "key",
        kind: "a file in PEM: the key of `certificate`. Others must not be able to read it",
        default: "the file of the certificate",
        sample: r#"#key = "convey.key"                     # example; by default it is in the file of the certificate"#,
        example: "'OTHER.key'\ncertificate = 'OTHER.pem'",
        ..KeyDoc::USUAL
    }),
];

/// Reads `[backends.NAME.tls]` and the files that it names; `None` if the backend does not have the
/// table.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<Arc<BackendTls>>> {
    let is_there = backend.has("tls");
    let mut table = backend.table("tls");
    if !is_there {
        return None;
    }
    let place = table.place.clone();
    let keys = TlsKeys::read(&mut table);
    let skip_verify = value(&keys.skip_verify).unwrap_or_default();
    let ca = table.optional("ca", string);
    if let Some(ca) = ca.as_ref().filter(|_| skip_verify) {
        report.warning(&ca.place, "has no effect with skip_verify = true");
    }
    let (chain, key) = (table.optional("certificate", string), table.optional("key", string));
    if let (None, Some(key)) = (&chain, &key) {
        report.error(&key.place, "needs certificate: the chain that the key belongs to");
    }
    let certificate =
        chain.as_ref().and_then(|chain| read_pair(chain, key.as_ref().unwrap_or(chain), report));
    if let Some(Placed { value, place }) = &keys.server_name
        && server_name(Some(value), [0; 4].into()).is_err()
    {
        report.error(place, format!("found {value:?}; allowed: a host name or an IP address"));
    }
    table.finish();
    let authorities = if skip_verify { none() } else { authorities(ca, &place, report)? };
    let min_version = TlsVersion::default();
    let default = BackendTls { authorities, server_name: None, certificate, skip_verify, min_version };
    let tls = keys.model((), default);
    check_handshake(&tls, &place, report);
    Some(Placed { value: Arc::new(tls), place })
}

fn none() -> Authorities {
    Authorities { path: None, certificates: Arc::default() }
}

/// Certificate authorities from the file `ca`; without `ca`, those that this host trusts. `None`
/// after an error, which is reported.
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
                "this host has no certificate authorities; install the package ca-certificates, or set ca: {errors}"
            );
            report.error(place, message.trim_end_matches(": "));
            None
        }
    }
}

/// Reports TLS to servers in packet modes and for UDP: convey can use TLS only on TCP connections
/// that it opens itself.
pub(super) fn check(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(tls) = &backend.tls else { return };
    let others =
        used.iter().find(|(frontend, mode)| mode.forwards_packets() || frontend.protocol() == Protocol::Udp);
    if let Some((frontend, mode)) = others {
        let message = format!(
            "needs mode proxy or http with protocol tcp; frontend {:?} is in {} mode with protocol {}",
            frontend.name,
            mode.name(),
            frontend.protocol().name()
        );
        report.error(&tls.place, message);
    }
}

/// Changes of `[backends.NAME.tls]` for the log of a reload.
pub(super) fn changes(old: Option<&BackendTls>, new: Option<&BackendTls>) -> Vec<String> {
    let (old, new) = match both(old, new) {
        Ok(both) => both,
        Err(change) => return change.into_iter().collect(),
    };
    below("tls", TlsKeys::changes(old, new))
}

fn authority_changes(old: &BackendTls, new: &BackendTls) -> Option<String> {
    let path = |tls: &BackendTls| {
        or(tls.authorities.path.as_ref().map(|path| path.display().to_string()), "this host's")
    };
    let are_other = old.authorities != new.authorities && !old.skip_verify && !new.skip_verify;
    change("ca", path(old), path(new)).or_else(|| are_other.then(|| "ca: authorities changed".to_owned()))
}

/// Text of `convey check` about TLS to servers.
pub(super) fn describe(backend: &BackendConfig, _: &[Mode]) -> String {
    let text = match backend.tls.as_ref().map(|tls| tls.skip_verify) {
        None => "",
        Some(false) => "; tls",
        Some(true) => "; tls, certificates not verified",
    };
    text.to_owned()
}

/// Reports TLS settings that would make every handshake fail.
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
