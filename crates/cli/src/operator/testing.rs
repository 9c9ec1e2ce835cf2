//! Responses for tests. Fields that a test leaves out have default values.

use convey_api::{
    BackendReport, ConfigReport, EventReport, FrontendReport, HandshakeReport, HealthReport, OverlayReport,
    PacketReport, PathMtuReport, RequestReport, RouteReport, ServerReport, StatsReport, TimesReport,
};
use serde_json::{Value, json};

/// Status with these fields; the others have their defaults.
pub(super) fn status(fields: Value) -> StatsReport {
    serde_json::from_value(complete("status", fields)).unwrap()
}

/// Events with these numbers and texts.
pub(super) fn events(events: &[(u64, &str)]) -> Vec<EventReport> {
    let at = humantime::parse_rfc3339("2026-01-01T00:00:05.123Z").unwrap().into();
    let event = |&(number, text): &(u64, &str)| {
        let text = text.to_owned();
        EventReport { number, at, kind: "health".into(), level: "warn".into(), text }
    };
    events.iter().map(event).collect()
}

fn complete(name: &str, fields: Value) -> Value {
    let Value::Object(fields) = fields else { return fields };
    let mut whole = defaults(name);
    for (key, value) in fields {
        let each = |value| complete(&key, value);
        let value = match (&*key, value) {
            ("frontends" | "backends" | "servers", Value::Object(all)) => {
                all.into_iter().map(|(name, one)| (name, each(one))).collect()
            }
            (_, Value::Array(all)) => all.into_iter().map(each).collect(),
            (_, value) => each(value),
        };
        whole[&key] = value;
    }
    whole
}

fn defaults(name: &str) -> Value {
    match name {
        "status" => json!(StatsReport::default()),
        "config" => json!(ConfigReport::default()),
        "frontends" => json!(FrontendReport::default()),
        "routes" => json!(RouteReport::default()),
        "backends" => json!(BackendReport::default()),
        "servers" => json!(ServerReport::default()),
        "health" => json!(HealthReport::default()),
        "handshakes" => json!(HandshakeReport::default()),
        "path_mtu_suspicions" => json!(PathMtuReport::default()),
        "overlays" => json!(OverlayReport::default()),
        "packets" => json!(PacketReport::default()),
        "requests" => json!(RequestReport::default()),
        "request_seconds" | "response_seconds" | "connect_seconds" | "session_seconds" => {
            json!(TimesReport::default())
        }
        _ => json!({}),
    }
}
