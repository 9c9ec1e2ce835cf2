//! What a reload changes about where a backend has its servers from.

use super::{change, or};
use convey_model::{DiscoveryConfig, DiscoverySource, KubernetesService, ServerSettings};

/// How two of them differ, in words for the log.
pub(super) fn changes(old: Option<&DiscoveryConfig>, new: Option<&DiscoveryConfig>) -> Vec<String> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        (None, Some(new)) => return vec![format!("+ servers of {}", new.source)],
        (Some(old), None) => return vec![format!("- servers of {}", old.source)],
    };
    // Taken apart, so that a new field cannot be forgotten.
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

/// With the cluster, which goes without saying elsewhere.
fn of(source: &DiscoverySource) -> String {
    let DiscoverySource::Kubernetes(service) = source;
    let KubernetesService { cluster, .. } = service;
    let file = cluster.kubeconfig.as_ref().map(|path| format!(" of {}", path.display()));
    let context = cluster.context.as_ref().map(|context| format!(" in context {context}"));
    format!("{service}{}{}", file.unwrap_or_default(), context.unwrap_or_default())
}
