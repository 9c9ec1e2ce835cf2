//! `[backends.NAME.kubernetes]`: the endpoints of a Service as servers.

use toml::de::DeValue;

use super::server::{describe_settings, settings};
use crate::diff::{change, or};
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::values::{not_allowed, port, string};
use convey_model::{
    DiscoveryConfig, DiscoverySource, KubernetesCluster, KubernetesService, Protocol, ServerSettings,
    ServicePort,
};

/// Reads the table; `None` without one. A relative path starts at the directory of the file.
/// `protocol` is that of the backend's frontends, if all have the same.
pub(super) fn read(
    backend: &mut TomlTable<'_>,
    protocol: Option<Protocol>,
    report: &Report<'_>,
) -> Option<Placed<DiscoveryConfig>> {
    let is_there = backend.has("kubernetes");
    let mut table = backend.table("kubernetes");
    if !is_there {
        return None;
    }
    let place = table.place.clone();
    let (service, port) = (table.required("service", service), table.required("port", service_port));
    let kubeconfig = table.optional("kubeconfig", string);
    let cluster = KubernetesCluster {
        kubeconfig: kubeconfig.map(|path| report.beside(&path.place, &path.value).components().collect()),
        context: table.optional("context", string).map(|context| context.value),
    };
    let (zone, settings) = (table.optional("zone", string), settings(&mut table));
    table.finish();
    // Missing and wrong values are reported; the backend without servers is intended.
    let (namespace, name) = service.map(|service| service.value).unwrap_or_default();
    let port = port.map_or(ServicePort::Number(0), |port| port.value);
    let source = DiscoverySource::Kubernetes(KubernetesService { namespace, name, port, protocol, cluster });
    let value = DiscoveryConfig { source, settings, zone: zone.map(|zone| zone.value) };
    Some(Placed { value, place })
}

/// Parses `namespace/name`, each a valid label in Kubernetes (RFC 1123, RFC 1035).
fn service(value: &DeValue<'_>) -> Result<(String, String), String> {
    let parts = value.as_str().and_then(|text| text.split_once('/'));
    let parts = parts.filter(|(namespace, name)| is_label(namespace) && is_label(name));
    let parts = parts.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    parts.ok_or_else(|| not_allowed(value, "\"NAMESPACE/NAME\" of a Service, such as \"default/web\""))
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Parses the name of a port of the Service, or the port number of pods.
fn service_port(value: &DeValue<'_>) -> Result<ServicePort, String> {
    const ALLOWED: &str =
        "the name of a port of the Service, such as \"http\", or the number at which pods listen";
    let number = |port: u16| (port != 0).then_some(ServicePort::Number(port));
    let found = match value {
        DeValue::Integer(_) => port(value).ok().and_then(number),
        DeValue::String(name) if is_label(name) && name.parse::<u64>().is_err() => {
            Some(ServicePort::Name(name.to_string()))
        }
        _ => None,
    };
    found.ok_or_else(|| not_allowed(value, ALLOWED))
}

/// Log text of the differences.
pub(super) fn changes(old: Option<&DiscoveryConfig>, new: Option<&DiscoveryConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (None, Some(new)) => return vec![format!("+ servers of {}", new.source)],
        (Some(old), None) => return vec![format!("- servers of {}", old.source)],
    };
    let DiscoveryConfig { source, settings: ServerSettings { weight, backup, max_connections }, zone } = old;
    let kind = source.kind();
    let limits = (or(*max_connections, "none"), or(new.settings.max_connections, "none"));
    let mut changes = change(kind, of(source), of(&new.source)).into_iter().collect::<Vec<_>>();
    changes.extend(change(&format!("{kind}.weight"), weight, &new.settings.weight));
    changes.extend(change(&format!("{kind}.backup"), backup, &new.settings.backup));
    changes.extend(change(&format!("{kind}.max_connections"), limits.0, limits.1));
    changes.extend(change(
        &format!("{kind}.zone"),
        or(zone.as_deref(), "any"),
        or(new.zone.as_deref(), "any"),
    ));
    changes
}

/// Text of the Service with its cluster, which other texts leave out.
fn of(source: &DiscoverySource) -> String {
    let DiscoverySource::Kubernetes(service) = source;
    let KubernetesService { cluster, .. } = service;
    let file = cluster.kubeconfig.as_ref().map(|path| format!(" of {}", path.display()));
    let context = cluster.context.as_ref().map(|context| format!(" in context {context}"));
    format!("{service}{}{}", file.unwrap_or_default(), context.unwrap_or_default())
}

/// Row of `convey check`.
pub(super) fn row(discovery: &DiscoveryConfig) -> [String; 3] {
    let settings = describe_settings(&discovery.settings);
    let zone = discovery
        .zone
        .as_ref()
        .map_or(String::new(), |zone| format!(", those outside of zone {zone} are backups"));
    ["  servers of".to_owned(), discovery.source.to_string(), format!("{settings}, for each endpoint{zone}")]
}
