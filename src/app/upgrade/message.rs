//! Messages between the two processes of an upgrade, and the descriptors that are sent with them.
//!
//! A version of convey may add message kinds, and fields with defaults. If an older version must
//! not ignore a change, the change needs a new number in [`FORMATS`]. Two versions without a common
//! number refuse each other.

mod announced;
mod overlay;
mod sources;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(super) use self::announced::AnnouncementMessage;
pub(super) use self::overlay::OverlayMessage;
pub(super) use self::sources::{NameMessage, SourceMessage, SourceServerMessage};

use convey_control::{EventKind, EventLevel, KnownServer, LoggedEvent};
use convey_model::{Endpoint, Protocol, ServerKey, Timestamp};
use convey_proxy::HandedSession;

/// Message formats that this version reads and writes, the best one last.
pub(super) const FORMATS: &[u32] = &[1, WITH_CONTROL, WITH_SOURCES, WITH_ANNOUNCEMENTS, WITH_DISPATCH_SEED];

/// First format that hands over the control socket and runtime overrides.
pub(super) const WITH_CONTROL: u32 = 2;

/// First format that hands over the addresses of names and the servers of sources.
pub(super) const WITH_SOURCES: u32 = 3;

/// First format that hands over the damping of announced addresses.
pub(super) const WITH_ANNOUNCEMENTS: u32 = 4;

/// First format whose new process assigns clients to workers by the seed that is handed over.
pub(super) const WITH_DISPATCH_SEED: u32 = 5;

/// Message of an upgrade. The old process begins with [`Message::Hello`], and the new one answers
/// with the chosen format.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Supported formats, and the program's version for the log. `process` is the sender's id, or 0
    /// if the sender's version does not send it.
    Hello {
        formats: Vec<u32>,
        program: String,
        #[serde(default)]
        process: u32,
    },
    /// The sender has started another process (`process`), which will send `Hello` and continue the
    /// upgrade in place of the sender. May arrive at any time before the end.
    Detached { process: u32 },
    /// Start of the old process's clock, in nanoseconds of `CLOCK_MONOTONIC`, and the seed that
    /// assigns clients to workers. The seed is 0 for a version without a seed, and for a process
    /// that took over flows from such a version.
    Clock {
        start: u64,
        #[serde(default)]
        dispatch_seed: u64,
        /// [`convey_dataplane::net::lineage`] of the old process. 0 if its version does not send
        /// it.
        #[serde(default)]
        lineage: u64,
    },
    /// Listening sockets of an endpoint. Their descriptors come with the message. Several messages
    /// may belong to one endpoint.
    Listening { place: PlaceMessage },
    /// XDP link that attaches the flow cache to the interface with this index. Its descriptor comes
    /// with the message.
    XdpLink { interface: u32 },
    /// Statistics socket. Its descriptor comes with the message.
    Statistics { listen: SocketAddr },
    /// Control socket. Its descriptor comes with the message.
    Control { path: PathBuf },
    /// State of a server.
    Server(ServerMessage),
    /// Round-robin position of a backend.
    Turn { backend: String, turn: usize },
    /// Runtime override by an operator.
    Overlay(OverlayMessage),
    /// Addresses of a host name.
    Name(NameMessage),
    /// Source of servers. Messages with its servers follow.
    Source(SourceMessage),
    /// Server of the source that was sent last.
    SourceServer(SourceServerMessage),
    /// Announced address.
    Announcement(AnnouncementMessage),
    /// Recent event.
    Event(EventMessage),
    /// End of the offered state.
    Offered,
    /// The new process has taken the sockets of this endpoint.
    Taken { place: PlaceMessage },
    /// The new process is ready to serve.
    Prepared {
        /// Whether the new process uses the statistics socket. Only older versions read this field.
        statistics: bool,
        #[serde(default)]
        control: bool,
    },
    /// UDP session. Its socket's descriptor comes with the message.
    Session(SessionMessage),
    /// Server to which flows refer, by its number in the old process.
    FlowServer { id: u32, backend: String, name: String, addr: SocketAddr },
    /// Frontend to which flows refer, by its number in the old process.
    FlowFrontend { id: u32, name: String },
    /// Flows of packet modes, in a file whose descriptor comes with the message. Since the time
    /// `since`, in nanoseconds of the clock, no process has handled frames.
    Flows { since: u64 },
    /// The new process may serve.
    Go,
    /// The new process serves. The old process may end.
    Ready,
    /// Events that the old process's flow cache reported after `Flows`, in a file whose descriptor
    /// comes with the message.
    CacheEvents,
    /// The upgrade fails for this reason.
    Refused { why: String },
}

/// Endpoint that clients connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlaceMessage {
    protocol: Transport,
    addr: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Tcp,
    Udp,
}

/// Message form of a [`HandedSession`]. The socket is sent as a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionMessage {
    vip: SocketAddr,
    worker: usize,
    client: SocketAddr,
    #[serde(default)]
    via: Option<SocketAddr>,
    asked: Option<IpAddr>,
    server: SocketAddr,
    #[serde(default)]
    answered: bool,
    #[serde(default)]
    is_stream: bool,
}

/// Message form of a [`KnownServer`]. Times are in nanoseconds of the clock that both processes
/// share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerMessage {
    backend: String,
    name: String,
    addr: SocketAddr,
    up: bool,
    #[serde(default)]
    proven: bool,
    #[serde(default)]
    against: u32,
    #[serde(default)]
    check: Option<u64>,
    #[serde(default)]
    has_answered: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    since: u64,
    #[serde(default)]
    ejected_until: Option<u64>,
    #[serde(default)]
    ejections: u32,
    #[serde(default)]
    returned: u64,
    #[serde(default)]
    ejected_for: String,
    #[serde(default)]
    warmup_since: Option<u64>,
}

/// Best format that both processes support.
///
/// # Errors
/// There is no common format: operator-facing reason.
pub(super) fn common_format(theirs: &[u32], program: &str) -> Result<u32, String> {
    let ours: BTreeSet<u32> = FORMATS.iter().copied().collect();
    theirs.iter().copied().filter(|format| ours.contains(format)).max().ok_or_else(|| {
        format!(
            "convey {} supports the upgrade formats {}, and convey {program} supports {}: they have none in common; restart convey instead",
            env!("CARGO_PKG_VERSION"),
            list(FORMATS),
            list(theirs),
        )
    })
}

fn list(formats: &[u32]) -> String {
    let formats: Vec<String> = formats.iter().map(u32::to_string).collect();
    if formats.is_empty() { "none".to_owned() } else { formats.join(", ") }
}

impl Message {
    /// First message that each process sends.
    pub(super) fn hello(formats: &[u32]) -> Message {
        let program = env!("CARGO_PKG_VERSION").to_owned();
        Message::Hello { formats: formats.to_vec(), program, process: std::process::id() }
    }
}

impl From<Endpoint> for PlaceMessage {
    fn from(Endpoint { protocol, addr }: Endpoint) -> PlaceMessage {
        let protocol = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
        };
        PlaceMessage { protocol, addr }
    }
}

impl From<PlaceMessage> for Endpoint {
    fn from(PlaceMessage { protocol, addr }: PlaceMessage) -> Endpoint {
        match protocol {
            Transport::Tcp => Endpoint::tcp(addr),
            Transport::Udp => Endpoint::udp(addr),
        }
    }
}

impl SessionMessage {
    /// Converts a session to a message, without its socket.
    pub(super) fn of(session: &HandedSession) -> SessionMessage {
        let &HandedSession { vip, worker, client, via, asked, server, answered, is_stream, .. } = session;
        SessionMessage { vip, worker, client, via, asked, server, answered, is_stream }
    }

    /// Converts the message to a session with this socket.
    pub(super) fn with(self, socket: OwnedFd) -> HandedSession {
        let SessionMessage { vip, worker, client, via, asked, server, answered, is_stream } = self;
        HandedSession { vip, worker, client, via, asked, server, answered, is_stream, socket }
    }
}

impl From<KnownServer> for ServerMessage {
    fn from(known: KnownServer) -> ServerMessage {
        let ServerKey { backend, server: name, addr } = known.server;
        ServerMessage {
            backend,
            name,
            addr,
            up: known.up,
            proven: known.proven,
            against: known.against,
            check: known.check,
            has_answered: known.has_answered,
            reason: known.reason,
            since: known.since.0,
            ejected_until: known.ejected_until.map(|at| at.0),
            ejections: known.ejections,
            returned: known.returned.0,
            ejected_for: known.ejected_for,
            warmup_since: known.warmup_since.map(|at| at.0),
        }
    }
}

impl From<ServerMessage> for KnownServer {
    fn from(server: ServerMessage) -> KnownServer {
        KnownServer {
            server: ServerKey { backend: server.backend, server: server.name, addr: server.addr },
            up: server.up,
            proven: server.proven,
            against: server.against,
            check: server.check,
            has_answered: server.has_answered,
            reason: server.reason,
            since: Timestamp(server.since),
            ejected_until: server.ejected_until.map(Timestamp),
            ejections: server.ejections,
            returned: Timestamp(server.returned),
            ejected_for: server.ejected_for,
            warmup_since: server.warmup_since.map(Timestamp),
        }
    }
}

/// Message form of a [`LoggedEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventMessage {
    number: u64,
    at: u64,
    kind: String,
    level: String,
    text: String,
}

impl From<&LoggedEvent> for EventMessage {
    fn from(event: &LoggedEvent) -> EventMessage {
        let LoggedEvent { number, at, kind, level, text } = event;
        let (kind, level) = (kind.name().to_owned(), level.name().to_owned());
        EventMessage { number: *number, at: at.0, kind, level, text: text.clone() }
    }
}

impl EventMessage {
    /// Converts the message to an event. `None` if this version does not know the kind or the
    /// level.
    pub(super) fn into_event(self) -> Option<LoggedEvent> {
        let EventMessage { number, at, kind, level, text } = self;
        let kind = EventKind::ALL.into_iter().find(|known| known.name() == kind)?;
        let level = EventLevel::ALL.into_iter().find(|known| known.name() == level)?;
        Some(LoggedEvent { number, at: Timestamp(at), kind, level, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_message_round_trips_without_unknown_kinds() {
        let text = "server web/a is down".to_owned();
        let event = LoggedEvent {
            number: 4,
            at: Timestamp(9),
            kind: EventKind::Health,
            level: EventLevel::Warn,
            text,
        };
        let text = serde_json::to_string(&Message::Event((&event).into())).unwrap();
        let Ok(Message::Event(message)) = serde_json::from_str(&text) else { panic!("{text}") };
        let other = EventMessage { kind: "weather".into(), ..message.clone() };
        assert_eq!((message.into_event(), other.into_event()), (Some(event), None));
    }

    #[test]
    fn known_server_message_round_trips() {
        let known = KnownServer {
            server: ServerKey {
                backend: "pool".into(),
                server: "a".into(),
                addr: "[2001:db8::1]:80".parse().unwrap(),
            },
            up: false,
            proven: true,
            against: 2,
            check: Some(u64::MAX),
            has_answered: true,
            reason: "refused".into(),
            since: Timestamp(5),
            ejected_until: Some(Timestamp(u64::MAX)),
            ejections: 3,
            returned: Timestamp(4),
            ejected_for: "5 failed".into(),
            warmup_since: Some(Timestamp(7)),
        };
        let text = serde_json::to_string(&Message::Server(known.clone().into())).unwrap();
        let Ok(Message::Server(server)) = serde_json::from_str(&text) else { panic!("{text}") };
        assert_eq!(KnownServer::from(server), known);
    }

    #[test]
    fn fields_that_another_version_lacks_or_adds_do_not_matter() {
        let text = r#"{"Server":{"backend":"pool","name":"a","addr":"10.0.0.1:80","up":true,"mood":"good"}}"#;
        let Ok(Message::Server(server)) = serde_json::from_str(text) else { panic!("{text}") };
        assert!(server.up && !server.proven && server.ejected_until.is_none());
    }

    #[test]
    fn handover_format_is_the_newest_common_one() {
        assert_eq!(common_format(&[1, 7], "9.0.0"), Ok(1));
        assert_eq!(common_format(&[1, 2, 7], "9.0.0"), Ok(2));
        let why = common_format(&[8, 9], "9.0.0").unwrap_err();
        assert!(
            why.contains("formats 1, 2, 3, 4, 5, and convey 9.0.0 supports 8, 9: they have none in common"),
            "{why}"
        );
        assert!(common_format(&[], "0").unwrap_err().contains("and convey 0 supports none"));
    }
}
