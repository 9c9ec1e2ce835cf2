//! The language of the file: which tables and keys there are, what they may hold and what holds without them.
//! `validate` checks what follows from several of them together.

pub(super) mod access;
mod backend_tls;
mod compression;
mod error_pages;
mod files;
mod frontend;
mod http;
mod http_limits;
mod kubernetes;
mod limits;
mod probe;
mod quic;
mod server;
mod sni;
mod timeouts;
mod tls;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) use self::backend_tls::authorities;
pub(super) use self::frontend::ParsedFrontend;
pub(super) use self::frontend::REQUIRED;
use self::frontend::by_backend;
pub(super) use self::http::{ParsedRoute, one_of};
pub(super) use self::server::ParsedServer;
pub(super) use self::timeouts::{OwnLimits, TimeLimits};
pub(super) use self::tls::ParsedTls;
use super::acme::ParsedAcme;
use super::announce::{self, ParsedAnnounce};
use super::document::INCLUDE;
use super::include;
use super::problem::{Place, Placed, Report};
use super::reader::TomlTable;
use super::requests;
use super::values::{
    MILLISECOND, SECOND, ServerAddress, boolean, choice, integer, ip, name_server, network, port, seconds,
    snat_address, snat_ports, string,
};
use super::{AccessLogConfig, Config, LogConfig, Privileges, Stats, access_log, logs, privileges, token};
use convey_http_core::RequestField;
use convey_model::{
    self as model, AcmeConfig, Algorithm, BackendTls, CertificatePair, DiscoveryConfig, DsrKind, FilesConfig,
    FlowTimeouts, HashKey, HashOn, HealthCheck, HttpVersion, Mode, Offload, OnDown, OutlierDetection,
    PacketSettings, Prefix, ProbeKind, ProbeVia, Protocol, ProxyVersion, QuicConfig, TunnelConfig,
};

/// A whole file, each value right by itself. Required ones that are missing or wrong are `None`, and
/// reported.
#[derive(Debug, Clone)]
pub(super) struct ParsedFile {
    pub(super) mode: Mode,
    pub(super) frontends: Vec<ParsedFrontend>,
    pub(super) backends: Vec<ParsedBackend>,
    pub(super) stats: Stats,
    pub(super) timeouts: TimeLimits,
    pub(super) passthrough: Passthrough,
    dns: Dns,
    log: LogConfig,
    access_log: AccessLogConfig,
    privileges: Privileges,
    acme: Option<ParsedAcme>,
    pub(super) announce: Option<ParsedAnnounce>,
}

/// `[dns]`
#[derive(Debug, Clone, Default)]
struct Dns {
    name_servers: Vec<SocketAddr>,
    allow_local: bool,
}

/// `[passthrough]`
#[derive(Debug, Clone)]
pub(super) struct Passthrough {
    pub(super) workers: Option<Placed<u16>>,
    pub(super) interfaces: Vec<Placed<String>>,
    pub(super) snat_addresses: Vec<Placed<IpAddr>>,
    /// The rest.
    settings: PacketSettings,
}

/// `[backends.NAME]`
#[derive(Debug, Clone)]
pub(super) struct ParsedBackend {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) algorithm: Option<Placed<Algorithm>>,
    pub(super) hash: Option<Placed<Hashed>>,
    pub(super) hash_key: Option<Placed<HashKey>>,
    pub(super) quic: Option<Placed<Arc<QuicConfig>>>,
    pub(super) dsr: Option<Placed<DsrKind>>,
    pub(super) gue_port: Option<Placed<u16>>,
    pub(super) tunnel_source: Option<Placed<Prefix>>,
    pub(super) send_proxy: Option<Placed<ProxyVersion>>,
    pub(super) protocol: Option<Placed<HttpVersion>>,
    pub(super) tls: Option<Placed<Arc<BackendTls>>>,
    pub(super) files: Option<Placed<FilesConfig>>,
    pub(super) discovery: Option<Placed<DiscoveryConfig>>,
    pub(super) slow_start: Option<Placed<Duration>>,
    pub(super) outlier_detection: Option<Placed<OutlierDetection>>,
    pub(super) servers: Vec<ParsedServer>,
    pub(super) health_check: HealthCheck,
    pub(super) via: Option<Placed<ProbeVia>>,
    pub(super) timeouts: OwnLimits,
    on_down: Option<OnDown>,
}

/// What a hashing algorithm looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hashed {
    Flow(HashOn),
    Request(RequestField),
}

impl Hashed {
    /// What it looks at where a request has no such field.
    fn on(&self) -> HashOn {
        match self {
            Hashed::Flow(on) => *on,
            Hashed::Request(_) => HashOn::Source,
        }
    }

    pub(super) fn request(&self) -> Option<&RequestField> {
        match self {
            Hashed::Flow(_) => None,
            Hashed::Request(field) => Some(field),
        }
    }
}

/// `source`, `tuple`, `header:NAME` or `cookie:NAME`.
fn hashed(found: &DeValue<'_>) -> Result<Hashed, String> {
    if let Some(field) = found.as_str().and_then(RequestField::parse) {
        return Ok(Hashed::Request(field));
    }
    let flow = choice(&HashOn::ALL, HashOn::name)(found).map(Hashed::Flow);
    flow.map_err(|message| message.replacen("quic_cid", "quic_cid, header:NAME, cookie:NAME", 1))
}

impl ParsedFile {
    /// Reads a file.
    pub(super) fn read<'a>(root: &'a Spanned<DeTable<'a>>, report: &'a Report<'a>) -> ParsedFile {
        const NO_FRONTEND: &str = "there is none; write [frontends.NAME] with listen_addr and backend";
        let mut root = TomlTable::root(root.get_ref(), report);
        root.require("frontends", NO_FRONTEND);
        root.any_number(INCLUDE, |value| include::check(&string(value)?));
        let acme = ParsedAcme::read(&mut root, report);
        let mode = root.or("mode", Mode::default(), choice(&Mode::ALL, Mode::name));
        let frontends = root.table("frontends");
        if frontends.is_empty() {
            report.missing(&frontends.place, NO_FRONTEND);
        }
        let frontends: Vec<ParsedFrontend> = frontends
            .named()
            .into_iter()
            .map(|(name, t)| ParsedFrontend::read(name, t, (mode, acme.as_ref()), report))
            .collect();
        let of_backend = by_backend(&frontends);
        let read_backend = |(name, table): (String, TomlTable<'_>)| {
            let users = of_backend.get(&*name).map_or(&[][..], Vec::as_slice);
            backend(name, table, users, report)
        };
        let backends = root.table("backends").named().into_iter().map(read_backend).collect();
        drop(of_backend);
        let file = ParsedFile {
            mode,
            backends,
            frontends,
            stats: stats(root.table("stats"), report),
            timeouts: TimeLimits::read(root.table("timeouts")),
            passthrough: passthrough(root.table("passthrough")),
            dns: dns(root.table("dns")),
            log: logs::read(root.table("log")),
            access_log: access_log::read(root.table("access_log"), report),
            privileges: privileges::read(root.table("privileges")),
            acme,
            announce: announce::read(&mut root),
        };
        root.finish();
        file
    }

    /// What a file without anything but these servers, a frontend for them and the place of the statistics would be.
    pub(super) fn of_list(
        listen: Placed<SocketAddr>,
        stats: Stats,
        servers: Vec<Placed<ServerAddress>>,
        report: &Report<'_>,
    ) -> ParsedFile {
        const BACKEND: &str = "servers";
        let nothing = DeTable::new();
        let absent = || TomlTable::root(&nothing, report);
        let frontend = ParsedFrontend::listed(listen, BACKEND);
        let mut servers: Vec<ParsedServer> = servers.into_iter().map(ParsedServer::listed).collect();
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let backend = backend(BACKEND.to_owned(), absent(), &[&frontend], report);
        let frontends = vec![frontend];
        ParsedFile {
            mode: Mode::default(),
            frontends,
            backends: vec![ParsedBackend { servers, ..backend }],
            stats,
            timeouts: TimeLimits::read(absent()),
            passthrough: passthrough(absent()),
            dns: Dns::default(),
            log: LogConfig::default(),
            access_log: AccessLogConfig::default(),
            privileges: Privileges::default(),
            acme: None,
            announce: None,
        }
    }

    /// Reports what does not fit about the certificates that convey is to order.
    pub(super) fn check_acme(&self, report: &Report<'_>) {
        let Some(acme) = &self.acme else { return };
        let mode = |frontend: &ParsedFrontend| value(&frontend.mode).unwrap_or(self.mode);
        let frontends: Vec<_> = self.frontends.iter().map(|f| f.model(mode(f))).collect();
        acme.check(&self.frontends, &frontends, report);
    }

    /// What the program uses if each frontend has this mode. Right only if nothing was reported.
    pub(super) fn config(&self, mode_of: impl Fn(&ParsedFrontend) -> Mode) -> Config {
        let mut frontends: Vec<_> = self.frontends.iter().map(|f| f.model(mode_of(f))).collect();
        let acme = self.acme.as_ref().map(|acme| acme.model(&frontends));
        if let Some(acme) = &acme {
            frontends.iter_mut().for_each(|frontend| keep_wanted(acme, frontend));
        }
        let packets = frontends.iter().filter(|frontend| frontend.mode.forwards_packets());
        let gets_packets: HashSet<&str> = packets.flat_map(|frontend| frontend.backends()).collect();
        let model = |backend: &ParsedBackend| {
            let mut model = backend.model(gets_packets.contains(&*backend.name));
            model.health_check.requests = requests::checked(&model, &frontends);
            model
        };
        Config {
            backends: self.backends.iter().map(model).collect(),
            frontends,
            log: self.log.clone(),
            access_log: self.access_log.clone(),
            privileges: self.privileges.clone(),
            acme,
            announce: self.announce.as_ref().map(|announce| announce.config.clone()),
            stats: self.stats.clone(),
            timeouts: self.timeouts.model(),
            passthrough: self.passthrough.model(),
            name_servers: self.dns.name_servers.clone(),
            allow_local: self.dns.allow_local,
        }
    }
}

impl ParsedBackend {
    /// Whether connection ids of QUIC go before what is hashed.
    pub(super) fn hashes_quic(&self) -> bool {
        self.hash.as_ref().is_some_and(|hash| hash.value == Hashed::Flow(HashOn::QuicCid))
    }

    fn model(&self, gets_packets: bool) -> model::BackendConfig {
        let send_proxy = value(&self.send_proxy);
        let default = model::BackendConfig::new(&self.name, gets_packets);
        model::BackendConfig {
            algorithm: value(&self.algorithm).unwrap_or(default.algorithm),
            hash: self.hash.as_ref().map_or(default.hash, |hash| hash.value.on()),
            quic: self.quic.as_ref().filter(|_| self.hashes_quic()).map(|quic| quic.value.clone()),
            hash_request: self.hash.as_ref().and_then(|hash| hash.value.request().cloned()),
            hash_key: value(&self.hash_key).unwrap_or(default.hash_key),
            health_check: HealthCheck { send_proxy, ..self.health_check.clone() },
            outlier_detection: self.outlier_detection.as_ref().map(|outlier| outlier.value.clone()),
            slow_start: value(&self.slow_start).unwrap_or(default.slow_start),
            on_down: self.on_down,
            dsr: value(&self.dsr).unwrap_or(default.dsr),
            tunnel: TunnelConfig {
                gue_port: value(&self.gue_port).unwrap_or(default.tunnel.gue_port),
                source: value(&self.tunnel_source),
            },
            send_proxy,
            protocol: value(&self.protocol).unwrap_or(default.protocol),
            tls: self.tls.as_ref().map(|tls| tls.value.clone()),
            files: self.files.as_ref().map(|files| files.value.clone()),
            timeouts: self.timeouts.model(),
            servers: self.servers.iter().filter_map(ParsedServer::model).collect(),
            named: self.servers.iter().filter_map(ParsedServer::named).collect(),
            discovery: self.discovery.as_ref().map(|discovery| discovery.value.clone()),
            name: default.name,
        }
    }
}

impl Passthrough {
    fn model(&self) -> PacketSettings {
        PacketSettings {
            workers: value(&self.workers),
            interfaces: self.interfaces.iter().map(|name| name.value.clone()).collect(),
            snat_addresses: self.snat_addresses.iter().map(|addr| addr.value).collect(),
            ..self.settings.clone()
        }
    }
}

/// Of the certificates that convey has ordered, a frontend has those of names that are still wanted, in the order of these.
fn keep_wanted(acme: &AcmeConfig, frontend: &mut model::FrontendConfig) {
    let Some(tls) = frontend.tls.as_mut().filter(|tls| tls.acme) else { return };
    let folder = acme.folder.join(AcmeConfig::CERTIFICATES);
    let wanted = |pair: &CertificatePair| match pair.chain_path.parent() == Some(&folder) {
        true => {
            let name = pair.chain_path.file_stem().unwrap_or_default();
            acme.domains.iter().position(|domain| name == domain.as_str()).map(|place| place + 1)
        }
        false => Some(0),
    };
    let certificates = &mut Arc::make_mut(tls).certificates;
    certificates.retain(|pair| wanted(pair).is_some());
    certificates.sort_by_key(wanted);
}

/// What was found, wherever that was.
pub(super) fn value<T: Copy>(found: &Option<Placed<T>>) -> Option<T> {
    found.as_ref().map(|found| found.value)
}

/// What all frontends of a backend speak.
fn common_protocol(users: &[&ParsedFrontend]) -> Option<Protocol> {
    let mut protocols = users.iter().map(|frontend| frontend.protocol());
    let first = protocols.next()?;
    protocols.all(|protocol| protocol == first).then_some(first)
}

fn backend(
    name: String,
    mut table: TomlTable<'_>,
    users: &[&ParsedFrontend],
    report: &Report<'_>,
) -> ParsedBackend {
    let speaks_udp_only = common_protocol(users) == Some(Protocol::Udp);
    let (health_check, via) =
        health_check(&mut table, if speaks_udp_only { ProbeKind::Udp } else { ProbeKind::Tcp }, report);
    let servers: Vec<_> =
        table.table("servers").named().into_iter().map(|(name, t)| ParsedServer::read(name, t)).collect();
    let backend = ParsedBackend {
        name,
        place: table.place.clone(),
        algorithm: table.optional("algorithm", choice(&Algorithm::ALL, Algorithm::name)),
        hash: table.optional("hash", hashed),
        hash_key: table.optional("hash_key", choice(&HashKey::ALL, HashKey::name)),
        health_check,
        via,
        outlier_detection: outlier_detection(&mut table, report),
        slow_start: table.optional("slow_start", seconds(Duration::ZERO)),
        on_down: table.optional("on_down", choice(&OnDown::ALL, OnDown::name)).map(|found| found.value),
        dsr: dsr(&mut table, report),
        gue_port: table.optional("gue_port", port),
        tunnel_source: table.optional("tunnel_source", network),
        send_proxy: table.optional("send_proxy", choice(&ProxyVersion::ALL, ProxyVersion::name)),
        protocol: table.optional("protocol", choice(&HttpVersion::ALL, HttpVersion::name)),
        tls: backend_tls::read(&mut table, report),
        files: files::read(&mut table, report),
        discovery: kubernetes::read(&mut table, common_protocol(users), report),
        timeouts: OwnLimits::read(table.table("timeouts")),
        quic: quic::read(&mut table, &servers, report),
        servers,
    };
    table.finish();
    backend
}

/// `"nat"` was the word for L3, and clashed with the NAT of passthrough.
fn dsr(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<DsrKind>> {
    let is_old = |value: &DeValue<'_>| value.as_str() == Some("nat");
    let kind = |value: &DeValue<'_>| match is_old(value) {
        true => Ok((DsrKind::L3, true)),
        false => choice(&DsrKind::ALL, DsrKind::name)(value).map(|kind| (kind, false)),
    };
    let Placed { value: (value, is_old), place } = backend.optional("dsr", kind)?;
    if is_old {
        report.warning(&place, "\"nat\" is now called \"l3\"");
    }
    Some(Placed { value, place })
}

/// `[backends.NAME.health_check]`, and `health_check_interval` beside it.
fn health_check(
    backend: &mut TomlTable<'_>,
    default_kind: ProbeKind,
    report: &Report<'_>,
) -> (HealthCheck, Option<Placed<ProbeVia>>) {
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
    (check, via)
}

/// `[backends.NAME.outlier_detection]`; to be there is to be wanted.
fn outlier_detection(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<OutlierDetection>> {
    let is_there = backend.has("outlier_detection");
    let mut table = backend.table("outlier_detection");
    let default = OutlierDetection::default();
    let base = table.or("base_ejection_time", default.base_ejection_time, seconds(MILLISECOND));
    let max = table.optional("max_ejection_time", seconds(MILLISECOND));
    if let Some(max) = max.as_ref().filter(|max| max.value < base) {
        let (found, base) = (max.value.as_secs_f64(), base.as_secs_f64());
        report.error(&max.place, format!("found {found}; allowed: at least base_ejection_time, {base}"));
    }
    let value = OutlierDetection {
        consecutive_failures: table.or(
            "consecutive_failures",
            default.consecutive_failures,
            integer(1..=u32::MAX),
        ),
        base_ejection_time: base,
        max_ejection_time: value(&max).unwrap_or(default.max_ejection_time.max(base)),
        max_ejection_percent: table.or(
            "max_ejection_percent",
            default.max_ejection_percent,
            integer(1..=100),
        ),
    };
    let place = table.place.clone();
    table.finish();
    is_there.then_some(Placed { value, place })
}

fn stats(mut table: TomlTable<'_>, report: &Report<'_>) -> Stats {
    let default = Stats::default().listen;
    let ip = table.or("listen_addr", default.ip(), ip);
    let port = table.or("port", default.port(), port);
    let token = table.optional("token_file", token::path).and_then(|file| token::read(file, report));
    table.finish();
    Stats { listen: SocketAddr::new(ip, port), token }
}

/// `[dns]`
fn dns(mut table: TomlTable<'_>) -> Dns {
    let found = table.any_number("nameservers", name_server);
    let allow_local = table.or("allow_local", false, boolean);
    table.finish();
    Dns { name_servers: found.into_iter().map(|found| found.value).collect(), allow_local }
}

fn passthrough(mut table: TomlTable<'_>) -> Passthrough {
    let default = PacketSettings::default();
    let passthrough = Passthrough {
        workers: table.optional("workers", integer(1..=1024)),
        interfaces: table.any_number("interfaces", string),
        snat_addresses: table.any_number("snat_addresses", snat_address),
        settings: PacketSettings {
            max_flows: table
                .renamed("connection_tracker_capacity", "max_flows", integer(1..=PacketSettings::MAX_FLOWS))
                .map_or(default.max_flows, |found| found.value),
            capture_stats_interval: table
                .renamed("stats_update_frequency", "capture_stats_interval", seconds(SECOND))
                .map_or(default.capture_stats_interval, |found| found.value),
            guard: table.or("guard", default.guard, boolean),
            offload: table.or("offload", default.offload, choice(&Offload::ALL, Offload::name)),
            snat_ports: table.or("snat_ports", default.snat_ports.clone(), snat_ports),
            min_path_mtu: table
                .optional(
                    "min_path_mtu",
                    integer(PacketSettings::MIN_PATH_MTU..=PacketSettings::MAX_PATH_MTU),
                )
                .map(|found| found.value),
            timeouts: flow_timeouts(table.table("timeouts")),
            ..default
        },
    };
    table.finish();
    passthrough
}

/// `[passthrough.timeouts]`
fn flow_timeouts(mut table: TomlTable<'_>) -> FlowTimeouts {
    let default = FlowTimeouts::default();
    let mut timeout = |key, default| table.or(key, default, seconds(MILLISECOND));
    let timeouts = FlowTimeouts {
        half_open: timeout("half_open", default.half_open),
        handshake_only: timeout("handshake_only", default.handshake_only),
        established: timeout("established", default.established),
        half_closed: timeout("half_closed", default.half_closed),
        closing: timeout("closing", default.closing),
        time_wait: timeout("time_wait", default.time_wait),
        closed: timeout("closed", default.closed),
        udp_single: timeout("udp_single", default.udp_single),
        udp_stream: timeout("udp_stream", default.udp_stream),
    };
    table.finish();
    timeouts
}

fn max_connections(table: &mut TomlTable<'_>) -> Option<u32> {
    table.optional("max_connections", integer(1..=u32::MAX)).map(|found| found.value)
}
