//! `[frontends.NAME.limits]`: quotas of one source, and the wait for a client's first byte.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::diff::{change, or};
use crate::file::value;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{MILLISECOND, choice, integer, seconds};
use convey_model::{FrontendConfig, Limits, Mode, OverLimit, RequestRate};

/// The table, with keys that have no effect in some modes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrontendLimits {
    pub(super) limits: Limits,
    pub(crate) first_byte_timeout: Option<Placed<Duration>>,
    pub(crate) requests: ParsedRate,
}

/// Request rate limit of a source, for a frontend or a route.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedRate {
    per_source: Option<Placed<u32>>,
    burst: Option<Placed<u32>>,
}

impl FrontendLimits {
    /// Whether there is a limit for each source.
    pub(crate) fn are_per_source(&self) -> bool {
        self.limits.are_per_source()
    }
}

/// Highest connection rate that can be set: the shortest interval is a nanosecond.
const MAX_RATE: u32 = 1_000_000;

impl ParsedRate {
    /// Reads the keys from a table.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedRate {
        let per_source = table.optional("requests_per_source", integer(1..=MAX_RATE));
        let burst = table.optional("request_burst", integer(1..=MAX_RATE));
        if let Some(burst) = burst.as_ref().filter(|_| !table.has("requests_per_source")) {
            report.warning(&burst.place, "has no effect without requests_per_source");
        }
        ParsedRate { per_source, burst }
    }

    /// Places of the keys that are set.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        [&self.per_source, &self.burst].into_iter().flatten().map(|found| &found.place)
    }

    /// Whether a limit is set.
    pub(super) fn is_set(&self) -> bool {
        self.per_source.is_some()
    }

    pub(super) fn model(&self) -> Option<RequestRate> {
        let number = |found: &Option<Placed<u32>>| value(found).and_then(NonZeroU32::new);
        Some(RequestRate { per_source: number(&self.per_source)?, burst: number(&self.burst) })
    }
}

/// Reads the table. `routes_limit`: a route of the frontend has a rate limit of its own for
/// sources.
pub(super) fn read(mut table: TomlTable<'_>, routes_limit: bool, report: &Report<'_>) -> FrontendLimits {
    let default = Limits::default();
    let connections = table.optional("connections_per_source", integer(1..=u32::MAX));
    let rate = table.optional("rate_per_source", integer(1..=MAX_RATE));
    let burst = table.optional("burst", integer(1..=MAX_RATE));
    let ipv4_prefix = table.optional("ipv4_prefix", integer(1..=32));
    let ipv6_prefix = table.optional("ipv6_prefix", integer(1..=128));
    let requests = ParsedRate::read(&mut table, report);
    let action = table.optional("action", choice(&OverLimit::ALL, OverLimit::name));
    let first_byte_timeout = table.optional("first_byte_timeout", seconds(MILLISECOND));
    if let (Some(burst), None) = (&burst, &rate) {
        report.warning(&burst.place, "has no effect without rate_per_source");
    }
    if connections.is_none() && rate.is_none() {
        let prefixes = [&ipv4_prefix, &ipv6_prefix].into_iter().flatten();
        let prefixes = prefixes.filter(|_| !requests.is_set() && !routes_limit).map(|prefix| &prefix.place);
        for place in prefixes.chain(action.as_ref().map(|action| &action.place)) {
            report.warning(place, "has no effect without connections_per_source or rate_per_source");
        }
    }
    table.finish();
    let number = |found: &Option<Placed<u32>>| value(found).and_then(NonZeroU32::new);
    let limits = Limits {
        connections_per_source: value(&connections),
        rate_per_source: number(&rate),
        burst: number(&burst),
        ipv4_prefix: value(&ipv4_prefix).unwrap_or(default.ipv4_prefix),
        ipv6_prefix: value(&ipv6_prefix).unwrap_or(default.ipv6_prefix),
        action: value(&action).unwrap_or_default(),
        first_byte_timeout: value(&first_byte_timeout),
    };
    FrontendLimits { limits, first_byte_timeout, requests }
}

/// Log text of the differences.
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

/// Limits of one source in `convey check`.
pub(super) fn describe(frontend: &FrontendConfig, _: &[Mode]) -> String {
    let limits = &frontend.limits;
    let connections = limits.connections_per_source.map(|most| format!("{most} connections"));
    let rate = limits.rate_per_source.map(|rate| format!("{rate} new ones a second"));
    let requests = frontend.http.as_ref().and_then(|http| http.rate).map(requests);
    let parts: Vec<String> = connections.into_iter().chain(rate).chain(requests).collect();
    if parts.is_empty() { String::new() } else { format!("; a source has {}", parts.join(", ")) }
}

/// Text of a request rate limit.
pub(super) fn requests(rate: RequestRate) -> String {
    format!("{} requests a second", rate.per_source)
}
