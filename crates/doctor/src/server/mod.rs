//! Checks of a server of direct server return.
//!
//! `gather` collects facts about the host; the other files judge them.

mod address;
mod facts;
mod firewall;
mod gather;
mod nat;
mod near_clients;
mod reply_route;
mod script;
mod service;
mod setup;
mod tunnel;

use std::net::IpAddr;

use super::{Diagnosis, Examination, Severity};
use facts::ServerFacts;
use setup::ServerSetup;

/// Examines this host for faults that keep it from answering clients of the VIP. If `port` is set,
/// only the service at this port is examined.
///
/// # Errors
/// Operator-facing message: the host cannot be examined.
pub fn examine(vip: IpAddr, port: Option<u16>) -> Result<Examination, String> {
    let facts = gather::facts(vip)?;
    let unseen = reply_route::unseen(&ServerSetup::of(vip, port, &facts), &facts);
    let skipped = unseen.into_iter().collect();
    Ok(Examination { skipped, ..diagnose(vip, port, &facts).into() })
}

/// Findings that follow from the facts about the host.
fn diagnose(vip: IpAddr, port: Option<u16>, facts: &ServerFacts) -> Vec<Diagnosis> {
    let setup = ServerSetup::of(vip, port, facts);
    [
        address::check(&setup, facts),
        tunnel::check(&setup, facts),
        nat::check(&setup, facts),
        reply_route::check(&setup, facts),
        service::check(&setup, facts),
        firewall::check(&setup, facts),
    ]
    .concat()
}

/// Finding with commands to be run on this host.
fn finding(check: &'static str, severity: Severity, seen: String, why: &str, fix: Vec<String>) -> Diagnosis {
    Diagnosis { check, severity, seen, why: why.to_owned(), on: None, fix }
}

#[cfg(test)]
mod tests;
