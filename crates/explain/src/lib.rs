//! Which server a client gets, and why: the answer of `convey explain` and of `/v1/explain`. Pure.
//!
//! Nothing is decided here. [`explain`] asks what the data path asks: the access lists, the sources of a frontend, its pool
//! ([`Pool::foresee`](convey_snapshot::Pool::foresee)) and, in packet modes, the forwarding core
//! ([`Inquiry`](convey_forward::Inquiry)). None of the questions takes a turn, a slot or anything of a limit.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod access;
mod admission;
mod choice;
mod flow;
mod packets;
mod question;
mod route;
mod servers;
mod sni;
#[cfg(test)]
mod tests;
mod text;

pub use access::{NetworkQuestion, SearchedFile, SearchedNetwork, SearchedText};
pub use flow::{
    ClientFlows, ExplainedFlow, FlowQuestion, FlowsOfServer, FoundFlow, OpenFlows, rounded_seconds,
};
pub use packets::PacketFacts;
pub use question::{ClientAddr, Unanswerable};
pub use route::AskedRequest;
pub use text::as_text;

use std::net::SocketAddr;

use convey_forward::{ClientShare, Plan};
use convey_model::{DropReason, FlowKey, FlowsUnavailable, Mode, Protocol, Timestamp};
use convey_proxy::WorkersShared;
use convey_snapshot::Snapshot;
use serde::Serialize;

use self::choice::Choice;
use self::packets::PacketInquiry;
use self::question::{AskedPlace, place};
use self::servers::ServerNote;

/// What is asked of.
#[derive(Clone, Copy)]
pub struct ExplainSources<'a> {
    /// The state that new connections meet.
    pub snapshot: &'a Snapshot,
    /// What packet modes make of it; `None` without a frontend in one.
    pub plan: Option<&'a Plan>,
    /// What else is known of packet modes.
    pub packets: Option<&'a PacketFacts>,
    /// What the workers of proxies share; `None` where no convey runs.
    pub proxy: Option<&'a WorkersShared>,
    /// The flows that the client has at the frontend.
    pub flows: &'a ClientFlows,
    /// What the client holds of its share in passthrough, if its worker was asked; `None` if nobody has a share.
    pub share: Option<&'a Result<Option<ClientShare>, FlowsUnavailable>>,
    /// The request that is asked about (frontends with routes).
    pub request: Option<&'a AskedRequest>,
    /// Where the network is written that decides about the client, if a file may have it.
    pub network: Option<&'a SearchedNetwork>,
    /// The time.
    pub now: Timestamp,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Who was asked about: an address, with its port if that was given.
    pub client: String,
    /// The frontend's name.
    pub frontend: String,
    /// Where the client connects to.
    pub vip: SocketAddr,
    /// How the frontend forwards.
    pub mode: &'static str,
    /// The protocol of its clients.
    pub protocol: &'static str,
    /// Its backend.
    pub backend: String,
    /// What becomes of the client.
    pub verdict: ClientVerdict,
    /// If it is refused or waits: the name of the reason, as it is counted.
    pub reason: Option<&'static str>,
    /// The name of its server.
    pub server: Option<String>,
    /// Where it connects to there.
    pub address: Option<SocketAddr>,
    /// What the answer depends on beside what is configured and up.
    pub depends_on: Option<Dependence>,
    /// The flow that the client has from its port, if there is one.
    pub flow: Option<ExplainedFlow>,
    /// The flows that it has, if its port was not given.
    pub open_flows: Option<OpenFlows>,
    /// How that comes about, in order.
    pub steps: Vec<ExplainedStep>,
    /// All servers of the backend, and why each gets this client or does not.
    pub servers: Vec<ServerNote>,
}

/// What becomes of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientVerdict {
    /// It gets the server.
    Server,
    /// It gets one of the servers that can be chosen; which one cannot be said.
    OneOfThem,
    /// It waits for one.
    Waits,
    /// convey itself answers it, with a redirect or a file.
    Answered,
    /// It gets none.
    Refused,
}

/// What an answer depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependence {
    /// The moment: other connections change it.
    Moment,
    /// The client's port, which was not given.
    Port,
}

/// One step on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedStep {
    /// What it is about, in a word or two.
    pub about: &'static str,
    /// Whether the client's way ends here.
    pub ends: bool,
    /// In words for an operator.
    pub says: String,
}

/// What becomes of the client at a step where its way ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    verdict: ClientVerdict,
    reason: &'static str,
}

impl End {
    /// No route leads anywhere.
    const NO_ROUTE: End = End { verdict: ClientVerdict::Refused, reason: "no_route" };

    /// The route is a redirect.
    const REDIRECT: End = End { verdict: ClientVerdict::Answered, reason: "redirect" };

    /// The backend serves files.
    const FILES: End = End { verdict: ClientVerdict::Answered, reason: "file" };

    /// In packet modes a connection that is not open yet gives way to a new one, if there is one.
    fn depends_on(self, mode: Mode) -> Option<Dependence> {
        let gives_way = mode.forwards_packets() && self.reason == DropReason::MaxConnections.label();
        gives_way.then_some(Dependence::Moment)
    }
}

/// The steps so far.
#[derive(Default)]
struct Steps {
    all: Vec<ExplainedStep>,
    end: Option<End>,
}

impl Steps {
    fn note(&mut self, about: &'static str, says: impl Into<String>) {
        self.all.push(ExplainedStep { about, ends: false, says: says.into() });
    }

    /// The client's way ends here, unless it has ended before.
    fn end(&mut self, about: &'static str, end: End, says: impl Into<String>) {
        let ends = self.end.is_none();
        self.end.get_or_insert(end);
        self.all.push(ExplainedStep { about, ends, says: says.into() });
    }

    fn refuse(&mut self, about: &'static str, reason: &'static str, says: impl Into<String>) {
        self.end(about, End { verdict: ClientVerdict::Refused, reason }, says);
    }
}

/// What becomes of a client of a frontend now.
///
/// # Errors
/// The question makes no sense.
pub fn explain(
    sources: ExplainSources<'_>,
    client: ClientAddr,
    frontend: &str,
) -> Result<Explanation, Unanswerable> {
    let place = flow::at_its_place(place(sources.snapshot, client, frontend)?, sources.flows);
    let place = place.for_request(sources.request)?;
    let mut steps = Steps::default();
    Ok(match sources.flows.going_on() {
        Some(flow) => flow::explain(sources, &place, flow, of_new(sources, &place, steps)),
        None => {
            flow::note(sources.flows, &place, &mut steps);
            of_new(sources, &place, steps)
        }
    })
}

/// What to ask of the worker of a new flow of passthrough, before its share can be told: the key, and the number of the server.
/// `None` where nothing is to be asked.
pub fn share_question(
    sources: ExplainSources<'_>,
    client: ClientAddr,
    frontend: &str,
) -> Option<(FlowKey, u32)> {
    let place = flow::at_its_place(place(sources.snapshot, client, frontend).ok()?, sources.flows);
    if !place.frontend.config.mode.has_snat() || sources.flows.going_on().is_some() {
        return None;
    }
    let (inquiry, mut steps) = (packets::inquiry(sources, &place)?, Steps::default());
    let server = of_packets(sources, &place, &inquiry, &mut steps).server();
    Some((place.key()?, place.frontend.pool.servers[server?].live.id))
}

/// What becomes of a new connection or session of the client.
fn of_new(sources: ExplainSources<'_>, place: &AskedPlace, mut steps: Steps) -> Explanation {
    let pool = &place.frontend.pool;
    let choice = match packets::inquiry(sources, place) {
        Some(inquiry) => of_packets(sources, place, &inquiry, &mut steps),
        None => of_proxy(sources, place, &mut steps),
    };
    let end = steps.end;
    let index = choice.server().filter(|_| end.is_none());
    let verdict = end.map_or(choice.verdict(), |end| end.verdict);
    let config = &place.frontend.config;
    Explanation {
        client: place.client.to_string(),
        frontend: config.name.clone(),
        vip: place.vip,
        mode: config.mode.name(),
        protocol: config.protocol.name(),
        backend: pool.config.name.clone(),
        verdict,
        reason: end.map(|end| end.reason),
        server: index.map(|index| pool.servers[index].config.name.clone()),
        address: index.map(|index| pool.servers[index].config.addr_for(place.vip.port())),
        depends_on: match end {
            None => choice.depends_on(),
            Some(end) => end.depends_on(config.mode),
        },
        flow: sources.flows.told(),
        open_flows: sources.flows.counted(),
        steps: steps.all,
        // A request that its route answers is of no server.
        servers: match place.asked.as_ref().and_then(|asked| asked.end) {
            None => servers::notes(sources, place, &choice, end.is_none()),
            Some(_) => Vec::new(),
        },
    }
}

/// In the order of a proxy: TCP waits for a connection slot before it is accepted.
fn of_proxy(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) -> Choice {
    match place.frontend.config.protocol {
        Protocol::Tcp => {
            admission::check_slots(place, steps);
            admission::check_access(sources, place, steps);
            admission::check_share(sources, place, steps);
            admission::check_source(sources, place, steps);
        }
        Protocol::Udp => {
            admission::check_access(sources, place, steps);
            admission::check_loop(sources, place, steps);
            admission::check_source(sources, place, steps);
            admission::check_share(sources, place, steps);
            admission::check_slots(place, steps);
        }
    }
    if let Some(choice) = choice::by_route(place, steps) {
        return choice;
    }
    admission::check_requests(sources, place, steps);
    let choice = choice::explain(place, None, steps);
    choice::note_way(place, choice.server(), steps);
    choice
}

/// In the order of the forwarding core.
fn of_packets(
    sources: ExplainSources<'_>,
    place: &AskedPlace,
    inquiry: &PacketInquiry<'_>,
    steps: &mut Steps,
) -> Choice {
    inquiry.check_client(steps);
    admission::check_access(sources, place, steps);
    let over = sources.flows.over();
    let again = over.and_then(|over| inquiry.server_again(over));
    let choice = choice::explain(place, again, steps);
    inquiry.follow(&choice, over, steps);
    admission::check_packet_share(sources, place, steps);
    admission::check_source(sources, place, steps);
    admission::check_slots(place, steps);
    choice
}
