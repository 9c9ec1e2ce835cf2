//! Looks at a server of direct server return.
//!
//! `gather` asks the host, the other files judge what it said.

mod address;
mod facts;
mod firewall;
mod gather;
mod nat;
mod script;
mod service;
mod setup;
mod way_out;

use std::net::IpAddr;

use super::Diagnosis;
use facts::ServerFacts;
use setup::ServerSetup;

/// What keeps this host from answering clients of the VIP; with a port: of that service.
///
/// # Errors
/// The host cannot be looked at: words for an operator.
pub fn look(vip: IpAddr, port: Option<u16>) -> Result<Vec<Diagnosis>, String> {
    Ok(judge(vip, port, &gather::facts(vip)?))
}

/// The same of what was seen.
fn judge(vip: IpAddr, port: Option<u16>, facts: &ServerFacts) -> Vec<Diagnosis> {
    let setup = ServerSetup::of(vip, port, facts);
    [
        address::check(&setup, facts),
        nat::check(&setup, facts),
        way_out::check(&setup, facts),
        service::check(&setup, facts),
        firewall::check(&setup, facts),
    ]
    .concat()
}

#[cfg(test)]
mod tests;
