//! Routes by host and path, in convey's table of routes.

use std::hint::black_box;

use convey_http_core::{HostPattern, PathPrefix, PathView, RouteConditions, RouteTable};

/// Number of routes.
const ROUTES: usize = 100;

/// Backend of requests that no route matches.
const DEFAULT: usize = 0;

/// 100 routes like those of `cargo bench --bench peers -- --with routes`: every other one has a
/// host. None matches a request of the benchmark, so a request is compared with many of them.
pub(crate) struct Routes(RouteTable<usize>);

impl Routes {
    pub(crate) fn new() -> Routes {
        let mut table = RouteTable::new(PathView::Normalized);
        for number in 1..=ROUTES {
            let host = match number.is_multiple_of(2) {
                true => HostPattern::Any,
                false => HostPattern::Exact(format!("h{number}.example.com").into_bytes().into()),
            };
            let prefix = PathPrefix::parse(&format!("/v{number}")).expect("it is a path");
            table.add(&host, &prefix.into(), RouteConditions::default(), number);
        }
        Routes(table)
    }

    /// Finds the backend of a request for this target at this host. All backends have the same
    /// servers, so nobody uses the result.
    pub(crate) fn choose(&self, host: &[u8], target: &[u8]) {
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        black_box(self.0.find_at(host, path, |_| true).copied().unwrap_or(DEFAULT));
    }
}
