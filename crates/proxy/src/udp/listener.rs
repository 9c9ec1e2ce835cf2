//! Task of one UDP listening socket: it handles datagrams, timers and orders.
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

/// Idle timeout of sessions while a listener drains, so that idle clients do not delay a stop.
const FINISHED: Duration = Duration::from_secs(2);

/// Interval between two checks for expired sessions: a quarter of the idle timeout, within these
/// limits.
const PULSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Handle of a running UDP listener.
pub(crate) struct UdpListener {
    orders: mpsc::UnboundedSender<Order>,
    socket: WeakListening,
}

enum Order {
    /// Begin no new sessions; end with the last session, at this time at the latest.
    Drain(Option<Instant>),
    /// Begin sessions again.
    Resume,
    /// Stop reading, and return the sessions.
    Hold(oneshot::Sender<Vec<HandedSession>>),
    /// Resume reading.
    Release,
    /// End, because the sessions continue in another process.
    Leave,
}

impl UdpListener {
    /// Starts to serve clients of a socket that is bound to `vip`.
    ///
    /// Continues the `sessions` of another process.
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

    /// Returns a duplicate of the socket, for another process.
    pub(crate) fn socket(&self) -> Option<OwnedFd> {
        self.socket.socket()
    }

    /// Stops reading until [`UdpListener::release`]; datagrams wait in the socket. Returns the
    /// sessions for another process, which has the same sockets.
    pub(crate) fn hold(&self) -> oneshot::Receiver<Vec<HandedSession>> {
        let (sessions, held) = oneshot::channel();
        let _ = self.orders.send(Order::Hold(sessions));
        held
    }

    /// Resumes reading.
    pub(crate) fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// Ends the listener. Its sessions continue in another process.
    pub(crate) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Begins no new sessions; open sessions continue, for `patience` at most if there is a limit.
    /// The sockets are closed once no worker has a session.
    pub(crate) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Serves new clients again. Returns `false` if the listener has ended.
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
    /// Deadline of the drain, if there is a limit; set while the listener drains.
    until: Option<Option<Instant>>,
    /// Whether this worker has reported to the others that it has no sessions left.
    is_done: bool,
    phase: ListenerPhase,
}

/// Use of the socket by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenerPhase {
    /// Datagrams are read.
    Reads,
    /// Reading is stopped for now.
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
                    self.obey(order);
                    pulse.as_mut().reset(Instant::now());
                }
                ready = listening.clients_sent(), if self.reads() => match ready {
                    Ok(mut ready) if self.relay.forward() => ready.clear_ready(),
                    // A flood must leave time for the thread's other tasks, such as TCP
                    // connections.
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

    /// Changes the phase, unless another process has the sessions.
    fn set_phase(&mut self, phase: ListenerPhase) {
        if self.phase != ListenerPhase::Left {
            self.phase = phase;
        }
    }

    fn reads(&self) -> bool {
        self.phase == ListenerPhase::Reads
    }

    /// Whether no worker has sessions left, or the deadline is over.
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

    fn obey(&mut self, order: Order) {
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

    /// Runs periodic work; returns the time of the next run.
    fn on_pulse(&mut self) -> Duration {
        self.relay.count_overruns();
        self.relay.tell_of_headers();
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
