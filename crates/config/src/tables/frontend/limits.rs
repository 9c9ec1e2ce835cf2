//! `[frontends.NAME.limits]`: limits for each source, and the timeout for a client's first byte.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::diff::below;
use crate::file::value;
use crate::keys::{OnlyIn, keys};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::total_rate::{self, ParsedTotal};
use crate::values::{MILLISECOND, choice, integer, non_zero, seconds};
use convey_model::{FrontendConfig, Limits, Mode, OverLimit, RequestRate, TotalRate};

/// `[frontends.NAME.limits]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[frontends.NAME.limits]",
    docs: &[Docs::Part(LimitKeys::DOCS), Docs::Part(REQUEST_DOCS), Docs::Part(total_rate::FRONTEND_DOCS)],
};

/// Parsed `[frontends.NAME.limits]`, with the places of its values.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrontendLimits {
    pub(crate) keys: LimitKeys,
    pub(crate) requests: ParsedRate,
}

keys! {
    /// The keys of `[frontends.NAME.limits]` for connections.
    pub(crate) struct LimitKeys => Limits, from (_unused: (), default);

    key "connections_per_source" => connections_per_source: u32 {
        read: integer(1..=u32::MAX),
        unset: "none",
        kind: "1 to 4294967295 open connections of one source at once; UDP: sessions or streams",
        default: "no limit",
        sample: "#connections_per_source = 100           # example; open connections at once",
        example: "7",
    };

    key "rate_per_source" => rate_per_source: NonZeroU32 {
        read: non_zero(MAX_RATE),
        unset: "none",
        kind: "1 to 1000000 new connections of one source a second",
        default: "no limit",
        sample: "#rate_per_source = 20                   # example; new connections a second",
        example: "7",
    };

    key "burst" => burst: NonZeroU32 {
        read: non_zero(MAX_RATE),
        unset: "automatic",
        kind: "1 to 1000000 new connections at once after a pause",
        default: "as many as `rate_per_source`",
        sample: "#burst = 40                             # example; new connections at once after a pause. By default as rate_per_source",
        example: "7",
    };

    key "ipv4_prefix" => ipv4_prefix: u8 {
        read: integer(1..=32),
        kind: "1 to 32: leading bits of an IPv4 address that make a source",
        default: "32",
        sample: "#ipv4_prefix = 32                       # bits of an IPv4 address that make a source",
        example: "24",
    };

    key "ipv6_prefix" => ipv6_prefix: u8 {
        read: integer(1..=128),
        kind: "1 to 128: leading bits of an IPv6 address that make a source",
        default: "64",
        sample: "#ipv6_prefix = 64                       # bits of an IPv6 address",
        example: "56",
    };

    key "action" => action: OverLimit {
        read: choice(&OverLimit::ALL, OverLimit::name),
        kind: r#"`"reset"` or `"drop"`: action on a connection over a limit"#,
        default: r#"`"reset"`"#,
        sample: r#"#action = "reset"                       # or "drop": the client gets no answer"#,
        example: "'drop'",
    };

    key "first_byte_timeout" => first_byte_timeout: Duration {
        read: seconds(MILLISECOND),
        unset: "none",
        only_in: ProxiedTcp,
        kind: "seconds from 0.001, proxy (TCP) and http: how long a client may take to send its first byte. Proxy resets one that is late, http closes it",
        default: "no limit",
        sample: r##"
#first_byte_timeout = 10                # example; proxy (TCP), http: time for the client's first byte. Set it only for protocols
                                        # in which clients speak first
"##,
        example: "7",
    };
}

/// Keys of the request rate limit ([`ParsedRate`]) in the reference.
const REQUEST_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "requests_per_source",
        only_in: Some(OnlyIn::Http),
        kind: "1 to 1000000, http: requests of one source a second. Further ones are answered with 429",
        default: "no limit",
        sample: "#requests_per_source = 100              # example; a second; further requests get a 429",
        example: "7",
        ..KeyDoc::USUAL
    }),
    Docs::Key(KeyDoc {
        name: "request_burst",
        only_in: Some(OnlyIn::Http),
        kind: "1 to 1000000, http: requests at once after a pause",
        default: "as many as `requests_per_source`",
        sample: "#request_burst = 200                    # example; at once after a pause. By default as requests_per_source",
        example: "7\nrequests_per_source = 7",
        ..KeyDoc::USUAL
    }),
];

/// Request rate limits of a frontend or a route: of each source, and of all clients together.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedRate {
    per_source: Option<Placed<u32>>,
    burst: Option<Placed<u32>>,
    total: ParsedTotal,
}

impl FrontendLimits {
    /// Whether connections are limited for each source.
    pub(crate) fn are_per_source(&self) -> bool {
        self.keys.connections_per_source.is_some() || self.keys.rate_per_source.is_some()
    }
}

/// Upper bound of the configurable rate of connections or requests, per second.
const MAX_RATE: u32 = 1_000_000;

impl ParsedRate {
    /// Reads `requests_per_source`, `requests_per_second` and their bursts from the table of a
    /// frontend or a route.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedRate {
        let per_source = table.optional("requests_per_source", integer(1..=MAX_RATE));
        let burst = table.optional("request_burst", integer(1..=MAX_RATE));
        if let Some(burst) = burst.as_ref().filter(|_| !table.has("requests_per_source")) {
            report.warning(&burst.place, "has no effect without requests_per_source");
        }
        ParsedRate { per_source, burst, total: ParsedTotal::read(table, report) }
    }

    /// Places of the keys that are set.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        let own = [&self.per_source, &self.burst].into_iter().flatten();
        own.map(|found| &found.place).chain(self.total.places())
    }

    /// Whether a limit of each source is set.
    pub(super) fn is_set(&self) -> bool {
        self.per_source.is_some()
    }

    /// Limit of all clients together.
    pub(super) fn total(&self) -> Option<TotalRate> {
        self.total.model()
    }

    pub(super) fn model(&self) -> Option<RequestRate> {
        let number = |found: &Option<Placed<u32>>| value(found).and_then(NonZeroU32::new);
        Some(RequestRate { per_source: number(&self.per_source)?, burst: number(&self.burst) })
    }
}

/// Reads `[frontends.NAME.limits]`. `routes_limit`: whether a route of the frontend limits the
/// request rate of sources.
pub(super) fn read(mut table: TomlTable<'_>, routes_limit: bool, report: &Report<'_>) -> FrontendLimits {
    let keys = LimitKeys::read(&mut table);
    let requests = ParsedRate::read(&mut table, report);
    let limits = FrontendLimits { keys, requests };
    if let (Some(burst), None) = (&limits.keys.burst, &limits.keys.rate_per_source) {
        report.warning(&burst.place, "has no effect without rate_per_source");
    }
    if !limits.are_per_source() {
        let LimitKeys { ipv4_prefix, ipv6_prefix, action, .. } = &limits.keys;
        let prefixes = [ipv4_prefix, ipv6_prefix].into_iter().flatten().map(|prefix| &prefix.place);
        let prefixes = prefixes.filter(|_| !limits.requests.is_set() && !routes_limit);
        for place in prefixes.chain(action.as_ref().map(|action| &action.place)) {
            report.warning(place, "has no effect without connections_per_source or rate_per_source");
        }
    }
    table.finish();
    limits
}

/// Changes of `[frontends.NAME.limits]` for the log of a reload.
pub(super) fn changes(old: &Limits, new: &Limits) -> Vec<String> {
    below("limits", LimitKeys::changes(old, new))
}

/// Text of `convey check` about the limits of each source; empty if none is set.
pub(super) fn describe(frontend: &FrontendConfig, _: &[Mode]) -> String {
    let limits = &frontend.limits;
    let connections = limits.connections_per_source.map(|most| format!("{most} connections"));
    let rate = limits.rate_per_source.map(|rate| format!("{rate} new connections per second"));
    let requests = frontend.http.as_ref().and_then(|http| http.rate).map(requests);
    let parts: Vec<String> = connections.into_iter().chain(rate).chain(requests).collect();
    let per_source =
        if parts.is_empty() { String::new() } else { format!("; per source {}", parts.join(", ")) };
    per_source + &total_rate::describe(frontend.http.as_ref().and_then(|http| http.total))
}

/// Text of a request rate limit.
pub(super) fn requests(rate: RequestRate) -> String {
    format!("{} requests per second", rate.per_source)
}
