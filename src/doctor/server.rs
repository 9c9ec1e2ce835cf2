//! Looks at a server of direct server return.

use std::net::IpAddr;

use super::Diagnosis;

/// What keeps this host from answering clients of the VIP; with a port: of that service.
///
/// # Errors
/// The host cannot be looked at: words for an operator.
pub fn look(_vip: IpAddr, _port: Option<u16>) -> Result<Vec<Diagnosis>, String> {
    Ok(Vec::new())
}
