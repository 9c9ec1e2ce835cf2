//! Lists of flows for operators: the query, and how flows are filtered, counted, grouped and
//! sorted. Pure. All modes share this list.
//!
//! The worker that owns flows offers them one by one to a [`FlowListing`], in any number of slices.
//! [`FlowListing::merge`] joins several listings of one query.

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

/// Query for a list of flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowQuery {
    /// Flows to include.
    pub filter: FlowFilter,
    /// Order of the flows.
    pub sort: FlowSort,
    /// Maximum number of flows, and of groups, in the answer; see [`FlowQuery::MAX_LIMIT`].
    pub limit: usize,
    /// Property by which flows are counted in groups; `None`: no groups.
    pub count_by: Option<FlowGrouping>,
}

impl FlowQuery {
    /// Default limit for the flows of an answer.
    pub const DEFAULT_LIMIT: usize = 100;

    /// Upper bound for the limit of a query.
    pub const MAX_LIMIT: usize = 10_000;
}

/// Order of flows in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSort {
    /// Oldest flows first.
    #[default]
    Age,
    /// Flows with the most bytes in both directions first.
    Bytes,
    /// Flows that have been idle for longest first.
    Idle,
}

impl FlowSort {
    /// All orders, in the order the documentation lists them.
    pub const ALL: [FlowSort; 3] = [FlowSort::Age, FlowSort::Bytes, FlowSort::Idle];

    /// Name in the API.
    pub fn name(self) -> &'static str {
        match self {
            FlowSort::Age => "age",
            FlowSort::Bytes => "bytes",
            FlowSort::Idle => "idle",
        }
    }

    /// Sort key of a flow. Flows with larger keys come first; flows with an unknown value come
    /// last.
    fn key(self, activity: &FlowActivity) -> u64 {
        let nanos = |time: Option<Duration>| time.map_or(0, |time| time.as_nanos() as u64);
        match self {
            FlowSort::Age => nanos(activity.age),
            FlowSort::Bytes => activity.bytes(),
            FlowSort::Idle => nanos(activity.idle),
        }
    }
}

/// Grouping of flows in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowGrouping {
    /// Address of the client.
    Client,
    /// Backend and server.
    Server,
    /// Frontend of the flow.
    Frontend,
    /// State of the flow.
    State,
    /// Mode of the flow.
    Mode,
}

impl FlowGrouping {
    /// All groupings, in the order the documentation lists them.
    pub const ALL: [FlowGrouping; 5] = [
        FlowGrouping::Client,
        FlowGrouping::Server,
        FlowGrouping::Frontend,
        FlowGrouping::State,
        FlowGrouping::Mode,
    ];

    /// Name in the API.
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

/// Facts about a flow from its worker, with borrowed names.
#[derive(Debug, Clone, Copy)]
pub struct FlowFacts<'a> {
    /// Identifier of the flow in the list.
    pub id: ListedFlowId,
    /// Mode of the flow.
    pub mode: Mode,
    /// Protocol of the flow.
    pub protocol: Protocol,
    /// Number and name of the frontend.
    pub frontend: (u32, &'a Arc<str>),
    /// Server of the flow; `None` while the flow has no server.
    pub server: Option<FlowServer<'a>>,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub listen: SocketAddr,
    /// Source address and port that the server sees instead of the client's. `None` without SNAT.
    pub snat: Option<SocketAddr>,
    /// State of the flow.
    pub state: &'static str,
    /// Whether the flow is over and convey only keeps its record.
    pub is_over: bool,
    /// Whether the kernel forwards the flow's packets.
    pub is_offloaded: bool,
}

/// Server of a flow.
#[derive(Debug, Clone, Copy)]
pub struct FlowServer<'a> {
    /// Number of the server.
    pub id: u32,
    /// Name of the backend.
    pub backend: &'a Arc<str>,
    /// Name of the server within the backend.
    pub name: &'a Arc<str>,
    /// Address of the server.
    pub addr: SocketAddr,
}

/// Bytes and times of a flow. `None`: not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowActivity {
    /// Time since the flow's first packet.
    pub age: Option<Duration>,
    /// Time since the flow's last packet.
    pub idle: Option<Duration>,
    /// Bytes received from the client.
    pub bytes_rx: Option<u64>,
    /// Bytes sent to the client.
    pub bytes_tx: Option<u64>,
}

impl FlowActivity {
    /// Sum of the bytes in both directions. An unknown count is zero.
    pub fn bytes(&self) -> u64 {
        self.bytes_rx.unwrap_or_default().saturating_add(self.bytes_tx.unwrap_or_default())
    }
}

/// Flow in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFlow {
    /// Identifier of the flow in the list.
    pub id: ListedFlowId,
    /// Mode of the flow.
    pub mode: Mode,
    /// Protocol of the flow.
    pub protocol: Protocol,
    /// Name of the frontend.
    pub frontend: Arc<str>,
    /// Backend, server and address; `None` while the flow has no server.
    pub server: Option<(Arc<str>, Arc<str>, SocketAddr)>,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub listen: SocketAddr,
    /// Source address and port that the server sees instead of the client's. `None` without SNAT.
    pub snat: Option<SocketAddr>,
    /// State of the flow.
    pub state: &'static str,
    /// Whether the kernel forwards the flow's packets.
    pub is_offloaded: bool,
    /// Bytes and times of the flow.
    pub activity: FlowActivity,
}

impl ListedFlow {
    /// Copies the facts of a flow; the copy owns its names.
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

/// Reason why flows cannot be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowsUnavailable {
    /// Too many queries are waiting.
    #[error("too many flow queries are waiting; try again")]
    Busy,
    /// A worker that has flows is ending.
    #[error("a worker is stopping")]
    Gone,
    /// A worker did not answer in time.
    #[error("a worker did not answer in time; try again")]
    Late,
}
