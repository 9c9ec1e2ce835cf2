//! Explains which server a client gets, for `convey explain` and `/v1/explain`. Pure.
//!
//! This crate makes no decisions of its own. [`explain`] calls the code that the data path runs:
//! the access lists, the sources of a frontend, its pool
//! ([`Pool::foresee`](convey_snapshot::Pool::foresee)) and, in packet modes, the forwarding core
//! ([`Inquiry`](convey_forward::Inquiry)). An explanation does not advance round-robin, take a
//! slot, or count toward a limit.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod access;
mod admission;
mod choice;
mod flow;
mod named_client;
mod packets;
mod question;
mod route;
mod servers;
mod sni;
#[cfg(test)]
mod tests;
mod text;

pub use access::{NetworkQuestion, SearchedFile, SearchedNetwork, SearchedText};
pub use flow::{ClientFlows, FlowQuestion, FoundFlow, rounded_seconds};
pub use packets::PacketFacts;
pub use question::{ClientAddr, Unanswerable};
pub use route::AskedRequest;
pub use text::as_text;

use convey_api::{ClientVerdict, Dependence, ExplainedStep, Explanation};
use convey_forward::{ClientShare, Plan};
use convey_http_core::ExchangePhase;
use convey_model::{DropReason, FlowKey, FlowsUnavailable, Mode, Protocol, Timestamp, server_text};
use convey_proxy::WorkersShared;
use convey_snapshot::Snapshot;

use self::choice::Choice;
use self::packets::PacketInquiry;
use self::question::{AskedPlace, place};

/// State that an explanation is derived from.
#[derive(Clone, Copy)]
pub struct ExplainSources<'a> {
    /// Snapshot that new connections use.
    pub snapshot: &'a Snapshot,
    /// Forwarding plan of the packet modes. `None` if no frontend is in a packet mode.
    pub plan: Option<&'a Plan>,
    /// Further state of the packet modes.
    pub packets: Option<&'a PacketFacts>,
    /// State that the proxy workers share. `None` if no convey runs.
    pub proxy: Option<&'a WorkersShared>,
    /// Flows of the client at the frontend.
    pub flows: &'a ClientFlows,
    /// Client's share of flows in passthrough mode, as the worker of its flow reported the share.
    /// `None` if no share applies.
    pub share: Option<&'a Result<Option<ClientShare>, FlowsUnavailable>>,
    /// Request in question, for frontends with routes. `None` without a request.
    pub request: Option<&'a AskedRequest>,
    /// File and line of the network that decides about the client. `None` if no file can contain
    /// it.
    pub network: Option<&'a SearchedNetwork>,
    /// Current time.
    pub now: Timestamp,
}

/// Outcome for a client at the step that ends the client's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    verdict: ClientVerdict,
    reason: &'static str,
}

impl End {
    /// Neither a route nor a default backend applies.
    const NO_ROUTE: End = End { verdict: ClientVerdict::Refused, reason: "no_route" };

    /// The route answers with a redirect.
    const REDIRECT: End = End { verdict: ClientVerdict::Answered, reason: "redirect" };
    /// The access lists of the route deny the client.
    const DENIED_BY_ROUTE: End = End { verdict: ClientVerdict::Refused, reason: "access_denied" };
    /// The route has a fixed response.
    const RESPOND: End = End { verdict: ClientVerdict::Answered, reason: "respond" };

    /// An operator has put the frontend, the route or the backend into maintenance.
    const MAINTENANCE: End = End { verdict: ClientVerdict::Answered, reason: "maintenance" };
    /// The request is a preflight request of a page of another origin.
    const PREFLIGHT: End = End { verdict: ClientVerdict::Answered, reason: "preflight" };

    /// The request announces a body above the limit.
    const BODY_TOO_LONG: End = End { verdict: ClientVerdict::Refused, reason: "body_too_long" };

    /// The backend answers with files.
    const FILES: End = End { verdict: ClientVerdict::Answered, reason: "file" };

    /// Condition on which the outcome depends; `None` if the outcome is certain. In packet modes, a
    /// new connection may evict a connection that is not established yet, instead of being refused.
    fn depends_on(self, mode: Mode) -> Option<Dependence> {
        let may_evict = mode.forwards_packets() && self.reason == DropReason::MaxConnections.label();
        may_evict.then_some(Dependence::OtherConnections)
    }
}

/// Steps of the explanation so far.
#[derive(Default)]
struct Steps {
    all: Vec<ExplainedStep>,
    end: Option<End>,
    /// Phase of the request that the next steps belong to.
    phase: Option<ExchangePhase>,
}

impl Steps {
    fn note(&mut self, subject: &'static str, message: impl Into<String>) {
        self.push(subject, false, message.into());
    }

    /// Adds a step that ends the client's path, unless an earlier step has ended it.
    fn end(&mut self, subject: &'static str, end: End, message: impl Into<String>) {
        let ends = self.end.is_none();
        self.end.get_or_insert(end);
        self.push(subject, ends, message.into());
    }

    fn push(&mut self, subject: &'static str, ends: bool, message: String) {
        let phase = self.phase.map(|phase| phase.label().into());
        self.all.push(ExplainedStep { subject: subject.into(), phase, ends, message });
    }

    fn refuse(&mut self, subject: &'static str, reason: &'static str, message: impl Into<String>) {
        self.end(subject, End { verdict: ClientVerdict::Refused, reason }, message);
    }
}

/// Explains how a frontend treats a client.
///
/// # Errors
/// The frontend does not exist, or the question is incomplete or contradictory.
pub fn explain(
    sources: ExplainSources<'_>,
    client: ClientAddr,
    frontend: &str,
) -> Result<Explanation, Unanswerable> {
    let place = flow::at_its_place(place(sources.snapshot, client, frontend)?, sources.flows);
    let place = place.with_named_client(sources.request).for_request(sources)?;
    let mut steps = Steps::default();
    Ok(match sources.flows.going_on() {
        Some(flow) => flow::explain(sources, &place, flow, of_new(sources, &place, steps)),
        None => {
            flow::note(sources.flows, &place, &mut steps);
            of_new(sources, &place, steps)
        }
    })
}

/// Query about the client's share in passthrough mode: the flow key that determines the worker, and
/// the number of the server. `None` if no query is needed.
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

/// Explains a new connection or session of the client.
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
        client: place.peer.to_string(),
        frontend: config.name.clone(),
        vip: place.vip,
        mode: config.mode.name().into(),
        protocol: config.protocol.name().into(),
        backend: pool.config.name.clone(),
        verdict,
        reason: end.map(|end| end.reason.into()),
        server: index.map(|index| pool.servers[index].config.name.clone()),
        address: index.map(|index| server_text(pool.servers[index].config.addr_for(place.vip.port()))),
        depends_on: match end {
            None => choice.depends_on(),
            Some(end) => end.depends_on(config.mode),
        },
        flow: sources.flows.to_explained(),
        open_flows: sources.flows.counted(),
        steps: steps.all,
        // If the route itself answers the request, no server gets it.
        servers: match place.asked.as_ref().and_then(|asked| asked.end) {
            None => servers::notes(sources, place, &choice, end.is_none()),
            Some(_) => Vec::new(),
        },
    }
}

/// Runs the checks in the order of a proxy. For TCP, slots come first, because a connection waits
/// for a slot before it is accepted.
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
    let is_of_request = sources.request.is_some() && place.frontend.config.mode.is_http();
    let phase = |phase| is_of_request.then_some(phase);
    steps.phase = phase(ExchangePhase::Route);
    if let Some(choice) = choice::by_route(place, steps) {
        return choice;
    }
    steps.phase = phase(ExchangePhase::Limits);
    admission::check_body(place, steps);
    admission::check_requests(sources, place, steps);
    admission::check_totals(sources, place, steps);
    steps.phase = phase(ExchangePhase::Pick);
    let choice = choice::explain(place, None, steps);
    steps.phase = phase(ExchangePhase::Connect);
    choice::note_path(place, choice.server(), steps);
    choice
}

/// Runs the checks in the order of the forwarding core.
fn of_packets(
    sources: ExplainSources<'_>,
    place: &AskedPlace,
    inquiry: &PacketInquiry<'_>,
    steps: &mut Steps,
) -> Choice {
    inquiry.check_client(steps);
    admission::check_access(sources, place, steps);
    let over = sources.flows.over();
    let again = over.and_then(|over| inquiry.previous_server(over));
    let choice = choice::explain(place, again, steps);
    inquiry.follow(&choice, over, steps);
    admission::check_packet_share(sources, place, steps);
    admission::check_source(sources, place, steps);
    admission::check_slots(place, steps);
    choice
}
