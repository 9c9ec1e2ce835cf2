//! Service of a VIP, as given on the command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// VIP, and optionally the port of a service at the VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// The address that clients connect to.
    pub vip: IpAddr,
    /// The port; `None`: all ports.
    pub port: Option<u16>,
}

impl FromStr for Service {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Service, &'static str> {
        if let Ok(vip) = text.trim_start_matches('[').trim_end_matches(']').parse() {
            return Ok(Service { vip, port: None });
        }
        let addr: SocketAddr =
            text.parse().map_err(|_| "expected: IP or IP:PORT, such as 10.0.0.100:80 or [2001:db8::1]:80")?;
        Ok(Service { vip: addr.ip(), port: Some(addr.port()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_left_out() {
        let parse =
            |text: &str| text.parse::<Service>().map(|service| (service.vip.to_string(), service.port));
        assert_eq!(parse("10.0.0.100"), Ok(("10.0.0.100".to_owned(), None)));
        assert_eq!(parse("[2001:db8::1]:80"), Ok(("2001:db8::1".to_owned(), Some(80))));
        assert_eq!(parse("2001:db8::1"), Ok(("2001:db8::1".to_owned(), None)));
        assert!(parse("web").is_err());
    }
}
