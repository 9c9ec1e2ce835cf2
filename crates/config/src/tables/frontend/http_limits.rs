//! `[frontends.NAME.http]`: limits of requests and of their connections.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::diff::below;
use crate::keys::keys;
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{MILLISECOND, integer, non_zero, seconds};
use convey_http_core::HeadLimits;
use convey_model::HttpLimits;

/// Upper bound of the configurable length of a request or response head, in bytes.
const MAX_HEAD: usize = u16::MAX as usize;

/// Upper bound of the configurable number of header fields in a response.
const MAX_RESPONSE_FIELDS: usize = 1_000;

/// Upper bound of the configurable length of a body, in bytes: the largest number of TOML.
const MAX_BODY: u64 = i64::MAX as u64;

/// Upper bound of the configurable minimum rate of a body, in bytes per second.
const MAX_RATE: u32 = 1_000_000;

/// Upper bound of the configurable number of streams per connection. Each stream may buffer 64 KiB
/// for the client.
const MAX_STREAMS: u32 = 1_000;

/// `[frontends.NAME.http]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[frontends.NAME.http]", docs: HttpLimitKeys::DOCS };

keys! {
    /// The keys of `[frontends.NAME.http]` for request heads.
    struct HeadKeys => HeadLimits, from (_unused: (), default);

    key "max_head_size" => bytes: usize {
        read: integer(1_024..=MAX_HEAD),
        kind: "1024 to 65535 bytes of a head",
        default: "16384",
        sample: "#max_head_size = 16384                  # bytes",
        example: "2048",
    };

    key "max_head_fields" => fields: usize {
        read: integer(1..=256),
        kind: "1 to 256 fields of a head",
        default: "100",
        sample: "#max_head_fields = 100",
        example: "7",
    };
}

keys! {
    /// The keys of `[frontends.NAME.http]` for response heads.
    struct ResponseHeadKeys => HeadLimits, from (_unused: (), default);

    key "max_response_head_size" => bytes: usize {
        read: integer(1_024..=MAX_HEAD),
        kind: "1024 to 65535 bytes of the head of a server's response, and of its trailers",
        default: "65535",
        sample: "#max_response_head_size = 65535         # bytes of the head of a server's response, and of its trailers",
        example: "2048",
    };

    key "max_response_head_fields" => fields: usize {
        read: integer(1..=MAX_RESPONSE_FIELDS),
        kind: "1 to 1000 fields of the head of a server's response, and of its trailers",
        default: "256",
        sample: "#max_response_head_fields = 256         # fields of the head of a server's response, and of its trailers",
        example: "7",
    };
}

keys! {
    /// The other keys of `[frontends.NAME.http]`.
    struct HttpLimitKeys => HttpLimits, from (heads: (HeadKeys, ResponseHeadKeys), default);

    also head = heads.0.model((), default.head); {
        changes: |old, new| HeadKeys::changes(&old.head, &new.head),
        docs: HeadKeys::DOCS,
    };

    also response_head = heads.1.model((), default.response_head); {
        changes: |old, new| ResponseHeadKeys::changes(&old.response_head, &new.response_head),
        docs: ResponseHeadKeys::DOCS,
    };

    key "head_timeout" => head_timeout: Duration {
        read: seconds(MILLISECOND),
        shown: |time| format!("{time:?}"),
        kind: "seconds from 0.001: how long a head may take",
        default: "10",
        sample: "#head_timeout = 10                      # seconds",
        example: "7",
    };

    key "max_body_size" => body: u64 {
        read: integer(1..=MAX_BODY),
        unset: "none",
        kind: "1 to 9223372036854775807 bytes of a body",
        default: "no limit",
        sample: "#max_body_size = 10485760               # example; bytes; longer bodies get a 413",
        example: "7",
    };

    key "min_body_rate" => body_rate: NonZeroU32 {
        read: non_zero(MAX_RATE),
        unset: "none",
        kind: "1 to 1000000: average bytes a second that a request body needs, after 10 seconds",
        default: "no limit",
        sample: "#min_body_rate = 500                    # example; minimum bytes a second of a request body; not for streams with pauses",
        example: "7",
    };

    key "keep_alive_timeout" => keep_alive: Duration {
        read: seconds(MILLISECOND),
        shown: |time| format!("{time:?}"),
        kind: "seconds from 0.001: how long a connection waits for another request",
        default: "60",
        sample: "#keep_alive_timeout = 60                # how long a connection waits for the next request",
        example: "7",
    };

    key "max_requests" => requests: u32 {
        read: integer(1..=u32::MAX),
        kind: "1 to 4294967295 requests of a connection; then it ends",
        default: "10000",
        sample: "#max_requests = 10000                   # of one connection; then convey closes it",
        example: "7",
    };

    key "max_streams" => streams: u32 {
        read: integer(1..=MAX_STREAMS),
        kind: "1 to 1000 streams at once of a new connection of HTTP/2 or HTTP/3",
        default: "100",
        sample: "#max_streams = 100                      # at once on one connection of HTTP/2 or HTTP/3",
        example: "7",
    };
}

/// Reads `[frontends.NAME.http]`.
pub(super) fn read(mut table: TomlTable<'_>) -> HttpLimits {
    let heads = (HeadKeys::read(&mut table), ResponseHeadKeys::read(&mut table));
    let keys = HttpLimitKeys::read(&mut table);
    table.finish();
    keys.model(heads, HttpLimits::default())
}

/// Changes of `[frontends.NAME.http]` for the log of a reload.
pub(super) fn changes(old: &HttpLimits, new: &HttpLimits) -> Vec<String> {
    below("http", HttpLimitKeys::changes(old, new))
}

/// Text of `convey check` about limits that differ from their defaults.
pub(super) fn describe(limits: &HttpLimits) -> String {
    let [all, usual] = [*limits, HttpLimits::default()].map(|limits| {
        let heads = [HeadKeys::shown(&limits.head), ResponseHeadKeys::shown(&limits.response_head)];
        [heads.concat(), HttpLimitKeys::shown(&limits)].concat()
    });
    let set = all.into_iter().zip(usual).filter(|(one, usual)| one != usual);
    let set: Vec<String> = set.map(|((name, value), _)| format!("{name} {value}")).collect();
    if set.is_empty() { String::new() } else { format!("; http: {}", set.join(", ")) }
}
