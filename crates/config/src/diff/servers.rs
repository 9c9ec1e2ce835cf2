//! What a reload changes about the servers of a backend.

use super::{change, or, pair};
use convey_model::{Backend, ServerAddr, ServerSettings};

/// Where the servers are, as the file has it.
pub(super) fn addresses(backend: &Backend) -> Vec<String> {
    entries(backend).into_iter().map(|entry| entry.addr).collect()
}

/// Those that are new, those that are gone, and what has changed about the others. A server that changes its address is
/// another one; one that changes its name only is renamed.
pub(super) fn changes(old: &Backend, new: &Backend) -> Vec<String> {
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
            (None, Some(after)) => added.push(format!("+ {}", after.addr)),
            (Some(before), None) => removed.push(format!("- {}", before.addr)),
            (None, None) => {}
        }
    }
    [added, removed, changed].concat()
}

/// A server of the file, known by its address or by a name.
struct Entry<'a> {
    name: &'a str,
    addr: String,
    settings: &'a ServerSettings,
}

fn entries(backend: &Backend) -> Vec<Entry<'_>> {
    let at_address = backend.servers.iter().map(|server| Entry {
        name: &server.name,
        addr: ServerAddr(server.addr).to_string(),
        settings: &server.settings,
    });
    let named = backend.named.iter().map(|named| Entry {
        name: &named.name,
        addr: named.to_string(),
        settings: &named.settings,
    });
    at_address.chain(named).collect()
}

fn about(old: &Entry<'_>, new: &Entry<'_>) -> Vec<String> {
    // Taken apart field by field, so that a new one cannot be forgotten.
    let ServerSettings { weight, backup, max_connections } = old.settings;
    let of = |what: &str| format!("{what} of {}", old.addr);
    let limits = (or(*max_connections, "none"), or(new.settings.max_connections, "none"));
    let changes = [
        change(&of("name"), old.name, new.name),
        change(&of("weight"), weight, &new.settings.weight),
        change(&of("backup"), backup, &new.settings.backup),
        change(&of("max_connections"), limits.0, limits.1),
    ];
    changes.into_iter().flatten().collect()
}
