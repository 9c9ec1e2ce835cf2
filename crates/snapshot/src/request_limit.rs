//! Request rate limit per source. All workers share the token buckets.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use convey_model::{Limits, Prefix, Sources, Timestamp};

/// Request rate limit, with the token bucket of each source. Clones share the token buckets.
#[derive(Debug, Clone)]
pub struct RequestLimit {
    limits: Limits,
    sources: Arc<Sources>,
}

impl RequestLimit {
    /// Builds a limit with the rate of `limits`. Keeps the token buckets of `before` if both limits
    /// group clients into the same sources.
    pub fn new(limits: Limits, before: Option<RequestLimit>) -> RequestLimit {
        let kept = before.map(|before| before.sources).filter(|sources| sources.fit(&limits));
        RequestLimit { limits, sources: kept.unwrap_or_else(|| Arc::new(Sources::new(&limits))) }
    }

    /// Takes a token of the client's source. Returns false if no token is left.
    pub fn take(&self, client: IpAddr, now: Timestamp) -> bool {
        self.sources.begin(client, &self.limits, now).is_ok()
    }

    /// Number of requests that the client's source may send now, without taking a token.
    pub fn left(&self, client: IpAddr, now: Timestamp) -> u32 {
        self.sources.left_of_rate(client, &self.limits, now).unwrap_or(u32::MAX)
    }

    /// Number of requests a second that one source may send; `None`: no limit.
    pub fn rate(&self) -> Option<NonZeroU32> {
        self.limits.rate_per_source
    }

    /// Source that a client belongs to.
    pub fn source_of(&self, client: IpAddr) -> Prefix {
        self.sources.source_of(client)
    }

    /// Gives back the token that a request has taken from the client's source, because another
    /// limit has refused the request.
    pub fn refund_token(&self, client: IpAddr) {
        self.sources.refund_token(client, &self.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_limit_that_changes_still_knows_what_sources_have_sent() {
        let client = "10.0.0.1".parse().unwrap();
        let of = |rate: u32| Limits { rate_per_source: NonZeroU32::new(rate), ..Limits::default() };
        let first = RequestLimit::new(of(2), None);
        let take = |limit: &RequestLimit| limit.take(client, Timestamp(SECOND));
        assert_eq!([take(&first), take(&first), take(&first)], [true, true, false]);
        assert!(!take(&RequestLimit::new(of(1), Some(first.clone()))));
        let others = Limits { ipv4_prefix: 24, ..of(2) };
        assert!(take(&RequestLimit::new(others, Some(first.clone()))), "these are other sources");
        assert_eq!(first.left(client, Timestamp(SECOND)), 0);
        first.refund_token(client);
        assert_eq!(first.left(client, Timestamp(SECOND)), 1);
        assert_eq!([take(&first), take(&first)], [true, false]);
    }
}
