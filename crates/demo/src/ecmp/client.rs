//! Client of the demo. It keeps long-lived connections, with a request every second, and opens new
//! connections.
#![expect(clippy::disallowed_methods, reason = "a shell: it measures how long answers take")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use convey_lab::{ANNOUNCED_VIP, EcmpLab, EcmpRole, LabError};

use super::PORT;

/// Number of long-lived connections.
const KEPT: usize = 200;

/// Interval between requests on a long-lived connection.
const ROUND: Duration = Duration::from_secs(1);

/// Pause between new connections.
const NEW_EVERY: Duration = Duration::from_millis(50);

/// Maximum wait for an answer. After this time, the connection counts as broken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Results that the client has counted.
#[derive(Debug, Default, Clone)]
pub(super) struct Seen {
    /// Answers on new connections since the last read, by server.
    pub(super) by_server: BTreeMap<String, u64>,
    /// Number of long-lived connections that are open now.
    pub(super) kept: usize,
    /// Number of connections opened since the start, both long-lived and new ones.
    pub(super) opened: u64,
    /// Number of connections that failed or ended without an answer.
    pub(super) broken: u64,
    /// The longest wait for an answer since the last read.
    pub(super) slowest: Duration,
}

/// Client of the lab. Its threads end after [`EcmpClient::stop`], or with the process.
#[derive(Debug, Default)]
pub(super) struct EcmpClient {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    is_over: AtomicBool,
}

impl EcmpClient {
    /// Starts the threads, which open connections from the namespace of the lab's client.
    pub(super) fn start(&self, lab: &Arc<EcmpLab>) -> Result<(), LabError> {
        for work in [keep, renew] {
            let (lab, shared) = (lab.clone(), self.shared.clone());
            let job = move || {
                let joined = lab.place(EcmpRole::Client).join();
                // This thread must not keep the lab alive after the demo.
                drop(lab);
                if joined.is_ok() {
                    work(&shared);
                }
            };
            let refused = |source| LabError::System { what: "start the client".to_owned(), source };
            thread::Builder::new().name("client".to_owned()).spawn(job).map_err(refused)?;
        }
        Ok(())
    }

    /// Returns the results since the last read.
    pub(super) fn take(&self) -> Seen {
        let mut seen = self.shared.lock();
        let taken = seen.clone();
        seen.by_server.clear();
        seen.slowest = Duration::ZERO;
        taken
    }

    /// Stops the client. Returns the number of connections that were opened, and the number of
    /// connections that broke.
    pub(super) fn stop(&self) -> (u64, u64) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let seen = self.shared.lock();
        (seen.opened, seen.broken)
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Counts the result of a request. Errors after the end of the demo are ignored.
    fn count<T>(&self, since: Instant, result: &io::Result<T>) {
        let mut seen = self.lock();
        seen.slowest = seen.slowest.max(since.elapsed());
        seen.broken += u64::from(result.is_err() && !self.is_over());
    }
}

/// Keeps connections open, and sends a request on each of them once per round.
fn keep(shared: &Shared) {
    let mut kept: Vec<TcpStream> = Vec::new();
    while !shared.is_over() {
        while kept.len() < KEPT && !shared.is_over() {
            let since = Instant::now();
            let stream = connect(shared);
            shared.count(since, &stream);
            kept.extend(stream.ok());
        }
        let since = Instant::now();
        let asked: Vec<io::Result<()>> = kept.iter_mut().map(fetch).collect();
        let mut left = Vec::new();
        for (mut stream, asked) in kept.into_iter().zip(asked) {
            let answer = asked.and_then(|()| answer(&mut stream));
            shared.count(since, &answer);
            left.extend(answer.is_ok().then_some(stream));
        }
        kept = left;
        shared.lock().kept = kept.len();
        thread::sleep(ROUND.saturating_sub(since.elapsed()));
    }
}

/// Opens one connection after the other, with one request each.
fn renew(shared: &Shared) {
    while !shared.is_over() {
        let since = Instant::now();
        let answered = connect(shared).and_then(|mut stream| {
            fetch(&mut stream)?;
            answer(&mut stream)
        });
        shared.count(since, &answered);
        if let Ok(server) = answered {
            *shared.lock().by_server.entry(server).or_default() += 1;
        }
        thread::sleep(NEW_EVERY.saturating_sub(since.elapsed()));
    }
}

fn connect(shared: &Shared) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(ANNOUNCED_VIP.into(), PORT), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    shared.lock().opened += 1;
    Ok(stream)
}

fn fetch(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\n\r\n")
}

/// Reads an answer, and returns the name of the server that sent it.
fn answer(stream: &mut TcpStream) -> io::Result<String> {
    let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
    // Every response body of the demo's servers ends with these bytes.
    while !text.ends_with(b")\n") {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => text.extend_from_slice(&buffer[..n]),
        }
    }
    let text = String::from_utf8_lossy(&text);
    let name = text.split("hello from ").nth(1).and_then(|rest| rest.split(' ').next());
    name.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
