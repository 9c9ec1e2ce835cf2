//! `trusted_proxies` of a frontend: networks, and files of networks.

use super::access;
use crate::diff::{change, or};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use convey_model::{Access, FrontendConfig, NetworkSet, Prefix};

/// `trusted_proxies` in the reference.
pub(super) const DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "trusted_proxies",
    kind: r#"networks that may send PROXY headers; required with `accept_proxy`. http: also proxies that name the client of each request: see `client_address`. convey uses that client's address, and trusts their `X-Forwarded-*`, `Forwarded` and `X-SSL-Client-DN`; see [HTTP](../guides/http.md#behind-another-proxy). `access` applies to the clients that they name. `"@PATH"` is a file with one network a line"#,
    default: "none",
    sample: r##"
#trusted_proxies = ["10.0.0.5"]         # example; such as ["10.0.0.5", "@cdn.txt"]: the networks that may send PROXY headers,
                                        # required with accept_proxy. http: also the proxies that name the client of each
                                        # request (client_address). access applies to the clients that they name
"##,
    example: "'10.0.0.5'",
    ..KeyDoc::USUAL
})];

/// Parsed `trusted_proxies`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedProxies {
    /// Networks of each entry; an entry that names a file has several.
    entries: Vec<Placed<Vec<Prefix>>>,
    networks: NetworkSet,
}

impl ParsedProxies {
    /// Reads `trusted_proxies` from the table of a frontend, and the files that it names.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedProxies {
        let place = table.place_of("trusted_proxies");
        let mut files = Vec::new();
        let entries = table.any_number("trusted_proxies", access::entry).into_iter();
        let entries: Vec<_> = entries.map(|entry| access::listed(entry, true, &mut files, report)).collect();
        for entry in entries.iter().filter(|entry| entry.value.iter().any(|network| network.len() == 0)) {
            report.warning(
                &entry.place,
                "trusts every address: each client can then pretend to be any other one",
            );
        }
        let all: Vec<Prefix> = entries.iter().flat_map(|entry| &entry.value).copied().collect();
        // As in access lists: another program may be writing the file.
        if let Some(place) = place.filter(|_| all.is_empty() && !files.is_empty()) {
            report.missing(&place, "has no network, so convey would take proxies for clients");
        }
        let access = report.share(Access::from_files(all, [], files));
        ParsedProxies { entries, networks: NetworkSet::of_allowed(access) }
    }

    /// Whether the list has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Place of the first entry.
    pub(super) fn place(&self) -> Option<&Place> {
        self.entries.first().map(|entry| &entry.place)
    }

    /// First network of which the access lists deny an address, and the denied network.
    pub(super) fn denied_by(&self, access: &Access) -> Option<(&Place, Prefix)> {
        self.entries.iter().find_map(|entry| {
            let denied = entry.value.iter().find_map(|network| access.denied_in(*network));
            Some((&entry.place, denied?))
        })
    }

    /// Model of the list.
    pub(super) fn model(&self) -> NetworkSet {
        self.networks.clone()
    }
}

/// Changes of `trusted_proxies` for the log of a reload.
pub(super) fn changes(old: &FrontendConfig, new: &FrontendConfig) -> Option<String> {
    let (old, new) = (&old.trusted_proxies, &new.trusted_proxies);
    if old.is_short() && new.is_short() {
        let shown =
            |networks: &NetworkSet| or(Some(networks).filter(|networks| !networks.is_empty()), "none");
        return change("trusted_proxies", shown(old), shown(new));
    }
    (old != new).then(|| {
        let (added, gone) = new.changes_since(old);
        format!("trusted_proxies: {added} added and {gone} removed")
    })
}
