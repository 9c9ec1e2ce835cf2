//! Looks at a server of direct server return.
//!
//! `gather` asks the host, the other files judge what it said.

mod address;
mod facts;
mod firewall;
mod gather;
mod nat;
mod near_clients;
mod script;
mod service;
mod setup;
mod tunnel;
mod way_out;

use std::net::IpAddr;

use super::{Diagnosis, Examination, Severity};
use facts::ServerFacts;
use setup::ServerSetup;

/// What keeps this host from answering clients of the VIP; with a port: of that service.
///
/// # Errors
/// The host cannot be looked at: words for an operator.
pub fn look(vip: IpAddr, port: Option<u16>) -> Result<Examination, String> {
    let facts = gather::facts(vip)?;
    let unseen = way_out::unseen(&ServerSetup::of(vip, port, &facts), &facts);
    let not_looked_at = unseen.into_iter().collect();
    Ok(Examination { not_looked_at, ..judge(vip, port, &facts).into() })
}

/// The same of what was seen.
fn judge(vip: IpAddr, port: Option<u16>, facts: &ServerFacts) -> Vec<Diagnosis> {
    let setup = ServerSetup::of(vip, port, facts);
    [
        address::check(&setup, facts),
        tunnel::check(&setup, facts),
        nat::check(&setup, facts),
        way_out::check(&setup, facts),
        service::check(&setup, facts),
        firewall::check(&setup, facts),
    ]
    .concat()
}

/// What was found on this host.
fn finding(check: &'static str, severity: Severity, seen: String, why: &str, mend: Vec<String>) -> Diagnosis {
    Diagnosis { check, severity, seen, why: why.to_owned(), on: None, mend }
}

#[cfg(test)]
mod tests;
