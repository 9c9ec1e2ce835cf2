//! Report on the host names of servers.

use std::time::{Duration, SystemTime};

use convey_api::NameReport;
use convey_snapshot::Name;

/// Report of a host name. `started` is the wall-clock time of `Timestamp(0)`.
pub(super) fn name_report(name: &Name, started: SystemTime) -> NameReport {
    // Read failures first, so that the report never shows more failures than lookups.
    let lookup_failures = name.live.failures();
    NameReport {
        resolved: name.is_resolved(),
        reason: name.fault.as_ref().map(ToString::to_string),
        addresses: name.addresses.iter().map(ToString::to_string).collect(),
        since: (started + Duration::from_nanos(name.since.0)).into(),
        lookups: name.live.lookups(),
        lookup_failures,
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
        live.note_lookup(false);
        live.note_lookup(true);
        let name = Name {
            host: "app.internal".into(),
            addresses: [[10, 0, 0, 4], [10, 0, 0, 3]].map(|ip| IpAddr::from(ip).into()).into(),
            fault: Some(LookupFault { missing: Missing::All, why: "request timed out".into() }),
            since: Timestamp(1_500_000_000),
            live,
        };
        let half = LookupFault { missing: Missing::Records("AAAA"), why: "request timed out".into() };
        let half = name_report(&Name { fault: Some(half), ..name.clone() }, SystemTime::UNIX_EPOCH);
        assert_eq!((half.resolved, half.reason.as_deref()), (true, Some("AAAA records: request timed out")));
        let expected = json!({
            "resolved": false, "reason": "request timed out", "addresses": ["10.0.0.3", "10.0.0.4"],
            "since": "1970-01-01T00:00:01.500Z", "lookups": 2, "lookup_failures": 1,
        });
        assert_eq!(serde_json::to_value(name_report(&name, SystemTime::UNIX_EPOCH)).unwrap(), expected);
    }
}
