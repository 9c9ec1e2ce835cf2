//! Task of one UDP listening socket. It handles datagrams, timers and orders.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::relay::Relay;
use super::sockets::{Listening, WeakListening};
use crate::context::WorkerContext;
use crate::handover::HandedSession;

/// Idle timeout of sessions while their listener drains. It is short, so that idle clients do not
/// delay the drain.
const FINISHED: Duration = Duration::from_secs(2);

/// Lower and upper bound of the interval between two checks for expired sessions. The interval is a
/// quarter of the idle timeout.
const PULSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Handle of a running UDP listener.
pub(crate) struct UdpListener {
    orders: mpsc::UnboundedSender<Order>,
    socket: WeakListening,
}

enum Order {
    /// Begin no new sessions, and end with the last session or at this time, whichever is earlier.
    Drain(Option<Instant>),
    /// Stop draining: begin new sessions again.
    Resume,
    /// Stop reading datagrams, and return the sessions.
    Hold(oneshot::Sender<Vec<HandedSession>>),
    /// Resume reading datagrams.
    Release,
    /// End the task, because the sessions continue in another process.
    Leave,
}

impl UdpListener {
    /// Starts to serve the clients of a socket that is bound to `vip`, and continues the `sessions`
    /// that another process has handed over.
    pub(crate) fn start(
        vip: SocketAddr,
        listening: Listening,
        context: Arc<WorkerContext>,
        sessions: Vec<HandedSession>,
    ) -> UdpListener {
        let (orders, received) = mpsc::unbounded_channel();
        let mut relay = Relay::new(vip, listening.clone(), context);
        sessions.into_iter().for_each(|session| relay.restore(session));
        let socket = listening.downgrade();
        tokio::spawn(ListenerTask::new(relay, listening).run(received));
        UdpListener { orders, socket }
    }

    /// Returns a duplicate of the socket, for another process. `None` if the socket is closed, or
    /// if the duplication fails.
    pub(crate) fn socket(&self) -> Option<OwnedFd> {
        self.socket.socket()
    }

    /// Stops reading datagrams until [`UdpListener::release`]; meanwhile they wait in the socket.
    /// Returns the sessions for another process, which has the same sockets.
    pub(crate) fn pause(&self) -> oneshot::Receiver<Vec<HandedSession>> {
        let (sessions, held) = oneshot::channel();
        let _ = self.orders.send(Order::Hold(sessions));
        held
    }

    /// Resumes reading datagrams.
    pub(crate) fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// Ends the listener. Its sessions continue in another process.
    pub(crate) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Begins no new sessions. Open sessions continue: for at most `patience`, or without a limit
    /// if `patience` is `None`. The sockets are closed when no worker has a session any more.
    pub(crate) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Ends a drain, so that the listener serves new clients again. Returns `false` if the listener
    /// has ended.
    pub(crate) fn resume(&self) -> bool {
        self.orders.send(Order::Resume).is_ok()
    }

    /// Whether the listener has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }
}

struct ListenerTask {
    relay: Relay,
    listening: Listening,
    /// Set while the listener drains: the deadline of the drain, or `Some(None)` without a
    /// deadline.
    until: Option<Option<Instant>>,
    /// Whether this worker has reported to the others that it has no sessions left.
    is_done: bool,
    phase: ListenerPhase,
}

/// Whether this process reads the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenerPhase {
    /// The task reads datagrams.
    Reads,
    /// The task does not read for now, because a handover is in progress.
    Held,
    /// Another process continues the sessions.
    Left,
}

impl ListenerTask {
    fn new(relay: Relay, listening: Listening) -> ListenerTask {
        listening.busy();
        ListenerTask { relay, listening, until: None, is_done: false, phase: ListenerPhase::Reads }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let listening = self.listening.clone();
        let mut pulse = pin!(sleep(Duration::ZERO));
        while !self.is_over() || !orders.is_empty() {
            tokio::select! {
                Some(order) = orders.recv() => {
                    self.execute(order);
                    pulse.as_mut().reset(Instant::now());
                }
                ready = listening.clients_sent(), if self.reads() => match ready {
                    Ok(mut ready) if self.relay.forward() => ready.clear_ready(),
                    // More datagrams may be waiting. The yield lets other tasks of the thread run,
                    // such as TCP connections, even during a flood.
                    Ok(_) => yield_now().await,
                    Err(_) => return, // the thread ends
                },
                ready = listening.servers_sent(), if self.reads() => match ready {
                    Ok(mut ready) if self.relay.answer() => ready.clear_ready(),
                    Ok(_) => yield_now().await,
                    Err(_) => return,
                },
                () = &mut pulse => {
                    let next = self.on_pulse();
                    pulse.as_mut().reset(Instant::now() + next);
                }
            }
        }
    }

    /// Changes the phase. `Left` is final, because another process has the sessions.
    fn set_phase(&mut self, phase: ListenerPhase) {
        if self.phase != ListenerPhase::Left {
            self.phase = phase;
        }
    }

    fn reads(&self) -> bool {
        self.phase == ListenerPhase::Reads
    }

    /// Whether the task must end: another process has the sessions, or the drain is complete or its
    /// deadline has passed.
    fn is_over(&mut self) -> bool {
        if self.phase == ListenerPhase::Left {
            return true;
        }
        let Some(until) = self.until else { return false };
        if self.relay.is_empty() && !self.is_done {
            self.is_done = true;
            self.listening.done();
        }
        self.listening.all_done() || until.is_some_and(|until| until <= Instant::now())
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Drain(until) => self.until = Some(until),
            Order::Resume => self.until = None,
            Order::Hold(sessions) => {
                self.set_phase(ListenerPhase::Held);
                let _ = sessions.send(self.relay.sessions());
            }
            Order::Release => self.set_phase(ListenerPhase::Reads),
            Order::Leave => {
                self.relay.leave();
                self.set_phase(ListenerPhase::Left);
            }
        }
        self.relay.drains = self.until.is_some();
        if !self.relay.drains && std::mem::take(&mut self.is_done) {
            self.listening.busy();
        }
    }

    /// Runs periodic work. Returns the time until the next run.
    fn on_pulse(&mut self) -> Duration {
        self.relay.count_overruns();
        self.relay.log_refused_headers();
        let [shortest, longest] = PULSE;
        if !self.reads() {
            return longest; // what has come is not read, so nobody is known to be silent
        }
        if self.relay.drains {
            self.relay.expire(FINISHED);
            return shortest;
        }
        (self.relay.expire(Duration::MAX) / 4).clamp(shortest, longest)
    }
}

impl Drop for ListenerTask {
    fn drop(&mut self) {
        if !self.is_done {
            self.listening.done();
        }
    }
}
