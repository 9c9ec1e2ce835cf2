//! Objects of the Kubernetes API, with the fields that convey uses.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Object that can be listed and watched.
pub(crate) trait Object: serde::de::DeserializeOwned + Send {
    fn metadata(&self) -> &ObjectMeta;
}

/// EndpointSlice: a part of a Service's endpoints (discovery.k8s.io/v1).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) metadata: ObjectMeta,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) address_type: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) endpoints: Vec<SliceEndpoint>,
    pub(crate) ports: Option<Vec<EndpointPort>>,
}

/// Endpoint of an EndpointSlice, usually a pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SliceEndpoint {
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) addresses: Vec<String>,
    pub(crate) conditions: Option<EndpointConditions>,
    pub(crate) target_ref: Option<ObjectReference>,
    pub(crate) zone: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointConditions {
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointPort {
    pub(crate) name: Option<String>,
    pub(crate) port: Option<i32>,
    pub(crate) protocol: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObjectReference {
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceObject {
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) metadata: ObjectMeta,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectMeta {
    pub(crate) name: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl Object for EndpointSlice {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Object for ServiceObject {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

/// Page of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct ObjectList<K> {
    #[serde(default)]
    pub(crate) metadata: ListMeta,
    #[serde(deserialize_with = "null_as_default", bound(deserialize = "K: Deserialize<'de>"))]
    pub(crate) items: Vec<K>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListMeta {
    pub(crate) resource_version: Option<String>,
    /// Token to request the next page; missing on the last page.
    pub(crate) r#continue: Option<String>,
}

/// Line of a response to a watch.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub(crate) enum WatchEvent<K> {
    Added(K),
    Modified(K),
    Deleted(K),
    Bookmark(Bookmark),
    Error(ApiStatus),
}

/// Position of a watch in the history of a cluster.
#[derive(Debug, Deserialize)]
pub(crate) struct Bookmark {
    pub(crate) metadata: BookmarkMeta,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BookmarkMeta {
    pub(crate) resource_version: Option<String>,
}

/// Error status from an API server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiStatus {
    pub(crate) message: String,
    pub(crate) reason: String,
    pub(crate) code: u16,
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_may_have_fields_that_are_missing_null_or_unknown() {
        let slice: EndpointSlice = serde_json::from_str(
            r#"{"kind":"EndpointSlice","metadata":null,"addressType":"IPv4","endpoints":null,"ports":null}"#,
        )
        .unwrap();
        assert_eq!((&*slice.address_type, slice.endpoints.len(), slice.ports.is_none()), ("IPv4", 0, true));
        let list: ObjectList<ServiceObject> = serde_json::from_str(r#"{"items":null}"#).unwrap();
        assert_eq!((list.items.len(), list.metadata.r#continue), (0, None));
        assert!(serde_json::from_str::<ObjectList<ServiceObject>>(r#"{"metadata":{}}"#).is_err(), "no list");
        let endpoint: SliceEndpoint = serde_json::from_str(
            r#"{"addresses":["10.0.0.1"],"targetRef":{"kind":"Pod","name":"a"},"hints":{"forZones":[]}}"#,
        )
        .unwrap();
        assert_eq!(endpoint.target_ref.unwrap().name.as_deref(), Some("a"));
    }
}
