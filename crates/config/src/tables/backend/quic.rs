//! `[backends.NAME.quic_lb.N]` and `quic_server_id`: servers identified by QUIC connection ids.

use std::collections::HashMap;
use std::sync::Arc;

use convey_quic_cid::{DEFAULT_LEN, MAX_ROTATION, MIN_NONCE, QuicKey, Scheme, Schemes, ServerId};
use toml::de::DeValue;

use super::{ParsedBackend, ParsedServer};
use crate::diff::{change, or};
use crate::hint::listed;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::ParsedFrontend;
use crate::values::{integer, not_allowed, string};
use convey_model::{Protocol, QuicConfig};

/// `[backends.NAME.quic_lb.N]` in the reference. The table has no list of keys and fields, because
/// its keys and the ids of servers set one value of the model.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[backends.NAME.quic_lb.N]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "key_file",
            kind: "a file with 32 hexadecimal digits: the key of AES-128. Others must not be able to read it",
            default: "none: the ids are not encrypted",
            sample: r#"#key_file = "quic-lb.key"               # example; 32 hexadecimal digits. Without it everybody can read the ids"#,
            example: "'QUIC.key'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "nonce_length",
            kind: "4 to 18: bytes of the nonce. With the server id there are at most 19",
            default: "16 less the bytes of the server id, at least 4",
            sample: "#nonce_length = 12                      # bytes; by default 16 minus the length of the server id, and at least 4",
            example: "5",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Maximum number of servers named in a warning.
const MAX_NAMED: usize = 8;

/// Parsed `[backends.NAME.quic_lb.N]`.
#[derive(Debug)]
struct ParsedScheme {
    rotation: u8,
    place: Place,
    nonce_length: Option<Placed<usize>>,
    key: Option<QuicKey>,
}

/// Reads the `quic_lb` tables of a backend, and combines them with the server ids. Returns `None`
/// if it has neither.
pub(super) fn read(
    backend: &mut TomlTable<'_>,
    servers: &[ParsedServer],
    report: &Report<'_>,
) -> Option<Placed<Arc<QuicConfig>>> {
    let tables = backend.table("quic_lb").named();
    let parsed: Vec<ParsedScheme> =
        tables.into_iter().filter_map(|(name, table)| scheme(&name, table, report)).collect();
    let ids = ids(servers, report);
    let first_place = servers.iter().find_map(|server| Some(server.quic_server_id.as_ref()?.place.clone()));
    let Some(place) = first_place else {
        if let Some(scheme) = parsed.first() {
            report.error(&scheme.place, "no server has a quic_server_id");
        }
        return None;
    };
    // If there is no valid id, the errors of the invalid ids were reported already.
    let len = ids.first().map_or(1, |(id, _)| id.len());
    let usual = DEFAULT_LEN.saturating_sub(len).max(MIN_NONCE);
    let mut schemes = Schemes::default();
    if parsed.is_empty() {
        Scheme::new(0, len, usual, None).into_iter().for_each(|scheme| schemes.add(scheme));
    }
    for ParsedScheme { rotation, place, nonce_length, key } in parsed {
        let nonce = nonce_length.as_ref().map_or(usual, |found| found.value);
        match Scheme::new(rotation, len, nonce, key) {
            Ok(scheme) => schemes.add(scheme),
            Err(why) => {
                let place = nonce_length.map_or(place, |found| found.place);
                report.error(&place, format!("{why}; server ids have {len} bytes"));
            }
        }
    }
    Some(Placed { value: Arc::new(QuicConfig { schemes, servers: ids }), place })
}

/// Parses `quic_server_id` of a server.
pub(super) fn server_id(value: &DeValue<'_>) -> Result<ServerId, String> {
    const ALLOWED: &str = "2 to 30 hexadecimal digits, such as \"01\" or \"c4605e\"";
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| not_allowed(value, ALLOWED))
}

/// Reports server ids without `hash = "quic_cid"`, `hash = "quic_cid"` without server ids, and a
/// backend whose frontends all lack UDP.
pub(super) fn check(backend: &ParsedBackend, frontends: &[ParsedFrontend], report: &Report<'_>) {
    let hash = backend.hash.as_ref().filter(|_| backend.hashes_quic());
    let Some(Placed { place, .. }) = hash else {
        if let Some(quic) = &backend.quic {
            report.warning(&quic.place, "has no effect without hash = \"quic_cid\"");
        }
        return;
    };
    match &backend.quic {
        None => report.error(place, "found \"quic_cid\", but no server has a quic_server_id"),
        Some(_) => without_id(backend, place, report),
    }
    let uses = |frontend: &&ParsedFrontend| frontend.backends().any(|name| name.value == backend.name);
    let mut used = frontends.iter().filter(uses).map(ParsedFrontend::protocol).peekable();
    if used.peek().is_some() && used.all(|protocol| protocol != Protocol::Udp) {
        report.warning(place, "has no effect: no UDP frontend uses this backend");
    }
}

/// Warns of servers without an id: a client that changes its address loses its connection to such a
/// server.
fn without_id(backend: &ParsedBackend, place: &Place, report: &Report<'_>) {
    let without = backend.servers.iter().filter(|server| server.quic_server_id.is_none());
    let mut names: Vec<String> = without.map(|server| format!("{:?}", server.name)).collect();
    names.extend(
        backend.discovery.as_ref().map(|found| format!("the servers of {}", found.value.source.kind())),
    );
    if !names.is_empty() {
        let names = listed(names.into_iter(), MAX_NAMED);
        report.warning(
            place,
            format!("some servers have no quic_server_id: {names}; if the address of a client changes, its connection to such a server is lost"),
        );
    }
}

/// Changes of `quic_lb` for the log of a reload.
pub(super) fn changes(old: Option<&QuicConfig>, new: Option<&QuicConfig>) -> Option<String> {
    let changed = change("quic_lb", or(old, "none"), or(new, "none"));
    // The key is a secret, so the text does not contain it.
    changed.or_else(|| (old != new).then(|| "quic_lb: key or nonce_length changed".to_owned()))
}

fn scheme(name: &str, mut table: TomlTable<'_>, report: &Report<'_>) -> Option<ParsedScheme> {
    let place = table.place.clone();
    let nonce_length = table.optional("nonce_length", integer(MIN_NONCE..=18));
    let key_file = table.optional("key_file", string);
    table.finish();
    let key = key_file.as_ref().and_then(|file| key(file, report));
    let rotation = name.parse().ok().filter(|rotation| *rotation <= MAX_ROTATION);
    let Some(rotation) = rotation.filter(|rotation: &u8| rotation.to_string() == name) else {
        report.error(
            &place,
            format!("found the table name {name:?}; allowed: a number from 0 to {MAX_ROTATION}, the first bits of connection ids"),
        );
        return None;
    };
    // The error of a wrong key file was reported.
    (key.is_some() == key_file.is_some()).then_some(ParsedScheme { rotation, place, nonce_length, key })
}

/// Parses a key of 16 bytes from 32 hexadecimal digits.
fn key(file: &Placed<String>, report: &Report<'_>) -> Option<QuicKey> {
    let (path, text) = report.read_secret(&file.place, &file.value)?;
    let digits = text.trim_ascii();
    let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
    let key = bytes.and_then(|bytes| Some(QuicKey::new(bytes.try_into().ok()?)));
    if key.is_none() {
        report.error(
            &file.place,
            format!("{} must contain 32 hexadecimal digits, a key of 16 bytes", path.display()),
        );
    }
    key
}

/// Valid server ids, each with the name of its server. Reports ids that two servers share, ids of
/// different lengths, and ids of servers known by host name.
fn ids(servers: &[ParsedServer], report: &Report<'_>) -> Vec<(ServerId, String)> {
    let mut taken: HashMap<ServerId, &str> = HashMap::new();
    let mut ids: Vec<(ServerId, String)> = Vec::new();
    for server in servers {
        let Some(Placed { value: id, place }) = &server.quic_server_id else { continue };
        if server.name_place().is_some() {
            report.error(place, "a host name may have several servers, which cannot share an id: write each server with its IP address and its own id");
        } else if let Some(other) = taken.insert(*id, &server.name) {
            report.error(place, format!("server {other:?} has the same id"));
        } else if let Some((first, name)) = ids.first().filter(|(first, _)| first.len() != id.len()) {
            report.error(
                place,
                format!(
                    "{id} has {} bytes, but {first} of server {name:?} has {}; all ids of a backend have the same length",
                    id.len(),
                    first.len()
                ),
            );
        } else {
            ids.push((*id, server.name.clone()));
        }
    }
    ids.sort_by(|(_, a), (_, b)| a.cmp(b));
    ids
}
