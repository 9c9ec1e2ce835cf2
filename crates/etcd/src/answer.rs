//! Answers of etcd's JSON gateway, which writes 64-bit numbers as text and bytes in base64. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer};

/// Keys in a range, with their values.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    pub(crate) header: StoreHeader,
    pub(crate) kvs: Vec<KeyValue>,
    #[serde(deserialize_with = "number")]
    pub(crate) count: i64,
}

impl Range {
    /// Revision of the last change of a key in the range; 0 if there are no keys.
    pub(crate) fn newest(&self) -> i64 {
        self.kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or_default()
    }
}

/// Header that each answer has.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct StoreHeader {
    #[serde(deserialize_with = "number")]
    pub(crate) revision: i64,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub(crate) key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub(crate) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

/// Line of a response to a watch.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct WatchLine {
    pub(crate) result: WatchedChanges,
    pub(crate) error: Option<GatewayRefusal>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct WatchedChanges {
    pub(crate) canceled: bool,
    pub(crate) cancel_reason: String,
    /// Number of changed keys. Their values are read by another request.
    #[serde(deserialize_with = "length")]
    pub(crate) events: usize,
}

/// Error of a request that etcd has refused.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct GatewayRefusal {
    pub(crate) message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Authenticated {
    pub(crate) token: String,
}

/// Lease in the answer to its creation or renewal. The answer to a renewal is a line of a stream,
/// with the lease in `result`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EtcdLease {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(crate) id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: i64,
    pub(crate) result: Option<Box<EtcdLease>>,
}

/// Encodes bytes in base64, as etcd expects them.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Parses a number that is written as a number or as text.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(i64),
        Text(String),
    }
    match Written::deserialize(from)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    BASE64_STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
}

fn length<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    Vec::<serde::de::IgnoredAny>::deserialize(from).map(|items| items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_the_gateway_writes_it() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"12","raft_term":"2"},
            "kvs":[{"key":"L2VkZ2UvY29uZmlnLnRvbWw=","create_revision":"3","mod_revision":"11","version":"2","value":"aGk="}],"count":"1"}"#;
        let range: Range = serde_json::from_str(text).unwrap();
        let kv = KeyValue { key: b"/edge/config.toml".to_vec(), value: b"hi".to_vec(), mod_revision: 11 };
        let expected = Range { header: StoreHeader { revision: 12 }, kvs: vec![kv], count: 1 };
        assert_eq!(range, expected);
        assert_eq!((range.newest(), Range::default().newest()), (11, 0), "other keys do not count");
        // An empty range has neither keys nor a count; an empty value is missing from the answer.
        assert_eq!(serde_json::from_str::<Range>(r#"{"header":{"revision":"1"}}"#).unwrap().count, 0);
        assert!(serde_json::from_str::<Range>(r#"{"kvs":[{"key":"%"}]}"#).is_err());
        assert!(serde_json::from_str::<Range>(r#"{"count":"many"}"#).is_err());
    }

    #[test]
    fn watch_line_has_events_cancellation_or_an_error() {
        let line = |text: &str| serde_json::from_str::<WatchLine>(text).unwrap();
        assert_eq!(line(r#"{"result":{"header":{"revision":"5"},"created":true}}"#).result.events, 0);
        let changed =
            line(r#"{"result":{"events":[{"kv":{"key":"YQ=="}},{"type":"DELETE","kv":{"key":"YQ=="}}]}}"#);
        assert_eq!((changed.result.events, changed.result.canceled), (2, false));
        assert!(line(r#"{"result":{"canceled":true,"compact_revision":"9"}}"#).result.canceled);
        let refused = line(r#"{"error":{"grpc_code":14,"message":"no leader","details":[]}}"#);
        assert_eq!(refused.error.unwrap().message, "no leader");
    }

    #[test]
    fn a_lease_is_told_bare_or_as_the_result_of_a_stream() {
        let lease: EtcdLease = serde_json::from_str(r#"{"ID":"7587","TTL":"60"}"#).unwrap();
        assert_eq!((lease.id, lease.ttl), (7587, 60));
        let kept: EtcdLease = serde_json::from_str(r#"{"result":{"ID":"7587","TTL":"60"}}"#).unwrap();
        assert_eq!(kept.result.unwrap().ttl, 60);
    }
}
