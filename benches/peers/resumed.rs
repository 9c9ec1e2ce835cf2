//! TLS connections that resume an earlier session: one request each, one after the other.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_testkit::{TlsClient, TlsSettings, clock};
use rustls::ClientConfig;

use crate::http::SMALL;
use crate::site::NAME;

/// Concurrent clients.
const CLIENTS: usize = 16;

/// Result of a run.
pub(crate) struct Outcome {
    /// Connections with a resumed session and a whole answer.
    pub(crate) answered: u64,
    /// All other connections.
    pub(crate) errors: u64,
    pub(crate) elapsed: Duration,
    /// Latencies from connecting to the end of the answer, sorted.
    pub(crate) latencies: Vec<Duration>,
}

/// Requests the small file for a number of seconds. `settings` makes a client's TLS settings; each
/// client has its own sessions.
pub(crate) fn run(target: SocketAddr, settings: impl Fn() -> TlsSettings, seconds: u64) -> Outcome {
    let configs: Vec<Arc<ClientConfig>> = (0..CLIENTS).map(|_| settings().client()).collect();
    // The first session of each client is not resumed.
    configs.iter().for_each(|config| drop(fetch(target, config)));
    let (begun, time) = (clock(), Duration::from_secs(seconds));
    let parts: Vec<(Vec<Duration>, u64)> = thread::scope(|scope| {
        let clients = configs.iter().map(|config| {
            scope.spawn(move || {
                let (mut latencies, mut errors) = (Vec::new(), 0);
                while begun.elapsed() < time {
                    let sent = clock();
                    match fetch(target, config) {
                        Ok(true) => latencies.push(sent.elapsed()),
                        Ok(false) | Err(_) => errors += 1,
                    }
                }
                (latencies, errors)
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().expect("it does not panic")).collect()
    });
    let elapsed = begun.elapsed();
    let errors = parts.iter().map(|(_, errors)| errors).sum();
    let mut latencies: Vec<Duration> = parts.into_iter().flat_map(|(latencies, _)| latencies).collect();
    latencies.sort_unstable();
    Outcome { answered: latencies.len() as u64, errors, elapsed, latencies }
}

/// Sends one request on a new connection. Returns whether its session was resumed.
fn fetch(target: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<bool> {
    let mut client = TlsClient::connect(target, NAME, config)?;
    write!(client, "GET /{} HTTP/1.1\r\nHost: peers\r\nConnection: close\r\n\r\n", SMALL.0)?;
    let mut answer = Vec::new();
    // Some peers end without a close_notify.
    let _ = client.read_to_end(&mut answer);
    if !crate::http::is_whole(&answer)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(client.is_resumed())
}
