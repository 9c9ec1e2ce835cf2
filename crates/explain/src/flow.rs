//! Flows of a client at a frontend: queries to the workers, and the explanation of their results.
//! Pure.

use std::net::SocketAddr;
use std::time::Duration;

use convey_api::{ExplainedFlow, FlowsOfServer, OpenFlows};
use convey_dataplane::PacketFlow;
use convey_forward::FlowInfo;
use convey_model::{
    ClientFilter, FlowAnswer, FlowFilter, FlowGrouping, FlowKey, FlowQuery, FlowSort, FlowsUnavailable,
    ListedFlow, Prefix, server_text,
};
use convey_snapshot::Snapshot;
use humantime::format_duration;

use super::question::{AskedPlace, place};
use super::{ClientAddr, ClientVerdict, ExplainSources, Explanation, Steps, Unanswerable, packets};

/// Maximum number of servers that an explanation lists.
const MAX_SERVERS: usize = 16;

/// Maximum number of flows that the query requests for one client port. A client port may have one
/// flow to each address of the frontend.
const MAX_FLOWS: usize = 64;

/// Query to the workers about a client's flows.
#[derive(Debug, Clone)]
pub struct FlowQuestion {
    /// Flow key of the client's packets. `None` if the question does not determine the key, or if
    /// the frontend is not in a packet mode.
    pub key: Option<FlowKey>,
    /// Query for the client's flows, used if `key` is `None`.
    pub query: FlowQuery,
    /// Whether the client's port is known, so that the query is about a single flow.
    pub is_for_one: bool,
    places: Vec<SocketAddr>,
}

/// Answer of the workers about a client's flows.
#[derive(Debug, Clone)]
pub enum ClientFlows {
    /// No worker was queried, because no convey runs.
    NotAsked,
    /// Flow from the client's port. `None` if the port has no flow.
    One(Option<Box<FoundFlow>>),
    /// Open flows of the client, counted by server.
    All(FlowAnswer),
    /// The workers did not answer.
    Unknown(FlowsUnavailable),
}

/// Flow from the client's port.
#[derive(Debug, Clone)]
pub enum FoundFlow {
    /// Connection or session of proxy mode.
    Proxied(ListedFlow),
    /// Flow of a packet mode.
    Packets(PacketFlow),
}

impl FlowQuestion {
    /// Builds the query about a client of a frontend.
    ///
    /// # Errors
    /// The frontend does not exist, or the question is incomplete or contradictory.
    pub fn new(
        snapshot: &Snapshot,
        client: ClientAddr,
        frontend: &str,
    ) -> Result<FlowQuestion, Unanswerable> {
        let place = place(snapshot, client, frontend)?;
        let config = &place.frontend.config;
        let is_for_one = client.port.is_some();
        let is_exact = config.mode.forwards_packets() && place.fitting.len() == 1;
        let network = Prefix::of(client.ip, 128);
        let filter = FlowFilter {
            client: Some(ClientFilter { network, port: client.port }),
            frontend: Some(config.name.clone()),
            only_open: !is_for_one,
            ..FlowFilter::default()
        };
        let (limit, count_by) =
            if is_for_one { (MAX_FLOWS, None) } else { (MAX_SERVERS, Some(FlowGrouping::Server)) };
        Ok(FlowQuestion {
            key: place.key().filter(|_| is_exact),
            query: FlowQuery { filter, sort: FlowSort::Idle, limit, count_by },
            is_for_one,
            places: place.fitting,
        })
    }

    /// Selects a flow among the flows that the query found: the most recently used flow at one of
    /// the addresses in question. `None` if there is no such flow.
    pub fn choose(&self, found: Vec<ListedFlow>) -> Option<ListedFlow> {
        found.into_iter().rfind(|flow| self.places.contains(&flow.listen))
    }
}

impl FoundFlow {
    fn listed(&self) -> &ListedFlow {
        match self {
            FoundFlow::Proxied(listed) => listed,
            FoundFlow::Packets(flow) => &flow.listed,
        }
    }

    fn is_over(&self) -> bool {
        match self {
            FoundFlow::Proxied(_) => false,
            FoundFlow::Packets(flow) => flow.info.is_over(),
        }
    }
}

impl ClientFlows {
    fn one(&self) -> Option<&FoundFlow> {
        match self {
            ClientFlows::One(found) => found.as_deref(),
            ClientFlows::NotAsked | ClientFlows::All(_) | ClientFlows::Unknown(_) => None,
        }
    }

    /// Open flow of the client that has a server. `None` if there is no such flow.
    pub(super) fn going_on(&self) -> Option<&FoundFlow> {
        self.one().filter(|flow| !flow.is_over() && flow.listed().server.is_some())
    }

    /// Finished packet flow that a new flow of the client replaces. `None` if there is no such
    /// flow.
    pub(super) fn over(&self) -> Option<&FlowInfo> {
        match self.one()? {
            FoundFlow::Packets(flow) if flow.info.is_over() => Some(&flow.info),
            FoundFlow::Packets(_) | FoundFlow::Proxied(_) => None,
        }
    }

    /// The client's flow, in the format of the explanation.
    pub(super) fn to_explained(&self) -> Option<ExplainedFlow> {
        let found = self.one()?;
        let listed = found.listed();
        Some(ExplainedFlow {
            id: listed.id.to_string(),
            state: state(found).into(),
            over: found.is_over(),
            server: server(listed),
            address: listed.server.as_ref().map(|(.., addr)| server_text(*addr)),
            snat: listed.snat,
            age_seconds: listed.activity.age.map(rounded_seconds),
            idle_seconds: listed.activity.idle.map(rounded_seconds),
            kernel: listed.is_offloaded,
        })
    }

    /// Numbers of the client's open flows, in the format of the explanation.
    pub(super) fn counted(&self) -> Option<OpenFlows> {
        let ClientFlows::All(answer) = self else { return None };
        let servers = answer.groups.iter();
        let servers = servers.map(|group| FlowsOfServer { server: group.name.clone(), flows: group.flows });
        Some(OpenFlows { open: answer.matching, servers: servers.collect() })
    }
}

/// Seconds, rounded to milliseconds. The API reports the ages of flows like this.
pub fn rounded_seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// Sets the frontend's address in question to the address of the client's flow, if the frontend has
/// several addresses.
pub(super) fn at_its_place(place: AskedPlace, flows: &ClientFlows) -> AskedPlace {
    let listen = flows.one().map(|found| found.listed().listen);
    match listen.filter(|listen| place.fitting.contains(listen)) {
        Some(vip) => AskedPlace { vip, ..place },
        None => place,
    }
}

/// Adds a step about the client's existing flows, before the explanation of a new flow.
pub(super) fn note(flows: &ClientFlows, place: &AskedPlace, steps: &mut Steps) {
    let client = place.peer;
    let message = match flows {
        ClientFlows::NotAsked => return,
        ClientFlows::One(None) => format!("{client} has no flow here: the answer is for a new flow"),
        ClientFlows::One(Some(found)) if found.is_over() => {
            format!(
                "{client} has a flow that has ended ({}): a SYN starts a new flow in its place",
                since(found)
            )
        }
        ClientFlows::One(Some(found)) => format!("{}: the flow has no server yet", since(found)),
        ClientFlows::All(FlowAnswer { matching: 0, .. }) => format!("{client} has no open flow here"),
        ClientFlows::All(answer) => {
            format!("{client} has {}; these flows stay with their servers", open(answer))
        }
        ClientFlows::Unknown(why) => format!("not known: {why}. The answer is for a new flow"),
    };
    steps.note("flow", message);
}

/// Explains a client that already has a flow. `new` is the explanation for the client's next flow.
pub(super) fn explain(
    sources: ExplainSources<'_>,
    place: &AskedPlace,
    found: &FoundFlow,
    new: Explanation,
) -> Explanation {
    let listed = found.listed();
    let mut steps = Steps::default();
    let whose = server(listed).unwrap_or_default();
    steps.note("flow", format!("{}: the flow stays with {whose}", since(found)));
    match found {
        FoundFlow::Packets(flow) => packets::note_flow(sources, flow, &mut steps),
        FoundFlow::Proxied(_) => note_proxied(listed, &mut steps),
    }
    steps.note("new", format!("the next flow {}", next(&new)));
    let (pool, (backend, name)) = (&place.frontend.pool, names(listed));
    let mut servers = new.servers;
    for (index, note) in servers.iter_mut().enumerate() {
        let passes = pool.passed_over(index).is_some();
        note.chosen = *backend == *pool.config.name && *name == *note.name;
        note.why = match (note.chosen, passes) {
            (true, false) => "has the flow".to_owned(),
            (true, true) => format!("has the flow; new flows skip it: {}", note.why),
            (false, true) => note.why.clone(),
            (false, false) => "another server has the flow".to_owned(),
        };
    }
    Explanation {
        verdict: ClientVerdict::Server,
        reason: None,
        server: Some(name.to_owned()),
        address: listed.server.as_ref().map(|(.., addr)| server_text(*addr)),
        depends_on: None,
        steps: steps.all,
        servers,
        ..new
    }
}

fn note_proxied(listed: &ListedFlow, steps: &mut Steps) {
    let Some((.., addr)) = &listed.server else { return };
    let message = match listed.snat {
        Some(from) => format!("{addr} sees {from}, an address of this host, as the client"),
        None => format!("the flow goes to {addr}"),
    };
    steps.note("way", message);
}

fn next(new: &Explanation) -> String {
    let reason = new.reason.as_deref().unwrap_or("?");
    match (new.verdict, &new.server) {
        (ClientVerdict::Server, Some(server)) => format!("gets {}/{server}, as things are now", new.backend),
        (ClientVerdict::Server | ClientVerdict::OneOfThem, _) => format!("gets a server of {}", new.backend),
        (ClientVerdict::Waits, _) => format!("waits: {reason}"),
        (ClientVerdict::Answered, _) => format!("is answered by convey: {reason}"),
        (ClientVerdict::Refused, _) => format!("is refused: {reason}"),
    }
}

/// Formats as `established, began 12s ago, silent for 1s`.
fn since(found: &FoundFlow) -> String {
    let activity = found.listed().activity;
    let time = |time: Duration| format_duration(Duration::from_secs(time.as_secs()));
    let age = activity.age.map(|age| format!(", began {} ago", time(age)));
    let idle = activity.idle.map(|idle| format!(", silent for {}", time(idle)));
    format!("{}{}{}", state(found), age.unwrap_or_default(), idle.unwrap_or_default())
}

fn state(found: &FoundFlow) -> &'static str {
    match found {
        FoundFlow::Proxied(listed) => listed.state,
        FoundFlow::Packets(flow) => flow.info.state.name(),
    }
}

fn names(listed: &ListedFlow) -> (&str, &str) {
    listed.server.as_ref().map_or(("", ""), |(backend, name, _)| (backend, name))
}

fn server(listed: &ListedFlow) -> Option<String> {
    listed.server.as_ref().map(|(backend, name, _)| format!("{backend}/{name}"))
}

/// Formats as `12 open here: 7 with pool/a, 5 with pool/b`.
fn open(FlowAnswer { matching, groups, more_flows, .. }: &FlowAnswer) -> String {
    let of = |group: &convey_model::FlowGroup| match &*group.name {
        "-" => format!("{} without a server yet", group.flows),
        name => format!("{} with {name}", group.flows),
    };
    let mut servers: Vec<String> = groups.iter().map(of).collect();
    if *more_flows > 0 {
        servers.push(format!("{more_flows} with other servers"));
    }
    format!("{matching} open flows here: {}", servers.join(", "))
}
