//! Runtime changes by operators that keep servers from receiving clients. Pure.

use std::collections::BTreeMap;

use convey_model::AdminState;

use super::status::{RunningBackend, RunningOverlay, RunningServer};
use crate::Diagnosis;

/// Findings for backends and servers that operators have taken out of rotation, for added servers
/// that are down, and for maintenance.
pub(super) fn examine(
    backends: &BTreeMap<&String, &RunningBackend>,
    overlays: &[RunningOverlay],
) -> Vec<Diagnosis> {
    let of_backend = |(name, backend): (&&String, &&RunningBackend)| {
        let is_out = |server: &RunningServer| server.state != AdminState::Ready.name();
        let out = backend.servers.iter().filter(|(_, server)| is_out(server));
        let out: Vec<(&String, &RunningServer)> = out.collect();
        if !out.is_empty() && out.len() == backend.servers.len() {
            return vec![all_out(name, out.len())];
        }
        out.into_iter().map(|(server, of)| one_out(name, server, &of.state)).collect()
    };
    let out = backends.iter().flat_map(of_backend);
    let added = overlays.iter().filter_map(|said| added(backends, said));
    out.chain(added).chain(overlays.iter().filter_map(maintained)).collect()
}

fn all_out(backend: &str, servers: usize) -> Diagnosis {
    let seen = format!("an operator has taken all servers of backend {backend} ({servers}) out of rotation");
    Diagnosis::error("backend-taken-out", seen, "Clients of this backend get no server.")
        .fix(format!("convey backend ready {backend}"))
        .fix(format!("convey reset {backend}"))
}

fn one_out(backend: &str, server: &str, state: &str) -> Diagnosis {
    let seen = format!("server {backend}/{server} is in state {state}, set by an operator");
    Diagnosis::warning(
        "server-taken-out",
        seen,
        "The server gets no new connections; the other servers get its share.",
    )
    .fix(format!("convey server ready {backend}/{server}"))
}

/// Finding for a server that an operator has added, and that is down. The server is not in the
/// file, so no other check covers it.
fn added(backends: &BTreeMap<&String, &RunningBackend>, said: &RunningOverlay) -> Option<Diagnosis> {
    said.added.as_ref()?;
    let (backend, name) = (said.backend.as_ref()?, said.server.as_ref()?);
    let server = backends.get(backend)?.servers.get(name).filter(|server| !server.up)?;
    let seen = format!(
        "server {backend}/{name} ({}), added by {}, is down: {}",
        server.addr, said.by, server.health.reason
    );
    let why = "The server gets no connections. If its address is wrong, remove the server and add it again.";
    Some(
        Diagnosis::error("added-server-down", seen, why)
            .fix(format!("convey server remove {backend}/{name}")),
    )
}

/// Finding for a frontend, a route or a backend whose requests get a maintenance page.
fn maintained(said: &RunningOverlay) -> Option<Diagnosis> {
    said.maintenance.as_ref().filter(|_| !said.absent)?;
    let (target, argument) = match (&said.frontend, &said.route, &said.backend) {
        (Some(frontend), Some(route), _) => {
            (format!("route {frontend}/{route}"), format!("{frontend}/{route}"))
        }
        (Some(frontend), None, _) => (format!("frontend {frontend}"), frontend.clone()),
        (None, _, backend) => {
            let backend = backend.as_ref()?;
            (format!("backend {backend}"), format!("--backend {backend}"))
        }
    };
    let seen = format!("{target} is in maintenance, set by {}", said.by);
    let why = "Clients get a page in place of a server's response.";
    Some(Diagnosis::warning("maintenance", seen, why).fix(format!("convey maintenance off {argument}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(backends: serde_json::Value, overlays: serde_json::Value) -> Vec<(&'static str, String)> {
        let backends: BTreeMap<String, RunningBackend> = serde_json::from_value(backends).unwrap();
        let overlays: Vec<RunningOverlay> = serde_json::from_value(overlays).unwrap();
        let found = examine(&backends.iter().collect(), &overlays);
        found.into_iter().map(|found| (found.check, found.fix[0].clone())).collect()
    }

    #[test]
    fn runtime_overrides_are_reported_with_the_command_that_reverts_them() {
        let server = |state: &str, up: bool| json!({ "addr": "10.0.0.9:80", "state": state, "up": up, "health": { "reason": "refused" } });
        let ready = || server("ready", true);
        let web = |a, b| json!({ "web": { "servers": { "a": a, "b": b } } });
        assert_eq!(
            found(web(ready(), server("ready", false)), json!([])),
            [],
            "its health is looked at elsewhere"
        );
        let out = found(web(server("maint", false), server("drain", true)), json!([]));
        assert_eq!(out, [("backend-taken-out", "convey backend ready web".to_owned())]);
        let out = found(web(server("drain", true), ready()), json!([]));
        assert_eq!(out, [("server-taken-out", "convey server ready web/a".to_owned())]);
        let said =
            json!([{ "backend": "web", "server": "b", "added": { "addr": "10.0.0.9:80" }, "by": "root" }]);
        let down = found(web(ready(), server("ready", false)), said.clone());
        assert_eq!(down, [("added-server-down", "convey server remove web/b".to_owned())]);
        assert_eq!(found(web(ready(), ready()), said), []);
        let maintenance = json!({ "status": 503 });
        let said = json!([
            { "frontend": "web", "route": "shop", "maintenance": maintenance },
            { "frontend": "web", "maintenance": maintenance, "absent": true },
            { "backend": "web", "maintenance": maintenance },
        ]);
        let ends =
            ["web/shop", "--backend web"].map(|of| ("maintenance", format!("convey maintenance off {of}")));
        assert_eq!(found(web(ready(), ready()), said), ends);
    }
}
