//! Open-loop client: requests are due at a constant rate, whether or not earlier ones were
//! answered. The latency of a request counts from the time at which it was due, so a balancer that
//! stalls is charged for all requests that had to wait.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use convey_testkit::clock;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::http;

/// Result of a run.
pub(crate) struct Outcome {
    /// Requests that were answered.
    pub(crate) answered: u64,
    /// Time from the first due request to the last answer.
    pub(crate) elapsed: Duration,
    /// Requests that failed, or were unanswered a second after the end.
    pub(crate) errors: u64,
    /// Latencies from due time to answer, sorted; without the warm-up.
    pub(crate) latencies: Vec<Duration>,
}

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// Number of connections, used in turn: the one that has waited longest is next.
    pub(crate) connections: usize,
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) duration: Duration,
    /// Share of the requests, from the first one on, that are only warm-up.
    pub(crate) warm_up: f64,
}

/// Makes requests at a constant rate over connections to the targets in turn.
pub(crate) fn run(targets: &[SocketAddr], task: Task) -> io::Result<Outcome> {
    let Task { connections, rate, duration, warm_up } = task;
    let mut client = Client::connect(targets, connections)?;
    let interval = Duration::from_secs_f64(1.0 / rate);
    let total = (duration.as_secs_f64() * rate) as u64;
    let start = client.start(interval)?;
    while client.answered + client.errors < total && start.elapsed() < duration + GRACE {
        client.turn(total, |n| start + interval.mul_f64((n + 1) as f64))?;
    }
    let cold = (client.latencies.len() as f64 * warm_up) as usize;
    let mut latencies = client.latencies.split_off(cold);
    latencies.sort_unstable();
    Ok(Outcome {
        answered: client.answered,
        elapsed: start.elapsed(),
        errors: total - client.answered,
        latencies,
    })
}

const GRACE: Duration = Duration::from_secs(1);

/// Token of the timer among those of the connections.
const TIMER: u64 = u64::MAX;

struct Client {
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Connection>,
    /// Free connections, the one that has waited longest first.
    free: VecDeque<usize>,
    /// Number of requests that are or were due.
    due: u64,
    sent: u64,
    answered: u64,
    errors: u64,
    latencies: Vec<Duration>,
}

struct Connection {
    stream: TcpStream,
    target: SocketAddr,
    /// Due time of the request in progress.
    due: Option<Instant>,
    answer: Vec<u8>,
}

impl Client {
    fn connect(targets: &[SocketAddr], connections: usize) -> io::Result<Client> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        let connections = (0..connections).map(|n| Connection::open(&epoll, n, targets[n % targets.len()]));
        let connections = connections.collect::<io::Result<Vec<_>>>()?;
        let free = (0..connections.len()).collect();
        let latencies = Vec::new();
        Ok(Client { epoll, timer, connections, free, due: 0, sent: 0, answered: 0, errors: 0, latencies })
    }

    fn start(&self, interval: Duration) -> io::Result<Instant> {
        let every = Timespec::try_from(interval).map_err(io::Error::other)?;
        let start = clock();
        let timer = Itimerspec { it_interval: every, it_value: every };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        Ok(start)
    }

    /// Waits for the timer or an answer, and sends due requests while connections are free.
    fn turn(&mut self, total: u64, due_at: impl Fn(u64) -> Instant) -> io::Result<()> {
        let mut events = Vec::with_capacity(self.connections.len() + 1);
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events {
            match event.data.u64() {
                TIMER => {
                    let mut expired = [0; 8];
                    rustix::io::read(&self.timer, &mut expired)?;
                    self.due = total.min(self.due + u64::from_ne_bytes(expired));
                }
                n => self.read(n as usize)?,
            }
        }
        while self.sent < self.due {
            let Some(n) = self.free.pop_front() else { break };
            let connection = &mut self.connections[n];
            connection.due = Some(due_at(self.sent));
            self.sent += 1;
            if connection.stream.write(http::REQUEST).ok() != Some(http::REQUEST.len()) {
                self.failed(n)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, n: usize) -> io::Result<()> {
        let connection = &mut self.connections[n];
        match connection.read() {
            Ok(false) => {}
            Ok(true) => {
                self.latencies.extend(connection.due.take().map(|due| due.elapsed()));
                connection.answer.clear();
                self.answered += 1;
                self.free.push_back(n);
            }
            Err(_) => self.failed(n)?,
        }
        Ok(())
    }

    /// Opens a new connection after a request failed, or a free connection was closed.
    fn failed(&mut self, n: usize) -> io::Result<()> {
        let target = self.connections[n].target;
        let lost = std::mem::replace(&mut self.connections[n], Connection::open(&self.epoll, n, target)?);
        if lost.due.is_some() {
            self.errors += 1;
            self.free.push_back(n);
        }
        Ok(())
    }
}

impl Connection {
    fn open(epoll: &OwnedFd, n: usize, target: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&target, GRACE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(epoll, &stream, EventData::new_u64(n as u64), EventFlags::IN)?;
        Ok(Connection { stream, target, due: None, answer: Vec::new() })
    }

    /// Reads available bytes; returns whether the answer is whole.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 2048];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.answer.extend_from_slice(&buffer[..count]);
                http::is_whole(&self.answer)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
