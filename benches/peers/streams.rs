//! Loads of the bench's own clients, whose connections carry several requests at once: at full
//! speed, or open and silent.

use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use convey_testkit::clock;
use futures_util::future::{join_all, try_join_all};
use tokio::runtime::{Builder, Runtime};

pub(crate) use crate::client::Server;
use crate::client::{self, Connection};
use crate::http::SMALL;
use crate::site::client_threads;

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// Concurrent connections.
    pub(crate) connections: usize,
    pub(crate) asks: Asks,
    /// File to request: its name and its size in bytes.
    pub(crate) file: (&'static str, usize),
    pub(crate) duration: Duration,
}

/// Use of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asks {
    /// A number of concurrent requests, the next as soon as one is answered.
    AtOnce(usize),
    /// One request, by a client without an earlier session, and then a new connection.
    OnceEach,
}

/// Result of a run.
pub(crate) struct Outcome {
    /// Requests and connections that failed or came too late.
    pub(crate) errors: u64,
    pub(crate) elapsed: Duration,
    /// Latencies of answered requests, from the request, or from connecting, to the end of the
    /// answer; sorted.
    pub(crate) latencies: Vec<Duration>,
}

/// Sends requests until the time has passed, and waits for the answers. Calls `begin` once the
/// lasting connections are open.
///
/// # Errors
/// `begin` fails, or a connection cannot be opened.
pub(crate) fn run<T>(server: &Server, task: Task, begin: impl FnOnce() -> Result<T>) -> Result<(Outcome, T)> {
    let threads = client_threads().min(task.connections);
    // One barrier when all connections are open, and one when the load begins.
    let (open, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let (parts, begun, start) = thread::scope(|scope| {
        let part = |n: usize| {
            let count = task.connections / threads + usize::from(n < task.connections % threads);
            let (open, go) = (&open, &go);
            scope.spawn(move || {
                let opened = opened(server, if matches!(task.asks, Asks::AtOnce(_)) { count } else { 0 });
                open.wait();
                go.wait();
                let (runtime, connections) = opened?;
                let until = clock() + task.duration;
                let parts = runtime.block_on(async {
                    match task.asks {
                        Asks::AtOnce(streams) => busy(&connections, streams, task.file, until).await,
                        Asks::OnceEach => {
                            join_all((0..count).map(|_| once_each(server, task.file, until))).await
                        }
                    }
                });
                let ended = clock();
                runtime.block_on(client::close(connections));
                io::Result::Ok((parts, ended))
            })
        };
        let threads: Vec<_> = (0..threads).map(part).collect();
        open.wait();
        let begun = begin();
        let start = clock();
        go.wait();
        let parts = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let parts: io::Result<Vec<_>> = parts.collect();
        (parts, begun, start)
    });
    let mut outcome = Outcome { errors: 0, elapsed: Duration::ZERO, latencies: Vec::new() };
    for (parts, ended) in parts? {
        outcome.elapsed = outcome.elapsed.max(ended - start);
        for part in parts {
            outcome.errors += part.errors;
            outcome.latencies.extend(part.latencies);
        }
    }
    outcome.latencies.sort_unstable();
    Ok((outcome, begun?))
}

/// Opens connections, sends one request on each, and calls `then` while they are open.
///
/// # Errors
/// `then` fails, or a connection cannot be opened.
pub(crate) fn hold<T>(server: &Server, connections: usize, then: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Concurrent handshakes.
    const OPENERS: usize = 8;
    let runtime = runtime()?;
    let held = runtime.block_on(async {
        let opener = async |n: usize| {
            let mut held = Vec::new();
            for _ in (n..connections).step_by(OPENERS) {
                let connection = server.connect().await?;
                connection.get(SMALL).await?;
                held.push(connection);
            }
            io::Result::Ok(held)
        };
        try_join_all((0..OPENERS).map(opener)).await
    });
    let held = held?;
    let outcome = then();
    runtime.block_on(join_all(held.into_iter().map(client::close)));
    outcome
}

/// Result of one stream of requests.
#[derive(Default)]
struct Part {
    errors: u64,
    latencies: Vec<Duration>,
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Connections of a thread, and the runtime that they need.
fn opened(server: &Server, count: usize) -> io::Result<(Runtime, Vec<Connection>)> {
    let runtime = runtime()?;
    let connections = runtime.block_on(try_join_all((0..count).map(|_| server.connect())))?;
    Ok((runtime, connections))
}

/// Keeps a number of requests in progress on each connection.
async fn busy(connections: &[Connection], streams: usize, file: (&str, usize), until: Instant) -> Vec<Part> {
    let stream = async |connection: &Connection| {
        let mut part = Part::default();
        // After a failure the stream stops: its connection may be gone.
        while part.errors == 0 && clock() < until {
            let sent = clock();
            match connection.get(file).await {
                Ok(()) => part.latencies.push(sent.elapsed()),
                Err(_) => part.errors += 1,
            }
        }
        part
    };
    let streams = connections.iter().flat_map(|connection| std::iter::repeat_n(connection, streams));
    join_all(streams.map(stream)).await
}

/// Sends one request on a connection, and opens the next one as soon as there is an answer.
async fn once_each(server: &Server, file: (&str, usize), until: Instant) -> Part {
    let mut part = Part::default();
    while clock() < until {
        let begun = clock();
        let fetch = async { server.connect().await?.get(file).await };
        match fetch.await {
            Ok(()) => part.latencies.push(begun.elapsed()),
            Err(_) => part.errors += 1,
        }
    }
    part
}
