//! Request rate limits: per source, and of all clients together. Pure.

use std::num::NonZeroU32;

use super::Limits;

/// Request rate limit of one source, at a frontend or at one of its routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// Maximum number of requests a second from one source.
    pub per_source: NonZeroU32,
    /// Maximum number of requests in a burst after a pause; `None`: as many as in a second.
    pub burst: Option<NonZeroU32>,
}

/// Request rate limit of all clients together, at a frontend, a route or a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalRate {
    /// Maximum number of requests a second.
    pub per_second: NonZeroU32,
    /// Maximum number of requests in a burst after a pause; `None`: as many as in a second.
    pub burst: Option<NonZeroU32>,
}

impl TotalRate {
    /// Upper bound of rates and bursts.
    pub const MAX: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

    /// Maximum number of requests in a burst.
    pub fn burst(&self) -> NonZeroU32 {
        self.burst.unwrap_or(self.per_second).min(TotalRate::MAX)
    }
}

impl RequestRate {
    /// Limits per source for this request rate. The other settings are those of the frontend.
    pub fn limits(&self, of_frontend: &Limits) -> Limits {
        let (rate_per_source, burst) = (Some(self.per_source), self.burst);
        Limits { rate_per_source, burst, ..of_frontend.without_connections() }
    }
}
