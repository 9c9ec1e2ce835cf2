//! Uploads that their clients cut, and the flow control of the connections that carried them.

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback};
use fastrand::Rng;
use futures_util::future::join_all;
use http::Request;
use tokio::time::{Duration, timeout};

use super::case::Version;
use super::client::Failure;
use super::pages::{Pages, READ, UNREAD};
use super::streams::{Connection, Reading, Sending, StreamClients};
use super::{addresses, runtime, seeds, setup};
use crate::http3::authority;

/// Uploads that are cut at once.
const UPLOADS: usize = 40;

/// Longest part of an upload that is sent before the cut.
const MOST: usize = 80_000;

/// Length of the upload that must pass: above all windows of a stream.
const WHOLE: usize = 300_000;

/// Time of an upload that must pass.
const PATIENCE: Duration = Duration::from_secs(20);

/// An upload that has begun, and its response.
type Upload = (Sending, Reading);

pub(super) fn uploads_pass_after_a_few_rounds_of_cut_ones() {
    cut_and_upload(10);
}

pub(super) fn uploads_pass_after_a_thousand_rounds_of_cut_ones() {
    cut_and_upload(1_000);
}

/// Rounds from HTTP/3 to HTTP/2 in which clients may end their connection. The datagram that ends a
/// connection may be lost: the kernel drops many on the loopback in these rounds. Then 40 uploads
/// stay open until the connection has been silent for too long. A client may have a share of the open
/// uploads to a server of HTTP/2, and further ones get 503 meanwhile, as they should. In later rounds
/// clients reset their uploads, which QUIC repeats until convey has got it.
const ENDS_FROM_HTTP3_TO_HTTP2: usize = 20;

fn cut_and_upload(rounds: usize) {
    for seed in seeds(1..2) {
        std::thread::scope(|scope| {
            for client in [Version::Http2, Version::Http3] {
                for server in [Version::Http1, Version::Http2] {
                    scope.spawn(move || run(rounds, seed, client, server));
                }
            }
        });
    }
}

fn run(rounds: usize, seed: u64, client: Version, server: Version) {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, server).server("a", lab.server(1), ""));
    let mut random = Rng::with_seed(seed);
    runtime().block_on(async {
        Pages::start(lab.server(1), server);
        let clients = StreamClients::new(client, addresses(&lab), &authority, None);
        for round in 0..rounds {
            let may_end = match (client, server) {
                (Version::Http3, Version::Http2) => round < ENDS_FROM_HTTP3_TO_HTTP2,
                _ => true,
            };
            let passed = timeout(PATIENCE, cut_then_upload(&clients, &mut random, may_end)).await;
            let passed = passed.unwrap_or_else(|elapsed| Err(elapsed.into()));
            assert!(
                passed.is_ok(),
                "CONVEY_SEED={seed}, {client:?} to {server:?}, round {round}: {passed:?}"
            );
        }
    });
}

/// Begins uploads on a connection, cuts them, and sends one that must pass: on the same connection
/// after resets, on a new one after the end of the connection.
async fn cut_then_upload(clients: &StreamClients, random: &mut Rng, may_end: bool) -> Result<(), Failure> {
    let mut connection = clients.connect().await?;
    let uploads: Vec<(&str, Bytes)> = (0..UPLOADS)
        .map(|_| (if random.bool() { READ } else { UNREAD }, vec![b'x'; length(random)].into()))
        .collect();
    let begun = join_all(uploads.iter().map(|(path, part)| begin(&connection, path, part))).await;
    let begun: Vec<Upload> = begun.into_iter().collect::<Result<_, _>>()?;
    if random.bool() {
        tokio::time::sleep(Duration::from_millis(random.u64(..4))).await;
    }
    if random.bool() || !may_end {
        begun.into_iter().for_each(|(sending, _reading)| sending.reset());
    } else {
        connection.close();
        connection = clients.connect().await?;
    }
    let passed = connection.post(READ, vec![b'y'; WHOLE].into()).await?;
    connection.close();
    match passed == (200, WHOLE.to_string().into_bytes()) {
        true => Ok(()),
        false => Err(format!("{} {}", passed.0, String::from_utf8_lossy(&passed.1)).into()),
    }
}

/// Length of the part of an upload: some are longer than a window.
fn length(random: &mut Rng) -> usize {
    let most = if random.u8(..8) == 0 { MOST } else { MOST / 8 };
    random.usize(..most)
}

/// Begins an upload and sends its part, as far as the windows allow it within a moment.
async fn begin(connection: &Connection, path: &str, part: &Bytes) -> Result<Upload, Failure> {
    let (mut sending, reading) = connection.begin(Request::builder().method("POST"), path, false).await?;
    if let Ok(sent) = timeout(Duration::from_millis(2), sending.send(part.clone())).await {
        sent?;
    }
    Ok((sending, reading))
}
