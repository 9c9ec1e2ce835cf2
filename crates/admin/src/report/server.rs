//! Report on a server: its health, its handshakes and its traffic.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use convey_api::{EjectedReport, HandshakeReport, HealthReport, PathMtuReport, ServerReport};
use convey_model::{ServerAddr, Timestamp};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{Ejected, Health, Pool, ServerLive};

use super::{Uses, requests, times_report, traffic_report};

/// Name and report of a server.
pub(super) fn server_report(
    pool: &Pool,
    index: usize,
    uses: Uses,
    started: SystemTime,
    now: Timestamp,
) -> (String, ServerReport) {
    let server = &pool.servers[index];
    let traffic = &server.live.traffic;
    let report = ServerReport {
        addr: ServerAddr(server.config.addr).to_string(),
        weight: server.config.settings.weight,
        effective_weight: f64::from(server.config.settings.weight) * f64::from(server.health.percent) / 100.0,
        backup: server.config.settings.backup,
        max_connections: server.config.settings.max_connections,
        state: server.admin.name().into(),
        up: server.health.up,
        eligible: pool.is_eligible(index),
        health: health_report(&server.health, started),
        ejected: server.health.ejected.as_ref().map(|ejected| ejected_report(ejected, now)),
        ejections: server.live.ejections(),
        traffic: traffic_report(traffic),
        connect_failures: traffic.sum(Counter::ConnectFailures),
        retries: traffic.sum(Counter::Retries),
        requests: uses.has_requests.then(|| requests::of_server(&server.live, now)),
        response_seconds: uses.has_requests.then(|| times_report(server.live.response_times.read())),
        handshakes: uses.has_handshakes.then(|| handshake_report(&server.live)),
        path_mtu_suspicions: uses.has_handshakes.then(|| path_mtu_report(traffic)),
    };
    (server.config.name.clone(), report)
}

fn handshake_report(server: &ServerLive) -> HandshakeReport {
    let traffic = &server.traffic;
    // Read completed handshakes first, so that the report never shows more completed handshakes
    // than started ones.
    let completed = traffic.sum(Counter::HandshakesCompleted);
    let syn_repeated = traffic.sum(Counter::SynsRepeated);
    let stalled = server.handshakes_stalled.load(Ordering::Relaxed);
    HandshakeReport {
        started: traffic.sum(Counter::HandshakesBegun),
        completed,
        syn_repeated,
        consecutive_incomplete: server.unanswered_handshakes.load(Ordering::Relaxed),
        stalled,
    }
}

fn path_mtu_report(traffic: &Traffic) -> PathMtuReport {
    PathMtuReport {
        to_server: traffic.sum(Counter::PathMtuToServer),
        to_client: traffic.sum(Counter::PathMtuToClient),
    }
}

fn health_report(health: &Health, started: SystemTime) -> HealthReport {
    let since = (started + Duration::from_nanos(health.since.0)).into();
    HealthReport { up: health.up, reason: health.reason.clone(), since }
}

fn ejected_report(ejected: &Ejected, now: Timestamp) -> EjectedReport {
    EjectedReport {
        reason: ejected.reason.clone(),
        remaining_seconds: (ejected.until.since(now).as_secs_f64() * 1000.0).round() / 1000.0,
        times: ejected.times,
    }
}
