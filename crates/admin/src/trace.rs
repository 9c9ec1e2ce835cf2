//! Lines of a trace, as the API serves them. Pure.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use convey_model::Protocol;
use convey_snapshot::{Pool, Server, Snapshot};
use convey_trace::{ConnectionStep, PacketStep, TraceEvent, TraceStep};
use serde::Serialize;

use self::packet::PacketLine;

mod packet;

/// Event with names in place of numbers.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TraceLine {
    /// Time of the event.
    #[serde(serialize_with = "rfc3339_micros")]
    at: SystemTime,
    #[serde(flatten)]
    names: Names,
    #[serde(flatten)]
    happened: Happened,
}

/// Subject of the event: unknown fields are left out.
#[derive(Debug, Clone, Default, Serialize)]
struct Names {
    #[serde(skip_serializing_if = "Option::is_none")]
    frontend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vip: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_addr: Option<SocketAddr>,
}

/// Kind of the event, by the word in `event`.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Happened {
    Accepted,
    ProxyHeader,
    TlsHandshake {
        version: &'static str,
        resumed: bool,
    },
    TlsHandshakeFailed {
        reason: &'static str,
    },
    Waits,
    Routed {
        #[serde(skip_serializing_if = "Option::is_none")]
        sni: Option<Box<str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        route: Option<String>,
    },
    Chosen {
        #[serde(skip_serializing_if = "Option::is_none")]
        algorithm: Option<&'static str>,
        attempt: u32,
    },
    ConnectFailed {
        error: String,
    },
    Connected {
        after_ms: f64,
    },
    Begun {
        #[serde(skip_serializing_if = "Option::is_none")]
        algorithm: Option<&'static str>,
    },
    Moved,
    Dropped {
        reason: &'static str,
    },
    Refused {
        reason: &'static str,
    },
    Ended {
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes_in: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes_out: Option<u64>,
        after_ms: f64,
    },
    Packet(Box<PacketLine>),
}

impl TraceLine {
    /// Line for this event, with the names of this snapshot. `started` is the wall-clock time of
    /// `Timestamp(0)`.
    pub(super) fn new(event: &TraceEvent, snapshot: &Snapshot, started: SystemTime) -> TraceLine {
        let pool = event.server.and_then(|id| pool_of(snapshot, id));
        let algorithm = pool.map(|(pool, _)| pool.config.algorithm.name());
        let happened = match &event.step {
            TraceStep::Connection(step) => of_connection(step, algorithm),
            TraceStep::Packet(packet) => of_packet(packet, snapshot, algorithm),
        };
        TraceLine {
            at: started + Duration::from_nanos(event.at.0),
            names: names(event, snapshot, pool),
            happened,
        }
    }
}

fn names(event: &TraceEvent, snapshot: &Snapshot, pool: Option<(&Pool, &Server)>) -> Names {
    let frontend = event.frontend.map(|id| {
        let found = snapshot.frontends.iter().find(|frontend| frontend.live.id == id);
        found.map_or_else(|| "(removed)".to_owned(), |frontend| frontend.config.name.clone())
    });
    let server = event
        .server
        .map(|_| pool.map_or_else(|| "(removed)".to_owned(), |(_, server)| server.config.name.clone()));
    let port = event.vip.map_or(0, |vip| vip.port());
    Names {
        frontend,
        protocol: event.protocol.map(Protocol::name),
        client: event.client,
        proxy: event.proxy,
        vip: event.vip,
        backend: pool.map(|(pool, _)| pool.config.name.clone()),
        server,
        server_addr: pool.map(|(_, server)| server.config.addr_for(port)),
    }
}

/// Server with this number, and its backend.
fn pool_of(snapshot: &Snapshot, id: u32) -> Option<(&Pool, &Server)> {
    snapshot.pools.iter().find_map(|pool| {
        let server = pool.servers.iter().find(|server| server.live.id == id)?;
        Some((&**pool, &**server))
    })
}

fn of_connection(step: &ConnectionStep, algorithm: Option<&'static str>) -> Happened {
    match *step {
        ConnectionStep::Accepted => Happened::Accepted,
        ConnectionStep::Header => Happened::ProxyHeader,
        ConnectionStep::Handshake { version, is_resumed } => {
            Happened::TlsHandshake { version, resumed: is_resumed }
        }
        ConnectionStep::HandshakeFailed { reason } => Happened::TlsHandshakeFailed { reason },
        ConnectionStep::Waits => Happened::Waits,
        ConnectionStep::Routed { ref sni, ref route } => {
            Happened::Routed { sni: sni.clone(), route: route.as_deref().map(str::to_owned) }
        }
        ConnectionStep::Chosen { attempt } => Happened::Chosen { algorithm, attempt },
        ConnectionStep::ConnectFailed { errno, fault } => Happened::ConnectFailed {
            error: fault.map_or_else(|| words(errno), |fault| format!("TLS: {fault}")),
        },
        ConnectionStep::Connected { after } => Happened::Connected { after_ms: millis(after) },
        ConnectionStep::Begun => Happened::Begun { algorithm },
        ConnectionStep::Moved => Happened::Moved,
        ConnectionStep::Dropped { reason } => Happened::Dropped { reason },
        ConnectionStep::Refused { reason } => Happened::Refused { reason },
        ConnectionStep::Ended { reason, bytes, after } => {
            let (bytes_in, bytes_out) = bytes.unzip();
            Happened::Ended { reason, bytes_in, bytes_out, after_ms: millis(after) }
        }
    }
}

fn of_packet(packet: &PacketStep, snapshot: &Snapshot, algorithm: Option<&'static str>) -> Happened {
    Happened::Packet(Box::new(PacketLine::new(packet, snapshot, algorithm)))
}

fn words(errno: Option<i32>) -> String {
    match errno {
        Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        None => ErrorKind::Other.to_string(),
    }
}

/// Milliseconds with three decimals.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

fn rfc3339_micros<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_micros(*time))
}
