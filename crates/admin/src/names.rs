//! What is known of the names that servers go by.

use std::time::{Duration, SystemTime};

use convey_snapshot::Name;
use serde::Serialize;

use super::report::rfc3339;

/// A name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NameReport {
    /// Whether the last lookup found it.
    pub resolved: bool,
    /// Why not, or which records it did not find and why; in words for an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it stands for: what the last lookup of each family found that did not fail. Each is a server.
    pub addresses: Vec<String>,
    /// When the addresses last changed, or lookups began or ceased to fail.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Lookups so far, those that failed too.
    pub lookups: u64,
    /// Lookups that failed.
    pub lookup_failures: u64,
}

impl NameReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    pub(super) fn new(name: &Name, started: SystemTime) -> Self {
        // Failures are read first, so that they can never outnumber all.
        let lookup_failures = name.live.failures();
        NameReport {
            resolved: name.is_resolved(),
            reason: name.fault.as_ref().map(ToString::to_string),
            addresses: name.addresses.iter().map(ToString::to_string).collect(),
            since: started + Duration::from_nanos(name.since.0),
            lookups: name.live.lookups(),
            lookup_failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use convey_model::{LookupFault, Missing, Timestamp};
    use convey_snapshot::NameLive;

    #[test]
    fn a_name_that_fails_tells_why_and_what_it_stands_for_meanwhile() {
        let live = Arc::new(NameLive::default());
        live.looked_up(false);
        live.looked_up(true);
        let name = Name {
            host: "app.internal".into(),
            addresses: [[10, 0, 0, 4], [10, 0, 0, 3]].map(|ip| IpAddr::from(ip).into()).into(),
            fault: Some(LookupFault { missing: Missing::All, why: "request timed out".into() }),
            since: Timestamp(1_500_000_000),
            live,
        };
        let half = LookupFault { missing: Missing::Records("AAAA"), why: "request timed out".into() };
        let half = NameReport::new(&Name { fault: Some(half), ..name.clone() }, SystemTime::UNIX_EPOCH);
        assert_eq!((half.resolved, half.reason.as_deref()), (true, Some("AAAA records: request timed out")));
        let expected = json!({
            "resolved": false, "reason": "request timed out", "addresses": ["10.0.0.3", "10.0.0.4"],
            "since": "1970-01-01T00:00:01.500Z", "lookups": 2, "lookup_failures": 1,
        });
        assert_eq!(serde_json::to_value(NameReport::new(&name, SystemTime::UNIX_EPOCH)).unwrap(), expected);
    }
}
