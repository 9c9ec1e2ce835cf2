//! Flows that are counted and chosen as they are offered. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

use super::{FlowActivity, FlowFacts, FlowGrouping, FlowQuery, ListedFlow};

/// Groups that are counted apart; flows of others are counted together.
const MAX_GROUPS: usize = 65_536;

/// The flows that a query wants, of those offered so far. Its size has a limit, however many are offered.
#[derive(Debug)]
pub struct FlowListing {
    query: FlowQuery,
    /// The last of those that are kept is first to go.
    kept: BinaryHeap<Reverse<Kept>>,
    matching: u64,
    bytes: [Option<u64>; 2],
    groups: HashMap<GroupKey, FlowGroup>,
    /// Flows of groups beyond [`MAX_GROUPS`].
    ungrouped: u64,
}

/// A flow, the larger the earlier it comes.
#[derive(Debug)]
struct Kept {
    key: u64,
    flow: ListedFlow,
}

impl Kept {
    /// Of two alike the one with the smaller name comes first.
    fn rank(&self) -> (u64, Reverse<super::ListedFlowId>) {
        (self.key, Reverse(self.flow.id))
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Kept) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Kept) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// What the flows of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum GroupKey {
    Client(IpAddr),
    /// The number of a server or frontend; `None`: no server yet.
    Number(Option<u32>),
    Word(&'static str),
}

/// Flows that have something in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowGroup {
    /// In words for an operator.
    pub name: String,
    /// How many there are.
    pub flows: u64,
    /// Bytes from their clients, as far as they are known; `None`: of none.
    pub bytes_rx: Option<u64>,
    /// Bytes to their clients, likewise.
    pub bytes_tx: Option<u64>,
}

/// What a query is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowAnswer {
    /// The first of the wanted flows; none if they were to be counted by something.
    pub flows: Vec<ListedFlow>,
    /// How many are wanted in all.
    pub matching: u64,
    /// Bytes from their clients, as far as they are known; `None`: of none, although there are some.
    pub bytes_rx: Option<u64>,
    /// Bytes to their clients, likewise.
    pub bytes_tx: Option<u64>,
    /// The largest groups, if they were to be counted by something.
    pub groups: Vec<FlowGroup>,
    /// Groups that are not among these, as far as they were counted apart.
    pub more_groups: u64,
    /// Flows of groups that are not among these.
    pub more_flows: u64,
}

impl FlowListing {
    /// Nothing has been offered yet.
    pub fn new(query: FlowQuery) -> FlowListing {
        let query = FlowQuery { limit: query.limit.min(FlowQuery::MAX_LIMIT), ..query };
        let (kept, groups) = (BinaryHeap::new(), HashMap::new());
        FlowListing { query, kept, matching: 0, bytes: [None; 2], groups, ungrouped: 0 }
    }

    /// Offers a flow. Its `activity` is asked for if the flow may be wanted.
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
            None => self.keep(flow, activity),
        }
    }

    /// Adds what another listing of the same query has found.
    pub fn merge(&mut self, other: FlowListing) {
        self.matching += other.matching;
        add(&mut self.bytes, other.bytes);
        self.ungrouped += other.ungrouped;
        for (key, group) in other.groups {
            self.add_to_group(key, group.flows, [group.bytes_rx, group.bytes_tx], || group.name);
        }
        self.kept.extend(other.kept);
        while self.kept.len() > self.query.limit {
            self.kept.pop();
        }
    }

    /// The answer, first things first.
    pub fn answer(self) -> FlowAnswer {
        let flows = self.kept.into_sorted_vec().into_iter().map(|Reverse(kept)| kept.flow).collect();
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

    fn keep(&mut self, flow: &FlowFacts<'_>, activity: FlowActivity) {
        let key = self.query.sort.key(&activity);
        if self.kept.len() >= self.query.limit {
            let last = self.kept.peek().map(|Reverse(last)| last.rank());
            if last.is_none_or(|last| last > (key, Reverse(flow.id))) {
                return;
            }
            self.kept.pop();
        }
        self.kept.push(Reverse(Kept { key, flow: ListedFlow::new(flow, activity) }));
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

/// Of what is known.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
