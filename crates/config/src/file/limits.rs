//! `[frontends.NAME.limits]`: what one source may have, and how long a client may be silent.

use std::num::NonZeroU32;
use std::time::Duration;

use super::super::problem::{Place, Placed, Report};
use super::super::reader::TomlTable;
use super::super::values::{MILLISECOND, choice, integer, seconds};
use super::value;
use convey_model::{Limits, OverLimit, RequestRate};

/// The table, and what of it has no effect everywhere.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct FrontendLimits {
    pub(super) limits: Limits,
    pub(in super::super) first_byte_timeout: Option<Placed<Duration>>,
    pub(in super::super) requests: ParsedRate,
}

/// How many requests one source may send, at a frontend or a route.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct ParsedRate {
    per_source: Option<Placed<u32>>,
    burst: Option<Placed<u32>>,
}

impl FrontendLimits {
    /// Whether sources are counted.
    pub(in super::super) fn are_per_source(&self) -> bool {
        self.limits.are_per_source()
    }
}

/// Most connections a second that can be set: a nanosecond is the shortest time between two.
const MAX_RATE: u32 = 1_000_000;

impl ParsedRate {
    /// Reads the keys of a table.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedRate {
        let per_source = table.optional("requests_per_source", integer(1..=MAX_RATE));
        let burst = table.optional("request_burst", integer(1..=MAX_RATE));
        if let Some(burst) = burst.as_ref().filter(|_| !table.has("requests_per_source")) {
            report.warning(&burst.place, "has no effect without requests_per_source");
        }
        ParsedRate { per_source, burst }
    }

    /// Where the keys stand that are there.
    pub(in super::super) fn places(&self) -> impl Iterator<Item = &Place> {
        [&self.per_source, &self.burst].into_iter().flatten().map(|found| &found.place)
    }

    /// Whether there is a limit.
    pub(super) fn is_set(&self) -> bool {
        self.per_source.is_some()
    }

    pub(super) fn model(&self) -> Option<RequestRate> {
        let number = |found: &Option<Placed<u32>>| value(found).and_then(NonZeroU32::new);
        Some(RequestRate { per_source: number(&self.per_source)?, burst: number(&self.burst) })
    }
}

/// Reads the table. `routes_limit`: a route of the frontend has a limit of its own for sources.
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
