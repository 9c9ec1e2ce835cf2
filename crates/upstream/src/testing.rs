//! Clients and servers for the tests of this crate.
#![expect(clippy::disallowed_methods, reason = "tests")]

use std::io;

use rustix::io::Errno;
use tokio::time::Instant;

use crate::{Attempts, Permit, PickContext};
use convey_model::{ConnectFailures, Protocol};
use convey_snapshot::{Pool, WorkerArc, fixture};
use tokio::sync::mpsc;

/// Returns the context of a client that has just arrived.
pub(super) fn client() -> PickContext {
    let (client, vip) = (([192, 0, 2, 1], 4_000).into(), ([10, 0, 0, 1], 80).into());
    PickContext {
        client,
        proxy: None,
        vip,
        protocol: Protocol::Tcp,
        core: 0,
        began: Instant::now(),
        request: None,
    }
}

/// Returns a pool of servers that are up. Each server has this limit of connections.
pub(super) fn pool(servers: u8, limit: Option<u32>) -> WorkerArc<Pool> {
    let server = |n: u8| {
        let mut server = fixture::server(&n.to_string(), &format!("10.0.1.{n}:80"));
        server.settings.max_connections = limit;
        (server, fixture::up())
    };
    fixture::pool("web", (0..servers).map(server).collect()).into()
}

/// Records a failed connect to the server of this permit. Returns the report to the health checks,
/// if there is one.
pub(super) fn fail(attempts: &mut Attempts, permit: &Permit, errno: Errno) -> Option<ConnectFailures> {
    let (failures, mut told) = mpsc::channel(1);
    attempts.failed(permit, &io::Error::from(errno), &failures);
    told.try_recv().ok()
}
