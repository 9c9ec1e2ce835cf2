//! Learns path MTUs of tunnels from ICMP errors that routers send about outer packets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use convey_dataplane::{PacketState, PathMtuSocket};
use convey_forward::TunnelUsers;
use convey_model::{PathMtus, Timestamp};
use convey_wire::TunnelMtuReport;
use log::{info, warn};
use tokio::sync::watch;
use tokio::time::sleep;

use super::clock;

/// Path MTU, in bytes, to each server for which a router has reported one.
pub(super) type MtuByServer = Arc<BTreeMap<IpAddr, u32>>;

/// Interval between checks whether any backend uses a tunnel.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pause between reads of ICMP errors, because anyone can send very many. A flood loses some
/// errors, but routers repeat the genuine ones.
const READ_PAUSE: Duration = Duration::from_millis(10);

/// Pause after a change, because each change makes every worker check all of its flows.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next attempt if the socket for ICMP errors fails.
const OPEN_PAUSE: Duration = Duration::from_secs(60);

/// Receives ICMP errors once there is a tunnel, and publishes the path MTU of each server.
pub(super) async fn publish_reports(
    packet_state: Arc<ArcSwap<PacketState>>,
    told: watch::Sender<MtuByServer>,
) {
    while packet_state.load().plan().tunnels.is_empty() {
        sleep(LOOK_EVERY).await;
    }
    loop {
        let Err(error) = listen(&packet_state, &told).await;
        warn!(
            "path MTUs of tunnels are not learnt from ICMP errors: {error}; convey tries again in a minute"
        );
        told.send_replace(MtuByServer::default());
        sleep(OPEN_PAUSE).await;
    }
}

/// Receives ICMP errors. Ends when the socket fails.
async fn listen(
    packet_state: &ArcSwap<PacketState>,
    told: &watch::Sender<MtuByServer>,
) -> io::Result<Infallible> {
    let (mut socket, mut paths) = (PathMtuSocket::open()?, PathMtus::default());
    let mut users = TunnelUsers::default();
    loop {
        let reports = tokio::select! {
            reports = socket.receive() => reports?,
            () = until(paths.due()) => Vec::new(),
        };
        let now = clock::now();
        let is_wider = paths.expire(now);
        let is_narrower = |report: &TunnelMtuReport| {
            let believed = users.narrower_path(packet_state.load().plan(), report);
            believed.is_some_and(|path| paths.lower(path, now))
        };
        let narrower: Vec<TunnelMtuReport> = reports.into_iter().filter(is_narrower).collect();
        if narrower.is_empty() && !is_wider {
            sleep(READ_PAUSE).await;
            continue;
        }
        let by_server = paths.by_server();
        log(&narrower, &by_server);
        told.send_replace(Arc::new(by_server));
        sleep(CHANGE_PAUSE).await;
    }
}

/// Logs one line per change of path MTUs, for any number of servers, because forged errors cause
/// log lines too.
fn log(narrower: &[TunnelMtuReport], by_server: &BTreeMap<IpAddr, u32>) {
    let Some(TunnelMtuReport { server, router, .. }) = narrower.first() else { return };
    let (server, router) = (server.ip(), router.ip());
    let mtu = by_server.get(&server).copied().unwrap_or_default();
    let others =
        if narrower.len() > 1 { format!(" (and to {} more)", narrower.len() - 1) } else { String::new() };
    info!(
        "router {router} reports a path MTU of {mtu} bytes to server {server}{others}; convey uses it for ten minutes"
    );
}

async fn until(due: Option<Timestamp>) {
    match due {
        Some(due) => sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
