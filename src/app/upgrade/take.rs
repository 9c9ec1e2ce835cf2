//! The new process: it takes what the old one hands over, and says when it serves.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::channel::Channel;
use super::message::{Message, common_format};
use super::{DETACH, ENVIRONMENT};
use crate::app::clock;
use crate::control::Known;
use crate::model::Endpoint;
use crate::proxy::{HandedSession, HandedSockets};

/// How long the old process may take for a message: it has them all at hand.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the old process has handed over.
pub(in crate::app) struct Handed {
    /// Whom to tell.
    pub(in crate::app) from: Predecessor,
    /// Listening sockets.
    pub(in crate::app) sockets: HandedSockets,
    /// The socket for statistics, and its address.
    pub(in crate::app) statistics: Option<(SocketAddr, OwnedFd)>,
    /// What is known of servers.
    pub(in crate::app) known: Known,
}

/// The old process.
#[derive(Debug, Clone)]
pub(in crate::app) struct Predecessor(Arc<Channel>);

impl Predecessor {
    /// This process could serve, by the sockets of these places. Waits until it may, and returns the sessions that it goes on with.
    pub(in crate::app) fn prepared(
        &self,
        taken: impl IntoIterator<Item = Endpoint>,
        statistics: bool,
    ) -> anyhow::Result<Vec<HandedSession>> {
        for at in taken {
            self.0.send(&Message::Taken { place: at.into() }, &[]).context(GONE)?;
        }
        self.0.send(&Message::Prepared { statistics }, &[]).context(GONE)?;
        let mut sessions = Vec::new();
        loop {
            let (message, descriptors) = self.0.receive().context(GONE)?;
            match message {
                Message::Session(session) => {
                    sessions.extend(descriptors.into_iter().next().map(|socket| session.with(socket)));
                }
                Message::Go => return Ok(sessions),
                other => bail!("the process to be upgraded says {} where it should let go", name_of(&other)),
            }
        }
    }

    /// This process serves. Returns once the old one knows that.
    pub(in crate::app) fn ready(&self) -> anyhow::Result<()> {
        self.0.send(&Message::Ready, &[]).context(GONE)?;
        // It closes the channel; whatever else happens to it is none of our business any more.
        let _ = self.0.receive::<Message>();
        Ok(())
    }

    /// This process will not serve.
    pub(in crate::app) fn refuse(&self, why: String) {
        let _ = self.0.send(&Message::Refused { why }, &[]);
    }
}

const GONE: &str = "the process to be upgraded is gone";

/// What was handed over, if this process was started by another one to take its place.
///
/// # Errors
/// If the two do not understand each other.
pub(in crate::app) fn receive() -> anyhow::Result<Option<Handed>> {
    let Some(how) = std::env::var_os(ENVIRONMENT) else { return Ok(None) };
    if how == DETACH {
        detach()?;
    }
    let channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?);
    // Whatever is started from here has another standard input, and so do we.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let from = Predecessor(Arc::new(channel));
    receive_from(&from).inspect_err(|error| from.refuse(format!("{error:#}"))).map(Some)
}

/// Goes on in another process, whose parent is the service manager once this one has ended. A main process that is no child of
/// systemd's is killed at a stop without time to end.
fn detach() -> anyhow::Result<Infallible> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).env(ENVIRONMENT, "1").spawn().context("cannot start it detached")?;
    std::process::exit(0)
}

fn receive_from(from: &Predecessor) -> anyhow::Result<Handed> {
    let channel = &from.0;
    channel.set_patience(PATIENCE)?;
    let (hello, _) = channel.receive().context("cannot read what the process to be upgraded says")?;
    let (formats, program) = match hello {
        Message::Hello { formats, program, .. } => (formats, program),
        other => bail!("the process to be upgraded begins with {}", name_of(&other)),
    };
    let format = common_format(&formats, &program).map_err(anyhow::Error::msg)?;
    channel.send(&Message::hello(&[format]), &[])?;
    let (mut sockets, mut statistics, mut known) = (HandedSockets::new(), None, Known::default());
    loop {
        let (message, descriptors) = channel.receive().context("cannot read what is handed over")?;
        match message {
            Message::Clock { start } => clock::begin_at(start),
            Message::Listening { place } => sockets.entry(place.into()).or_default().extend(descriptors),
            Message::Statistics { listen } => {
                statistics = descriptors.into_iter().next().map(|socket| (listen, socket))
            }
            Message::Server(server) => known.servers.push(server.into()),
            Message::Turn { backend, turn } => known.turns.push((backend, turn)),
            Message::Offered => return Ok(Handed { from: from.clone(), sockets, statistics, known }),
            other => bail!("the process to be upgraded says {} where it should hand over", name_of(&other)),
        }
    }
}

/// The name of a message's kind.
pub(super) fn name_of(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
