//! `[frontends.NAME.http]`: limits of a request and its connection.

use std::num::NonZeroU32;

use crate::reader::TomlTable;
use crate::values::{MILLISECOND, integer, seconds};
use convey_http_core::HeadLimits;
use convey_model::HttpLimits;

/// Longest request or response head that can be set, in bytes.
const MAX_HEAD: usize = u16::MAX as usize;

/// Most header fields of a response that can be set.
const MAX_RESPONSE_FIELDS: usize = 1_000;

/// Longest body that can be set, in bytes: TOML has no larger number.
const MAX_BODY: u64 = i64::MAX as u64;

/// Highest minimum rate of a body that can be set, in bytes a second.
const MAX_RATE: u32 = 1_000_000;

/// Most streams of a connection that can be set: each may buffer 64 KiB for the client.
const MAX_STREAMS: u32 = 1_000;

/// Reads the table.
pub(super) fn read(mut table: TomlTable<'_>) -> HttpLimits {
    let default = HttpLimits::default();
    let body = table.optional("max_body_size", integer(1..=MAX_BODY));
    let body_rate = table.optional("min_body_rate", integer(1..=MAX_RATE));
    let limits = HttpLimits {
        head: HeadLimits {
            bytes: table.or("max_head_size", default.head.bytes, integer(1_024..=MAX_HEAD)),
            fields: table.or("max_head_fields", default.head.fields, integer(1..=256)),
        },
        response_head: HeadLimits {
            bytes: table.or("max_response_head_size", default.response_head.bytes, integer(1_024..=MAX_HEAD)),
            fields: table.or(
                "max_response_head_fields",
                default.response_head.fields,
                integer(1..=MAX_RESPONSE_FIELDS),
            ),
        },
        head_timeout: table.or("head_timeout", default.head_timeout, seconds(MILLISECOND)),
        body: body.map(|found| found.value),
        body_rate: body_rate.and_then(|found| NonZeroU32::new(found.value)),
        keep_alive: table.or("keep_alive_timeout", default.keep_alive, seconds(MILLISECOND)),
        requests: table.or("max_requests", default.requests, integer(1..=u32::MAX)),
        streams: table.or("max_streams", default.streams, integer(1..=MAX_STREAMS)),
    };
    table.finish();
    limits
}
