//! Request rate limits per source. Pure.

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

impl RequestRate {
    /// Limits per source for this request rate. The other settings are those of the frontend.
    pub fn limits(&self, of_frontend: &Limits) -> Limits {
        let (rate_per_source, burst) = (Some(self.per_source), self.burst);
        Limits { rate_per_source, burst, ..of_frontend.without_connections() }
    }
}
