//! How much a client's request and its connection may take, in mode `http`. Pure.

use std::num::NonZeroU32;
use std::time::Duration;

use convey_http_core::HeadLimits;

/// The limits of a frontend's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// How much a head may have.
    pub head: HeadLimits,
    /// How much the head of a server's response may have, and its trailers.
    pub response_head: HeadLimits,
    /// How long a head may take from its first byte, or from accept.
    pub head_timeout: Duration,
    /// Most bytes of a body; `None`: any number.
    pub body: Option<u64>,
    /// Bytes a second that a body comes with at least; `None`: as slowly as it likes.
    pub body_rate: Option<NonZeroU32>,
    /// How long a connection waits for another request.
    pub keep_alive: Duration,
    /// Requests of a connection, after which it ends.
    pub requests: u32,
    /// Requests that run at once on a connection of HTTP/2.
    pub streams: u32,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            head: HeadLimits::default(),
            response_head: HeadLimits::OF_RESPONSES,
            head_timeout: Duration::from_secs(10),
            body: None,
            body_rate: None,
            keep_alive: Duration::from_secs(60),
            requests: 10_000,
            streams: 100,
        }
    }
}

impl HttpLimits {
    /// Each with its name in the configuration, as it is shown.
    pub fn named(&self) -> [(&'static str, String); 10] {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
        [
            ("max_head_size", self.head.bytes.to_string()),
            ("max_head_fields", self.head.fields.to_string()),
            ("max_response_head_size", self.response_head.bytes.to_string()),
            ("max_response_head_fields", self.response_head.fields.to_string()),
            ("head_timeout", format!("{:?}", self.head_timeout)),
            ("max_body_size", or_none(self.body.map(|most| most.to_string()))),
            ("min_body_rate", or_none(self.body_rate.map(|rate| rate.to_string()))),
            ("keep_alive_timeout", format!("{:?}", self.keep_alive)),
            ("max_requests", self.requests.to_string()),
            ("max_streams", self.streams.to_string()),
        ]
    }
}
