//! The log's lines on names and on servers' health.

use log::{info, warn};

use super::{FaultChange, HealthChange, NameChange};
use crate::health::HealthTransition;
use convey_model::{LookupFault, Missing, ServerAddr};

/// Names of a log line are no more: answers may have thousands.
const MAX_LISTED: usize = 8;

/// Tells what has become of a name, in one line.
pub(super) fn of_name(change: &NameChange) {
    let NameChange { host, added, removed, addresses, fault, notes } = change;
    let addresses = listed(addresses.iter().map(ServerAddr::to_string));
    let changes =
        [(added, '+'), (removed, '-')].map(|(ips, sign)| listed(ips.iter().map(|ip| format!("{sign} {ip}"))));
    let more = changes.into_iter().filter(|change| !change.is_empty()).collect::<Vec<_>>().join(", ");
    let more: Vec<String> =
        Some(more).filter(|more| !more.is_empty()).into_iter().chain(notes.clone()).collect();
    let more = more.join("; ");
    let after = |sign: &str| if more.is_empty() { String::new() } else { format!("{sign} {more}") };
    match fault {
        FaultChange::Began(LookupFault { missing: Missing::Records(kind), why }) => warn!(
            "name {host}: its {kind} records cannot be looked up: {why}; those found before stay{}",
            after(";")
        ),
        FaultChange::Began(LookupFault { why, .. }) if addresses.is_empty() => {
            warn!("name {host} cannot be resolved: {why}; it has no servers until it can");
        }
        FaultChange::Began(LookupFault { why, .. }) => {
            warn!("name {host} cannot be resolved: {why}; its servers stay: {addresses}");
        }
        FaultChange::Ended => info!("name {host} is resolved again: {addresses}{}", after(";")),
        FaultChange::Same if notes.is_empty() => info!("name {host}{}", after(":")),
        FaultChange::Same => warn!("name {host}{}", after(":")),
    }
}

/// Some of them, and how many more there are.
pub(super) fn listed(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(MAX_LISTED);
    let some = all.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    if more == 0 { some } else { format!("{some} and {more} more") }
}

/// Tells what has become of a server.
pub(super) fn of_server(health: &HealthChange) {
    let HealthChange { server, change, reason, eligible, of } = health;
    match change {
        HealthTransition::Up => info!("server {server} is up: {reason} ({eligible} of {of} can be chosen)"),
        HealthTransition::Down => {
            warn!("server {server} is down: {reason} ({eligible} of {of} can be chosen)")
        }
        HealthTransition::StillDown => info!("server {server} is still down: {reason}"),
        HealthTransition::Ejected(time) => {
            warn!("server {server} is ejected for {time:?}: {reason} ({eligible} of {of} can be chosen)");
        }
        HealthTransition::Returned => {
            info!("server {server} is no longer ejected ({eligible} of {of} can be chosen)")
        }
    }
}
