//! The language of the file: which tables and keys there are, what they may hold and what holds without
//! them. What follows from several of them together is left to `validate`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use toml::Spanned;
use toml::de::DeTable;

use super::problem::{Place, Placed, Report};
use super::reader::Table;
use super::values::{
    MILLISECOND, anything, boolean, choice, http_path, integer, ip, listen_address, port, seconds,
    server_address, snat_address, snat_ports, status_range, string,
};
use super::{Config, Stats};
use crate::model::{
    self, Algorithm, DsrKind, FlowTimeouts, HashOn, HealthCheck, Mode, OnDown, PacketSettings, ProbeKind,
    Timeouts,
};

/// A whole file, each value right by itself. Required ones that are missing or wrong are `None`, and
/// reported.
pub(super) struct File {
    pub(super) mode: Mode,
    pub(super) frontends: Vec<Frontend>,
    pub(super) backends: Vec<Backend>,
    pub(super) stats: Stats,
    pub(super) timeouts: Timeouts,
    pub(super) passthrough: Passthrough,
}

/// `[passthrough]`
pub(super) struct Passthrough {
    pub(super) workers: Option<Placed<u16>>,
    pub(super) interfaces: Vec<Placed<String>>,
    pub(super) snat_addresses: Vec<Placed<IpAddr>>,
    /// The rest.
    settings: PacketSettings,
}

/// `[frontends.NAME]`
pub(super) struct Frontend {
    pub(super) name: String,
    pub(super) listen: Vec<Placed<SocketAddr>>,
    pub(super) backend: Option<Placed<String>>,
    max_connections: Option<u32>,
}

/// `[backends.NAME]`
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) algorithm: Algorithm,
    pub(super) hash: Option<Placed<HashOn>>,
    pub(super) servers: Vec<Server>,
    health_check: HealthCheck,
    on_down: OnDown,
    dsr: DsrKind,
}

/// `[backends.NAME.servers.NAME]`
pub(super) struct Server {
    pub(super) name: String,
    pub(super) addr: Option<Placed<SocketAddr>>,
    pub(super) weight: u16,
    pub(super) backup: bool,
    max_connections: Option<u32>,
}

impl File {
    /// Reads a file.
    pub(super) fn read<'a>(root: &'a Spanned<DeTable<'a>>, report: &'a Report<'a>) -> File {
        const NO_FRONTEND: &str = "there is none; write [frontends.NAME] with listen_addr and backend";
        let mut root = Table::root(root.get_ref(), report);
        root.require("frontends", NO_FRONTEND);
        let frontends = root.table("frontends");
        if frontends.is_empty() {
            report.missing(&frontends.place, NO_FRONTEND);
        }
        let file = File {
            mode: root.or("mode", Mode::Proxy, choice(&Mode::ALL, Mode::name)),
            frontends: frontends.named().into_iter().map(|(name, t)| frontend(name, t, report)).collect(),
            backends: root
                .table("backends")
                .named()
                .into_iter()
                .map(|(name, t)| backend(name, t, report))
                .collect(),
            stats: stats(root.table("stats")),
            timeouts: timeouts(root.table("timeouts")),
            passthrough: passthrough(root.table("passthrough")),
        };
        root.finish();
        file
    }

    /// What the program uses. Right only if nothing was reported.
    pub(super) fn into_config(self) -> Config {
        Config {
            mode: self.mode,
            frontends: self.frontends.into_iter().filter_map(Frontend::into_model).collect(),
            backends: self.backends.into_iter().map(Backend::into_model).collect(),
            stats: self.stats,
            timeouts: self.timeouts,
            passthrough: self.passthrough.into_model(),
        }
    }
}

impl Frontend {
    fn into_model(self) -> Option<model::Frontend> {
        let mut listen: Vec<_> = self.listen.into_iter().map(|addr| addr.value).collect();
        listen.sort_unstable();
        Some(model::Frontend {
            name: self.name,
            listen,
            backend: self.backend?.value,
            max_connections: self.max_connections,
        })
    }
}

impl Backend {
    fn into_model(self) -> model::Backend {
        model::Backend {
            name: self.name,
            algorithm: self.algorithm,
            hash: self.hash.map_or(HashOn::Source, |hash| hash.value),
            health_check: self.health_check,
            on_down: self.on_down,
            dsr: self.dsr,
            servers: self.servers.into_iter().filter_map(Server::into_model).collect(),
        }
    }
}

impl Passthrough {
    fn into_model(self) -> PacketSettings {
        PacketSettings {
            workers: self.workers.map(|workers| workers.value),
            interfaces: self.interfaces.into_iter().map(|name| name.value).collect(),
            snat_addresses: self.snat_addresses.into_iter().map(|addr| addr.value).collect(),
            ..self.settings
        }
    }
}

impl Server {
    fn into_model(self) -> Option<model::Server> {
        Some(model::Server {
            name: self.name,
            addr: self.addr?.value,
            weight: self.weight,
            backup: self.backup,
            max_connections: self.max_connections,
        })
    }
}

fn frontend(name: String, mut table: Table<'_>, report: &Report<'_>) -> Frontend {
    if table.has("xdp") {
        let mut xdp = table.table("xdp");
        for key in ["bpf_program_path", "progsec_name", "xsks_map_name"] {
            xdp.optional(key, anything);
        }
        report.warning(&xdp.place, "has no effect");
        xdp.finish();
    }
    let frontend = Frontend {
        name,
        listen: table.one_or_more("listen_addr", listen_address),
        backend: table.required("backend", string),
        max_connections: max_connections(&mut table),
    };
    table.finish();
    frontend
}

fn backend(name: String, mut table: Table<'_>, report: &Report<'_>) -> Backend {
    let backend = Backend {
        name,
        place: table.place.clone(),
        algorithm: table.or("algorithm", Algorithm::RoundRobin, choice(&Algorithm::ALL, Algorithm::name)),
        hash: table.optional("hash", choice(&HashOn::ALL, HashOn::name)),
        health_check: health_check(&mut table, report),
        on_down: table.or("on_down", OnDown::default(), choice(&OnDown::ALL, OnDown::name)),
        dsr: table.or("dsr", DsrKind::default(), choice(&DsrKind::ALL, DsrKind::name)),
        servers: table.table("servers").named().into_iter().map(|(name, t)| server(name, t)).collect(),
    };
    table.finish();
    backend
}

fn server(name: String, mut table: Table<'_>) -> Server {
    let server = Server {
        name,
        addr: table.required("addr", server_address),
        weight: table.or("weight", 1, integer(0..=u16::MAX)),
        backup: table.or("backup", false, boolean),
        max_connections: max_connections(&mut table),
    };
    table.finish();
    server
}

/// `[backends.NAME.health_check]`, and `health_check_interval` beside it.
fn health_check(backend: &mut Table<'_>, report: &Report<'_>) -> HealthCheck {
    let interval_of_old = backend.optional("health_check_interval", seconds(MILLISECOND));
    let mut table = backend.table("health_check");
    let interval = table.optional("interval", seconds(MILLISECOND));
    if let (Some(old), Some(_)) = (&interval_of_old, &interval) {
        report.error(&old.place, "the same as health_check.interval, which is set too; keep one of them");
    }
    let interval = interval.or(interval_of_old).map_or(Duration::from_secs(2), |found| found.value);
    // Without a timeout of its own, a check more frequent than the default timeout must still be valid.
    let timeout = table.optional("timeout", seconds(MILLISECOND));
    if let Some(timeout) = timeout.as_ref().filter(|timeout| timeout.value > interval) {
        let [found, most] = [timeout.value, interval].map(|time| time.as_secs_f64());
        let message = format!("found {found}; allowed: seconds up to the interval, {most}");
        report.error(&timeout.place, message);
    }
    let timeout = timeout.map_or(interval.min(Duration::from_secs(1)), |found| found.value);
    let check = HealthCheck {
        kind: probe_kind(&mut table, report),
        port: table.optional("port", port).map(|found| found.value),
        interval,
        timeout,
        rise: table.or("rise", 2, integer(1..=u32::MAX)),
        fall: table.or("fall", 3, integer(1..=u32::MAX)),
    };
    table.finish();
    check
}

fn probe_kind(table: &mut Table<'_>, report: &Report<'_>) -> ProbeKind {
    const KINDS: [&str; 3] = ["tcp", "http", "none"];
    let kind = table.optional("kind", choice(&KINDS, |kind| kind)).map(|found| found.value);
    let wrong = kind.is_none() && table.has("kind");
    let path = table.optional("path", http_path);
    let status = table.optional("expected_status", status_range);
    match kind.unwrap_or("tcp") {
        "http" => ProbeKind::Http {
            path: path.map_or("/".to_owned(), |found| found.value),
            expected_status: status.map_or(200..=399, |found| found.value),
        },
        other => {
            let for_http = path.map(|found| found.place).into_iter().chain(status.map(|found| found.place));
            for place in for_http.filter(|_| !wrong) {
                report.error(&place, format!("is for kind = \"http\"; the kind is {other:?}"));
            }
            if other == "none" { ProbeKind::None } else { ProbeKind::Tcp }
        }
    }
}

fn stats(mut table: Table<'_>) -> Stats {
    let ip = table.or("listen_addr", IpAddr::V4(Ipv4Addr::LOCALHOST), ip);
    let port = table.or("port", 7000, port);
    table.finish();
    Stats { listen: SocketAddr::new(ip, port) }
}

fn timeouts(mut table: Table<'_>) -> Timeouts {
    let timeouts = Timeouts {
        connect: table.or("connect", Duration::from_secs(5), seconds(MILLISECOND)),
        idle: table.or("idle", Duration::from_secs(600), seconds(MILLISECOND)),
        drain: table.or("drain", Duration::from_secs(30), seconds(Duration::ZERO)),
    };
    table.finish();
    timeouts
}

fn passthrough(mut table: Table<'_>) -> Passthrough {
    let default = PacketSettings::default();
    let passthrough = Passthrough {
        workers: table.optional("workers", integer(1..=1024)),
        interfaces: table.any_number("interfaces", string),
        snat_addresses: table.any_number("snat_addresses", snat_address),
        settings: PacketSettings {
            capacity: table.or(
                "connection_tracker_capacity",
                default.capacity,
                integer(1..=PacketSettings::MAX_CAPACITY),
            ),
            stats_update_frequency: table.or(
                "stats_update_frequency",
                default.stats_update_frequency,
                integer(1..=86_400),
            ),
            guard: table.or("guard", default.guard, boolean),
            snat_ports: table.or("snat_ports", default.snat_ports.clone(), snat_ports),
            timeouts: flow_timeouts(table.table("timeouts")),
            ..default
        },
    };
    table.finish();
    passthrough
}

/// `[passthrough.timeouts]`
fn flow_timeouts(mut table: Table<'_>) -> FlowTimeouts {
    let default = FlowTimeouts::default();
    let mut timeout = |key, default| table.or(key, default, seconds(MILLISECOND));
    let timeouts = FlowTimeouts {
        half_open: timeout("half_open", default.half_open),
        established: timeout("established", default.established),
        half_closed: timeout("half_closed", default.half_closed),
        closing: timeout("closing", default.closing),
        time_wait: timeout("time_wait", default.time_wait),
        closed: timeout("closed", default.closed),
    };
    table.finish();
    timeouts
}

fn max_connections(table: &mut Table<'_>) -> Option<u32> {
    table.optional("max_connections", integer(1..=u32::MAX)).map(|found| found.value)
}
