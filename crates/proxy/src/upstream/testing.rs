//! Clients and servers for the tests of this module.
#![expect(clippy::disallowed_methods, reason = "tests")]

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::time::Instant;

use super::{Attempts, Downstream, Permit};
use convey_model::{ConnectFailures, Protocol};
use convey_snapshot::{Pool, fixture};
use tokio::sync::mpsc;

/// A client that has just come.
pub(super) fn client() -> Downstream {
    let (client, vip) = (([192, 0, 2, 1], 4_000).into(), ([10, 0, 0, 1], 80).into());
    Downstream {
        client,
        proxy: None,
        vip,
        protocol: Protocol::Tcp,
        core: 0,
        began: Instant::now(),
        request: None,
    }
}

/// So many servers that are up, each with this limit.
pub(super) fn pool(servers: u8, limit: Option<u32>) -> Arc<Pool> {
    let server = |n: u8| {
        let mut server = fixture::server(&n.to_string(), &format!("10.0.1.{n}:80"));
        server.settings.max_connections = limit;
        (server, fixture::up())
    };
    fixture::pool("web", (0..servers).map(server).collect())
}

/// A connect to the server of this permit fails. Returns what health is told.
pub(super) fn fail(attempts: &mut Attempts, permit: &Permit, errno: Errno) -> Option<ConnectFailures> {
    let (failures, mut told) = mpsc::channel(1);
    attempts.failed(permit, &io::Error::from(errno), &failures);
    told.try_recv().ok()
}
