//! `[backends.NAME]`: a pool of servers, and the choice of a server.

pub(crate) mod affinity;
mod checks;
pub(crate) mod files;
mod hash;
pub(crate) mod health_check;
pub(crate) mod kubernetes;
pub(crate) mod outlier_detection;
mod packet_checks;
mod probe;
pub(crate) mod quic;
pub(crate) mod server;
mod source;
pub(crate) mod tls;
mod tunnel;
mod unix_socket;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use self::hash::Hashed;
use self::health_check::ParsedHealthCheck;
pub(crate) use self::health_check::checked;
pub(crate) use self::server::ParsedServer;
pub(crate) use self::tls::authorities;
use self::tunnel::TunnelKeys;
use super::timeouts::{OwnLimits, describe_own, own_changes, read_own};
use super::total_rate::{self, ParsedTotal};
use super::{table, table_in};
use crate::keys::{OnlyIn, keys};
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::tables::ParsedFrontend;
use crate::values::{choice, seconds, source_address};
use convey_model::{
    AffinityConfig, Algorithm, BackendConfig, BackendTls, DiscoveryConfig, DsrKind, FilesConfig, HashKey,
    HttpVersion, Mode, OnDown, OutlierDetection, ProbeKind, Protocol, ProxyVersion, QuicConfig,
};

/// `[backends.NAME]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[backends.NAME]", docs: BackendKeys::DOCS };

/// Parsed `[backends.NAME]`, with the places of its values.
#[derive(Debug, Clone)]
pub(crate) struct ParsedBackend {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) keys: BackendKeys,
    pub(crate) hash: Option<Placed<Hashed>>,
    pub(crate) quic: Option<Placed<Arc<QuicConfig>>>,
    pub(crate) affinity: Option<Placed<Arc<AffinityConfig>>>,
    pub(crate) health_check: ParsedHealthCheck,
    pub(crate) outlier_detection: Option<Placed<OutlierDetection>>,
    pub(crate) tunnel: TunnelKeys,
    pub(crate) tls: Option<Placed<Arc<BackendTls>>>,
    pub(crate) discovery: Option<Placed<DiscoveryConfig>>,
    pub(crate) files: Option<Placed<FilesConfig>>,
    pub(crate) total: ParsedTotal,
    pub(crate) timeouts: OwnLimits,
    pub(crate) servers: Vec<ParsedServer>,
}

keys! {
    /// The keys of `[backends.NAME]` with one value each.
    pub(crate) struct BackendKeys => BackendConfig, from (backend: &ParsedBackend, default);

    also name = default.name,
        maintenance = None,
        servers = backend.servers.iter().filter_map(ParsedServer::model).collect(),
        named = backend.servers.iter().filter_map(ParsedServer::named).collect(); {
        changes: server::changes,
        docs: &[table("servers", "tables `[backends.NAME.servers.NAME]`", "none")],
    };

    key "algorithm" => algorithm: Algorithm {
        read: choice(&Algorithm::ALL, Algorithm::name),
        describe: |backend, _| backend.algorithm.name().to_owned(),
        kind: r#"`"round_robin"`, `"least_connections"`, `"power_of_two"`, `"ewma"` (mode http), `"ring"` or `"maglev"`"#,
        default: r#"`"round_robin"`; `"ring"` if a packet mode uses the backend"#,
        sample: r##"
# The algorithm that chooses a server for a new connection or request. All use weights.
#   round_robin        servers in turn
#   least_connections  the server with the fewest open connections
#   power_of_two       of two random servers, the one with fewer open connections
#   ewma               of two random servers, the one that responds sooner (mode http)
#   ring               by hash, on a consistent hash ring
#   maglev             by hash, in a Maglev table; shares are more even than with ring
# The default is "ring" if a frontend in mode passthrough or dsr uses the backend.
#algorithm = "round_robin"
"##,
        example: "'maglev'",
    };

    also hash = backend.hash.as_ref().map_or(default.hash, |hash| hash.value.on()),
        hash_request = backend.hash.as_ref().and_then(|hash| hash.value.request().cloned()); {
        changes: hash::changes,
        describe: hash::describe,
        docs: hash::DOCS,
    };

    also quic = backend.quic.as_ref().filter(|_| backend.hashes_quic()).map(|quic| quic.value.clone()); {
        changes: |old, new| quic::changes(old.quic.as_deref(), new.quic.as_deref()),
        docs: &[table("quic_lb", "tables `[backends.NAME.quic_lb.N]`", "number 0, without a key")],
    };

    key "hash_key" => hash_key: HashKey {
        read: choice(&HashKey::ALL, HashKey::name),
        describe: |backend, _| match backend.algorithm.hashes() && backend.hash_key != HashKey::default() {
            true => format!(", hash_key {}", backend.hash_key.name()),
            false => String::new(),
        },
        kind: r#"`"addr_port"`, `"addr"` or `"name"`: property that decides a server's place, and with `"name"` its id in cookies of `affinity`"#,
        default: r#"`"addr_port"`"#,
        sample: r##"
# The property of a server that decides its place on the ring or in the table. A change moves clients to other servers
# once.
#   addr_port  address and port
#   addr       address: a client gets the same server on all ports, if their backends have the same servers and weights
#   name       name, the key of the server's table below: clients stay when the address changes, also by cookies of affinity
#hash_key = "addr_port"
"##,
        example: "'name'",
    };

    also affinity = backend.affinity.as_ref().map(|affinity| affinity.value.clone()); {
        changes: |old, new| affinity::changes(old.affinity.as_deref(), new.affinity.as_deref()),
        describe: |backend, _| affinity::describe(backend.affinity.as_deref()),
        docs: &[table_in(OnlyIn::Http, "affinity", "table, http: a cookie names the server of a client", "see below")],
    };

    key "slow_start" => slow_start: Duration {
        read: seconds(Duration::ZERO),
        describe: |backend, _| match backend.time_to_warm_up() {
            Duration::ZERO => String::new(),
            time => format!(", slow start {time:?}"),
        },
        kind: "seconds from 0",
        default: "0",
        sample: r##"
# Time in which a server that comes back rises from a twentieth of its weight to the whole. ring and maglev ignore it.
#slow_start = 0
"##,
        example: "7",
    };

    also health_check = backend.health_check.model(&backend.keys); {
        changes: health_check::changes,
        describe: health_check::describe,
        docs: &[table("health_check", "table", "see below")],
    };

    also outlier_detection = backend.outlier_detection.as_ref().map(|outlier| outlier.value.clone()); {
        changes: outlier_detection::changes,
        describe: outlier_detection::describe,
        docs: &[table("outlier_detection", "table; an empty one turns it on", "off")],
    };

    key "on_down" => on_down: OnDown {
        read: choice(&OnDown::ALL, OnDown::name),
        unset: "automatic",
        describe: on_down,
        kind: r#"`"reset"` or `"keep"` connections of a server that is down"#,
        default: r#"`"keep"` in proxy mode, `"reset"` in packet modes"#,
        sample: r##"
# Connections of a server that goes down. UDP has none: a client's next datagram goes to another server.
#   reset  convey ends them at once, so that clients connect again, to another server. Default in passthrough and dsr
#   keep   they continue, in case the check is wrong. Default in modes proxy and http, where tcp_user_timeout finds a dead host
#on_down = "reset"                       # example
"##,
        example: "'reset'",
    };

    key "dsr" => dsr: DsrKind {
        read: choice(&DsrKind::ALL, DsrKind::name),
        // The word "nat" was confused with the NAT of passthrough.
        reworded: ("nat", "l3"),
        describe: |backend, modes| match modes.iter().any(|mode| mode.is_dsr()) {
            true => format!("; dsr {}", tunnel::describe(backend)),
            false => String::new(),
        },
        kind: r#"`"l3"` (the destination becomes the server's address), `"l2"` (the server's MAC), `"ipip"` or `"gue"` (whole, through a [tunnel](../guides/tunnels.md)): how packets reach servers in mode dsr"#,
        default: r#"`"l3"`"#,
        sample: r##"
# How packets reach the servers in mode dsr. A reload applies a change to new connections and to all UDP.
#   l3  with the server's address as destination. The server puts the frontend's address into its answers (see tc/)
#   l2  unchanged, to the server's MAC address. The server is on the same link and also has the frontend's address
#   ipip, gue  whole, inside an IP packet or a UDP datagram. The server has the frontend's address, and may be on another
#              network and of the other address family (docs/guides/tunnels.md)
#dsr = "l3"
"##,
        example: "'l2'",
    };

    also tunnel = backend.tunnel.model((), default.tunnel); {
        changes: |old, new| TunnelKeys::changes(&old.tunnel, &new.tunnel),
        docs: TunnelKeys::DOCS,
    };

    key "send_proxy" => send_proxy: ProxyVersion {
        read: choice(&ProxyVersion::ALL, ProxyVersion::name),
        unset: "none",
        describe: |backend, _| {
            backend.send_proxy.map_or(String::new(), |version| format!("; PROXY header {}", version.name()))
        },
        kind: r#"`"v1"` or `"v2"` (UDP: `"v2"`), proxy and http: servers get a PROXY header"#,
        default: "none",
        sample: r##"
# Sends a PROXY header before each connection ("v1" or "v2") or datagram ("v2"), so that servers learn the client's address.
# Health checks at the server's own port send it, too. Modes proxy and http. Every server of the backend must expect it.
#send_proxy = "v2"                      # example
"##,
        example: "'v2'",
    };

    list "source" => source: IpAddr {
        read: source_address,
        by: at_least_one,
        unset: "automatic",
        describe: |backend, _| source::describe(backend),
        kind: "an address of this host, or one of IPv4 and one of IPv6; proxy and http: [connections to servers](../operate/tuning.md#source-addresses) and health checks come from it",
        default: "the kernel's choice",
        sample: r##"
# Address of this host that connections to the servers and health checks come from, in modes proxy and http. A list has one
# address of each family. Without one of a server's family, the kernel chooses.
#source = "10.0.0.1"                    # example
"##,
        example: "'10.0.0.7'",
    };

    key "protocol" => protocol: HttpVersion {
        read: choice(&HttpVersion::ALL, HttpVersion::name),
        only_in: Http,
        kind: r#"`"h1"`, `"h2"`, `"auto"`: HTTP version to the servers in mode http; [HTTP](../guides/http.md#http2-and-grpc)"#,
        default: r#"`"h1"`"#,
        sample: r##"
# HTTP version between convey and the servers, in mode http:
#   h1    HTTP/1.1
#   h2    HTTP/2 from the first byte on. gRPC needs it
#   auto  the version of the client; within TLS the server chooses
#protocol = "h1"
"##,
        example: "'h2'",
    };

    also total = backend.total.model(); {
        changes: |old, new| total_rate::changes("", old.total, new.total),
        describe: |backend, _| total_rate::describe(backend.total),
        docs: total_rate::BACKEND_DOCS,
    };

    also tls = backend.tls.as_ref().map(|tls| tls.value.clone()); {
        changes: |old, new| tls::changes(old.tls.as_deref(), new.tls.as_deref()),
        describe: tls::describe,
        docs: &[table("tls", "table, http and proxy; an empty one turns it on", "off")],
    };

    also discovery = backend.discovery.as_ref().map(|discovery| discovery.value.clone()); {
        changes: |old, new| kubernetes::changes(old.discovery.as_ref(), new.discovery.as_ref()),
        docs: &[table(
            "kubernetes",
            "table, proxy and http: servers are the endpoints of a Service",
            "see below",
        )],
    };

    also files = backend.files.as_ref().map(|files| files.value.clone()); {
        changes: |old, new| files::changes(old.files.as_ref(), new.files.as_ref()),
        docs: files::DOCS,
    };

    also timeouts = backend.timeouts.model((), default.timeouts); {
        changes: |old, new| own_changes(&old.timeouts, &new.timeouts),
        describe: |backend, _| describe_own("; ", &backend.timeouts),
        docs: &[table("timeouts", "table", "see below")],
    };
}

impl ParsedBackend {
    /// Reads the table of a backend. `users` are the frontends that use the backend.
    pub(crate) fn read(
        name: String,
        mut table: TomlTable<'_>,
        users: &[&ParsedFrontend],
        report: &Report<'_>,
    ) -> ParsedBackend {
        let protocol = common_protocol(users);
        let kind = if protocol == Some(Protocol::Udp) { ProbeKind::Udp } else { ProbeKind::Tcp };
        let health_check = ParsedHealthCheck::read(&mut table, kind, report);
        let servers = table.table("servers").named();
        let servers: Vec<_> = servers.into_iter().map(|(name, t)| ParsedServer::read(name, t)).collect();
        let backend = ParsedBackend {
            name,
            place: table.place.clone(),
            keys: BackendKeys::read(&mut table),
            hash: table.optional("hash", hash::parse),
            health_check,
            outlier_detection: outlier_detection::read(&mut table, report),
            tunnel: TunnelKeys::read(&mut table),
            tls: tls::read(&mut table, report),
            files: files::read(&mut table, report),
            discovery: kubernetes::read(&mut table, protocol, report),
            total: ParsedTotal::read(&mut table, report),
            timeouts: read_own(table.table("timeouts")),
            quic: quic::read(&mut table, &servers, report),
            affinity: affinity::read(&mut table, report),
            servers,
        };
        table.finish();
        backend
    }

    /// Model of the backend. `gets_packets`: whether a frontend in a packet mode uses the backend.
    pub(crate) fn model(&self, gets_packets: bool) -> BackendConfig {
        self.keys.model(self, BackendConfig::new(&self.name, gets_packets))
    }

    /// Whether QUIC connection ids take precedence over the hash key.
    pub(crate) fn hashes_quic(&self) -> bool {
        self.hash.as_ref().is_some_and(|hash| hash.value.is_quic())
    }
}

/// Changes of a backend for the log of a reload.
pub(crate) fn changes(old: &BackendConfig, new: &BackendConfig) -> Vec<String> {
    BackendKeys::changes(old, new)
}

/// Log text about a new backend.
pub(crate) fn about(backend: &BackendConfig) -> String {
    if let Some(files) = &backend.files {
        return format!("files {}", files.root.display());
    }
    let source = backend.discovery.as_ref().map(|discovery| format!("of {}", discovery.source));
    let servers: Vec<String> = source.into_iter().chain(server::all(backend)).collect();
    format!("{}, servers {}", backend.algorithm.name(), servers.join(", "))
}

/// Line of `convey check` about a backend. `modes` are the modes of the frontends that use it.
pub(crate) fn line(backend: &BackendConfig, modes: &[Mode]) -> String {
    let note = if modes.is_empty() { ", used by no frontend" } else { "" };
    let settings = match &backend.files {
        Some(files) => {
            let total = total_rate::describe(backend.total);
            files::describe(files) + &total + &describe_own("; ", &backend.timeouts)
        }
        None => BackendKeys::describe(backend, modes),
    };
    format!("backend {} ({settings}{note})\n", backend.name)
}

/// Rows of `convey check` for the servers of a backend.
pub(crate) fn rows(backend: &BackendConfig) -> Vec<[String; 3]> {
    let servers = backend.servers.iter().map(server::row);
    let named = backend.named.iter().map(server::named_row);
    let found = backend.discovery.iter().map(kubernetes::row);
    let mut rows: Vec<_> = servers.chain(named).chain(found).collect();
    rows.sort();
    rows
}

/// Text about connections of a server that goes down, in these modes.
fn on_down(backend: &BackendConfig, modes: &[Mode]) -> String {
    let mut words: Vec<_> = modes.iter().map(|mode| backend.on_down_in(*mode).name()).collect();
    words.sort_unstable();
    words.dedup();
    match words[..] {
        [] => String::new(),
        [one] => format!("; on_down {one}"),
        _ => "; on_down reset (packet modes), keep (proxy and http)".to_owned(),
    }
}

/// Protocol of all frontends of a backend; `None` if they differ, or without frontends.
fn common_protocol(users: &[&ParsedFrontend]) -> Option<Protocol> {
    let mut protocols = users.iter().map(|frontend| frontend.protocol());
    let first = protocols.next()?;
    protocols.all(|protocol| protocol == first).then_some(first)
}
