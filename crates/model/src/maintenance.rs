//! Maintenance in mode `http`: convey answers requests with a page. Pure.

use std::fmt;
use std::net::IpAddr;

use bytes::Bytes;

use crate::{ErrorPages, Prefix};

/// Maintenance of a frontend, a route or a backend, set by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// Status of the replies, 400 to 599.
    pub status: u16,
    /// Value of `Retry-After`, in seconds.
    pub retry_after: u32,
    /// Page of the replies; `None`: the error page of the frontend, or a line of text.
    pub page: Option<MaintenancePage>,
    /// Networks of clients that are served nevertheless.
    pub allow: Vec<Prefix>,
}

/// Page of a maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenancePage {
    /// Value of `Content-Type`.
    pub content_type: String,
    /// Text of the page.
    pub body: Bytes,
}

impl Maintenance {
    /// Default of `status`.
    pub const STATUS: u16 = 503;

    /// Default of `retry_after`: 5 minutes.
    pub const RETRY_AFTER: u32 = 300;

    /// Maximum of `retry_after`: a year.
    pub const MAX_RETRY_AFTER: u32 = 31_536_000;

    /// Size limit of a page, in bytes.
    pub const MAX_PAGE: usize = ErrorPages::MAX_SIZE;

    /// Maximum number of networks.
    pub const MAX_NETWORKS: usize = 100;

    /// Whether a client gets the page.
    pub fn applies_to(&self, client: IpAddr) -> bool {
        !self.allow.iter().any(|network| network.contains(client))
    }

    /// Number of bytes of the page.
    pub fn page_size(&self) -> usize {
        self.page.as_ref().map_or(0, |page| page.body.len())
    }
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        let (status, retry_after) = (Maintenance::STATUS, Maintenance::RETRY_AFTER);
        Maintenance { status, retry_after, page: None, allow: Vec::new() }
    }
}

impl fmt::Display for Maintenance {
    /// Formats as `maintenance, status 503` or
    /// `maintenance, status 503, except for 192.0.2.0/24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "maintenance, status {}", self.status)?;
        let networks: Vec<String> = self.allow.iter().map(Prefix::to_string).collect();
        if networks.is_empty() { Ok(()) } else { write!(f, ", except for {}", networks.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_networks_are_served_during_maintenance() {
        let allow = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let maintenance = Maintenance { allow, ..Maintenance::default() };
        let gets_page = |ip: &str| maintenance.applies_to(ip.parse().unwrap());
        assert!(!gets_page("192.0.2.7") && !gets_page("2001:db8::7"));
        assert!(gets_page("198.51.100.7") && Maintenance::default().applies_to("192.0.2.7".parse().unwrap()));
        assert_eq!(
            maintenance.to_string(),
            "maintenance, status 503, except for 192.0.2.0/24, 2001:db8::/32"
        );
    }
}
