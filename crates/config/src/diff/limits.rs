//! How the limits of a frontend's clients differ. Pure.

use std::time::Duration;

use super::{change, or};
use convey_model::Limits;

/// What changes, as in the line of the frontend.
pub(super) fn changes(old: &Limits, new: &Limits) -> Vec<String> {
    let Limits {
        connections_per_source,
        rate_per_source,
        burst,
        ipv4_prefix,
        ipv6_prefix,
        action,
        first_byte_timeout,
    } = old;
    let seconds = |time: Option<Duration>| or(time.map(|time| format!("{}s", time.as_secs_f64())), "none");
    let changes = [
        change(
            "connections_per_source",
            or(*connections_per_source, "none"),
            or(new.connections_per_source, "none"),
        ),
        change("rate_per_source", or(*rate_per_source, "none"), or(new.rate_per_source, "none")),
        change("burst", or(*burst, "automatic"), or(new.burst, "automatic")),
        change("ipv4_prefix", *ipv4_prefix, new.ipv4_prefix),
        change("ipv6_prefix", *ipv6_prefix, new.ipv6_prefix),
        change("action", action.name(), new.action.name()),
        change("first_byte_timeout", seconds(*first_byte_timeout), seconds(new.first_byte_timeout)),
    ];
    changes.into_iter().flatten().map(|change| format!("limits.{change}")).collect()
}
