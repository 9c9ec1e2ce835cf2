//! Listing of flows: counts and selects flows as workers offer them. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

use super::{FlowActivity, FlowFacts, FlowGrouping, FlowQuery, ListedFlow};

/// Maximum number of groups that are counted separately. Flows of further groups share one count.
const MAX_GROUPS: usize = 65_536;

/// Result of a query over the flows offered so far. Its size is bounded, no matter how many flows
/// are offered.
#[derive(Debug)]
pub struct FlowListing {
    query: FlowQuery,
    /// Selected flows. The flow that comes last in the list is the first to be removed.
    selected: BinaryHeap<Reverse<SelectedFlow>>,
    matching: u64,
    bytes: [Option<u64>; 2],
    groups: HashMap<GroupKey, FlowGroup>,
    /// Number of flows in groups beyond [`MAX_GROUPS`].
    ungrouped: u64,
}

/// Selected flow, ordered so that the larger one comes earlier in the list.
#[derive(Debug)]
struct SelectedFlow {
    key: u64,
    flow: ListedFlow,
}

impl SelectedFlow {
    /// Sort rank. With equal keys, the smaller identifier comes first.
    fn rank(&self) -> (u64, Reverse<super::ListedFlowId>) {
        (self.key, Reverse(self.flow.id))
    }
}

impl PartialEq for SelectedFlow {
    fn eq(&self, other: &SelectedFlow) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for SelectedFlow {}

impl PartialOrd for SelectedFlow {
    fn partial_cmp(&self, other: &SelectedFlow) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SelectedFlow {
    fn cmp(&self, other: &SelectedFlow) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// Property that the flows of a group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum GroupKey {
    Client(IpAddr),
    /// Number of a server or frontend; `None`: no server yet.
    Number(Option<u32>),
    Word(&'static str),
}

/// Group of flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowGroup {
    /// Operator-facing name of the group.
    pub name: String,
    /// Number of flows.
    pub flows: u64,
    /// Bytes received from clients, as far as known; `None`: no flow has a count.
    pub bytes_rx: Option<u64>,
    /// Bytes sent to clients, as far as known; `None`: no flow has a count.
    pub bytes_tx: Option<u64>,
}

/// Answer to a query for flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowAnswer {
    /// First flows in the order of the query; empty if the query has a grouping.
    pub flows: Vec<ListedFlow>,
    /// Number of flows that match the query.
    pub matching: u64,
    /// Bytes received from clients, as far as known; `None`: flows match, but none has a count.
    pub bytes_rx: Option<u64>,
    /// Bytes sent to clients, as far as known; `None`: flows match, but none has a count.
    pub bytes_tx: Option<u64>,
    /// Largest groups, if the query has a grouping.
    pub groups: Vec<FlowGroup>,
    /// Number of groups that are not listed. Does not include groups that were not counted
    /// separately.
    pub more_groups: u64,
    /// Number of flows in groups that are not listed.
    pub more_flows: u64,
}

impl FlowListing {
    /// Starts an empty listing.
    pub fn new(query: FlowQuery) -> FlowListing {
        let query = FlowQuery { limit: query.limit.min(FlowQuery::MAX_LIMIT), ..query };
        let (selected, groups) = (BinaryHeap::new(), HashMap::new());
        FlowListing { query, selected, matching: 0, bytes: [None; 2], groups, ungrouped: 0 }
    }

    /// Offers a flow. Calls `activity` only if the filter may admit the flow by its other facts.
    pub fn offer(&mut self, flow: &FlowFacts<'_>, activity: impl FnOnce() -> FlowActivity) {
        if !self.query.filter.admits(flow) {
            return;
        }
        let activity = activity();
        if !self.query.filter.admits_activity(&activity) {
            return;
        }
        let bytes = [activity.bytes_rx, activity.bytes_tx];
        self.matching += 1;
        add(&mut self.bytes, bytes);
        match self.query.count_by {
            Some(grouping) => self.count(grouping, flow, bytes),
            None => self.select(flow, activity),
        }
    }

    /// Adds the flows of another listing of the same query.
    pub fn merge(&mut self, other: FlowListing) {
        self.matching += other.matching;
        add(&mut self.bytes, other.bytes);
        self.ungrouped += other.ungrouped;
        for (key, group) in other.groups {
            self.add_to_group(key, group.flows, [group.bytes_rx, group.bytes_tx], || group.name);
        }
        self.selected.extend(other.selected);
        while self.selected.len() > self.query.limit {
            self.selected.pop();
        }
    }

    /// Returns the answer, in the order of the query.
    pub fn answer(self) -> FlowAnswer {
        let flows =
            self.selected.into_sorted_vec().into_iter().map(|Reverse(selected)| selected.flow).collect();
        let mut groups: Vec<FlowGroup> = self.groups.into_values().collect();
        groups.sort_unstable_by(|a, b| b.flows.cmp(&a.flows).then_with(|| a.name.cmp(&b.name)));
        let rest = groups.split_off(self.query.limit.min(groups.len()));
        let none = (self.matching == 0).then_some(0);
        let [bytes_rx, bytes_tx] = self.bytes.map(|bytes| bytes.or(none));
        FlowAnswer {
            flows,
            matching: self.matching,
            bytes_rx,
            bytes_tx,
            more_groups: rest.len() as u64,
            more_flows: rest.iter().map(|group| group.flows).sum::<u64>() + self.ungrouped,
            groups,
        }
    }

    fn select(&mut self, flow: &FlowFacts<'_>, activity: FlowActivity) {
        let key = self.query.sort.key(&activity);
        if self.selected.len() >= self.query.limit {
            let last = self.selected.peek().map(|Reverse(last)| last.rank());
            if last.is_none_or(|last| last > (key, Reverse(flow.id))) {
                return;
            }
            self.selected.pop();
        }
        self.selected.push(Reverse(SelectedFlow { key, flow: ListedFlow::new(flow, activity) }));
    }

    fn count(&mut self, grouping: FlowGrouping, flow: &FlowFacts<'_>, bytes: [Option<u64>; 2]) {
        let key = match grouping {
            FlowGrouping::Client => GroupKey::Client(flow.client.ip()),
            FlowGrouping::Server => GroupKey::Number(flow.server.map(|server| server.id)),
            FlowGrouping::Frontend => GroupKey::Number(Some(flow.frontend.0)),
            FlowGrouping::State => GroupKey::Word(flow.state),
            FlowGrouping::Mode => GroupKey::Word(flow.mode.name()),
        };
        self.add_to_group(key, 1, bytes, || match grouping {
            FlowGrouping::Client => flow.client.ip().to_string(),
            FlowGrouping::Server => flow
                .server
                .map_or_else(|| "-".to_owned(), |server| format!("{}/{}", server.backend, server.name)),
            FlowGrouping::Frontend => flow.frontend.1.to_string(),
            FlowGrouping::State => flow.state.to_owned(),
            FlowGrouping::Mode => flow.mode.name().to_owned(),
        });
    }

    fn add_to_group(
        &mut self,
        key: GroupKey,
        flows: u64,
        bytes: [Option<u64>; 2],
        name: impl FnOnce() -> String,
    ) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.flows += flows;
            group.bytes_rx = sum(group.bytes_rx, bytes[0]);
            group.bytes_tx = sum(group.bytes_tx, bytes[1]);
        } else if self.groups.len() < MAX_GROUPS {
            let [bytes_rx, bytes_tx] = bytes;
            self.groups.insert(key, FlowGroup { name: name(), flows, bytes_rx, bytes_tx });
        } else {
            self.ungrouped += flows;
        }
    }
}

fn add(sums: &mut [Option<u64>; 2], bytes: [Option<u64>; 2]) {
    for (all, bytes) in sums.iter_mut().zip(bytes) {
        *all = sum(*all, bytes);
    }
}

/// Sum of the known values; `None` if both are unknown.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
