//! New process of an upgrade: takes over the old process's state, and reports when it serves.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use convey_control::{Known, LoggedEvent};
use convey_dataplane::XdpLinks;
use convey_dataplane::net::inherit_lineage;
use convey_forward::CacheEvent;
use convey_model::{Endpoint, ServerKey, Timestamp};
use convey_proxy::{HandedSession, HandedSockets};
use log::warn;

use super::channel::Channel;
use super::flows::{HandedFlows, Owners, read_events};
use super::message::{Message, common_format};
use super::{AdminSockets, HandedControl, HandedStatistics};
use super::{DETACH, ENVIRONMENT};
use crate::app::announce::HandedAnnouncement;
use crate::app::{clock, dispatch_seed};

/// Timeout for each message of the old process, which has all of them ready.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for the whole handover of sessions and flows.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// State that the old process has handed over.
pub(in crate::app) struct Handed {
    /// The old process. `None` if the sockets come from a service manager.
    pub(in crate::app) from: Option<Predecessor>,
    /// Listening sockets.
    pub(in crate::app) sockets: HandedSockets,
    /// XDP links of the flow cache.
    pub(in crate::app) xdp_links: XdpLinks,
    /// Sockets for requests of operators.
    pub(in crate::app) admin: AdminSockets,
    /// State of servers.
    pub(in crate::app) known: Known,
    /// Recent events.
    pub(in crate::app) events: Vec<LoggedEvent>,
    /// Addresses that the old process announced, or would have announced once their frontends could
    /// serve.
    pub(in crate::app) announcements: BTreeMap<IpAddr, HandedAnnouncement>,
}

/// Which operator sockets of the old process this process uses.
#[derive(Debug, Clone, Copy)]
pub(in crate::app) struct AdminInUse {
    /// Whether this process uses the statistics socket.
    pub(in crate::app) statistics: bool,
    /// Whether this process uses the control socket.
    pub(in crate::app) control: bool,
}

/// Sessions and flows that the old process has handed over.
pub(in crate::app) struct LetGo {
    /// UDP sessions.
    pub(in crate::app) sessions: Vec<HandedSession>,
    /// Flows of packet modes. `None` without packet modes.
    pub(in crate::app) flows: Option<HandedFlows>,
}

impl Handed {
    /// Whether another process hands over. If not, the sockets were stored by a service manager,
    /// and their process has ended.
    pub(in crate::app) fn is_upgrade(&self) -> bool {
        self.from.is_some()
    }

    /// State after a restart: the sockets that the service manager has stored. `None` if there are
    /// none.
    pub(in crate::app) fn kept(sockets: HandedSockets) -> Option<Handed> {
        let some = !sockets.is_empty();
        some.then(|| Handed {
            from: None,
            sockets,
            xdp_links: XdpLinks::new(),
            admin: AdminSockets::default(),
            known: Known::default(),
            events: Vec::new(),
            announcements: BTreeMap::new(),
        })
    }

    /// Takes the XDP links of the flow cache.
    pub(in crate::app) fn take_xdp_links(&mut self) -> XdpLinks {
        std::mem::take(&mut self.xdp_links)
    }

    /// Takes the announced addresses.
    pub(in crate::app) fn take_announcements(&mut self) -> BTreeMap<IpAddr, HandedAnnouncement> {
        std::mem::take(&mut self.announcements)
    }

    /// Takes the statistics socket. `None` if there is none for this address.
    pub(in crate::app) fn take_statistics(&mut self, listen: SocketAddr) -> Option<OwnedFd> {
        match self.admin.statistics.take() {
            Some(handed) if handed.listen == listen => Some(handed.socket),
            _ => self.sockets.remove(&Endpoint::tcp(listen))?.pop(),
        }
    }
}

/// Channel to the old process.
#[derive(Debug, Clone)]
pub(in crate::app) struct Predecessor(Arc<Channel>);

impl Predecessor {
    /// Reports that this process is ready to serve with the sockets of these endpoints. Waits for
    /// the permission to serve, and returns the sessions and flows to continue.
    pub(in crate::app) fn prepared(
        &self,
        taken: impl IntoIterator<Item = Endpoint>,
        AdminInUse { statistics, control }: AdminInUse,
    ) -> anyhow::Result<LetGo> {
        for at in taken {
            self.0.send(&Message::Taken { place: at.into() }, &[]).context(GONE)?;
        }
        self.0.send(&Message::Prepared { statistics, control }, &[]).context(GONE)?;
        let (mut sessions, mut flows, mut owners) = (Vec::new(), None, Owners::default());
        let since = clock::now();
        loop {
            let (message, descriptors) = next_message(&self.0)?;
            if clock::now().since(since) > HANDOVER_TIMEOUT {
                bail!("{LATE}: no complete state within {} seconds", HANDOVER_TIMEOUT.as_secs());
            }
            match message {
                Message::Session(session) => {
                    sessions.extend(descriptors.into_iter().next().map(|socket| session.with(socket)));
                }
                Message::FlowServer { id, backend, name, addr } => {
                    owners.servers.insert(id, ServerKey { backend, server: name, addr });
                }
                Message::FlowFrontend { id, name } => _ = owners.frontends.insert(id, name),
                Message::Flows { since } => {
                    flows = descriptors.into_iter().next().map(|file| (file, Timestamp(since)));
                }
                Message::Go => {
                    let flows = flows.map(|(file, since)| HandedFlows::read(file, since, owners));
                    return Ok(LetGo { sessions, flows: flows.transpose()? });
                }
                other => {
                    bail!(
                        "unexpected message {} from the old process; expected the message that it has released its sockets",
                        name_of(&other)
                    )
                }
            }
        }
    }

    /// Reports that this process serves. Returns the flow cache events that the old process
    /// collected after the handover. If the old process has failed, logs a warning and returns no
    /// events.
    pub(in crate::app) fn ready(&self) -> Vec<CacheEvent> {
        if let Err(error) = self.0.send(&Message::Ready, &[]) {
            // The old process has already handed everything over.
            warn!("{GONE} ({error}), and its connections with it; this process continues");
            return Vec::new();
        }
        match self.0.receive() {
            Ok((Message::CacheEvents, descriptors)) => {
                let events = descriptors.into_iter().next().map(read_events);
                events.and_then(Result::ok).unwrap_or_default()
            }
            // Without packet modes the old process sends no events and closes the channel.
            _ => Vec::new(),
        }
    }

    /// Waits until the old process closes the channel. Before that, it notifies the service manager
    /// of its successor.
    pub(in crate::app) fn wait_until_closed(&self) {
        let _ = self.0.receive::<Message>();
    }

    /// Reports that this process will not serve.
    pub(in crate::app) fn refuse(&self, why: String) {
        let _ = self.0.send(&Message::Refused { why }, &[]);
    }
}

const GONE: &str = "the old process is gone";
const LATE: &str = "the old process takes too long";

/// Receives the next message of the old process. Fails if none arrives in time.
fn next_message(channel: &Channel) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
    match channel.receive() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            bail!("{LATE}: more than {} seconds for a message", MESSAGE_TIMEOUT.as_secs())
        }
        received => received.context(GONE),
    }
}

/// Answers the process that started this one as its replacement, if there is one. That process
/// waits only a few seconds for the answer, so this function must be called first.
///
/// # Errors
/// The two processes have no common message format.
pub(in crate::app) fn greet() -> anyhow::Result<Option<Predecessor>> {
    let Some(how) = std::env::var_os(ENVIRONMENT) else { return Ok(None) };
    if how == DETACH {
        detach()?;
    }
    let channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?);
    // Neither this process nor the programs that it starts may use the channel as standard input.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let from = Predecessor(Arc::new(channel));
    greet_through(&from.0).inspect_err(|error| from.refuse(format!("{error:#}")))?;
    Ok(Some(from))
}

/// Continues the upgrade in another process and exits, so that the service manager becomes the
/// parent of the other process. At a stop, systemd kills a main process that is not its child,
/// without giving it time to end.
fn detach() -> anyhow::Result<Infallible> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg0(name).args(arguments).env(ENVIRONMENT, "1").spawn();
    let process = child.context("cannot start the detached process")?.id();
    // Sent here, because the started process may hang before it can send the message itself.
    let _ = Channel::new(io::stdin().as_fd().try_clone_to_owned()?).send(&Message::Detached { process }, &[]);
    std::process::exit(0)
}

fn greet_through(channel: &Channel) -> anyhow::Result<()> {
    channel.set_patience(MESSAGE_TIMEOUT)?;
    let (hello, _) = channel.receive().context("cannot read the first message of the old process")?;
    let (formats, program) = match hello {
        Message::Hello { formats, program, .. } => (formats, program),
        other => bail!("unexpected first message {} from the old process", name_of(&other)),
    };
    let format = common_format(&formats, &program).map_err(anyhow::Error::msg)?;
    channel.send(&Message::hello(&[format]), &[])?;
    Ok(())
}

/// Receives the state that the old process hands over.
///
/// # Errors
/// A message is missing or invalid.
pub(in crate::app) fn receive(from: &Predecessor) -> anyhow::Result<Handed> {
    receive_through(from).inspect_err(|error| from.refuse(format!("{error:#}")))
}

fn receive_through(from: &Predecessor) -> anyhow::Result<Handed> {
    let channel = &from.0;
    let (mut sockets, mut admin, mut known) =
        (HandedSockets::new(), AdminSockets::default(), Known::default());
    let (mut xdp_links, mut events, mut announcements) = (XdpLinks::new(), Vec::new(), BTreeMap::new());
    loop {
        let (message, descriptors) = channel.receive().context("cannot read the handed-over state")?;
        match message {
            Message::Clock { start, dispatch_seed, lineage } => {
                clock::begin_at(start);
                dispatch_seed::take_over(dispatch_seed);
                inherit_lineage(lineage);
            }
            Message::Listening { place } => sockets.entry(place.into()).or_default().extend(descriptors),
            Message::XdpLink { interface } => {
                xdp_links.extend(descriptors.into_iter().map(|link| (interface, link.into())));
            }
            Message::Statistics { listen } => {
                let socket = descriptors.into_iter().next();
                admin.statistics = socket.map(|socket| HandedStatistics { listen, socket });
            }
            Message::Control { path } => {
                let socket = descriptors.into_iter().next();
                admin.control = socket.map(|socket| HandedControl { path, socket });
            }
            Message::Server(server) => known.servers.push(server.into()),
            Message::Turn { backend, turn } => known.turns.push((backend, turn)),
            Message::Overlay(overlay) => match overlay.log_level() {
                Some(said) => known.log_level = Some(said),
                None if overlay.add_to(&mut known.http_overlays) => {}
                None => known.overlays.extend(overlay.into_overlay()),
            },
            Message::Name(name) => known.names.push(name.into()),
            Message::Source(source) => known.sources.push(source.into()),
            Message::SourceServer(server) => {
                known
                    .sources
                    .last_mut()
                    .into_iter()
                    .for_each(|source| source.servers.push(server.clone().into()));
            }
            Message::Announcement(announcement) => announcements.extend([announcement.into()]),
            Message::Event(event) => events.extend(event.into_event()),
            Message::Offered => {
                let from = Some(from.clone());
                return Ok(Handed { from, sockets, xdp_links, admin, known, events, announcements });
            }
            other => bail!("unexpected message {} from the old process; expected its state", name_of(&other)),
        }
    }
}

/// Name of a message's kind, for error messages.
pub(super) fn name_of(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
