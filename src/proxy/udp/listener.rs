//! The task of one listening socket, with all sessions of its clients.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use quinn_udp::UdpSocketState;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::session::{Parties, Session};
use super::socket::{self, BATCH, Batch, Datagrams, is_refusal};
use super::table::{Key, Table};
use crate::model::{Endpoint, Timestamp};
use crate::proxy::worker::Context;
use crate::snapshot::Frontend;
use crate::stats::Counter;

/// Servers that are asked to take one datagram.
const ATTEMPTS: usize = 4;

/// Sessions that are told to have answers at once.
const EVENTS: usize = 64;

/// While a listener drains, who is silent for this long has finished: idle clients do not hold a stop up.
const FINISHED: Duration = Duration::from_secs(2);

/// Longest time between two looks for sessions that are over.
const LONGEST_PULSE: Duration = Duration::from_secs(1);

/// A listener that runs.
pub(in crate::proxy) struct Listener {
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    /// Begin no new sessions; end with the last one, at this time at the latest.
    Drain(Option<Instant>),
    /// Begin sessions again.
    Resume,
}

impl Listener {
    /// Starts to serve clients of `socket`, which is bound to `vip`.
    pub(in crate::proxy) fn start(
        vip: SocketAddr,
        socket: Arc<UdpSocket>,
        context: Arc<Context>,
    ) -> Listener {
        let (orders, received) = mpsc::unbounded_channel();
        let started = Relay::new(vip, socket, context).and_then(|relay| {
            let clients = socket::readiness(relay.socket.clone())?;
            let answers = socket::readiness(relay.answers.clone())?;
            tokio::spawn(relay.run(received, clients, answers));
            Ok(())
        });
        if let Err(error) = started {
            warn!("cannot serve {vip}/udp: {error}");
        }
        Listener { orders }
    }

    /// Begins no new sessions; those that are open go on, for `patience` at most if there is a limit. With the last one
    /// the socket is closed.
    pub(in crate::proxy) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Serves new clients again. Returns `false` if it has ended.
    pub(in crate::proxy) fn resume(&self) -> bool {
        self.orders.send(Order::Resume).is_ok()
    }

    /// Whether its socket is closed.
    pub(in crate::proxy) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }
}

struct Relay {
    vip: SocketAddr,
    context: Arc<Context>,
    socket: Arc<UdpSocket>,
    /// How the socket, and those of the sessions, are to be used.
    state: UdpSocketState,
    /// Tells which sessions have answers: by their number.
    answers: Arc<OwnedFd>,
    sessions: Table<Session>,
    start: Instant,
    /// As last read; a removed one as it was.
    frontend: Option<Arc<Frontend>>,
    generation: u64,
    idle: Duration,
    drain: Option<Option<Instant>>,
    /// Datagrams that the socket had no room for, as last read.
    overruns: u32,
}

impl Relay {
    fn new(vip: SocketAddr, socket: Arc<UdpSocket>, context: Arc<Context>) -> io::Result<Relay> {
        Ok(Relay {
            vip,
            context,
            state: socket::prepare(&socket)?,
            overruns: socket::overruns(&socket),
            socket,
            answers: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            sessions: Table::new(),
            start: Instant::now(),
            frontend: None,
            generation: 0,
            idle: LONGEST_PULSE,
            drain: None,
        })
    }

    async fn run(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        clients: AsyncFd<Arc<UdpSocket>>,
        answers: AsyncFd<Arc<OwnedFd>>,
    ) {
        let mut pulse = pin!(sleep(self.pulse()));
        while !self.is_over() || !orders.is_empty() {
            tokio::select! {
                Some(order) = orders.recv() => self.obey(order),
                // An error: the runtime ends.
                ready = clients.readable() => match ready {
                    Ok(mut ready) if self.forward() => ready.clear_ready(),
                    Ok(_) => {}
                    Err(_) => return,
                },
                ready = answers.readable() => match ready {
                    Ok(mut ready) if self.answer() => ready.clear_ready(),
                    Ok(_) => {}
                    Err(_) => return,
                },
                () = &mut pulse => {
                    let next = self.pulse();
                    pulse.as_mut().reset(Instant::now() + next);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        let is_late = |until: Option<Instant>| until.is_some_and(|until| until <= Instant::now());
        self.drain.is_some_and(|until| self.sessions.is_empty() || is_late(until))
    }

    fn obey(&mut self, order: Order) {
        self.drain = match order {
            Order::Drain(until) => Some(until),
            Order::Resume => None,
        };
    }

    /// Ends sessions that are over, and says when to look again.
    fn pulse(&mut self) -> Duration {
        self.read_snapshot();
        let idle = if self.drain.is_some() { self.idle.min(FINISHED) } else { self.idle };
        let now = self.now();
        while let Some(over) = self.sessions.expire(idle, now) {
            over.end(None);
        }
        let overruns = socket::overruns(&self.socket);
        self.dropped(Counter::DroppedOverrun, overruns.wrapping_sub(self.overruns).into());
        self.overruns = overruns;
        (idle / 4).clamp(Duration::from_millis(10), LONGEST_PULSE)
    }

    fn read_snapshot(&mut self) {
        let snapshot = self.context.shared.snapshot.load();
        if snapshot.generation == self.generation {
            return;
        }
        self.generation = snapshot.generation;
        self.idle = snapshot.timeouts.udp_idle;
        if let Some(frontend) = snapshot.listeners.get(&Endpoint::udp(self.vip)) {
            self.frontend = Some(frontend.clone());
        }
    }

    /// Sends to servers what has come from clients. Returns whether nothing is left.
    fn forward(&mut self) -> bool {
        self.read_snapshot();
        let now = self.now();
        BATCH.with_borrow_mut(|batch| {
            let Ok(received) = batch.receive(&self.state, &self.socket) else { return true };
            let mut taken = 0;
            for datagrams in received {
                taken += 1;
                if let Err(reason) = self.forward_one(datagrams, now) {
                    self.dropped(reason, datagrams.count());
                }
            }
            taken < Batch::SIZE
        })
    }

    fn forward_one(&mut self, datagrams: Datagrams<'_>, now: Timestamp) -> Result<(), Counter> {
        let asked = datagrams.meta.dst_ip.filter(|_| self.vip.ip().is_unspecified());
        let key = Key { client: datagrams.meta.addr, asked };
        let number = match self.sessions.find(&key) {
            Some(number) => {
                self.sessions.sent(number, now);
                number
            }
            None => self.begin(key, now)?,
        };
        for _ in 0..ATTEMPTS {
            self.settle(number)?;
            let Some((_, session)) = self.sessions.get_mut(number) else { break };
            match socket::send(&self.state, &session.socket, datagrams, session.server(), None) {
                Ok(()) => {
                    session.count(Counter::PacketsRx, datagrams.count());
                    session.count(Counter::BytesRx, datagrams.bytes.len() as u64);
                    return Ok(());
                }
                Err(error) if is_refusal(&error) => session.on_refusal(parties(self.vip, key), &error),
                Err(_) => return Err(Counter::DroppedUnsent),
            }
        }
        Err(Counter::DroppedNoServer)
    }

    /// A session for a client that has none; returns its number. Where there is no room, another gives way.
    fn begin(&mut self, key: Key, now: Timestamp) -> Result<usize, Counter> {
        let Some(frontend) = self.frontend.clone().filter(|_| self.drain.is_none()) else {
            return Err(Counter::DroppedDraining);
        };
        if key.client.port() == 0 {
            return Err(Counter::DroppedUnsent); // nobody can be answered there
        }
        let open = || Session::open(parties(self.vip, key), &frontend, self.generation, &self.context);
        let mut opened = open();
        if matches!(opened, Err(Counter::DroppedFull | Counter::DroppedNoResources))
            && let Some(other) = self.sessions.evict()
        {
            other.end(Some(Counter::Evicted));
            opened = open();
        }
        let number = self.sessions.insert(key, opened?, now);
        self.listen_to(number)?;
        Ok(number)
    }

    /// Has the session go to a server that is there.
    fn settle(&mut self, number: usize) -> Result<(), Counter> {
        let (Some(frontend), Some((key, session))) = (&self.frontend, self.sessions.get_mut(number)) else {
            return Ok(());
        };
        match session.settle(parties(self.vip, key), &frontend.pool, self.generation) {
            Ok(false) => Ok(()),
            Ok(true) => self.listen_to(number),
            Err(reason) => {
                self.over(number);
                Err(reason)
            }
        }
    }

    /// Has the session's socket tell of answers. If it cannot, the session is over.
    fn listen_to(&mut self, number: usize) -> Result<(), Counter> {
        let Some((_, session)) = self.sessions.get_mut(number) else { return Ok(()) };
        let event = EventData::new_u64(number as u64);
        if epoll::add(&self.answers, &session.socket, event, EventFlags::IN).is_err() {
            self.over(number);
            return Err(Counter::DroppedNoResources);
        }
        Ok(())
    }

    fn over(&mut self, number: usize) {
        if let Some(session) = self.sessions.remove(number) {
            session.end(None);
        }
    }

    /// Sends to clients what has come from servers. Returns whether nothing is left.
    fn answer(&mut self) -> bool {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let at_once = Timespec::default();
        let Ok((events, _)) = epoll::wait(&self.answers, &mut room, Some(&at_once)) else { return true };
        let now = self.now();
        for event in &*events {
            self.answer_one(event.data.u64() as usize, now);
        }
        events.is_empty()
    }

    fn answer_one(&mut self, number: usize, now: Timestamp) {
        let Some((key, session)) = self.sessions.get_mut(number) else { return };
        let heard = BATCH.with_borrow_mut(|batch| {
            for datagrams in batch.receive(&self.state, &session.socket)? {
                let (counter, bytes) =
                    match socket::send(&self.state, &self.socket, datagrams, key.client, key.asked) {
                        Ok(()) => (Counter::PacketsTx, datagrams.bytes.len()),
                        Err(_) => (Counter::DroppedUnsent, 0),
                    };
                session.count(counter, datagrams.count());
                session.count(Counter::BytesTx, bytes as u64);
            }
            io::Result::Ok(())
        });
        match heard {
            Ok(()) => {
                session.answered();
                self.sessions.answered(number, now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => session.on_refusal(parties(self.vip, key), &error),
        }
    }

    fn dropped(&self, reason: Counter, n: u64) {
        if let (Some(frontend), 1..) = (&self.frontend, n) {
            frontend.live.traffic.add(self.context.core, reason, n);
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.start.elapsed().as_nanos() as u64)
    }
}

fn parties(vip: SocketAddr, key: Key) -> Parties {
    Parties { client: key.client, vip }
}
