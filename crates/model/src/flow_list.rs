//! A list of flows as an operator asks for it: what a flow is in it, which are wanted, how they are counted, grouped and
//! sorted. Pure. All modes go by this one.
//!
//! Whoever has flows offers them one by one to a [`FlowListing`], in as many slices as it likes. Several listings of one
//! query become one by [`FlowListing::merge`].

mod filter;
mod id;
mod listing;

pub use filter::{ClientFilter, FlowFilter};
pub use id::{FlowKind, ListedFlowId};
pub use listing::{FlowAnswer, FlowGroup, FlowListing};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Mode, Protocol};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowQuery {
    /// The flows that are wanted.
    pub filter: FlowFilter,
    /// Which of them come first.
    pub sort: FlowSort,
    /// The most flows, and groups, that are told one by one; see [`FlowQuery::MAX_LIMIT`].
    pub limit: usize,
    /// What they are counted by, if they are.
    pub count_by: Option<FlowGrouping>,
}

impl FlowQuery {
    /// The most flows in an answer, unless it says otherwise.
    pub const DEFAULT_LIMIT: usize = 100;

    /// The most flows in an answer.
    pub const MAX_LIMIT: usize = 10_000;
}

/// Which flows come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSort {
    /// The oldest.
    #[default]
    Age,
    /// Those with the most bytes in both directions.
    Bytes,
    /// Those that have been silent for longest.
    Idle,
}

impl FlowSort {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [FlowSort; 3] = [FlowSort::Age, FlowSort::Bytes, FlowSort::Idle];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            FlowSort::Age => "age",
            FlowSort::Bytes => "bytes",
            FlowSort::Idle => "idle",
        }
    }

    /// The larger, the earlier it comes. What is not known comes last.
    fn key(self, activity: &FlowActivity) -> u64 {
        let nanos = |time: Option<Duration>| time.map_or(0, |time| time.as_nanos() as u64);
        match self {
            FlowSort::Age => nanos(activity.age),
            FlowSort::Bytes => activity.bytes(),
            FlowSort::Idle => nanos(activity.idle),
        }
    }
}

/// What flows are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowGrouping {
    /// The address of the client.
    Client,
    /// Backend and server.
    Server,
    /// The frontend.
    Frontend,
    /// How far they are.
    State,
    /// How they are forwarded.
    Mode,
}

impl FlowGrouping {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [FlowGrouping; 5] = [
        FlowGrouping::Client,
        FlowGrouping::Server,
        FlowGrouping::Frontend,
        FlowGrouping::State,
        FlowGrouping::Mode,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            FlowGrouping::Client => "client",
            FlowGrouping::Server => "server",
            FlowGrouping::Frontend => "frontend",
            FlowGrouping::State => "state",
            FlowGrouping::Mode => "mode",
        }
    }
}

/// A flow where it is, with borrowed names.
#[derive(Debug, Clone, Copy)]
pub struct FlowFacts<'a> {
    /// Its name in the list.
    pub id: ListedFlowId,
    /// How it is forwarded.
    pub mode: Mode,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number of its frontend, and its name.
    pub frontend: (u32, &'a Arc<str>),
    /// Its server; `None` while it has none.
    pub server: Option<FlowServer<'a>>,
    /// Where its client is.
    pub client: SocketAddr,
    /// Where that has connected to.
    pub listen: SocketAddr,
    /// Whom the server sees instead of the client.
    pub snat: Option<SocketAddr>,
    /// How far it is.
    pub state: &'static str,
    /// Whether it is over, and only remembered.
    pub is_over: bool,
    /// Whether the kernel forwards its packets.
    pub is_offloaded: bool,
}

/// The server of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowServer<'a> {
    /// Its number.
    pub id: u32,
    /// Its backend.
    pub backend: &'a Arc<str>,
    /// Its name there.
    pub name: &'a Arc<str>,
    /// Where it is.
    pub addr: SocketAddr,
}

/// How much has passed of a flow, and when. `None`: it is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowActivity {
    /// The time since its first packet.
    pub age: Option<Duration>,
    /// The time since its last one.
    pub idle: Option<Duration>,
    /// Bytes from the client.
    pub bytes_rx: Option<u64>,
    /// Bytes to the client.
    pub bytes_tx: Option<u64>,
}

impl FlowActivity {
    /// In both directions, as far as they are known.
    pub fn bytes(&self) -> u64 {
        self.bytes_rx.unwrap_or_default().saturating_add(self.bytes_tx.unwrap_or_default())
    }
}

/// A flow in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFlow {
    /// Its name in the list.
    pub id: ListedFlowId,
    /// How it is forwarded.
    pub mode: Mode,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its frontend.
    pub frontend: Arc<str>,
    /// Backend, server and where that is; `None` while it has none.
    pub server: Option<(Arc<str>, Arc<str>, SocketAddr)>,
    /// Where its client is.
    pub client: SocketAddr,
    /// Where that has connected to.
    pub listen: SocketAddr,
    /// Whom the server sees instead of the client.
    pub snat: Option<SocketAddr>,
    /// How far it is.
    pub state: &'static str,
    /// Whether the kernel forwards its packets.
    pub is_offloaded: bool,
    /// How much has passed, and when.
    pub activity: FlowActivity,
}

impl ListedFlow {
    /// With names of its own.
    pub fn new(facts: &FlowFacts<'_>, activity: FlowActivity) -> ListedFlow {
        let server = facts.server.map(|server| (server.backend.clone(), server.name.clone(), server.addr));
        ListedFlow {
            id: facts.id,
            mode: facts.mode,
            protocol: facts.protocol,
            frontend: facts.frontend.1.clone(),
            server,
            client: facts.client,
            listen: facts.listen,
            snat: facts.snat,
            state: facts.state,
            is_offloaded: facts.is_offloaded,
            activity,
        }
    }
}

/// Why flows cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowsUnavailable {
    /// As many requests wait as may.
    #[error("too many lists of flows are being made; try again")]
    Busy,
    /// A worker that has some ends.
    #[error("a worker that has flows ends")]
    Gone,
    /// A worker has not answered in time.
    #[error("a worker that has flows did not answer in time; try again")]
    Late,
}
