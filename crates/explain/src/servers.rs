//! Explains for each server of a backend why it gets a client or not. Pure.

use convey_api::ServerNote;
use convey_model::{OverlayValue, ServerAddr, WHOLE};
use convey_snapshot::{PassedOver, Pool, Server, Snapshot};

use super::choice::Choice;
use super::question::AskedPlace;
use super::{Dependence, ExplainSources};

/// Explains all servers of the frontend's backend.
pub(super) fn notes(
    sources: ExplainSources<'_>,
    place: &AskedPlace,
    choice: &Choice,
    is_let_in: bool,
) -> Vec<ServerNote> {
    let pool = &place.frontend.pool;
    let shares: Vec<f64> = (0..pool.servers.len()).map(|index| share(pool, index)).collect();
    let whole: f64 = shares.iter().sum();
    let part = |share: f64| if whole > 0.0 { (share / whole * 1000.0).round() / 10.0 } else { 0.0 };
    let note = |(index, server): (usize, &std::sync::Arc<Server>)| {
        let (config, health) = (&server.config, &server.health);
        let settings = &config.settings;
        ServerNote {
            name: config.name.clone(),
            addr: ServerAddr(config.addr).to_string(),
            weight: settings.weight,
            weight_from: weight_from(sources.snapshot, pool, server).into(),
            percent: health.percent,
            share: part(shares[index]),
            up: health.up,
            health: health.reason.clone(),
            open: server.live.slots.open(),
            max_connections: settings.max_connections,
            chosen: is_let_in && choice.server() == Some(index),
            why: why(sources, pool, choice, index, is_let_in),
        }
    };
    pool.servers.iter().enumerate().map(note).collect()
}

fn share(pool: &Pool, index: usize) -> f64 {
    let server = &pool.servers[index];
    // Algorithms that hash always use the full weight.
    let percent = if pool.config.algorithm.hashes() { WHOLE } else { server.health.percent };
    let counts = pool.is_eligible(index);
    f64::from(server.config.settings.weight) * f64::from(percent) * f64::from(u8::from(counts))
}

fn weight_from(snapshot: &Snapshot, pool: &Pool, server: &Server) -> &'static str {
    let is_of = |value: &OverlayValue| matches!(value, OverlayValue::Weight(_));
    let (backend, name) = (&pool.config.name, &server.config.name);
    let mut overlays = snapshot.overlays.iter().filter(|said| is_of(&said.value));
    if overlays.any(|said| said.target.includes(backend, name)) { "overlay" } else { "file" }
}

fn why(sources: ExplainSources<'_>, pool: &Pool, choice: &Choice, index: usize, is_let_in: bool) -> String {
    let Server { config, health, live, .. } = &*pool.servers[index];
    let settings = &config.settings;
    let passed_over = pool.passed_over(index).map(|why| match why {
        PassedOver::Maint => format!("out: {}", health.reason),
        PassedOver::Drain => "draining, set by an operator".to_owned(),
        PassedOver::Down => format!("down: {}", health.reason),
        PassedOver::NoWeight => "its weight is 0".to_owned(),
        PassedOver::Ejected => health.ejected.as_ref().map_or_else(String::new, |ejected| {
            let left = ejected.until.since(sources.now).as_secs();
            format!("ejected for {left} s more: {}", ejected.reason)
        }),
        PassedOver::Backup => "a backup, not used while other servers are available".to_owned(),
    });
    let is_full = !live.slots.has_room(settings.max_connections);
    match (passed_over, choice.server() == Some(index), choice.depends_on()) {
        (Some(why), ..) => why,
        (None, true, _) if !is_let_in => "would be chosen".to_owned(),
        (None, true, _) if settings.backup => {
            "chosen: a backup, because no other server is available".to_owned()
        }
        (None, true, _) if health.ejected.is_some() => {
            "chosen although ejected, because no other server is available".to_owned()
        }
        (None, true, _) => "chosen".to_owned(),
        (None, false, _) if is_full => format!("full: {} connections", live.slots.open()),
        (None, false, Some(Dependence::Port)) => "available".to_owned(),
        (None, false, Some(Dependence::OtherConnections)) => "available, but not the next choice".to_owned(),
        (None, false, None) if choice.is_previous => "the client returns to another server".to_owned(),
        (None, false, None) => "the hash selects another server".to_owned(),
    }
}
