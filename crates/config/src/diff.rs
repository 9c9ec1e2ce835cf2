//! Log text of the differences between two configurations. Pure.

use std::fmt::Display;

use super::Config;
use super::tables::passthrough::FlowTimeoutKeys;
use super::tables::timeouts::TimeoutKeys;
use super::tables::{
    access_log, acme, announce, backend, dns, frontend, logs, passthrough, privileges, stats,
};

/// Returns one line for each difference; no line if and only if both configurations are equal.
pub(super) fn differences(old: &Config, new: &Config) -> Vec<String> {
    // This function and those below destructure the structs, so that a new field does not compile
    // until it is compared.
    let Config {
        frontends,
        backends,
        workers,
        log: of_log,
        access_log: of_access_log,
        privileges: of_privileges,
        acme: of_acme,
        announce: of_announcing,
        stats: of_stats,
        timeouts,
        passthrough: of_packets,
        dns: of_names,
    } = old;
    let mut changes = Vec::new();
    for (before, after) in pair(frontends, &new.frontends, |a, b| a.name == b.name) {
        changes.extend(line("frontend", (before, after), |f| &f.name, frontend::about, frontend::changes));
    }
    for (before, after) in pair(backends, &new.backends, |a, b| a.name == b.name) {
        changes.extend(line("backend", (before, after), |b| &b.name, backend::about, backend::changes));
    }
    let of_flows = FlowTimeoutKeys::changes(&of_packets.timeouts, &new.passthrough.timeouts);
    for (what, times) in
        [("timeouts", TimeoutKeys::changes(timeouts, &new.timeouts)), ("passthrough.timeouts", of_flows)]
    {
        if !times.is_empty() {
            changes.push(format!("{what}: {}", times.join(", ")));
        }
    }
    changes.extend(change("workers", or(*workers, "automatic"), or(new.workers, "automatic")));
    changes.extend(dns::changes(of_names, &new.dns));
    changes.extend(logs::changes(of_log, &new.log));
    changes.extend(access_log::changes(of_access_log, &new.access_log));
    changes.extend(privileges::changes(of_privileges, &new.privileges));
    changes.extend(acme::changes(of_acme.as_deref(), new.acme.as_deref()));
    changes.extend(announce::changes(of_announcing.as_deref(), new.announce.as_deref()));
    changes.extend(stats::changes(of_stats, &new.stats));
    changes.extend(passthrough::changes(of_packets, &new.passthrough));
    changes
}

/// Line for a frontend or backend that was added, removed or changed; `None` if it is unchanged.
fn line<T>(
    kind: &str,
    (before, after): (Option<&T>, Option<&T>),
    name: impl Fn(&T) -> &str,
    about: impl Fn(&T) -> String,
    changes: impl Fn(&T, &T) -> Vec<String>,
) -> Option<String> {
    match (before, after) {
        (Some(before), Some(after)) => {
            let changes = changes(before, after);
            (!changes.is_empty()).then(|| format!("{kind} {}: {}", name(after), changes.join(", ")))
        }
        (None, Some(after)) => Some(format!("{kind} {}: added ({})", name(after), about(after))),
        (Some(before), None) => Some(format!("{kind} {}: removed", name(before))),
        _ => None,
    }
}

/// Prefixes each difference with the name of its table.
pub(super) fn below(table: &str, changes: Vec<String>) -> Vec<String> {
    changes.into_iter().map(|change| format!("{table}.{change}")).collect()
}

/// List of the values, or a note that they are chosen automatically.
pub(super) fn list<T: Display>(values: &[T]) -> String {
    list_or(values, "automatic")
}

pub(super) fn list_or<T: Display>(values: &[T], none: &str) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    if values.is_empty() { none.to_owned() } else { values.join(", ") }
}

/// Text `what old -> new`; `None` if both values are equal.
pub(super) fn change<T: Display + PartialEq>(what: &str, old: T, new: T) -> Option<String> {
    (old != new).then(|| format!("{what} {old} -> {new}"))
}

/// Value as text, or the given text for `None`.
pub(super) fn or<T: Display>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

/// Pairs equal items of both lists, one to one: first the items of `before` in order, then the
/// items that are only in `after`. An item without a partner is paired with `None`.
pub(super) fn pair<'a, T>(
    before: &'a [T],
    after: &'a [T],
    same: impl Fn(&T, &T) -> bool,
) -> Vec<(Option<&'a T>, Option<&'a T>)> {
    let mut rest: Vec<&T> = after.iter().collect();
    let mut pairs = Vec::new();
    for one in before {
        let twin = rest.iter().position(|other| same(one, other)).map(|index| rest.remove(index));
        pairs.push((Some(one), twin));
    }
    pairs.extend(rest.into_iter().map(|one| (None, Some(one))));
    pairs
}

#[cfg(test)]
mod tests;
