//! State of a worker thread. It is thread-local, so connections need neither locks nor reference
//! counts.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::BytesMut;

use crate::counters::Counters;
use crate::drain::{self, Waiters};
use crate::options::Options;
use crate::pool::Pool;
use crate::routes::Routes;
use crate::splice::Pipes;
use crate::wheel::Wheel;

/// Most bytes of a receive.
pub(crate) const BUFFER: usize = 64 * 1024;

/// Longest head in bytes, if it arrives in pieces.
pub(crate) const MAX_HEAD: usize = 16 * 1024;

thread_local! {
    static WORKER: Worker = Worker::new(Options::get());
}

pub(crate) struct Worker {
    pub(crate) options: &'static Options,
    pub(crate) buffers: RefCell<Buffers>,
    pub(crate) pool: Pool,
    pub(crate) pipes: Pipes,
    /// Routes, with `--route`.
    pub(crate) routes: Option<Routes>,
    /// Counters, with `--counters`.
    pub(crate) counters: Option<Arc<Counters>>,
    pub(crate) wheel: RefCell<Wheel>,
    pub(crate) waiters: RefCell<Waiters>,
    /// Time at which the connection's poll began, with `--deadlines`.
    now: Cell<Instant>,
    /// Place of the connection on the wheel that is being polled, with `--deadlines`.
    on_wheel: Cell<u32>,
    /// Whether the worker drained when the connection's poll began, with `--drain`.
    is_draining: Cell<bool>,
}

/// Buffers of a worker. A connection uses them until its next wait; it copies what has to outlive
/// the wait.
pub(crate) struct Buffers {
    /// Bytes received last. It has room for a receive and the beginning of a head before it.
    pub(crate) input: Box<[u8]>,
    /// Head to send.
    pub(crate) output: Vec<u8>,
    /// Head that is parsed, with `--strict`.
    pub(crate) parsed: BytesMut,
}

/// Calls `work` with the state of this thread.
pub(crate) fn with<T>(work: impl FnOnce(&Worker) -> T) -> T {
    WORKER.with(work)
}

/// Runs a connection with the checks before each poll.
pub(crate) async fn watch(connection: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let (on_wheel, waiter) = poll_fn(|cx| {
        Poll::Ready(with(|worker| {
            let on_wheel = worker.options.deadlines.then(|| worker.wheel.borrow_mut().add(cx.waker()));
            let waiter = worker.options.drain.then(|| worker.waiters.borrow_mut().add(cx.waker()));
            (on_wheel, waiter)
        }))
    })
    .await;
    let mut connection = pin!(connection);
    let ended = poll_fn(|cx| {
        if with(|worker| worker.begin_poll(on_wheel)) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        connection.as_mut().poll(cx)
    });
    let ended = ended.await;
    with(|worker| {
        if let Some(place) = on_wheel {
            worker.wheel.borrow_mut().remove(place);
        }
        if let Some(waiter) = waiter {
            worker.waiters.borrow_mut().remove(waiter);
        }
    });
    ended
}

impl Worker {
    fn new(options: &'static Options) -> Worker {
        Worker {
            options,
            buffers: RefCell::new(Buffers {
                input: vec![0; BUFFER + MAX_HEAD].into(),
                output: Vec::with_capacity(BUFFER),
                parsed: BytesMut::with_capacity(BUFFER),
            }),
            pool: Pool::new(&options.servers),
            pipes: Pipes::default(),
            routes: options.route.then(Routes::new),
            counters: options.counters.then(|| Counters::of_worker(options.servers.len())),
            wheel: RefCell::default(),
            waiters: RefCell::default(),
            now: Cell::new(Instant::now()),
            on_wheel: Cell::new(0),
            is_draining: Cell::new(false),
        }
    }

    /// Whether a flag needs [`watch`].
    pub(crate) fn checks_each_poll(&self) -> bool {
        self.options.deadlines || self.options.drain
    }

    /// Present time: with `--deadlines`, the time at which the connection's poll began.
    pub(crate) fn now(&self) -> Instant {
        if self.options.deadlines { self.now.get() } else { Instant::now() }
    }

    /// Sets the deadline of the wait that begins.
    pub(crate) fn begin_wait(&self) {
        if self.options.deadlines {
            self.wheel.borrow_mut().renew(self.on_wheel.get(), self.now.get());
        }
    }

    /// Whether connections have to end after their request.
    pub(crate) fn is_draining(&self) -> bool {
        self.options.drain && self.is_draining.get()
    }

    /// Prepares the poll of a connection. Returns whether the connection's deadline is over.
    fn begin_poll(&self, on_wheel: Option<u32>) -> bool {
        if self.options.drain {
            self.is_draining.set(drain::has_begun());
        }
        let Some(place) = on_wheel else { return false };
        self.now.set(Instant::now());
        self.on_wheel.set(place);
        self.wheel.borrow().is_over(place)
    }
}
