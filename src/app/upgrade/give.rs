//! The old process: it starts the new one, hands over, and leaves or goes on. Everything here may wait, within limits.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::channel::{Channel, MAX_DESCRIPTORS};
use super::message::{FORMATS, Message, Session, common_format};
use super::{DETACH, ENVIRONMENT, take};
use crate::control::Known;
use crate::model::Endpoint;
use crate::proxy::{HandedSession, HandedSockets};

/// How long the new process may take to say anything: it is the first thing it does.
const HELLO: Duration = Duration::from_secs(5);

/// How long it may take to read the configuration, look names up and bind. Each of its messages has this long.
const START: Duration = Duration::from_secs(60);

/// How long it may take to serve once it may. Meanwhile nobody begins a session of UDP.
const BEGIN: Duration = Duration::from_secs(10);

/// How long it has to end by itself once it has hung up.
const END: Duration = Duration::from_secs(1);

/// How this process was started. A file that has replaced the program's since is the new version.
#[derive(Debug, Clone)]
pub(in crate::app) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// To be called at the start: later the name of the running file may be lost.
    pub(in crate::app) fn of_this_process() -> io::Result<Program> {
        if std::process::id() == 1 {
            return Err(io::Error::other(
                "the end of the first process is that of its container; start another container",
            ));
        }
        let mut arguments = std::env::args_os();
        let name = arguments.next().map(PathBuf::from);
        // A link that was named, and is changed later, leads to the new version.
        let path = match name.filter(|name| name.components().count() > 1) {
            Some(name) => std::path::absolute(name)?,
            None => std::env::current_exe()?,
        };
        Ok(Program { path, arguments: arguments.collect() })
    }
}

/// What is handed over.
pub(super) struct Offer {
    pub(super) clock: u64,
    pub(super) sockets: HandedSockets,
    pub(super) statistics: Option<(SocketAddr, OwnedFd)>,
    pub(super) known: Known,
}

/// What the new process has taken of it.
#[derive(Debug, Default)]
pub(in crate::app) struct Taken {
    /// Places whose sockets it has.
    pub(in crate::app) places: BTreeSet<Endpoint>,
    /// Whether it has the socket for statistics.
    pub(in crate::app) statistics: bool,
}

/// The new process. It is killed if this is dropped before it serves.
pub(super) struct Successor {
    child: Option<Child>,
    /// The child, or its child.
    process: u32,
    channel: Arc<Channel>,
    program: PathBuf,
}

impl Successor {
    /// Starts it with the end of a channel that is `theirs`.
    pub(super) fn start(program: &Program, ours: Arc<Channel>, theirs: Channel) -> Result<Successor, String> {
        let Program { path, arguments } = program;
        let failed = |error: io::Error| format!("cannot start {}: {error}", path.display());
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::from(theirs.into_inner()));
        let is_service = std::env::var_os("NOTIFY_SOCKET").is_some();
        command.env(ENVIRONMENT, if is_service { DETACH } else { "1" });
        // They were meant for this process alone.
        for name in ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Successor { process: child.id(), child: Some(child), channel: ours, program: path.clone() })
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.process
    }

    /// Hands over. Returns once the new process could serve.
    pub(super) fn prepare(&mut self, offer: &Offer) -> Result<Taken, String> {
        self.greet().and_then(|()| self.hand_over(offer)).map_err(|failure| self.why(failure))
    }

    /// Has it serve, and go on with these sessions. Returns once it does.
    pub(super) fn begin(mut self, sessions: &[HandedSession]) -> Result<(), String> {
        self.let_go(sessions).map_err(|failure| self.why(failure))?;
        if let Some(mut child) = self.child.take() {
            // It may end before this process does, and is to be no zombie then.
            thread::spawn(move || child.wait());
        }
        Ok(())
    }

    fn greet(&mut self) -> Result<(), Failure> {
        self.patience(HELLO)?;
        self.send(&Message::hello(FORMATS), &[])?;
        match self.receive()? {
            Message::Hello { formats, program, process } => {
                if process > 0 {
                    self.process = process;
                }
                common_format(&formats, &program).map(drop).map_err(Failure::Refused)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn hand_over(&self, offer: &Offer) -> Result<Taken, Failure> {
        self.patience(START)?;
        self.send(&Message::Clock { start: offer.clock }, &[])?;
        for (at, sockets) in &offer.sockets {
            for some in sockets.chunks(MAX_DESCRIPTORS) {
                let some: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
                self.send(&Message::Listening { place: (*at).into() }, &some)?;
            }
        }
        if let Some((listen, socket)) = &offer.statistics {
            self.send(&Message::Statistics { listen: *listen }, &[socket.as_fd()])?;
        }
        for server in &offer.known.servers {
            self.send(&Message::Server(server.clone().into()), &[])?;
        }
        for (backend, turn) in &offer.known.turns {
            self.send(&Message::Turn { backend: backend.clone(), turn: *turn }, &[])?;
        }
        self.send(&Message::Offered, &[])?;
        let mut places = BTreeSet::new();
        loop {
            match self.receive()? {
                Message::Taken { place } => _ = places.insert(place.into()),
                Message::Prepared { statistics } => return Ok(Taken { places, statistics }),
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn let_go(&self, sessions: &[HandedSession]) -> Result<(), Failure> {
        self.patience(BEGIN)?;
        for session in sessions {
            self.send(&Message::Session(Session::of(session)), &[session.socket.as_fd()])?;
        }
        self.send(&Message::Go, &[])?;
        match self.receive()? {
            Message::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn patience(&self, patience: Duration) -> Result<(), Failure> {
        Ok(self.channel.set_patience(patience)?)
    }

    fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        Ok(self.channel.send(message, descriptors)?)
    }

    fn receive(&self) -> Result<Message, Failure> {
        match self.channel.receive()?.0 {
            Message::Refused { why } => Err(Failure::Refused(why)),
            message => Ok(message),
        }
    }

    /// Words for an operator.
    fn why(&mut self, failure: Failure) -> String {
        let program = self.program.display();
        let error = match failure {
            Failure::Refused(why) => return format!("{program} refuses: {why}"),
            Failure::Unexpected(what) => {
                return format!("{program} says what this version does not understand: {what}");
            }
            Failure::Channel(error) => error,
        };
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{program} was not ready in time, and was stopped")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                // It may have said why before it went.
                if let Ok((Message::Refused { why }, _)) = self.channel.receive() {
                    return format!("{program} refuses: {why}");
                }
                let status = self.child.as_mut().and_then(status);
                let status = status.map_or_else(|| "without an exit".to_owned(), |status| status.to_string());
                format!(
                    "{program} ended before it was ready ({status}); it cannot be upgraded to, or the log says why"
                )
            }
            _ => format!("{program}: {error}"),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let other = self.process.try_into().ok().and_then(Pid::from_raw);
            if let Some(other) = other.filter(|_| self.process != child.id()) {
                let _ = kill_process(other, Signal::KILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why it does not work.
enum Failure {
    Channel(io::Error),
    Refused(String),
    Unexpected(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Channel(error)
    }
}

fn unexpected(message: &Message) -> Failure {
    Failure::Unexpected(take::name_of(message))
}

/// How a process ended that has hung up.
fn status(child: &mut Child) -> Option<std::process::ExitStatus> {
    let pause = Duration::from_millis(10);
    for _ in 0..END.as_millis() / pause.as_millis() {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(pause);
    }
    None
}
