//! Flow queries across all modes, for the API.

use std::time::Duration;

use convey_api::{FlowGroupReport, FlowListReport, FlowReport};
use convey_dataplane::PacketFlows;
use convey_explain::{ClientFlows, FlowQuestion, FoundFlow, rounded_seconds};
use convey_forward::{ClientShare, Dispatch};
use convey_model::{
    FlowAnswer, FlowGroup, FlowKey, FlowKind, FlowListing, FlowQuery, FlowsUnavailable, ListedFlow,
    ListedFlowId, server_text,
};
use convey_proxy::ProxyFlows;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of flow lists that are built concurrently. Further requests wait.
const MAX_AT_ONCE: usize = 2;

/// Upper bound for building a list, including the wait for other requests.
const PATIENCE: Duration = Duration::from_secs(8);

/// Upper bound for the query of one client's flows for an explanation. If it is exceeded, the
/// explanation does not show the client's flows.
const PATIENCE_OF_QUESTION: Duration = Duration::from_secs(3);

/// Sources of flows: the packet modes, proxy mode, or both.
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
    /// Creates the sources of the modes that run.
    pub fn new(packets: Option<PacketFlows>, proxied: Option<ProxyFlows>) -> FlowSources {
        FlowSources { packets, proxied, at_once: Semaphore::new(MAX_AT_ONCE) }
    }

    /// Returns the flows that match a query.
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

    /// Finds the flows of the client in an explain query. `dispatch` assigns a packet flow to its
    /// worker.
    pub(super) async fn of_client(
        &self,
        question: &FlowQuestion,
        dispatch: Option<&Dispatch>,
    ) -> ClientFlows {
        let found = timeout(PATIENCE_OF_QUESTION, self.ask(question, dispatch)).await;
        found.unwrap_or(Err(FlowsUnavailable::Late)).unwrap_or_else(ClientFlows::Unknown)
    }

    /// Returns the state of the client's quota for a new flow, from the worker of the flow. `None`
    /// without packet modes.
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

    /// Ends a flow. Returns `None` if the flow is already gone.
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

/// Result of a flow query.
pub(super) fn flow_list_report(answer: FlowAnswer, is_grouped: bool) -> FlowListReport {
    let FlowAnswer { flows, matching, bytes_rx, bytes_tx, groups, more_groups, more_flows } = answer;
    let more = if is_grouped { 0 } else { matching.saturating_sub(flows.len() as u64) };
    let flows = flows.into_iter().map(flow_report).collect();
    let groups = groups.into_iter().map(flow_group_report).collect();
    FlowListReport { matching, bytes_rx, bytes_tx, flows, more, groups, more_groups, more_flows }
}

/// Report of one flow.
pub(super) fn flow_report(flow: ListedFlow) -> FlowReport {
    let (backend, server, server_addr) = match flow.server {
        Some((backend, server, addr)) => {
            (Some(backend.to_string()), Some(server.to_string()), Some(server_text(addr)))
        }
        None => (None, None, None),
    };
    FlowReport {
        id: flow.id.to_string(),
        mode: flow.mode.name().into(),
        protocol: flow.protocol.name().into(),
        frontend: flow.frontend.to_string(),
        backend,
        server,
        client: flow.client.to_string(),
        listen: flow.listen.to_string(),
        server_addr,
        snat_addr: flow.snat.map(|addr| addr.to_string()),
        state: flow.state.into(),
        age_seconds: flow.activity.age.map(rounded_seconds),
        idle_seconds: flow.activity.idle.map(rounded_seconds),
        bytes_rx: flow.activity.bytes_rx,
        bytes_tx: flow.activity.bytes_tx,
        kernel: flow.is_offloaded,
    }
}

fn flow_group_report(FlowGroup { name, flows, bytes_rx, bytes_tx }: FlowGroup) -> FlowGroupReport {
    FlowGroupReport { name, flows, bytes_rx, bytes_tx }
}
