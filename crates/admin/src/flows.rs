//! Flows of all modes, for whoever asks.

use std::time::Duration;

use convey_dataplane::PacketFlows;
use convey_explain::{ClientFlows, FlowQuestion, FoundFlow, rounded_seconds};
use convey_forward::{ClientShare, Dispatch};
use convey_model::{
    FlowAnswer, FlowGroup, FlowKey, FlowKind, FlowListing, FlowQuery, FlowsUnavailable, ListedFlow,
    ListedFlowId,
};
use convey_proxy::ProxyFlows;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Lists that are made at once; more wait.
const MAX_AT_ONCE: usize = 2;

/// How long a list may take, with the wait for others.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long a question about one client may take. Then it is answered without its flows.
const PATIENCE_OF_QUESTION: Duration = Duration::from_secs(3);

/// Where flows are: in the packet modes, in proxy mode, or both.
#[derive(Debug)]
pub struct FlowSources {
    packets: Option<PacketFlows>,
    proxied: Option<ProxyFlows>,
    at_once: Semaphore,
}

impl Default for FlowSources {
    fn default() -> Self {
        FlowSources::new(None, None)
    }
}

impl FlowSources {
    /// Of each kind, if it runs.
    pub fn new(packets: Option<PacketFlows>, proxied: Option<ProxyFlows>) -> FlowSources {
        FlowSources { packets, proxied, at_once: Semaphore::new(MAX_AT_ONCE) }
    }

    /// The flows that a query wants.
    pub(super) async fn list(&self, query: &FlowQuery) -> Result<FlowAnswer, FlowsUnavailable> {
        let listed = async {
            let _turn = self.at_once.acquire().await;
            let mut all = FlowListing::new(query.clone());
            if let Some(packets) = &self.packets {
                all.merge(packets.list(query).await?);
            }
            if let Some(proxied) = &self.proxied {
                all.merge(proxied.list(query).await?);
            }
            Ok(all.answer())
        };
        timeout(PATIENCE, listed).await.unwrap_or(Err(FlowsUnavailable::Late))
    }

    /// The flows that a question is about; `dispatch` says which worker has a packet flow.
    pub(super) async fn of_client(
        &self,
        question: &FlowQuestion,
        dispatch: Option<&Dispatch>,
    ) -> ClientFlows {
        let found = timeout(PATIENCE_OF_QUESTION, self.ask(question, dispatch)).await;
        found.unwrap_or(Err(FlowsUnavailable::Late)).unwrap_or_else(ClientFlows::Unknown)
    }

    /// What the client of a new flow has of its share at this worker; `None` if there is no such worker.
    pub(super) async fn share(
        &self,
        worker: u16,
        key: FlowKey,
        server: u32,
    ) -> Option<Result<Option<ClientShare>, FlowsUnavailable>> {
        let share = timeout(PATIENCE_OF_QUESTION, self.packets.as_ref()?.share(worker, key, server)).await;
        Some(share.unwrap_or(Err(FlowsUnavailable::Late)))
    }

    async fn ask(
        &self,
        question: &FlowQuestion,
        dispatch: Option<&Dispatch>,
    ) -> Result<ClientFlows, FlowsUnavailable> {
        let find = async |key: FlowKey| match (&self.packets, dispatch) {
            (Some(packets), Some(dispatch)) => packets.find(dispatch.worker(&key), key).await,
            _ => Ok(None),
        };
        if let Some(key) = question.key {
            return Ok(ClientFlows::One(find(key).await?.map(FoundFlow::Packets).map(Box::new)));
        }
        let answer = self.list(&question.query).await?;
        if !question.is_for_one {
            return Ok(ClientFlows::All(answer));
        }
        let Some(listed) = question.choose(answer.flows) else { return Ok(ClientFlows::One(None)) };
        let found = match listed.id.kind {
            FlowKind::Connection | FlowKind::Session => Some(FoundFlow::Proxied(listed)),
            FlowKind::Packets => {
                let key = FlowKey::new(listed.protocol, listed.client, listed.listen);
                find(key).await?.map(FoundFlow::Packets)
            }
        };
        Ok(ClientFlows::One(found.map(Box::new)))
    }

    /// Ends a flow. `None` if there is no such flow any more.
    pub(super) async fn kill(&self, id: ListedFlowId) -> Result<Option<ListedFlow>, FlowsUnavailable> {
        let killed = async {
            match (id.kind, &self.packets, &self.proxied) {
                (FlowKind::Packets, Some(packets), _) => packets.kill(id).await,
                (FlowKind::Connection | FlowKind::Session, _, Some(proxied)) => proxied.kill(id).await,
                _ => Ok(None),
            }
        };
        timeout(PATIENCE, killed).await.unwrap_or(Err(FlowsUnavailable::Late))
    }
}

/// A list of flows.
#[derive(Debug, Serialize)]
pub struct FlowListReport {
    /// How many flows are wanted in all.
    pub matching: u64,
    /// Bytes from their clients, as far as they are known; `None`: of none.
    pub bytes_rx: Option<u64>,
    /// Bytes to their clients, likewise.
    pub bytes_tx: Option<u64>,
    /// The first of them.
    pub flows: Vec<FlowReport>,
    /// How many come after these.
    pub more: u64,
    /// The largest groups, if they are counted by something.
    pub groups: Vec<FlowGroupReport>,
    /// Groups that are not among these.
    pub more_groups: u64,
    /// Flows of groups that are not among these.
    pub more_flows: u64,
}

/// A flow.
#[derive(Debug, Serialize)]
pub struct FlowReport {
    /// What it is called: no other flow of this process is.
    pub id: String,
    /// `proxy`, `http`, `passthrough` or `dsr`.
    pub mode: &'static str,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// The name of its frontend.
    pub frontend: String,
    /// The name of its backend.
    pub backend: Option<String>,
    /// The name of its server.
    pub server: Option<String>,
    /// Where its client is.
    pub client: String,
    /// Where that has connected to.
    pub listen: String,
    /// Where its server is.
    pub server_addr: Option<String>,
    /// Whom the server sees, if not the client.
    pub snat_addr: Option<String>,
    /// How far it is.
    pub state: &'static str,
    /// Since its first packet.
    pub age_seconds: Option<f64>,
    /// Since its last one.
    pub idle_seconds: Option<f64>,
    /// Bytes from the client, if they are known.
    pub bytes_rx: Option<u64>,
    /// Bytes to the client, likewise.
    pub bytes_tx: Option<u64>,
    /// Whether the kernel forwards its packets.
    pub kernel: bool,
}

/// Flows that have something in common.
#[derive(Debug, Serialize)]
pub struct FlowGroupReport {
    /// What that is.
    pub name: String,
    /// How many there are.
    pub flows: u64,
    /// Bytes from their clients, as far as they are known; `None`: of none.
    pub bytes_rx: Option<u64>,
    /// Bytes to their clients, likewise.
    pub bytes_tx: Option<u64>,
}

impl FlowListReport {
    pub(super) fn new(answer: FlowAnswer, is_grouped: bool) -> FlowListReport {
        let FlowAnswer { flows, matching, bytes_rx, bytes_tx, groups, more_groups, more_flows } = answer;
        let more = if is_grouped { 0 } else { matching.saturating_sub(flows.len() as u64) };
        let flows = flows.into_iter().map(FlowReport::new).collect();
        let groups = groups.into_iter().map(FlowGroupReport::new).collect();
        FlowListReport { matching, bytes_rx, bytes_tx, flows, more, groups, more_groups, more_flows }
    }
}

impl FlowReport {
    pub(super) fn new(flow: ListedFlow) -> FlowReport {
        let (backend, server, server_addr) = match flow.server {
            Some((backend, server, addr)) => {
                (Some(backend.to_string()), Some(server.to_string()), Some(addr.to_string()))
            }
            None => (None, None, None),
        };
        FlowReport {
            id: flow.id.to_string(),
            mode: flow.mode.name(),
            protocol: flow.protocol.name(),
            frontend: flow.frontend.to_string(),
            backend,
            server,
            client: flow.client.to_string(),
            listen: flow.listen.to_string(),
            server_addr,
            snat_addr: flow.snat.map(|addr| addr.to_string()),
            state: flow.state,
            age_seconds: flow.activity.age.map(rounded_seconds),
            idle_seconds: flow.activity.idle.map(rounded_seconds),
            bytes_rx: flow.activity.bytes_rx,
            bytes_tx: flow.activity.bytes_tx,
            kernel: flow.is_offloaded,
        }
    }
}

impl FlowGroupReport {
    fn new(FlowGroup { name, flows, bytes_rx, bytes_tx }: FlowGroup) -> FlowGroupReport {
        FlowGroupReport { name, flows, bytes_rx, bytes_tx }
    }
}
