//! `[backends.NAME.health_check]`, and `health_check_interval` beside it: how convey finds out which servers are up.

use super::probe;
use crate::diff::{change, duration, or};
use crate::file::value;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::values::{MILLISECOND, integer, port, seconds};
use convey_http_core::HeadLimits;
use convey_model::{
    BackendConfig, CheckedRequests, FrontendConfig, HealthCheck, ProbeKind, ProbeVia, ProxyVersion,
};

/// The table as the file has it.
#[derive(Debug, Clone)]
pub(crate) struct ParsedHealthCheck {
    pub(crate) check: HealthCheck,
    pub(crate) via: Option<Placed<ProbeVia>>,
}

impl ParsedHealthCheck {
    /// Reads the table of a backend.
    pub(super) fn read(
        backend: &mut TomlTable<'_>,
        default_kind: ProbeKind,
        report: &Report<'_>,
    ) -> ParsedHealthCheck {
        let old_interval =
            backend.old_name("health_check_interval", "health_check.interval", seconds(MILLISECOND));
        let mut table = backend.table("health_check");
        let kind = probe::kind(&mut table, default_kind, report);
        let default = HealthCheck::new(kind);
        let interval = table.optional("interval", seconds(MILLISECOND));
        let interval = table
            .keep_one(old_interval, interval, "health_check.interval")
            .map_or(default.interval, |found| found.value);
        // Without a timeout of its own, a check more frequent than the default timeout must still be valid.
        let timeout = table.optional("timeout", seconds(MILLISECOND));
        if let Some(timeout) = timeout.as_ref().filter(|timeout| timeout.value > interval) {
            let [found, most] = [timeout.value, interval].map(|time| time.as_secs_f64());
            let message = format!("found {found}; allowed: seconds up to the interval, {most}");
            report.error(&timeout.place, message);
        }
        let timeout = timeout.map_or(interval.min(default.timeout), |found| found.value);
        let via = probe::via(&mut table, &default.kind, report);
        let check = HealthCheck {
            via: value(&via).unwrap_or_default(),
            port: table.optional("port", port).map(|found| found.value),
            interval,
            timeout,
            rise: table.or("rise", default.rise, integer(1..=u32::MAX)),
            fall: table.or("fall", default.fall, integer(1..=u32::MAX)),
            ..default
        };
        table.finish();
        ParsedHealthCheck { check, via }
    }

    /// What the program uses. `send_proxy` is the header that servers expect.
    pub(super) fn model(&self, send_proxy: Option<ProxyVersion>) -> HealthCheck {
        HealthCheck { send_proxy, ..self.check.clone() }
    }
}

/// What a reload changes.
pub(super) fn changes(old: &HealthCheck, new: &HealthCheck) -> Vec<String> {
    // The last three are the backend's.
    let HealthCheck { kind, port, interval, timeout, rise, fall, via, send_proxy: _, tls: _, requests: _ } =
        old;
    let mut changes = Vec::new();
    changes.extend(change("health check", probe_of(kind), probe_of(&new.kind)));
    if headers(kind) != headers(&new.kind) && probe_of(kind) == probe_of(&new.kind) {
        // The values may be secrets.
        changes.push("health check headers have other values".to_owned());
    }
    changes.extend(change("health check port", or(*port, "the server's"), or(new.port, "the server's")));
    changes.extend(duration("health check interval", *interval, new.interval));
    changes.extend(duration("health check timeout", *timeout, new.timeout));
    changes.extend(change("health check rise", rise, &new.rise));
    changes.extend(change("health check fall", fall, &new.fall));
    changes.extend(change("health check via", via.name(), new.via.name()));
    changes
}

/// Such as `tcp check every 2s, timeout 1s, rise 2, fall 3`.
pub(super) fn describe(check: &HealthCheck) -> String {
    let what = match &check.kind {
        ProbeKind::None => return "no health check".to_owned(),
        ProbeKind::Tcp => "tcp check".to_owned(),
        ProbeKind::Udp => "udp check".to_owned(),
        ProbeKind::Http(http) => {
            format!("{} check of {} for {}{http}", check.kind.name(), http.path, http.statuses())
        }
    };
    let port = check.port.map_or(String::new(), |port| format!(" on port {port}"));
    let HealthCheck { interval, timeout, rise, fall, .. } = check;
    let via = match check.via {
        ProbeVia::Server => "",
        ProbeVia::Vip => " and via the VIP",
    };
    format!("{what}{port}{via} every {interval:?}, timeout {timeout:?}, rise {rise}, fall {fall}")
}

fn headers(kind: &ProbeKind) -> &[(String, String)] {
    match kind {
        ProbeKind::None | ProbeKind::Tcp | ProbeKind::Udp => &[],
        ProbeKind::Http(http) => &http.headers,
    }
}

/// The kind of a probe, and what it asks for.
fn probe_of(kind: &ProbeKind) -> String {
    match kind {
        ProbeKind::None | ProbeKind::Tcp | ProbeKind::Udp => kind.name().to_owned(),
        ProbeKind::Http(http) => format!("{} {} ({}){http}", kind.name(), http.path, http.statuses()),
    }
}

/// How a check of the backend's servers speaks and judges; `None`: not as requests do, because no
/// frontend or a frontend of another mode uses the backend.
pub(crate) fn checked(backend: &BackendConfig, frontends: &[FrontendConfig]) -> Option<CheckedRequests> {
    let mut response_head: Option<HeadLimits> = None;
    for frontend in frontends.iter().filter(|frontend| frontend.backends().any(|name| name == backend.name)) {
        if !frontend.mode.is_http() {
            return None;
        }
        let HeadLimits { bytes, fields } = frontend.http_limits().response_head;
        let most = response_head.get_or_insert(HeadLimits { bytes, fields });
        *most = HeadLimits { bytes: most.bytes.max(bytes), fields: most.fields.max(fields) };
    }
    response_head.map(|response_head| CheckedRequests { version: backend.protocol, response_head })
}
