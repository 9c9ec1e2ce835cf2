//! Old process of an upgrade: starts the new process, hands over, and ends or continues. All steps
//! may block, with timeouts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use convey_control::{Known, LoggedEvent};
use convey_dataplane::XdpLinks;
use convey_dataplane::net::lineage;
use convey_model::{Endpoint, ServerKey};
use convey_proxy::{HandedSession, HandedSockets};
use log::warn;

use super::channel::{Channel, MAX_DESCRIPTORS};
use super::flows::{Owners, SentFlows};
use super::gate::Passage;
use super::message::{
    FORMATS, Message, OverlayMessage, SessionMessage, WITH_ANNOUNCEMENTS, WITH_CONTROL, WITH_DISPATCH_SEED,
    WITH_SOURCES, common_format,
};
use super::process_handle::{KILL_TIMEOUT, ProcessHandle};
use super::program::{Program, open_to_all};
use super::{DETACH, ENVIRONMENT, take};
use crate::app::announce::HandedAnnouncement;
use crate::app::dispatch_seed;

/// Timeout for the new process's first message, which it sends immediately.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for each message while the new process reads the configuration, looks up names and binds
/// sockets.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout between the permission to serve and the start of service in the new process. In this
/// interval, no process accepts new UDP sessions.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the new process to exit after it closed the channel.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// State that is handed over.
pub(super) struct Offer {
    pub(super) clock: u64,
    pub(super) sockets: HandedSockets,
    pub(super) xdp_links: XdpLinks,
    pub(super) admin: AdminSockets,
    pub(super) known: Known,
    /// Recent events.
    pub(super) events: Vec<LoggedEvent>,
    pub(super) announcements: BTreeMap<IpAddr, HandedAnnouncement>,
}

/// Sockets for requests of operators.
#[derive(Debug, Default)]
pub(in crate::app) struct AdminSockets {
    pub(in crate::app) statistics: Option<HandedStatistics>,
    pub(in crate::app) control: Option<HandedControl>,
}

/// Duplicate of the statistics socket for another process.
#[derive(Debug)]
pub(in crate::app) struct HandedStatistics {
    pub(in crate::app) listen: SocketAddr,
    pub(in crate::app) socket: OwnedFd,
}

/// Duplicate of the control socket for another process.
#[derive(Debug)]
pub(in crate::app) struct HandedControl {
    pub(in crate::app) path: PathBuf,
    pub(in crate::app) socket: OwnedFd,
}

/// Sockets that the new process has taken over.
#[derive(Debug, Default)]
pub(in crate::app) struct Taken {
    /// Endpoints whose sockets the new process uses.
    pub(in crate::app) places: BTreeSet<Endpoint>,
    /// Whether the new process has taken over the control socket.
    pub(in crate::app) control: bool,
}

/// The new process of an upgrade. Dropping this value before the new process serves kills the
/// process and waits for its end. Until its end, the process may use the sockets that both
/// processes have, and own the names of filters that it attached.
pub(super) struct Successor {
    child: Option<Child>,
    /// Handle of the child, or of the grandchild if the new process is detached.
    process: RefCell<ProcessHandle>,
    /// Whether the new process is a grandchild.
    is_detached: bool,
    channel: Arc<Channel>,
    program: PathBuf,
    /// Message format that the new process chose. 0 before that.
    format: u32,
    passage: Passage,
}

impl Successor {
    /// Starts the program, and passes `theirs`, an end of the channel, to it.
    pub(super) fn start(
        program: &Program,
        ours: Arc<Channel>,
        theirs: Channel,
        passage: Passage,
    ) -> Result<Successor, String> {
        let Program { path, arguments } = program;
        let failed = |error: io::Error| format!("cannot start {}: {error}", path.display());
        if let Some(open) = open_to_all(path) {
            let open = open.display();
            let path = path.display();
            return Err(format!(
                "cannot start {path}: all users can write {open}; `chmod o-w {open}` fixes it"
            ));
        }
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::from(theirs.into_inner()));
        let is_detached = std::env::var_os("NOTIFY_SOCKET").is_some();
        command.env(ENVIRONMENT, if is_detached { DETACH } else { "1" });
        if !is_detached {
            // A terminal then sends signals only to this process, which passes them on.
            command.process_group(0);
        }
        // These variables apply to this process only.
        for name in ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Successor {
            process: ProcessHandle::open(child.id()).into(),
            child: Some(child),
            is_detached,
            channel: ours,
            program: path.clone(),
            format: 0,
            passage,
        })
    }

    /// Id of the new process.
    pub(super) fn id(&self) -> u32 {
        self.process.borrow().id()
    }

    /// Records that the new process has moved to another process id.
    fn follow(&self, process: u32) {
        if process != self.id() {
            self.process.replace(ProcessHandle::open(process));
        }
    }

    /// Hands over the state. Returns the sockets that the new process has taken, once it is ready
    /// to serve.
    pub(super) fn prepare(&mut self, offer: &Offer) -> Result<Taken, String> {
        self.greet().and_then(|()| self.hand_over(offer)).map_err(|failure| self.error_message(failure))
    }

    /// Permits the new process to serve, and to continue these sessions and flows. Returns once it
    /// serves. The result is the child, or `None` if a service manager becomes the parent.
    pub(super) fn begin(
        mut self,
        sessions: &[HandedSession],
        flows: Option<SentFlows>,
    ) -> Result<Option<Child>, String> {
        self.hand_over_flows(sessions, flows).map_err(|failure| self.error_message(failure))?;
        let Some(mut child) = self.child.take() else { return Ok(None) };
        if !self.is_detached {
            return Ok(Some(child));
        }
        // The child has ended or will end soon, and the thread reaps it. Without the thread, the
        // child stays a zombie until this process ends.
        let _ = thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait());
        Ok(None)
    }

    fn greet(&mut self) -> Result<(), HandoverFailure> {
        self.patience(HELLO_TIMEOUT)?;
        self.send(&Message::hello(FORMATS), &[])?;
        match self.receive()? {
            Message::Hello { formats, program, process } => {
                if process > 0 {
                    self.follow(process);
                }
                self.format = common_format(&formats, &program).map_err(HandoverFailure::Refused)?;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn hand_over(&self, offer: &Offer) -> Result<Taken, HandoverFailure> {
        self.patience(START_TIMEOUT)?;
        let (dispatch_seed, lineage) = (dispatch_seed::get(false), lineage());
        self.send(&Message::Clock { start: offer.clock, dispatch_seed, lineage }, &[])?;
        for (at, sockets) in &offer.sockets {
            for some in sockets.chunks(MAX_DESCRIPTORS) {
                let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
                self.send(&Message::Listening { place: (*at).into() }, &some)?;
            }
        }
        for (&interface, link) in &offer.xdp_links {
            self.send(&Message::XdpLink { interface }, &[link.as_fd()])?;
        }
        if let Some(HandedStatistics { listen, socket }) = &offer.admin.statistics {
            self.send(&Message::Statistics { listen: *listen }, &[socket.as_fd()])?;
        }
        for server in &offer.known.servers {
            self.send(&Message::Server(server.clone().into()), &[])?;
        }
        for (backend, turn) in &offer.known.turns {
            self.send(&Message::Turn { backend: backend.clone(), turn: *turn }, &[])?;
        }
        if self.format >= WITH_CONTROL {
            if let Some(HandedControl { path, socket }) = &offer.admin.control {
                self.send(&Message::Control { path: path.clone() }, &[socket.as_fd()])?;
            }
            for overlay in &offer.known.overlays {
                self.send(&Message::Overlay(overlay.into()), &[])?;
            }
            for message in offer.known.http_overlays.iter().flat_map(OverlayMessage::of_http) {
                self.send(&Message::Overlay(message), &[])?;
            }
            if let Some(said) = &offer.known.log_level {
                self.send(&Message::Overlay(said.into()), &[])?;
            }
            for event in &offer.events {
                self.send(&Message::Event(event.into()), &[])?;
            }
        } else if !offer.known.overlays.is_empty() || !offer.known.http_overlays.is_empty() {
            warn!(
                "upgrade: the new version does not support runtime overrides; they are lost, and the values of the configuration file apply"
            );
        }
        if self.format >= WITH_SOURCES {
            self.hand_sources_over(&offer.known)?;
        }
        if self.format >= WITH_ANNOUNCEMENTS {
            for announcement in &offer.announcements {
                self.send(&Message::Announcement(announcement.into()), &[])?;
            }
        }
        self.send(&Message::Offered, &[])?;
        let mut places = BTreeSet::new();
        loop {
            match self.receive()? {
                Message::Taken { place } => _ = places.insert(place.into()),
                Message::Prepared { control, .. } => return Ok(Taken { places, control }),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Hands over the addresses of host names, and the servers of sources.
    fn hand_sources_over(&self, known: &Known) -> Result<(), HandoverFailure> {
        for name in &known.names {
            self.send(&Message::Name(name.into()), &[])?;
        }
        for source in &known.sources {
            self.send(&Message::Source(source.into()), &[])?;
            for server in &source.servers {
                self.send(&Message::SourceServer(server.into()), &[])?;
            }
        }
        Ok(())
    }

    /// Whether the new process assigns clients to the same workers as this process. An older
    /// version ignores `seed`, so its assignment is the same only if the seed is not a secret.
    fn spreads_clients_by(&self, seed: u64) -> bool {
        self.format >= WITH_DISPATCH_SEED || !dispatch_seed::is_secret(seed)
    }

    fn hand_over_flows(
        &self,
        sessions: &[HandedSession],
        flows: Option<SentFlows>,
    ) -> Result<(), HandoverFailure> {
        self.patience(BEGIN_TIMEOUT)?;
        for session in sessions {
            self.send(&Message::Session(SessionMessage::of(session)), &[session.socket.as_fd()])?;
        }
        if let Some(SentFlows { file, since, owners, bound_to_workers }) = flows {
            let Owners { servers, frontends } = owners;
            if bound_to_workers > 0 && !self.spreads_clients_by(dispatch_seed::get(true)) {
                return Err(HandoverFailure::OtherWorkers(bound_to_workers));
            }
            for (id, ServerKey { backend, server: name, addr }) in servers {
                self.send(&Message::FlowServer { id, backend, name, addr }, &[])?;
            }
            for (id, name) in frontends {
                self.send(&Message::FlowFrontend { id, name }, &[])?;
            }
            self.send(&Message::Flows { since: since.0 }, &[file.as_fd()])?;
        }
        if !self.passage.gate.pass() {
            return Err(HandoverFailure::Refused("the process to be upgraded is stopping".to_owned()));
        }
        self.send(&Message::Go, &[])?;
        match self.receive()? {
            Message::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn patience(&self, patience: Duration) -> Result<(), HandoverFailure> {
        Ok(self.channel.set_patience(patience)?)
    }

    fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), HandoverFailure> {
        Ok(self.channel.send(message, descriptors)?)
    }

    fn receive(&self) -> Result<Message, HandoverFailure> {
        loop {
            match self.channel.receive()?.0 {
                Message::Refused { why } => return Err(HandoverFailure::Refused(why)),
                Message::Detached { process } => self.follow(process),
                message => return Ok(message),
            }
        }
    }

    /// Converts a failure into an operator-facing error message.
    fn error_message(&mut self, failure: HandoverFailure) -> String {
        let program = self.program.display();
        let error = match failure {
            HandoverFailure::Refused(why) => return format!("{program} refused the upgrade: {why}"),
            HandoverFailure::Unexpected(what) => {
                return format!("unexpected message from {program}: {what}");
            }
            HandoverFailure::OtherWorkers(flows) => {
                return format!(
                    "{program} is an older version, which assigns clients to workers in another way: {flows} open flows \
                     cannot continue in the new process; upgrade to it once the flows have ended, or restart instead"
                );
            }
            HandoverFailure::Channel(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{program} was not ready in time, and was stopped")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                // The new process may have sent the reason before it ended.
                if let Ok((Message::Refused { why }, _)) = self.channel.receive() {
                    return format!("{program} refused the upgrade: {why}");
                }
                let status = self.child.as_mut().and_then(status);
                let status = match status {
                    // The child has only started the detached process. The exit status of that
                    // process goes to the service manager.
                    Some(status) if self.is_detached && status.success() => "exit status unknown".to_owned(),
                    Some(status) => status.to_string(),
                    None => "exit status unknown".to_owned(),
                };
                format!(
                    "{program} ended before it was ready ({status}); see the log for the reason: this version may not support upgrades"
                )
            }
            _ => format!("{program}: {error}"),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let process = self.process.get_mut();
            if process.id() != child.id() && !process.kill() {
                warn!(
                    "upgrade: process {} was killed and has not ended within {} s: filters that it attached may stay; \
                     run `convey clear` once the process has ended",
                    process.id(),
                    KILL_TIMEOUT.as_secs()
                );
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reason why a handover failed.
enum HandoverFailure {
    Channel(io::Error),
    Refused(String),
    Unexpected(String),
    /// The new process is an older version, which would ignore the seed that this many open flows
    /// need.
    OtherWorkers(usize),
}

impl From<io::Error> for HandoverFailure {
    fn from(error: io::Error) -> HandoverFailure {
        HandoverFailure::Channel(error)
    }
}

fn unexpected(message: &Message) -> HandoverFailure {
    HandoverFailure::Unexpected(take::name_of(message))
}

/// Exit status of a process that has closed the channel. `None` if it does not exit in time.
fn status(child: &mut Child) -> Option<std::process::ExitStatus> {
    let pause = Duration::from_millis(10);
    for _ in 0..END_TIMEOUT.as_millis() / pause.as_millis() {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(pause);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::gate::{Absence, Gate};
    use super::*;
    use convey_model::Timestamp;

    fn successor(channel: Channel) -> Successor {
        let (presence, _absence) = Absence::pair();
        Successor {
            child: None,
            process: ProcessHandle::open(0).into(),
            is_detached: false,
            channel: Arc::new(channel),
            program: "convey".into(),
            format: 0,
            passage: Passage { gate: Arc::new(Gate::default()), presence },
        }
    }

    #[test]
    fn detached_process_has_ended_once_its_successor_is_dropped() {
        for _ in 0..20 {
            let [channel, _theirs] = Channel::pair().unwrap();
            let [child, mut detached] =
                ["0", "100"].map(|seconds| Command::new("sleep").arg(seconds).spawn().unwrap());
            let mut successor = successor(channel);
            successor.child = Some(child);
            successor.follow(detached.id());
            drop(successor);
            assert!(detached.try_wait().unwrap().is_some());
        }
    }

    #[test]
    fn older_version_gets_no_flows_that_have_to_stay_with_their_workers() {
        for (format, bound_to_workers, expected) in [
            (WITH_ANNOUNCEMENTS, 2, Err("2 open flows cannot continue")),
            (WITH_ANNOUNCEMENTS, 0, Ok(())),
            (WITH_DISPATCH_SEED, 2, Ok(())),
        ] {
            let [ours, theirs] = Channel::pair().unwrap();
            theirs.send(&Message::Ready, &[]).unwrap();
            let mut successor = successor(ours);
            successor.format = format;
            let (file, since) = (fs::File::open("/dev/null").unwrap().into(), Timestamp::default());
            let flows = SentFlows { file, since, owners: Owners::default(), bound_to_workers };
            let began = successor.begin(&[], Some(flows)).map(drop);
            match expected {
                Ok(()) => assert_eq!(began, Ok(()), "format {format}"),
                Err(why) => assert!(began.unwrap_err().contains(why), "format {format}"),
            }
        }
    }
}
