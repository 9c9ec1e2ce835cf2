//! Limits of a client's request and its connection, in mode `http`. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

use convey_http_core::HeadLimits;

/// Limits of a frontend's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Limits of a request head.
    pub head: HeadLimits,
    /// Limits of a response head, and of its trailers.
    pub response_head: HeadLimits,
    /// Time limit for a request head, counted from its first byte. For the first request of a
    /// connection, also the time limit from accept to the first byte.
    pub head_timeout: Duration,
    /// Size limit of a body in bytes; `None`: no limit.
    pub body: Option<u64>,
    /// Minimum rate of a body in bytes a second; `None`: no minimum.
    pub body_rate: Option<NonZeroU32>,
    /// Time that an idle connection stays open for another request.
    pub keep_alive: Duration,
    /// Maximum number of requests of a connection, after which it closes.
    pub requests: u32,
    /// Maximum number of concurrent requests of an HTTP/2 connection.
    pub streams: u32,
}

impl HttpLimits {
    /// Limits of a frontend that sets none.
    pub const DEFAULT: HttpLimits = HttpLimits {
        head: HeadLimits::OF_REQUESTS,
        response_head: HeadLimits::OF_RESPONSES,
        head_timeout: Duration::from_secs(10),
        body: None,
        body_rate: None,
        keep_alive: Duration::from_secs(60),
        requests: 10_000,
        streams: 100,
    };
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits::DEFAULT
    }
}
