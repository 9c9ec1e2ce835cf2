//! Validation of host names (RFC 6066 3, RFC 1035 2.3.4).

use std::net::IpAddr;

use super::HelloFault;

/// Upper bound of a host name, in bytes.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Returns the host name in lower case, without a dot at its end. `None` if the name is an IP
/// address.
pub(super) fn host(bytes: &[u8]) -> Result<Option<Box<str>>, HelloFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| HelloFault::ServerName)?;
    if text.parse::<IpAddr>().is_ok() {
        return Ok(None);
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_of_label);
    let is_name = name.len() <= MAX_NAME && name.split('.').all(is_label);
    if is_name { Ok(Some(name.to_ascii_lowercase().into())) } else { Err(HelloFault::ServerName) }
}
