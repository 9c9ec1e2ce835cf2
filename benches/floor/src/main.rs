//! The floor: an HTTP/1.1 relay that does no more than it must, as a peer of the benchmark
//! `cargo bench --bench peers -- proxy http budget`.
//!
//! It has no limits, log, retries or health checks, and few checks of what it reads. Servers take
//! turns, connections to them are kept, and each core has a thread with its own listener. A request
//! on kept connections takes two receives and two sends. Bodies of 64 KiB and more are spliced.
//!
//! Each flag adds a part that a load balancer cannot do without, so that its cost can be measured
//! alone:
//!
//!     floor-peer [--route] [--strict] [--counters] [--deadlines] [--drain] [--touch BYTES] [--all] LISTEN SERVER...
//!
//! With `--tcp` it relays bytes instead, as the floor of mode proxy:
//!
//!     floor-peer --tcp LISTEN SERVER...
#![allow(clippy::disallowed_methods, reason = "it is a program of its own, with a clock and threads")]

mod body;
mod connection;
mod counters;
mod drain;
mod head;
mod options;
mod pool;
mod routes;
mod splice;
mod stream;
mod strict;
mod tcp;
mod wheel;
mod worker;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread::{self, available_parallelism};
use std::{fmt, io};

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use counters::Counters;
use options::Options;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4096;

/// Tasks that a worker polls before it looks for new events: tokio's default.
const EVENT_INTERVAL: u32 = 61;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options.publish(),
        Err(error) => return failed(error),
    };
    let cores = available_parallelism().map_or(1, usize::from);
    let workers: io::Result<Vec<_>> =
        (0..cores).map(|_| thread::Builder::new().spawn(|| work(options))).collect();
    let ended = workers.and_then(|workers| {
        workers.into_iter().try_for_each(|worker| worker.join().expect("a panic aborts the process"))
    });
    if options.counters {
        eprintln!("{}", Counters::total());
    }
    ended.map_or_else(failed, |()| ExitCode::SUCCESS)
}

/// Runs a worker until SIGTERM; with `--drain`, until its connections have ended.
fn work(options: &'static Options) -> io::Result<()> {
    let mut builder = Builder::new_current_thread();
    builder.enable_io().event_interval(EVENT_INTERVAL);
    if options.deadlines {
        builder.enable_time();
    }
    builder.build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let accepting = tokio::spawn(accept(listener(options.listen)?));
        if options.deadlines {
            tokio::spawn(wheel::turn());
        }
        terminate.recv().await;
        if options.drain {
            accepting.abort();
            drain::begin_and_wait().await;
        }
        Ok(())
    })
}

/// Listener of one worker. The kernel spreads connections over the workers.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener) {
    loop {
        let Ok((client, address)) = listener.accept().await else { continue };
        let _ = client.set_nodelay(true);
        if Options::get().tcp {
            tokio::spawn(tcp::relay(client));
            continue;
        }
        let connection = connection::serve(client, address.ip());
        match worker::with(|worker| worker.checks_each_poll()) {
            true => tokio::spawn(worker::watch(connection)),
            false => tokio::spawn(connection),
        };
    }
}

fn failed(error: impl fmt::Display) -> ExitCode {
    eprintln!("floor-peer: {error}");
    ExitCode::FAILURE
}
