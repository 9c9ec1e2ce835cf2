//! `requests_per_second` and `requests_per_second_burst` of frontends, routes and backends: the
//! requests of all clients together.

use std::num::NonZeroU32;

use crate::diff::{change, or};
use crate::file::value;
use crate::keys::OnlyIn;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::values::non_zero;
use convey_model::TotalRate;

const RATE: KeyDoc = KeyDoc {
    name: "requests_per_second",
    only_in: Some(OnlyIn::Http),
    default: "no limit",
    example: "7",
    ..KeyDoc::USUAL
};

const BURST: KeyDoc = KeyDoc {
    name: "requests_per_second_burst",
    only_in: Some(OnlyIn::Http),
    kind: "1 to 1000000, http: requests of all clients at once after a pause",
    default: "as many as `requests_per_second`",
    sample: "#requests_per_second_burst = 10000       # example; at once after a pause. By default as requests_per_second",
    example: "7\nrequests_per_second = 7",
    ..KeyDoc::USUAL
};

/// Keys of `[frontends.NAME.limits]` in the reference.
pub(crate) const FRONTEND_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        kind: "1 to 1000000, http: requests of all clients a second. Further ones are answered with 429",
        sample: "#requests_per_second = 5000             # example; of all clients a second; further requests get a 429",
        ..RATE
    }),
    Docs::Key(BURST),
];

/// Keys of a route in the reference.
pub(crate) const ROUTE_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        kind: "1 to 1000000 requests of all clients a second, of this route. Beside the limit of the frontend",
        sample: "#requests_per_second = 500              # example; of all clients a second; further requests get a 429",
        ..RATE
    }),
    Docs::Key(BURST),
];

/// Keys of a backend in the reference.
pub(crate) const BACKEND_DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        kind: "1 to 1000000, http: requests of all clients a second to this backend, over all frontends and routes. Further ones are answered with 503",
        sample: r##"
# Requests a second to all servers together, from all frontends (mode http). Further ones get a 503 with Retry-After.
#requests_per_second = 2000             # example
"##,
        ..RATE
    }),
    Docs::Key(BURST),
];

/// Parsed limit of the requests of all clients together.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedTotal {
    rate: Option<Placed<NonZeroU32>>,
    burst: Option<Placed<NonZeroU32>>,
}

impl ParsedTotal {
    /// Reads the keys from a table.
    pub(crate) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedTotal {
        let number = || non_zero(TotalRate::MAX.get());
        let rate = table.optional("requests_per_second", number());
        let burst = table.optional("requests_per_second_burst", number());
        if let Some(burst) = burst.as_ref().filter(|_| !table.has("requests_per_second")) {
            report.warning(&burst.place, "has no effect without requests_per_second");
        }
        ParsedTotal { rate, burst }
    }

    /// Places of the keys that are set.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        [&self.rate, &self.burst].into_iter().flatten().map(|found| &found.place)
    }

    /// Model of the limit.
    pub(crate) fn model(&self) -> Option<TotalRate> {
        Some(TotalRate { per_second: value(&self.rate)?, burst: value(&self.burst) })
    }
}

/// Changes of the limit, for the log of a reload. `whose` is the prefix of the keys.
pub(crate) fn changes(whose: &str, old: Option<TotalRate>, new: Option<TotalRate>) -> Vec<String> {
    let rate = |total: Option<TotalRate>| or(total.map(|total| total.per_second), "none");
    let burst = |total: Option<TotalRate>| or(total.and_then(|total| total.burst), "automatic");
    let changes = [
        change(&format!("{whose}requests_per_second"), rate(old), rate(new)),
        change(&format!("{whose}requests_per_second_burst"), burst(old), burst(new)),
    ];
    changes.into_iter().flatten().collect()
}

/// Text of `convey check` about the limit; empty without one.
pub(crate) fn describe(total: Option<TotalRate>) -> String {
    total.map_or(String::new(), |total| format!("; in total {} requests per second", total.per_second))
}
