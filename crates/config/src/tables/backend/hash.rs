//! `hash` of a backend: the hash key, from a client's connection or from a request.

use toml::de::DeValue;

use super::ParsedBackend;
use crate::diff::change;
use crate::problem::{Placed, Report};
use crate::reference::{Docs, KeyDoc};
use crate::tables::ParsedFrontend;
use crate::values::choice;
use convey_http_core::RequestField;
use convey_model::{BackendConfig, HashOn, Mode};

/// `hash` in the reference.
pub(super) const DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "hash",
    kind: r#"`"source"`, `"tuple"` or `"quic_cid"` (as `"tuple"`, for packets whose [connection id](../guides/quic.md) names no server): what `ring` and `maglev` hash; mode http: also `"header:NAME"` or `"cookie:NAME"`, and `"source"` for a request without"#,
    default: r#"`"source"`; `"tuple"` if a packet mode uses the backend"#,
    sample: r##"
# The input of the hash for ring and maglev:
#   source  the client's address: a client stays with its server
#   tuple   addresses and ports: the connections of one client spread over the servers
#   quic_cid  as tuple. But a QUIC packet whose connection id names a server goes there, with any algorithm (docs/guides/quic.md)
#   header:NAME, cookie:NAME  the value in the request, in mode http. Without it the client's address
# The default is "tuple" if a frontend in mode passthrough or dsr uses the backend.
#hash = "source"
"##,
    example: "'tuple'",
    ..KeyDoc::USUAL
})];

/// Value of `hash`: the hash key of an algorithm that hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hashed {
    /// Addresses of a connection or flow.
    Flow(HashOn),
    /// Field of a request.
    Request(RequestField),
}

impl Hashed {
    /// Hash key of connections and flows, also of requests without the field.
    pub(super) fn on(&self) -> HashOn {
        match self {
            Hashed::Flow(on) => *on,
            Hashed::Request(_) => HashOn::Source,
        }
    }

    /// Field of a request, if the field is the hash key.
    pub(super) fn request(&self) -> Option<&RequestField> {
        match self {
            Hashed::Flow(_) => None,
            Hashed::Request(field) => Some(field),
        }
    }

    /// Whether QUIC connection ids identify servers.
    pub(super) fn is_quic(&self) -> bool {
        *self == Hashed::Flow(HashOn::QuicCid)
    }
}

/// Parses `source`, `tuple`, `quic_cid`, `header:NAME` or `cookie:NAME`.
pub(super) fn parse(found: &DeValue<'_>) -> Result<Hashed, String> {
    if let Some(field) = found.as_str().and_then(RequestField::parse) {
        return Ok(Hashed::Request(field));
    }
    let flow = choice(&HashOn::ALL, HashOn::name)(found).map(Hashed::Flow);
    flow.map_err(|message| message.replacen("quic_cid", "quic_cid, header:NAME, cookie:NAME", 1))
}

/// Reports a request field as hash key in modes other than `http`.
pub(super) fn check(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let Some(Placed { value, place }) = &backend.hash else { return };
    let of_other_mode = used.iter().find(|(_, mode)| !mode.is_http());
    if let (Some(field), Some((frontend, mode))) = (value.request(), of_other_mode) {
        let (name, mode) = (&frontend.name, mode.name());
        let message = format!(
            "found \"{field}\", which needs mode = \"http\"; frontend {name:?} is in {mode} mode; allowed: source, tuple, quic_cid"
        );
        report.error(place, message);
    }
}

/// Changes of `hash` for the log of a reload.
pub(super) fn changes(old: &BackendConfig, new: &BackendConfig) -> Option<String> {
    change("hash", old.hash_name(), new.hash_name())
}

/// Text about the hash key, such as ` by source`; empty without one.
pub(super) fn describe(backend: &BackendConfig, _: &[Mode]) -> String {
    match backend.algorithm.hashes() {
        true => format!(" by {}", backend.hash_name()),
        false if backend.quic.is_some() => format!(" and {}", backend.hash_name()),
        false => String::new(),
    }
}
