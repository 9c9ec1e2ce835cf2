//! How fast one source may send requests. Pure.

use std::num::NonZeroU32;

use super::Limits;

/// The requests of one source, at a frontend or at a route of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// Requests that one source sends a second.
    pub per_source: NonZeroU32,
    /// Requests that it may send at once after a pause; `None`: as many as in a second.
    pub burst: Option<NonZeroU32>,
}

impl RequestRate {
    /// The same, as limits for sources like those of the frontend.
    pub fn limits(&self, of_frontend: &Limits) -> Limits {
        let (rate_per_source, burst) = (Some(self.per_source), self.burst);
        Limits { rate_per_source, burst, ..of_frontend.without_connections() }
    }
}
