//! Changes of the running program: requests and their results. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Label, OverlayReport};

/// Change of a server, or of all servers of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("minProperties" = 1)))]
#[serde(deny_unknown_fields)]
pub struct ServerChange {
    /// Administrative state.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::states())))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Label>,
    /// Weight of the server; 0: no new connections. A change of a backend has no weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Whether the change may withdraw announced addresses, or leave a backend of `ready_needs`
    /// without servers. Without it convey refuses such a change (409).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Server that an operator adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewServer {
    /// Address: `IP:PORT`, or `NAME:PORT` in proxy mode.
    pub addr: String,
    /// Weight; 1 without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Whether the server is used only while no other server is usable.
    #[serde(default)]
    pub backup: bool,
    /// Limit of concurrent connections; no limit without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<NonZeroU32>,
}

/// Change of a route of mode http.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteChange {
    /// Weights of backends among the `backends` of the route, each from 0 to 1,000,000; 0: no
    /// requests. Backends without a new weight keep theirs.
    #[cfg_attr(test, schemars(extend("minProperties" = 1)))]
    #[serde(deserialize_with = "distinct_weights")]
    pub weights: BTreeMap<String, u32>,
}

/// Reads weights, and refuses a backend that has two.
fn distinct_weights<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeMap<String, u32>, D::Error> {
    struct Weights;

    impl<'de> Visitor<'de> for Weights {
        type Value = BTreeMap<String, u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with a weight for each backend")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut weights = BTreeMap::new();
            while let Some((backend, weight)) = map.next_entry::<String, u32>()? {
                if weights.contains_key(&backend) {
                    return Err(A::Error::custom(format!("backend {backend:?} has two weights")));
                }
                weights.insert(backend, weight);
            }
            Ok(weights)
        }
    }

    input.deserialize_map(Weights)
}

/// Maintenance of a frontend, a route or a backend in mode http.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MaintenanceChange {
    /// Status of the replies; 503 without it.
    #[cfg_attr(test, schemars(range(min = 400, max = 599)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Value of `Retry-After`, in seconds; 300 without it.
    #[cfg_attr(test, schemars(range(max = 31_536_000)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// Text of the page, at most 64 KiB. Without it, clients get the frontend's error page of the
    /// status, or a line of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Value of `Content-Type` of the page; `text/plain; charset=utf-8` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Networks of clients that are served nevertheless, at most 100: `IP` or `IP/LEN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// Change of the log level.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LogLevelChange {
    /// Least important level of the log that is written.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::log_levels())))]
    pub level: Label,
}

/// Result of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Changed")]
pub struct ChangeReport {
    /// False if the change had no effect, because the state was the same before.
    pub changed: bool,
    /// Consequences of the change, such as that no server of the backend is left. Left out if there
    /// are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Result of an addition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Added")]
pub struct AdditionReport {
    /// False if an operator had added or removed a server of this name before.
    pub new: bool,
    /// Warnings about the added server. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Overrides that were removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "TakenBack")]
pub struct ResetReport {
    /// The overrides.
    pub reset: Vec<OverlayReport>,
}

/// Result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Reloaded")]
pub struct ReloadReport {
    /// Changes, a line each.
    pub changes: Vec<String>,
    /// Changes that take effect after a restart, a line each.
    pub needs_restart: Vec<String>,
    /// Certificates of folders that were refused: the previous ones stay.
    pub refused_certificates: Vec<String>,
}

/// Level of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "LogLevel")]
pub struct LogLevelReport {
    /// Least important level that is written. `RUST_LOG` may override it for some modules.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::log_levels())))]
    pub level: Label,
    /// Override by an operator. Left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayReport>,
}

/// Rights of the requester.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Access")]
pub struct AccessReport {
    /// Requester's name, in an operator-facing form.
    pub name: String,
    /// Whether the requester may change things.
    pub may_change: bool,
    /// Whether a token would give the requester this right.
    pub token: bool,
}

/// Reason why a request failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Error")]
pub struct ErrorReport {
    /// Operator-facing message.
    pub error: String,
    /// Problems of the file, a line each. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_of_a_route_change_has_one_weight() {
        let read = |text: &str| serde_json::from_str::<RouteChange>(text).map_err(|wrong| wrong.to_string());
        let weights = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(read(r#"{"weights":{"a":1,"b":2}}"#), Ok(RouteChange { weights }));
        let wrong = read(r#"{"weights":{"a":1,"a":2}}"#).unwrap_err();
        assert!(wrong.starts_with("backend \"a\" has two weights"), "{wrong}");
    }
}
