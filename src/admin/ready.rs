//! Whether each frontend can serve, as `/readyz` says it. Pure.

use std::sync::Arc;

use crate::snapshot::{Frontend, Server, Snapshot};

/// A line for each reason why this convey should get no traffic; none if it can serve all.
pub(super) fn obstacles(snapshot: &Snapshot, is_draining: bool) -> Vec<String> {
    if is_draining || snapshot.stopping {
        return vec!["draining: convey is about to stop".to_owned()];
    }
    if snapshot.frontends.is_empty() {
        return vec!["starting: no frontend serves yet".to_owned()];
    }
    let line = |frontend: &Arc<Frontend>| {
        obstacle(frontend).map(|why| format!("frontend {}: {why}", frontend.config.name))
    };
    snapshot.frontends.iter().filter_map(line).collect()
}

/// Why a frontend cannot serve, if it cannot.
pub(super) fn obstacle(frontend: &Frontend) -> Option<String> {
    let pool = &frontend.pool;
    let is_known_to_serve = |server: &Arc<Server>| server.health.up && server.health.proven;
    if pool.eligible() > 0 {
        let unproven = !pool.servers.iter().any(is_known_to_serve);
        let backend = &pool.config.name;
        return unproven.then(|| format!("no server of backend {backend} has been probed yet"));
    }
    let (backend, servers) = (&pool.config.name, pool.servers.len());
    let down = pool.servers.iter().filter(|server| !server.health.up).count();
    Some(match servers {
        0 => format!("backend {backend} has no server: no name has an address"),
        _ => format!("no server of backend {backend} can be chosen ({down} of {servers} are down)"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::snapshot::{Health, fixture};

    #[test]
    fn ready_is_who_can_serve_with_each_frontend() {
        let up = fixture::pool("up", vec![(fixture::server("a", "127.0.0.1:81"), fixture::up())]);
        let down = fixture::down("refused", Duration::ZERO);
        let down = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:82"), down)]);
        let named = fixture::pool("named", vec![]);
        let unproven = || Health { proven: false, ..fixture::up() };
        let [a, b] = ["a", "b"].map(|name| fixture::server(name, "127.0.0.1:83"));
        let unprobed = fixture::pool("late", vec![(a.clone(), unproven()), (b.clone(), unproven())]);
        let half_probed = fixture::pool("half", vec![(a, unproven()), (b, fixture::up())]);
        let frontend = |name: &str, pool| fixture::frontend(name, &["127.0.0.1:80"], pool);
        let ready = |frontends| obstacles(&fixture::snapshot(frontends, vec![up.clone()]), false);
        assert_eq!(ready(vec![frontend("web", &up)]), [""; 0]);
        assert_eq!(
            ready(vec![
                frontend("web", &up),
                frontend("api", &down),
                frontend("new", &named),
                frontend("late", &unprobed),
                frontend("half", &half_probed),
            ]),
            [
                "frontend api: no server of backend app can be chosen (1 of 1 are down)",
                "frontend new: backend named has no server: no name has an address",
                "frontend late: no server of backend late has been probed yet",
            ]
        );
        assert_eq!(obstacles(&Snapshot::empty(1), false), ["starting: no frontend serves yet"]);
        let serving = fixture::snapshot(vec![frontend("web", &up)], vec![up.clone()]);
        assert_eq!(obstacles(&serving, true), ["draining: convey is about to stop"]);
    }
}
