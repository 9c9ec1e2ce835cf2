//! What a reload changes about the servers of a backend.

use std::fmt;

use super::{change, or, pair};
use convey_model::{BackendConfig, ServerAddr, ServerSettings};

/// The servers, with their addresses as the file has them.
pub(super) fn servers(backend: &BackendConfig) -> Vec<String> {
    entries(backend).iter().map(ToString::to_string).collect()
}

/// The new servers, the servers that are gone, and the changes of the others. A server that changes its name only is
/// renamed.
pub(super) fn changes(old: &BackendConfig, new: &BackendConfig) -> Vec<String> {
    let (old, new) = (entries(old), entries(new));
    let (mut added, mut removed, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    for (before, after) in pair(&old, &new, |a, b| a.name == b.name && a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => come.push(after),
            (Some(before), None) => gone.push(before),
            (None, None) => {}
        }
    }
    for (before, after) in pair(&gone, &come, |a, b| a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => added.push(after),
            (Some(before), None) => removed.push(before),
            (None, None) => {}
        }
    }
    let (mut new, mut lost) = (Vec::new(), Vec::new());
    for (before, after) in pair(&removed, &added, |a, b| a.name == b.name) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => new.push(format!("+ {after}")),
            (Some(before), None) => lost.push(format!("- {before}")),
            (None, None) => {}
        }
    }
    [new, lost, changed].concat()
}

/// A server of the file, known by its address or by a name.
struct ServerLine<'a> {
    backend: &'a str,
    name: &'a str,
    addr: String,
    settings: &'a ServerSettings,
}

impl fmt::Display for ServerLine<'_> {
    /// `web/a (10.0.0.2:80)`, as in every line of the log. Without the address if the server is called after it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerLine { backend, name, addr, .. } = self;
        if name == addr { write!(f, "{backend}/{name}") } else { write!(f, "{backend}/{name} ({addr})") }
    }
}

fn entries(backend: &BackendConfig) -> Vec<ServerLine<'_>> {
    let at_address = backend.servers.iter().map(|server| ServerLine {
        backend: &backend.name,
        name: &server.name,
        addr: ServerAddr(server.addr).to_string(),
        settings: &server.settings,
    });
    let named = backend.named.iter().map(|named| ServerLine {
        backend: &backend.name,
        name: &named.name,
        addr: named.to_string(),
        settings: &named.settings,
    });
    at_address.chain(named).collect()
}

fn about(old: &ServerLine<'_>, new: &ServerLine<'_>) -> Vec<String> {
    // Taken apart field by field, so that a new one cannot be forgotten.
    let ServerSettings { weight, backup, max_connections } = old.settings;
    let of = |what: &str| format!("{what} of {old}");
    let name = |entry: &ServerLine<'_>| format!("{}/{}", entry.backend, entry.name);
    let limits = (or(*max_connections, "none"), or(new.settings.max_connections, "none"));
    let changes = [
        change(&of("name"), old.name, new.name),
        change(&format!("address of {}", name(old)), &old.addr, &new.addr),
        change(&of("weight"), weight, &new.settings.weight),
        change(&of("backup"), backup, &new.settings.backup),
        change(&of("max_connections"), limits.0, limits.1),
    ];
    changes.into_iter().flatten().collect()
}
