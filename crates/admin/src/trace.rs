//! Lines of a trace, for the API. Pure.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use convey_api::{PreciseTime, TraceLine, TraceNames, TracedAction};
use convey_model::server_text;
use convey_snapshot::{Pool, Server, Snapshot};
use convey_trace::{ConnectionStep, TraceEvent, TraceStep};

mod packet;
mod request;

/// Line for this event, with names from this snapshot. `started` is the wall-clock time of
/// `Timestamp(0)`.
pub(super) fn trace_line(event: &TraceEvent, snapshot: &Snapshot, started: SystemTime) -> TraceLine {
    let pool = event.server.and_then(|id| pool_of(snapshot, id));
    let algorithm = pool.map(|(pool, _)| pool.config.algorithm.name());
    let happened = match &event.step {
        TraceStep::Connection(step) => of_connection(step, algorithm),
        TraceStep::Request(request) => {
            TracedAction::Request(Box::new(request::request_line(request, algorithm)))
        }
        TraceStep::Packet(packet) => {
            TracedAction::Packet(Box::new(packet::packet_line(packet, snapshot, algorithm)))
        }
    };
    TraceLine {
        at: PreciseTime(started + Duration::from_nanos(event.at.0)),
        names: names(event, snapshot, pool),
        happened,
    }
}

fn names(event: &TraceEvent, snapshot: &Snapshot, pool: Option<(&Pool, &Server)>) -> TraceNames {
    let frontend = event.frontend.map(|id| {
        let found = snapshot.frontends.iter().find(|frontend| frontend.live.id == id);
        found.map_or_else(|| "(removed)".to_owned(), |frontend| frontend.config.name.clone())
    });
    let server = event
        .server
        .map(|_| pool.map_or_else(|| "(removed)".to_owned(), |(_, server)| server.config.name.clone()));
    let port = event.vip.map_or(0, |vip| vip.port());
    TraceNames {
        frontend,
        protocol: event.protocol.map(|protocol| protocol.name().into()),
        client: event.client,
        proxy: event.proxy,
        vip: event.vip,
        backend: pool.map(|(pool, _)| pool.config.name.clone()),
        server,
        server_addr: pool.map(|(_, server)| server_text(server.config.addr_for(port))),
    }
}

/// Server with this number, and its pool. `None` if the snapshot does not contain the server.
fn pool_of(snapshot: &Snapshot, id: u32) -> Option<(&Pool, &Server)> {
    snapshot.pools.iter().find_map(|pool| {
        let server = pool.servers.iter().find(|server| server.live.id == id)?;
        Some((&**pool, &**server))
    })
}

fn of_connection(step: &ConnectionStep, algorithm: Option<&'static str>) -> TracedAction {
    let algorithm = || algorithm.map(Into::into);
    match *step {
        ConnectionStep::Accepted => TracedAction::Accepted,
        ConnectionStep::Header => TracedAction::ProxyHeader,
        ConnectionStep::Handshake { version, is_resumed } => {
            TracedAction::TlsHandshake { version: version.into(), resumed: is_resumed }
        }
        ConnectionStep::HandshakeFailed { reason } => {
            TracedAction::TlsHandshakeFailed { reason: reason.into() }
        }
        ConnectionStep::Waits => TracedAction::Waits,
        ConnectionStep::Routed { ref sni, ref route } => {
            TracedAction::Routed { sni: sni.clone(), route: route.as_deref().map(str::to_owned) }
        }
        ConnectionStep::Chosen { attempt } => TracedAction::Chosen { algorithm: algorithm(), attempt },
        ConnectionStep::ConnectFailed { errno, fault } => TracedAction::ConnectFailed {
            error: fault.map_or_else(|| error_text(errno), |fault| format!("TLS: {fault}")),
        },
        ConnectionStep::Connected { after } => TracedAction::Connected { after_ms: millis(after) },
        ConnectionStep::Begun => TracedAction::Begun { algorithm: algorithm() },
        ConnectionStep::Moved => TracedAction::Moved,
        ConnectionStep::Dropped { reason } => TracedAction::Dropped { reason: reason.into() },
        ConnectionStep::Refused { reason } => TracedAction::Refused { reason: reason.into() },
        ConnectionStep::Ended { reason, bytes, after } => {
            let (bytes_in, bytes_out) = bytes.unzip();
            let reason = reason.map(Into::into);
            TracedAction::Ended { reason, bytes_in, bytes_out, after_ms: millis(after) }
        }
    }
}

fn error_text(errno: Option<i32>) -> String {
    match errno {
        Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        None => ErrorKind::Other.to_string(),
    }
}

/// Time in milliseconds, with three decimals.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}
