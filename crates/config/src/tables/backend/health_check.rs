//! `[backends.NAME.health_check]` and its former key `health_check_interval`: health checks of
//! servers.

use std::time::Duration;

use super::{BackendKeys, probe};
use crate::file::value;
use crate::keys::{keys, unreported};
use crate::problem::{Place, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{MILLISECOND, choice, integer, port, seconds};
use convey_http_core::HeadLimits;
use convey_model::{BackendConfig, CheckedRequests, FrontendConfig, HealthCheck, Mode, ProbeKind, ProbeVia};

/// `[backends.NAME.health_check]` in the reference.
pub(crate) const DOC: TableDoc =
    TableDoc { name: "[backends.NAME.health_check]", docs: HealthCheckKeys::DOCS };

/// Parsed `[backends.NAME.health_check]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedHealthCheck {
    pub(crate) keys: HealthCheckKeys,
    /// Kind of the health check, and defaults for it.
    pub(crate) default: HealthCheck,
    /// Place of `kind`.
    pub(crate) kind_at: Option<Place>,
}

keys! {
    /// The keys of `[backends.NAME.health_check]` with one value each.
    pub(crate) struct HealthCheckKeys => HealthCheck, from (_unused: (), default);

    also kind = default.kind; {
        changes: |old, new| kind_changes(&old.kind, &new.kind),
        describe: |check, _| match &check.kind {
            ProbeKind::None => "no health check".to_owned(),
            ProbeKind::Tcp | ProbeKind::Udp => format!("{} check", check.kind.name()),
            ProbeKind::Http(http) => {
                format!("{} check of {} (status {}{http})", check.kind.name(), http.path, http.statuses())
            }
            ProbeKind::Grpc(grpc) => format!("grpc check{grpc}"),
        },
        docs: probe::DOCS,
    };

    key "port" => port: u16 {
        read: port,
        unset: "the server's",
        describe: |check, _| {
            let port = check.port.map_or(String::new(), |port| format!(" on port {port}"));
            let via = match check.via {
                ProbeVia::Server => "",
                ProbeVia::Vip => " and via the VIP",
            };
            port + via
        },
        kind: "1 to 65535; required if a server has no port",
        default: "the server's port",
        sample: "#port = 9000                            # example; the port to check. Required for servers without a port",
        example: "7",
    };

    key "interval" => interval: Duration {
        read: seconds(MILLISECOND),
        describe: |check, _| format!(" every {:?}", check.interval),
        kind: "seconds from 0.001",
        default: "2; UDP: 4",
        sample: "#interval = 2                           # between two checks of a server; udp: 4",
        example: "7",
    };

    key "timeout" => timeout: Duration {
        read: seconds(MILLISECOND),
        describe: |check, _| format!(", timeout {:?}", check.timeout),
        kind: "seconds from 0.001 to `interval`",
        default: "1; UDP: 3.5; never more than `interval`",
        sample: "#timeout = 1                            # a slower response is a failure; at most the interval; udp: 3.5",
        example: "0.5",
    };

    key "rise" => rise: u32 {
        read: integer(1..=u32::MAX),
        describe: |check, _| format!(", rise {}", check.rise),
        kind: "1 to 4294967295 successes bring a server back",
        default: "2",
        sample: "#rise = 2                               # successes in a row that bring a server back",
        example: "7",
    };

    key "fall" => fall: u32 {
        read: integer(1..=u32::MAX),
        describe: |check, _| format!(", fall {}", check.fall),
        kind: "1 to 4294967295 failures take it out",
        default: "3",
        sample: r##"
#fall = 3                               # failures in a row that take it out. As many failed connects of clients trigger an
                                        # immediate check
"##,
        example: "7",
    };

    key "via" => via: ProbeVia {
        read: choice(&ProbeVia::ALL, ProbeVia::name),
        kind: r#"`"server"`, or `"vip"` (mode dsr, TCP): after the check, also a connection through the VIP"#,
        default: r#"`"server"`"#,
        sample: r##"#via = "server"                         # "vip" (dsr, TCP): check also on the path of clients' packets, through the VIP"##,
        example: "'vip'",
    };

    also send_proxy = default.send_proxy, source = default.source, tls = default.tls,
        requests = default.requests; {
        // The backend reports changes of these fields.
        changes: unreported,
        docs: &[],
    };
}

impl ParsedHealthCheck {
    /// Reads the health check of a backend.
    pub(super) fn read(
        backend: &mut TomlTable<'_>,
        default_kind: ProbeKind,
        report: &Report<'_>,
    ) -> ParsedHealthCheck {
        let old_interval =
            backend.old_name("health_check_interval", "health_check.interval", seconds(MILLISECOND));
        let mut table = backend.table("health_check");
        let (kind, kind_at) = probe::kind(&mut table, default_kind, report);
        let mut default = HealthCheck::new(kind);
        let mut keys = HealthCheckKeys::read(&mut table);
        keys.interval = table.keep_one(old_interval, keys.interval, "health_check.interval");
        let interval = value(&keys.interval).unwrap_or(default.interval);
        // If only the check interval is set, it may be below the default timeout.
        default.timeout = default.timeout.min(interval);
        if let Some(timeout) = keys.timeout.as_ref().filter(|timeout| timeout.value > interval) {
            let [found, most] = [timeout.value, interval].map(|time| time.as_secs_f64());
            let message = format!("found {found} s; allowed: at most the interval of the checks, {most} s");
            report.error(&timeout.place, message);
        }
        if let Some(via) = keys.via.as_ref().filter(|via| via.value == ProbeVia::Vip) {
            probe::check_via(&via.place, &default.kind, report);
        }
        table.finish();
        ParsedHealthCheck { keys, default, kind_at }
    }

    /// Model of the health check of a backend with these keys.
    pub(super) fn model(&self, backend: &BackendKeys) -> HealthCheck {
        let source = backend.source.iter().map(|source| source.value).collect();
        let send_proxy = value(&backend.send_proxy);
        self.keys.model((), HealthCheck { send_proxy, source, ..self.default.clone() })
    }
}

/// Changes of the health check for the log of a reload.
pub(super) fn changes(old: &BackendConfig, new: &BackendConfig) -> Vec<String> {
    let changes = HealthCheckKeys::changes(&old.health_check, &new.health_check).into_iter();
    changes.map(|change| format!("health check {change}")).collect()
}

/// Text such as `; tcp check every 2s, timeout 1s, rise 2, fall 3`.
pub(super) fn describe(backend: &BackendConfig, modes: &[Mode]) -> String {
    match &backend.health_check.kind {
        ProbeKind::None => "; no health check".to_owned(),
        ProbeKind::Tcp | ProbeKind::Udp | ProbeKind::Http(_) | ProbeKind::Grpc(_) => {
            format!("; {}", HealthCheckKeys::describe(&backend.health_check, modes))
        }
    }
}

/// HTTP version and response limits of the requests to a backend, for use in its health checks.
/// `None` if no frontend uses the backend, or if one of them is not in mode http.
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

/// Differences in the kind and the request of a health check. Values of headers are not shown: they
/// may be secrets.
fn kind_changes(old: &ProbeKind, new: &ProbeKind) -> Option<String> {
    let [before, after] = [old, new].map(probe_of);
    let have_other_headers = before == after && headers(old) != headers(new);
    match before == after {
        true => have_other_headers.then(|| "headers: values changed".to_owned()),
        false => Some(format!("{before} -> {after}")),
    }
}

fn headers(kind: &ProbeKind) -> &[(String, String)] {
    match kind {
        ProbeKind::None | ProbeKind::Tcp | ProbeKind::Udp => &[],
        ProbeKind::Http(http) => &http.headers,
        ProbeKind::Grpc(grpc) => &grpc.headers,
    }
}

/// Text such as `http / (200-399)` or `grpc of service shop.Cart`.
fn probe_of(kind: &ProbeKind) -> String {
    match kind {
        ProbeKind::None | ProbeKind::Tcp | ProbeKind::Udp => kind.name().to_owned(),
        ProbeKind::Http(http) => format!("{} {} ({}){http}", kind.name(), http.path, http.statuses()),
        ProbeKind::Grpc(grpc) => format!("grpc{grpc}"),
    }
}
