//! The task of one listening socket: it waits for datagrams, for time to pass and to be told to stop.
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

/// While a listener drains, who is silent for this long has finished: idle clients do not hold a stop up.
const FINISHED: Duration = Duration::from_secs(2);

/// Time between two looks for sessions that are over: a quarter of the idle timeout, within these limits.
const PULSE: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// A listener that runs.
pub(crate) struct UdpListener {
    orders: mpsc::UnboundedSender<Order>,
    socket: WeakListening,
}

enum Order {
    /// Begin no new sessions; end with the last one, at this time at the latest.
    Drain(Option<Instant>),
    /// Begin sessions again.
    Resume,
    /// Read nothing, and tell the sessions.
    Hold(oneshot::Sender<Vec<HandedSession>>),
    /// Read again.
    Release,
    /// End: the sessions go on in another process.
    Leave,
}

impl UdpListener {
    /// Starts to serve clients of a socket that is bound to `vip`.
    ///
    /// Goes on with the `sessions` of another process.
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

    /// The socket once more, for another process.
    pub(crate) fn socket(&self) -> Option<OwnedFd> {
        self.socket.socket()
    }

    /// Reads nothing until [`UdpListener::release`]; datagrams that come wait. Returns the sessions for another process,
    /// which has the same sockets.
    pub(crate) fn hold(&self) -> oneshot::Receiver<Vec<HandedSession>> {
        let (sessions, held) = oneshot::channel();
        let _ = self.orders.send(Order::Hold(sessions));
        held
    }

    /// Reads again.
    pub(crate) fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// Ends. The sessions go on in another process.
    pub(crate) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
    }

    /// Begins no new sessions; those that are open go on, for `patience` at most if there is a limit. With the last
    /// one of all workers the sockets are closed.
    pub(crate) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Serves new clients again. Returns `false` if it has ended.
    pub(crate) fn resume(&self) -> bool {
        self.orders.send(Order::Resume).is_ok()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }
}

struct ListenerTask {
    relay: Relay,
    listening: Listening,
    /// When it ends at the latest, if there is a limit; set while it drains.
    until: Option<Option<Instant>>,
    /// Whether the other workers know that we have no sessions left.
    is_done: bool,
    /// Whether nothing is read for now.
    is_held: bool,
    /// Whether another process goes on.
    has_left: bool,
}

impl ListenerTask {
    fn new(relay: Relay, listening: Listening) -> ListenerTask {
        listening.busy();
        ListenerTask { relay, listening, until: None, is_done: false, is_held: false, has_left: false }
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
                ready = listening.clients_sent(), if !self.is_held => match ready {
                    Ok(mut ready) if self.relay.forward() => ready.clear_ready(),
                    // A flood must leave time for the rest of the thread, which has connections of TCP too.
                    Ok(_) => yield_now().await,
                    Err(_) => return, // the thread ends
                },
                ready = listening.servers_sent(), if !self.is_held => match ready {
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

    /// Whether no worker has sessions left, or time is over.
    fn is_over(&mut self) -> bool {
        if self.has_left {
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
                self.is_held = true;
                let _ = sessions.send(self.relay.sessions());
            }
            Order::Release => self.is_held = false,
            Order::Leave => {
                self.relay.leave();
                self.has_left = true;
            }
        }
        self.relay.drains = self.until.is_some();
        if !self.relay.drains && std::mem::take(&mut self.is_done) {
            self.listening.busy();
        }
    }

    /// Looks after what time brings; returns when to look again.
    fn on_pulse(&mut self) -> Duration {
        self.relay.count_overruns();
        self.relay.tell_of_headers();
        let [shortest, longest] = PULSE;
        if self.is_held {
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
