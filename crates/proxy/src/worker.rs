//! Worker thread: its runtime, its commands, and its end.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

mod command;
mod listeners;

pub(super) use command::{ClientSocket, WorkerCommand};

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::warn;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client_stream::ServeStream;
use super::context::{WorkerContext, WorkersShared};
use super::flow_queries;
use super::registry::Registry;
use convey_snapshot::{NewestSnapshot, WorkerFrontends};
use listeners::Listeners;

/// Handle of a worker thread, which ends when its command channel is dropped.
pub(super) struct WorkerThread {
    pub(super) commands: mpsc::UnboundedSender<WorkerCommand>,
    /// Runtime of the thread, for sockets that are created outside the thread.
    pub(super) runtime: Handle,
    pub(super) thread: JoinHandle<()>,
}

/// Starts a worker thread; `core` is the index of the worker's column in the traffic counters.
pub(super) fn start(core: usize, shared: WorkersShared) -> io::Result<WorkerThread> {
    let (commands, receiver) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let runtime = WorkerRuntime(Some(runtime));
    let thread = thread::Builder::new().name(format!("proxy-{core}")).spawn(move || {
        if let Some(runtime) = &runtime.0 {
            runtime.block_on(run(core, shared, receiver));
        }
    })?;
    Ok(WorkerThread { commands, runtime: handle, thread })
}

/// Runtime of a worker, with a drop that does not block. If the thread cannot be created, this
/// value is dropped within a task of another runtime, where the drop of a `Runtime` would panic.
struct WorkerRuntime(Option<Runtime>);

impl Drop for WorkerRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Drops the capabilities of this thread, which needs none to bind: another thread binds its
/// sockets. The thread keeps `CAP_SYS_RESOURCE`, so that its pipes may exceed the limit of
/// unprivileged users (`fs.pipe-user-pages-soft`).
fn drop_capabilities() {
    let Ok(sets) = capabilities(None) else { return };
    let kept = sets.permitted & CapabilitySet::SYS_RESOURCE;
    let none = CapabilitySet::empty();
    if let Err(error) =
        set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
    {
        warn!("cannot drop the unneeded capabilities of a worker thread: {error}");
    }
}

async fn run(core: usize, shared: WorkersShared, mut commands: mpsc::UnboundedReceiver<WorkerCommand>) {
    drop_capabilities();
    let (worker, started) = ((core - shared.columns.start) as u16, shared.started);
    let (context, mut last_holder) = WorkerContext::new(core, shared);
    let operators = Operators { worker, started, registry: context.registry.clone() };
    tokio::spawn(each_second(SecondWork::of(&context)));
    let mut listeners = Listeners::new(context.clone());
    let (left, drained) = loop {
        match commands.recv().await {
            Some(WorkerCommand::Listen { addr, socket, sessions }) => {
                listeners.listen(addr, socket, sessions)
            }
            Some(WorkerCommand::Close { places, patience, done }) => {
                listeners.close(places, patience).await;
                let _ = done.send(());
            }
            Some(WorkerCommand::Hold { sessions }) => drop(sessions.send(listeners.pause().await)),
            Some(WorkerCommand::Release) => listeners.release(),
            Some(WorkerCommand::Offer { sockets }) => drop(sockets.send(listeners.sockets())),
            Some(WorkerCommand::Drain { left, done }) => break (left, done),
            Some(other) => operators.execute(other),
            None => return,
        }
    };
    context.begin_drain();
    let draining = Arc::downgrade(&context);
    drop(context);
    operators.registry.wake_all();
    listeners.drain(&left).await;
    // The drain ends with the last connection. If the command channel closes earlier, because the
    // drain takes too long, the remaining connections are cut.
    tokio::select! {
        () = last_holder.is_gone() => drop(drained.send(())),
        () = async {
            while let Some(command) = commands.recv().await {
                match command {
                    WorkerCommand::Stop => {
                        draining.upgrade().inspect(|context| context.begin_stop());
                        operators.registry.wake_all();
                    }
                    other => operators.execute(other),
                }
            }
        } => {}
    }
}

/// Executor of commands about open connections, both in normal operation and during a drain.
struct Operators {
    worker: u16,
    started: Instant,
    registry: Arc<Registry>,
}

impl Operators {
    fn execute(&self, command: WorkerCommand) {
        match command {
            WorkerCommand::EndConnections { servers } => self.registry.end_servers(&servers),
            WorkerCommand::EndDenied { access } => self.registry.end_denied(&access),
            WorkerCommand::CountSources { frontends } => self.registry.count_sources(&frontends),
            WorkerCommand::ListFlows { query, answer } => {
                let worker = (self.worker, self.started);
                flow_queries::begin_list(self.registry.clone(), worker, query, answer);
            }
            WorkerCommand::KillFlow { id, answer } => {
                let _ = answer.send(flow_queries::kill(&self.registry, id, self.started));
            }
            // Other commands are ignored: the drop of their channels notifies the sender.
            _ => {}
        }
    }
}

/// Periodic work of a worker. It does not hold the worker's context, because the drop of the
/// context ends a drain.
struct SecondWork {
    registry: Arc<Registry>,
    http: Option<Arc<dyn ServeStream>>,
    frontends: Arc<WorkerFrontends>,
    snapshot: Arc<NewestSnapshot>,
}

impl SecondWork {
    fn of(context: &WorkerContext) -> SecondWork {
        SecondWork {
            registry: context.registry.clone(),
            http: context.http.clone(),
            frontends: context.frontends.clone(),
            snapshot: context.shared.snapshot.clone(),
        }
    }
}

/// Once a second, updates the coarse clock of the worker's connections, drops old versions of
/// frontends, and runs the periodic work of mode http.
async fn each_second(work: SecondWork) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        work.registry.advance_clock(Instant::now());
        work.frontends.retain(&work.snapshot.load());
        if let Some(http) = &work.http {
            http.each_second();
        }
    }
}
