//! Upgrades without downtime: the running process starts a new one, hands over its sockets and
//! state, and ends once the new one serves. If an earlier step fails, the old process continues
//! unchanged.
//!
//! `give` implements the old process, `take` the new one. They exchange `message`s over a
//! `channel`. `command` implements `convey upgrade`; `control` receives its requests in the running
//! process.

mod channel;
mod command;
mod control;
mod flows;
mod gate;
mod give;
mod message;
mod process_handle;
mod program;
mod successor_process;
mod take;

use std::collections::BTreeMap;
use std::future::pending;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use convey_admin::AnnounceState;
use convey_config::files;
use convey_control::{Call, EventKind, EventLevel, EventLog};
use log::{info, warn};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::channel::Channel;
pub(super) use self::command::{release, run};
pub(super) use self::control::{Asked, Control, Request};
pub(super) use self::flows::{HeldFlows, OwnedFlows};
use self::gate::{Absence, Gate, Passage};
pub(super) use self::give::{AdminSockets, HandedControl, HandedStatistics, Taken};
use self::give::{Offer, Successor};
use self::message::Message;
pub(super) use self::program::Program;
pub(super) use self::successor_process::SuccessorProcess;
pub(super) use self::take::{AdminInUse, Handed, LetGo, Predecessor, greet, receive};
use super::announce::HandedAnnouncement;
use super::clock;
use super::paths::Paths;
use super::service_manager::ServiceManager;

/// Environment variable of a process that is to replace another one. The standard input of such a
/// process is the channel.
const ENVIRONMENT: &str = "CONVEY_UPGRADE";

/// Value of the variable if the new process must not be a child of the old one.
const DETACH: &str = "detach";

/// Whether another process has started this one as its replacement.
pub(super) fn is_under_way() -> bool {
    std::env::var_os(ENVIRONMENT).is_some()
}

/// Maximum time for which a stopping process waits for the new process. It is longer than the time
/// in which the new process either serves or is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(16);

/// Channel for calls to the control task.
pub(super) type Calls = mpsc::Sender<Call<Paths>>;

/// Addresses that this process announces.
type Announcements = BTreeMap<IpAddr, HandedAnnouncement>;

/// Upgrades of this process, one at a time.
pub(super) struct Upgrades {
    program: Result<Program, String>,
    calls: Calls,
    manager: ServiceManager,
    events: Arc<EventLog>,
    announce: Arc<AnnounceState>,
    /// Upgrade that is under way. `requester` receives its result, if a client waits for it.
    attempt: Option<Attempt>,
    requester: Option<oneshot::Sender<Result<String, String>>>,
}

struct Attempt {
    steps: Pin<Box<dyn Future<Output = Result<Successful, String>>>>,
    /// Channel to the new process.
    channel: Arc<Channel>,
    gate: Arc<Gate>,
    absence: Absence,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // The thread that started the new process waits on the channel. Closing the channel ends
        // that wait, and the thread then ends the process.
        self.channel.close();
    }
}

/// Successful upgrade: another process has replaced this one.
pub(super) struct Successful {
    pub(super) process: u32,
    pub(super) taken: Taken,
    /// Handle of the new process. Set only if no service manager is notified of the new process.
    pub(super) child: Option<SuccessorProcess>,
}

impl Upgrades {
    /// Creates the state without an upgrade. `calls` is the channel to the control task.
    pub(super) fn new(
        program: Result<Program, String>,
        calls: Calls,
        manager: ServiceManager,
        events: Arc<EventLog>,
        announce: Arc<AnnounceState>,
    ) -> Upgrades {
        Upgrades { program, calls, manager, events, announce, attempt: None, requester: None }
    }

    /// Begins an upgrade unless one is under way. `answer` receives the result.
    pub(super) fn begin(
        &mut self,
        admin: AdminSockets,
        answer: Option<oneshot::Sender<Result<String, String>>>,
    ) {
        let refusal = match (&self.attempt, &self.program, Channel::pair()) {
            (Some(_), ..) => "an upgrade is under way already".to_owned(),
            (_, Err(why), _) => why.clone(),
            (.., Err(error)) => format!("cannot open a channel to a new process: {error}"),
            (None, Ok(program), Ok(ends)) => {
                info!("upgrade: starting the new process");
                let [channel, theirs] = ends;
                let (channel, calls) = (Arc::new(channel), self.calls.clone());
                let launch = Launch { program: program.clone(), ours: channel.clone(), theirs };
                let announcements = HandedAnnouncement::all(&self.announce);
                let service = HandedService { admin, announcements };
                let manager = self.manager.clone();
                let gate = Arc::<Gate>::default();
                let (presence, absence) = Absence::pair();
                let passage = Passage { gate: gate.clone(), presence };
                let steps = Box::pin(async move {
                    let successful = attempt(launch, calls, service, passage).await?;
                    // Notify the service manager before the channel is closed, because the new
                    // process waits for that.
                    manager.is_succeeded_by(successful.process);
                    Ok(successful)
                });
                self.attempt = Some(Attempt { steps, channel, gate, absence });
                self.requester = answer;
                return;
            }
        };
        self.report_failure(&refusal);
        if let Some(answer) = answer {
            let _ = answer.send(Err(refusal));
        }
    }

    /// Whether an upgrade is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.attempt.is_some()
    }

    /// Abandons the upgrade that is under way, because this process stops. If the new process is
    /// already permitted to serve, waits for it and returns it. Otherwise no new process is left,
    /// and the caller must resume the work that the upgrade had paused.
    pub(super) async fn abandon(&mut self) -> Option<Successful> {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.gate.begin_stop();
            if attempt.gate.close() {
                let Attempt { steps, channel, absence, .. } = &mut attempt;
                channel.close();
                // The new process is killed by its owner: these steps, which are dropped here, or a
                // thread.
                *steps = Box::pin(pending());
                let _ = timeout(STOP_TIMEOUT, absence.wait()).await;
            } else {
                info!("stopping: waiting for the upgrade to complete, then the new process stops, too");
                if let Ok(ended) = timeout(STOP_TIMEOUT, attempt.steps.as_mut()).await {
                    drop(attempt);
                    return self.end(ended);
                }
            }
        }
        if let Some(requester) = self.requester.take() {
            let _ = requester.send(Err("this process is stopping".to_owned()));
        }
        None
    }

    fn report_failure(&self, why: &str) {
        let line = format!("no upgrade: {why}");
        warn!("{line}");
        self.events.record(EventKind::Upgrade, EventLevel::Warn, clock::now(), &line);
    }

    /// Waits until another process has replaced this one. Logs each failed attempt. Never returns
    /// without an upgrade.
    pub(super) async fn success(&mut self) -> Successful {
        loop {
            let Some(attempt) = &mut self.attempt else { return pending().await };
            let ended = attempt.steps.as_mut().await;
            self.attempt = None;
            if let Some(successful) = self.end(ended) {
                return successful;
            }
        }
    }

    /// Reports the result of an attempt. Returns the new process if the attempt succeeded.
    fn end(&mut self, ended: Result<Successful, String>) -> Option<Successful> {
        let answer = match &ended {
            Ok(success) => Ok(format!("upgraded: process {} serves from now on", success.process)),
            Err(why) => {
                self.report_failure(&format!("{why}; this process continues"));
                Err(why.clone())
            }
        };
        if let Some(requester) = self.requester.take() {
            let _ = requester.send(answer);
        }
        ended.ok()
    }
}

/// Program of the new process, and the channel to it.
struct Launch {
    program: Program,
    ours: Arc<Channel>,
    theirs: Channel,
}

/// State of the service, besides the data path, that the new process continues.
struct HandedService {
    admin: AdminSockets,
    announcements: Announcements,
}

/// Makes one attempt. Other threads wait for the new process, so that this thread continues to
/// serve.
async fn attempt(
    launch: Launch,
    calls: Calls,
    service: HandedService,
    passage: Passage,
) -> Result<Successful, String> {
    let gate = passage.gate.clone();
    let successful = try_once(launch, &calls, service, passage).await;
    if successful.is_err() {
        // The new process has ended, whichever step it had reached.
        let resume: Call<Paths> = Box::new(|task| {
            task.set_handing_over(false);
            task.data_path.release();
        });
        tokio::select! {
            _ = calls.send(resume) => {}
            () = gate.stopping() => {}
        }
    }
    successful
}

async fn try_once(
    Launch { program, ours, theirs }: Launch,
    calls: &Calls,
    HandedService { admin, announcements }: HandedService,
    passage: Passage,
) -> Result<Successful, String> {
    let ends = || "this process is ending".to_owned();
    let (channel, gate) = (ours.clone(), passage.gate.clone());
    let (offer, offered) = oneshot::channel();
    let call: Call<Paths> = Box::new(move |task| {
        // The receiver is dropped if this process stops.
        if offer.is_closed() {
            return;
        }
        task.set_handing_over(true);
        let _ = offer.send((
            task.data_path.offer(),
            task.data_path.xdp_links(),
            task.state.known(),
            task.events.since(0),
        ));
    });
    calls.send(call).await.map_err(|_| ends())?;
    let (sockets, xdp_links, known, events) = offered.await.map_err(|_| ends())?;
    let xdp_links = xdp_links.map_err(|error| format!("cannot hand the flow cache over: {error}"))?;
    let sockets = sockets.await;
    let clock = clock::monotonic_start();
    let offer = Offer { clock, sockets, xdp_links, admin, known, events, announcements };
    let prepared = files::begin_aside(move || {
        let mut successor = Successor::start(&program, ours, theirs, passage)?;
        let taken = successor.prepare(&offer)?;
        Ok::<_, String>((successor, taken))
    });
    let (successor, taken) = prepared.await.map_err(|_| NO_THREAD)??;
    let process = successor.id();
    let (hold, held) = oneshot::channel();
    let call: Call<Paths> = Box::new(move |task| {
        // The receiver is dropped if this process stops.
        if !hold.is_closed() {
            let _ = hold.send(task.data_path.pause(task.snapshot.load_full()));
        }
    });
    calls.send(call).await.map_err(|_| ends())?;
    let (sessions, flows) = held.await.map_err(|_| ends())?;
    let sessions = sessions.await;
    let has_flows = flows.is_some();
    let begun = files::begin_aside(move || {
        let flows = flows.map(HeldFlows::wait).transpose()?;
        successor.begin(&sessions, flows)
    });
    let child = begun.await.map_err(|_| NO_THREAD)??;
    if has_flows {
        tokio::select! {
            () = send_events(calls, channel) => {}
            () = gate.stopping() => {}
        }
    }
    Ok(Successful { process, taken, child: child.map(SuccessorProcess::new) })
}

/// Sends the new process the flow cache events since the handover of the flows. The new process
/// already serves, so a failure here loses no flow.
async fn send_events(calls: &Calls, channel: Arc<Channel>) {
    let (tell, told) = oneshot::channel();
    let call: Call<Paths> = Box::new(move |task| _ = tell.send(task.data_path.cache_events()));
    if calls.send(call).await.is_err() {
        return;
    }
    let Ok(Some(events)) = told.await else { return };
    let sent = files::begin_aside(move || {
        let events: Vec<_> = events.wait().unwrap_or_default().into_iter().flatten().collect();
        let file = flows::write_events(&events)?;
        channel.send(&Message::CacheEvents, &[file.as_fd()])
    });
    if let Ok(Err(error)) = sent.await {
        warn!("cannot send the connections that ended during the upgrade to the new process: {error}");
    }
}

const NO_THREAD: &str = "cannot start a thread to wait for the new process";
