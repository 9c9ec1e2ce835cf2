//! Relay of bytes without a protocol: connects to a server for each client, and copies in both
//! directions. Servers take turns.

use std::cell::Cell;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use crate::options::Options;

thread_local! {
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Serves a client until both directions have ended, or one has failed.
pub(crate) async fn relay(mut client: TcpStream) {
    let servers = &Options::get().servers;
    let server = servers[TURN.replace(TURN.get().wrapping_add(1)) % servers.len()];
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let _ = server.set_nodelay(true);
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
