//! Changes of frontends, routes and backends in mode http.

use std::collections::BTreeMap;

use convey_api::{ChangeReport, MaintenanceChange, ResetReport, RouteChange, StatsReport};
use convey_config::{did_you_mean, listed};
use convey_model::{HttpOverlayValue, HttpTarget, Maintenance, Target};
use hyper::Method;

use super::{Client, Refused, escaped, json, overlays, path, undone};

pub(super) async fn set_weights(
    client: &Client,
    target: &HttpTarget,
    weights: &[(String, u32)],
) -> Result<String, Refused> {
    let weights = distinct(weights)?;
    let body = json(&RouteChange { weights: weights.clone() })?;
    let ChangeReport { changed, .. } = client.change(Method::PATCH, &http_path(target), Some(&body)).await?;
    let what = HttpOverlayValue::Weights(weights);
    Ok(format!("{target}: {what}{}\n", if changed { "" } else { " already" }))
}

/// Weights by backend. Refuses two weights for one backend.
fn distinct(weights: &[(String, u32)]) -> Result<BTreeMap<String, u32>, Refused> {
    let mut all = BTreeMap::new();
    for (backend, weight) in weights {
        if let Some(first) = all.insert(backend.clone(), *weight) {
            let message = format!("backend {backend} has two weights, {first} and {weight}: give it one");
            return Err(Refused(message));
        }
    }
    Ok(all)
}

pub(super) async fn begin_maintenance(
    client: &Client,
    target: &HttpTarget,
    change: &MaintenanceChange,
) -> Result<String, Refused> {
    let (of, body) = (http_path(target) + "/maintenance", json(change)?);
    let ChangeReport { changed, .. } = client.change(Method::PUT, &of, Some(&body)).await?;
    let status = change.status.unwrap_or(Maintenance::STATUS);
    let word = if changed { "in" } else { "already in" };
    Ok(format!("{target}: {word} maintenance, status {status}\n"))
}

pub(super) async fn end_maintenance(client: &Client, target: &HttpTarget) -> Result<String, Refused> {
    let of = http_path(target) + "/maintenance";
    let ChangeReport { changed, .. } = client.change(Method::DELETE, &of, None).await?;
    Ok(format!("{target}: {}\n", if changed { "maintenance ended" } else { "not in maintenance" }))
}

pub(super) async fn reset(client: &Client, target: &HttpTarget) -> Result<String, Refused> {
    let ResetReport { reset } = client.change(Method::DELETE, &http_overlays(target), None).await?;
    if reset.is_empty() {
        // A misspelled name has no overrides, either: it is an error.
        check_http_target(&client.get("/v1/status").await?, target)?;
    }
    Ok(undone(&target.to_string(), reset.len()))
}

/// Checks that a frontend, and its route if there is one, exist.
///
/// # Errors
/// There is no frontend or route of this name.
fn check_http_target(status: &StatsReport, target: &HttpTarget) -> Result<(), Refused> {
    let (frontend, route) = match target {
        HttpTarget::Frontend(frontend) => (frontend, None),
        HttpTarget::Route { frontend, route } => (frontend, Some(route)),
        HttpTarget::Backend(_) => return Ok(()),
    };
    let unknown = |kind: &str, name: &str, known: Vec<&str>| {
        let (meant, all) = (did_you_mean(name, known.iter().copied()), listed(known.iter(), MAX_NAMES));
        Err(Refused(format!("no {kind} is called {name:?}{meant} (existing: {all})")))
    };
    let Some(found) = status.frontends.get(frontend) else {
        return unknown("frontend", frontend, status.frontends.keys().map(String::as_str).collect());
    };
    let routes = || found.routes.iter().map(|route| route.name.as_str());
    match route.filter(|name| !routes().any(|known| known == *name)) {
        Some(name) => unknown(&format!("route of frontend {frontend}"), name, routes().collect()),
        None => Ok(()),
    }
}

/// Maximum number of names in an error message.
const MAX_NAMES: usize = 8;

/// Path of a frontend, a route or a backend in the control API.
fn http_path(target: &HttpTarget) -> String {
    match target {
        HttpTarget::Frontend(frontend) => format!("/v1/frontends/{}", escaped(frontend)),
        HttpTarget::Route { frontend, route } => {
            format!("/v1/frontends/{}/routes/{}", escaped(frontend), escaped(route))
        }
        HttpTarget::Backend(backend) => path(&Target::backend(backend)),
    }
}

fn http_overlays(target: &HttpTarget) -> String {
    match target {
        HttpTarget::Frontend(frontend) => format!("/v1/overlays?frontend={}", escaped(frontend)),
        HttpTarget::Route { frontend, route } => {
            format!("/v1/overlays?frontend={}&route={}", escaped(frontend), escaped(route))
        }
        HttpTarget::Backend(backend) => overlays(Some(&Target::backend(backend))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_name_is_escaped_as_one_path_segment() {
        let route = HttpTarget::route("web", "*.example/v1");
        assert_eq!(http_path(&route), "/v1/frontends/web/routes/%2A.example%2Fv1");
        assert_eq!(http_overlays(&route), "/v1/overlays?frontend=web&route=%2A.example%2Fv1");
    }
}
