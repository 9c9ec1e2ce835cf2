//! Whether each frontend can serve, as `/readyz` says it. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use crate::model::AdminState;
use crate::snapshot::{Frontend, Pool, Server, Snapshot};

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

/// Why a frontend cannot serve all of its clients, if it cannot.
pub(super) fn obstacle(frontend: &Frontend) -> Option<String> {
    frontend.pools().iter().find_map(|pool| obstacle_of(pool))
}

/// Why the address is not to be announced: a frontend there cannot serve, or a backend of one has fewer servers that can be chosen.
pub(crate) fn obstacle_at(snapshot: &Snapshot, ip: IpAddr, min_servers: u32) -> Option<String> {
    let is_at = |frontend: &&Arc<Frontend>| frontend.config.listen.iter().any(|listen| listen.ip() == ip);
    let too_few = |frontend: &Frontend| {
        let with_count = |pool| (known_to_serve(pool), pool);
        let mut pools = frontend.pools().iter().map(with_count);
        let (left, pool) = pools.find(|(count, _)| *count < min_servers as usize)?;
        let backend = &pool.config.name;
        Some(format!(
            "{left} servers of backend {backend} can be chosen, and announce.min_servers is {min_servers}"
        ))
    };
    snapshot.frontends.iter().filter(is_at).find_map(|frontend| {
        let why = obstacle(frontend).or_else(|| too_few(frontend))?;
        Some(format!("frontend {}: {why}", frontend.config.name))
    })
}

/// Servers that can be chosen, and of which a check has found that they answer.
fn known_to_serve(pool: &Arc<Pool>) -> usize {
    let proven = |(index, server): &(usize, &Arc<Server>)| server.health.proven && pool.is_eligible(*index);
    pool.servers.iter().enumerate().filter(proven).count()
}

/// Why a backend cannot serve, if it cannot.
fn obstacle_of(pool: &Pool) -> Option<String> {
    let is_known_to_serve = |server: &Arc<Server>| server.health.up && server.health.proven;
    if pool.eligible() > 0 {
        let unproven = !pool.servers.iter().any(is_known_to_serve);
        let backend = &pool.config.name;
        return unproven.then(|| format!("no server of backend {backend} has been probed yet"));
    }
    let (backend, servers) = (&pool.config.name, pool.servers.len());
    Some(match servers {
        0 => match &pool.config.discovery {
            Some(discovery) => {
                format!("backend {backend} has no server: {} has no endpoint", discovery.source)
            }
            None => format!("backend {backend} has no server: no name has an address"),
        },
        _ => format!("no server of backend {backend} can be chosen ({})", why_none(&pool.servers)),
    })
}

/// Why servers cannot be chosen, and how many of them for each reason.
fn why_none(servers: &[Arc<Server>]) -> String {
    let why = |server: &Arc<Server>| match server.admin {
        AdminState::Maint => "in maintenance",
        AdminState::Drain => "drained",
        AdminState::Ready if !server.health.up => "down",
        AdminState::Ready if server.config.settings.weight == 0 => "of weight 0",
        AdminState::Ready => "ejected",
    };
    let count = |word: &&str| servers.iter().filter(|server| why(server) == *word).count();
    let words = ["down", "drained", "in maintenance", "of weight 0", "ejected"];
    let told = words.iter().map(|word| (count(word), word)).filter(|(count, _)| *count > 0);
    let told: Vec<_> = told.map(|(count, word)| format!("{count} of {} are {word}", servers.len())).collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::snapshot::{Health, fixture};

    #[test]
    fn each_reason_for_which_servers_cannot_be_chosen_is_told_with_its_count() {
        let down = || fixture::down("refused", Duration::ZERO);
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let all = vec![
            (named("a"), down()),
            (named("b"), fixture::up()),
            (named("c"), down()),
            (named("d"), fixture::up()),
        ];
        let admin = [AdminState::Ready, AdminState::Drain, AdminState::Maint, AdminState::Drain];
        let servers: Vec<Arc<Server>> = fixture::pool("app", all)
            .servers
            .iter()
            .zip(admin)
            .map(|(server, admin)| {
                let (config, health, live) =
                    (server.config.clone(), server.health.clone(), server.live.clone());
                Arc::new(Server { config, admin, health, live })
            })
            .collect();
        assert_eq!(why_none(&servers), "1 of 4 are down, 2 of 4 are drained, 1 of 4 are in maintenance");
    }

    #[test]
    fn an_address_is_announced_while_all_of_its_frontends_have_enough_servers() {
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let down = || fixture::down("refused", Duration::ZERO);
        let half = fixture::pool("half", vec![(named("a"), fixture::up()), (named("b"), down())]);
        let none = fixture::pool("none", vec![(named("a"), down())]);
        let snapshot = fixture::snapshot(
            vec![
                fixture::frontend("alone", &["10.0.0.1:80"], &half),
                fixture::frontend("beside", &["10.0.0.2:80", "10.0.0.3:80"], &half),
                fixture::frontend("broken", &["10.0.0.3:81"], &none),
            ],
            vec![],
        );
        let at = |ip: &str, min_servers| obstacle_at(&snapshot, ip.parse().unwrap(), min_servers);
        assert_eq!(at("10.0.0.1", 1), None);
        assert_eq!(at("10.0.0.2", 1), None);
        assert_eq!(
            at("10.0.0.3", 1).as_deref(),
            Some("frontend broken: no server of backend none can be chosen (1 of 1 are down)")
        );
        assert_eq!(
            at("10.0.0.1", 2).as_deref(),
            Some("frontend alone: 1 servers of backend half can be chosen, and announce.min_servers is 2")
        );
    }

    #[test]
    fn servers_that_no_check_has_reached_yet_do_not_make_an_address_worth_announcing() {
        let named = |name: &str| fixture::server(name, "127.0.0.1:81");
        let unproven = Health { proven: false, ..fixture::up() };
        let pool = fixture::pool("web", vec![(named("a"), fixture::up()), (named("b"), unproven)]);
        let frontend = fixture::frontend("web", &["10.0.0.1:80"], &pool);
        let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
        let at = |min_servers| obstacle_at(&snapshot, "10.0.0.1".parse().unwrap(), min_servers);
        assert_eq!((at(1).is_none(), at(2).is_some()), (true, true));
    }

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
