//! Learns path MTUs of tunnels from what routers say of outer packets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use convey_dataplane::{PathMtuSocket, Sight};
use convey_forward::TunnelUsers;
use convey_model::{PathMtus, Timestamp};
use convey_wire::TunnelMtuReport;
use log::{info, warn};
use tokio::sync::watch;
use tokio::time::sleep;

use super::clock;

/// The path MTU to each server that a router has reported one of, in bytes.
pub(super) type MtuByServer = Arc<BTreeMap<IpAddr, u32>>;

/// How often it is looked whether a backend has a tunnel by now.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between two looks at errors: anybody can send very many. In a flood, errors are lost, and routers repeat those that are true.
const READ_PAUSE: Duration = Duration::from_millis(10);

/// After a change. Each one has every worker look at all of its flows.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// Before the next try, where errors cannot be heard.
const OPEN_PAUSE: Duration = Duration::from_secs(60);

/// Hears routers once there is a tunnel, and says which paths are narrow now.
pub(super) async fn learn(sight: Arc<ArcSwap<Sight>>, told: watch::Sender<MtuByServer>) {
    while sight.load().plan().tunnels.is_empty() {
        sleep(LOOK_EVERY).await;
    }
    loop {
        let Err(error) = listen(&sight, &told).await;
        warn!(
            "path MTUs of tunnels are not learnt from ICMP errors: {error}; convey tries again in a minute"
        );
        told.send_replace(MtuByServer::default());
        sleep(OPEN_PAUSE).await;
    }
}

/// Ends if the errors can no longer be heard.
async fn listen(sight: &ArcSwap<Sight>, told: &watch::Sender<MtuByServer>) -> io::Result<Infallible> {
    let (mut socket, mut paths) = (PathMtuSocket::open()?, PathMtus::default());
    let mut users = TunnelUsers::default();
    loop {
        let reports = tokio::select! {
            reports = socket.hear() => reports?,
            () = until(paths.due()) => Vec::new(),
        };
        let now = clock::now();
        let is_wider = paths.expire(now);
        let is_narrower = |report: &TunnelMtuReport| {
            let believed = users.narrower_path(sight.load().plan(), report);
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

/// One line a change, of however many servers: forged errors make lines, too.
fn log(narrower: &[TunnelMtuReport], by_server: &BTreeMap<IpAddr, u32>) {
    let Some(TunnelMtuReport { server, router, .. }) = narrower.first() else { return };
    let (server, router) = (server.ip(), router.ip());
    let mtu = by_server.get(&server).copied().unwrap_or_default();
    let others =
        if narrower.len() > 1 { format!(" (and {} more)", narrower.len() - 1) } else { String::new() };
    info!("router {router} reports a path MTU to server {server}: {mtu} bytes for ten minutes{others}");
}

async fn until(due: Option<Timestamp>) {
    match due {
        Some(due) => sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
