//! Log lines about host names and servers' health.

use super::{
    DiscoveryChange, EventKind, EventLevel, FaultChange, HealthChange, LogLine, NameChange, SourceFault,
};
use crate::health::HealthTransition;
use convey_config::listed;
use convey_model::{DiscoveredServer, LookupFault, Missing, SourceSettings};

/// Maximum number of addresses in a log line. An answer may have thousands of addresses.
pub(super) const MAX_LISTED: usize = 8;

/// Log line about a change of a host name.
pub(super) fn of_name(change: &NameChange) -> LogLine {
    let NameChange { host, added, removed, addresses, fault, notes } = change;
    let addresses = listed(addresses.iter(), MAX_LISTED);
    let changes = [(added, '+'), (removed, '-')]
        .map(|(ips, sign)| listed(ips.iter().map(|ip| format!("{sign} {ip}")), MAX_LISTED));
    let more = changes.into_iter().filter(|change| !change.is_empty()).collect::<Vec<_>>().join(", ");
    let more: Vec<String> =
        Some(more).filter(|more| !more.is_empty()).into_iter().chain(notes.clone()).collect();
    let more = more.join("; ");
    let after = |sign: &str| if more.is_empty() { String::new() } else { format!("{sign} {more}") };
    let because = |why: &str, so: &str| LogLine::warn(format!("name {host} cannot be resolved: {why}; {so}"));
    match fault {
        FaultChange::Began(LookupFault { missing: Missing::Records(kind), why }) => {
            let line = format!(
                "name {host}: its {kind} records cannot be looked up: {why}; the previous results stay in use"
            );
            LogLine::warn(line + &after(";"))
        }
        FaultChange::Began(LookupFault { why, .. }) if addresses.is_empty() => {
            because(why, "it has no servers until a lookup succeeds")
        }
        FaultChange::Began(LookupFault { why, .. }) => {
            because(why, &format!("the previous addresses stay in use: {addresses}"))
        }
        FaultChange::Ended => {
            LogLine::info(format!("name {host} is resolved again: {addresses}{}", after(";")))
        }
        FaultChange::Same => LogLine { level: level_of(notes), text: format!("name {host}{}", after(":")) },
    }
}

/// Log line about a change of a discovery source.
pub(super) fn of_source(change: &DiscoveryChange) -> LogLine {
    let DiscoveryChange {
        source, added, removed, draining, resumed, settings, servers, fault, notes, ..
    } = change;
    let is_empty = *servers == 0;
    let servers = if *servers == 1 { "1 server".to_owned() } else { format!("{servers} servers") };
    let signed = |all: &[DiscoveredServer], sign: &str| {
        listed(all.iter().map(|server| format!("{sign} {} ({})", server.name, server.addr)), MAX_LISTED)
    };
    let changes = [
        signed(added, "+"),
        signed(removed, "-"),
        signed(draining, "draining"),
        signed(resumed, "no longer draining:"),
        settings.as_ref().map(of_settings).unwrap_or_default(),
    ];
    let changes: Vec<String> = changes.into_iter().filter(|change| !change.is_empty()).collect();
    let changes = Some(changes.join(", ")).filter(|changes| !changes.is_empty());
    let more = changes.into_iter().chain(notes.clone()).collect::<Vec<_>>().join("; ");
    match fault {
        SourceFault::Began(why) if is_empty => LogLine::warn(format!(
            "{source} cannot be watched: {why}; it has no servers until a watch succeeds"
        )),
        SourceFault::Began(why) => LogLine::warn(format!(
            "{source} cannot be watched: {why}; it keeps {servers} until a watch succeeds"
        )),
        SourceFault::Ended if more.is_empty() => {
            LogLine::info(format!("{source} is watched again: {servers}"))
        }
        SourceFault::Ended => LogLine::info(format!("{source} is watched again: {servers}; {more}")),
        SourceFault::Same if more.is_empty() => LogLine::info(format!("{source}: {servers}")),
        SourceFault::Same => LogLine { level: level_of(notes), text: format!("{source}: {more}") },
    }
}

/// Settings of a source's servers, for its log line.
fn of_settings(settings: &SourceSettings) -> String {
    let SourceSettings { weight, max_connections, algorithm, slow_start } = settings;
    let all = [
        weight.map(|weight| format!("weight {weight}")),
        max_connections.map(|most| format!("max_connections {most}")),
        algorithm.map(|algorithm| format!("algorithm {}", algorithm.name())),
        slow_start.map(|time| format!("slow_start {time:?}")),
    ];
    match all.into_iter().flatten().collect::<Vec<_>>() {
        none if none.is_empty() => "the settings of the file apply again".to_owned(),
        some => format!("the source sets {}", some.join(", ")),
    }
}

/// Log line about a change of a server's health.
pub(super) fn of_server(health: &HealthChange) -> LogLine {
    let HealthChange { server, change, reason, eligible, of } = health;
    let left = format!("({eligible} of {of} can be chosen)");
    match change {
        HealthTransition::Up => LogLine::info(format!("server {server} is up: {reason} {left}")),
        HealthTransition::Down => LogLine::warn(format!("server {server} is down: {reason} {left}")),
        HealthTransition::StillDown => LogLine::info(format!("server {server} is still down: {reason}")),
        HealthTransition::Ejected(time) => {
            LogLine::warn(format!("server {server} is ejected for {time:?}: {reason} {left}"))
        }
        HealthTransition::Returned => LogLine::info(format!("server {server} is no longer ejected {left}")),
    }
}

/// Level of a log line: warning if there are notes.
fn level_of(notes: &[String]) -> EventLevel {
    if notes.is_empty() { EventLevel::Info } else { EventLevel::Warn }
}

/// Event kind of a health transition.
pub(super) fn kind_of(change: &HealthTransition) -> EventKind {
    match change {
        HealthTransition::Up | HealthTransition::Down | HealthTransition::StillDown => EventKind::Health,
        HealthTransition::Ejected(_) | HealthTransition::Returned => EventKind::Ejection,
    }
}
