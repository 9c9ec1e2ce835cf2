//! `[backends.NAME.kubernetes]`: the endpoints of a Service as servers.

use toml::de::DeValue;

use super::server::{describe_settings, setting_changes, settings};
use crate::diff::{below, change, or};
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{not_allowed, port, string};
use convey_model::{
    DiscoveryConfig, DiscoverySource, KubernetesCluster, KubernetesService, Protocol, ServicePort,
};

/// `[backends.NAME.kubernetes]` in the reference. The table has no list of keys and fields, because
/// four keys set one source of the model, and three keys are settings of a server.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[backends.NAME.kubernetes]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "service",
            kind: r#"`"NAMESPACE/NAME"` of a Service"#,
            default: "required",
            sample: r#"#service = "default/web"                # namespace and name"#,
            example: "'shop/web'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "port",
            kind: "the name of a port of the Service, or the port number at which the pods listen",
            default: "required",
            sample: r#"#port = "http"                          # name of the port in the Service, or number of the port at the pods"#,
            example: "8080",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "kubeconfig",
            kind: "a kubeconfig file: the address of the API server and convey's credentials",
            default: "the service account of the pod; else `KUBECONFIG` or `~/.kube/config`",
            sample: r#"#kubeconfig = "kubeconfig"              # example; by default the service account of the pod, or KUBECONFIG"#,
            example: "'/etc/kubeconfig'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "context",
            kind: "a context of the kubeconfig file",
            default: "the current context",
            sample: r#"#context = "production"                 # example; by default the current context of that file"#,
            example: "'production'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "zone",
            kind: "name of a zone: endpoints of other zones are backups",
            default: "none",
            sample: r#"#zone = "eu-central-1a"                 # example; endpoints of other zones are backups"#,
            example: "'eu-1a'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "weight",
            kind: "0 to 65535, of each endpoint",
            default: "1",
            sample: "#weight = 1                             # of each endpoint",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "backup",
            kind: "`true`: endpoints serve only while no other server is up",
            default: "`false`",
            sample: "#backup = false                         # true: endpoints serve only while no other server is up",
            example: "true",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "max_connections",
            kind: "1 to 4294967295, of each endpoint",
            default: "no limit",
            sample: "#max_connections = 1000                 # example; of each endpoint, at once",
            example: "7",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Reads `[backends.NAME.kubernetes]`; `None` if the backend does not have the table. A relative
/// path starts at the directory of the file. `protocol` is the common protocol of the backend's
/// frontends; `None` if they have different protocols.
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
    // Errors of missing and wrong values are reported; the missing servers are then no error.
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

/// Parses the name of a Service port, or a port number of the pods.
fn service_port(value: &DeValue<'_>) -> Result<ServicePort, String> {
    const ALLOWED: &str =
        "the name of a port of the Service, such as \"http\", or the port number at which the pods listen";
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

/// Changes of `[backends.NAME.kubernetes]` for the log of a reload.
pub(super) fn changes(old: Option<&DiscoveryConfig>, new: Option<&DiscoveryConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (None, Some(new)) => return vec![format!("+ servers of {}", new.source)],
        (Some(old), None) => return vec![format!("- servers of {}", old.source)],
    };
    let DiscoveryConfig { source, settings, zone } = old;
    let kind = source.kind();
    let mut changes = change(kind, of(source), of(&new.source)).into_iter().collect::<Vec<_>>();
    changes.extend(below(kind, setting_changes(settings, &new.settings)));
    changes.extend(change(
        &format!("{kind}.zone"),
        or(zone.as_deref(), "any"),
        or(new.zone.as_deref(), "any"),
    ));
    changes
}

/// Text of the Service with its cluster. Other texts omit the cluster.
fn of(source: &DiscoverySource) -> String {
    let DiscoverySource::Kubernetes(service) = source;
    let KubernetesService { cluster, .. } = service;
    let file = cluster.kubeconfig.as_ref().map(|path| format!(" of {}", path.display()));
    let context = cluster.context.as_ref().map(|context| format!(" in context {context}"));
    format!("{service}{}{}", file.unwrap_or_default(), context.unwrap_or_default())
}

/// Row of `convey check` about the Service.
pub(super) fn row(discovery: &DiscoveryConfig) -> [String; 3] {
    let settings = describe_settings(&discovery.settings);
    let zone = discovery
        .zone
        .as_ref()
        .map_or(String::new(), |zone| format!("; endpoints outside of zone {zone} are backups"));
    ["  servers of".to_owned(), discovery.source.to_string(), format!("{settings}, for each endpoint{zone}")]
}
