//! Queues of flows in the order of eviction. The queues change when a flow changes its class, not
//! with each of its packets.
//!
//! Flows that hold the same resources form a group and queue in it, the oldest in front. To find
//! the oldest flow that holds a resource, the resource has a heap with the first flows of all
//! groups that hold it.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};

use super::addr_port::AddrPort;
use super::flow::{Class, Flow};
use super::list::{FlowList, GROUP};

/// Number of classes whose flows may be evicted.
const CLASSES: usize = 3;

/// Upper bound for the groups without a flow that are kept, so that the next flow of the same
/// frontend and server allocates nothing.
const IDLE_GROUPS: usize = 1_024;

/// A limited resource that a flow holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    /// An entry of the connection table.
    TableEntry,
    /// A SNAT port towards a server's address and port. One address may have several server
    /// numbers, as a member of several backends or after a change of its name.
    Port(AddrPort),
    /// A connection slot of the frontend with this number.
    FrontendSlot(u32),
    /// A connection slot of the server with this number.
    ServerSlot(u32),
}

/// Queues of the evictable flows of one kind.
#[derive(Debug)]
pub(super) struct Queues {
    groups: Vec<Group>,
    group_numbers: HashMap<Owner, u32>,
    holders: Vec<Holder>,
    holder_numbers: HashMap<Resource, u32>,
    /// Number of groups above which groups without a flow are forgotten.
    most_groups: usize,
    open: u32,
}

/// Resources that the flows of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    frontend: u32,
    server: u32,
    endpoint: AddrPort,
}

#[derive(Debug)]
struct Group {
    owner: Owner,
    /// Number of the holder of each resource that the flows of this group hold.
    holders: [u32; Owner::HOLDS],
    queues: [Queue; CLASSES],
    /// Whether a queue is in the heap of a holder, by class and holder.
    is_listed: [[bool; Owner::HOLDS]; CLASSES],
}

/// A list with its length.
#[derive(Debug, Clone, Copy)]
struct Queue {
    list: FlowList<GROUP>,
    len: u32,
}

/// All groups whose flows hold one resource.
#[derive(Debug, Default)]
struct Holder {
    fronts: [Fronts; CLASSES],
}

/// Groups with flows of one class, ordered by the time of their first flow.
#[derive(Debug, Default)]
struct Fronts {
    len: u32,
    /// Lower bounds: a group's first flow entered its class at this time or later, since a flow
    /// that leaves does not update the heap.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Queues {
    pub(super) fn new() -> Self {
        // Large enough for most configurations, so that packets rarely cause an allocation; it
        // grows with the number of servers.
        Queues {
            groups: Vec::with_capacity(256),
            group_numbers: HashMap::with_capacity(256),
            holders: Vec::with_capacity(256),
            holder_numbers: HashMap::with_capacity(256),
            most_groups: IDLE_GROUPS,
            open: 0,
        }
    }

    /// Number of open flows, as far as convey can see.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Number of flows of a class that hold this resource.
    pub(super) fn len(&self, resource: Resource, class: Class) -> u32 {
        let holder = self.holder_numbers.get(&resource);
        holder.map_or(0, |number| self.holders[*number as usize].fronts[class as usize].len)
    }

    /// Flow that holds this resource and has been in a class for longest.
    pub(super) fn first(&mut self, flows: &[Flow], resource: Resource, class: Class) -> Option<u32> {
        let number = *self.holder_numbers.get(&resource)?;
        let heap = &mut self.holders[number as usize].fronts[class as usize].heap;
        while let Some(mut front) = heap.peek_mut() {
            let Reverse((since, group_number)) = *front;
            let group = &mut self.groups[group_number as usize];
            match group.queues[class as usize].list.first() {
                Some(id) if flows[id as usize].since == since => return Some(id),
                Some(id) => *front = Reverse((flows[id as usize].since, group_number)),
                None => {
                    PeekMut::pop(front);
                    group.is_listed[class as usize][resource.index()] = false;
                }
            }
        }
        None
    }

    /// Adds a flow that has been in `class` since `since`.
    pub(super) fn enter(&mut self, flows: &mut [Flow], id: u32, class: Class, since: u64) {
        self.open += u32::from(class.is_open());
        if class == Class::Open {
            return;
        }
        flows[id as usize].since = since;
        let number = self.group(Owner::of(&flows[id as usize]), flows);
        self.groups[number as usize].queues[class as usize].push(flows, id);
        self.list(number, class as usize, 1, Some(since));
    }

    /// Removes a flow that was in `class`.
    pub(super) fn leave(&mut self, flows: &mut [Flow], id: u32, class: Class) {
        self.open -= u32::from(class.is_open());
        if class == Class::Open {
            return;
        }
        let Some(&number) = self.group_numbers.get(&Owner::of(&flows[id as usize])) else { return };
        let group = &mut self.groups[number as usize];
        group.queues[class as usize].remove(flows, id);
        for holder in group.holders {
            self.holders[holder as usize].fronts[class as usize].len -= 1;
        }
    }

    /// Adds `more` flows of a group to the counts of its holders, and adds the group to the
    /// holders' heaps with the time `since` of its first flow, if there is one.
    fn list(&mut self, number: u32, class: usize, more: u32, since: Option<u64>) {
        let group = &mut self.groups[number as usize];
        for (holder, is_listed) in group.holders.into_iter().zip(&mut group.is_listed[class]) {
            let fronts = &mut self.holders[holder as usize].fronts[class];
            fronts.len += more;
            if let Some(since) = since.filter(|_| !*is_listed) {
                fronts.heap.push(Reverse((since, number)));
                *is_listed = true;
            }
        }
    }

    /// Number of a group, which is created if it does not exist.
    fn group(&mut self, owner: Owner, flows: &[Flow]) -> u32 {
        if let Some(&number) = self.group_numbers.get(&owner) {
            return number;
        }
        if self.groups.len() >= self.most_groups {
            self.remove_empty_groups(flows);
        }
        self.add(owner)
    }

    fn add(&mut self, owner: Owner) -> u32 {
        let holders = owner.holds().map(|resource| {
            *self.holder_numbers.entry(resource).or_insert_with(|| {
                self.holders.push(Holder::default());
                self.holders.len() as u32 - 1
            })
        });
        let (queues, is_listed) = ([Queue::EMPTY; CLASSES], Default::default());
        self.groups.push(Group { owner, holders, queues, is_listed });
        let number = self.groups.len() as u32 - 1;
        self.group_numbers.insert(owner, number);
        number
    }

    /// Removes groups without a flow. Servers come and go, and a frontend with many ports has many
    /// groups.
    fn remove_empty_groups(&mut self, flows: &[Flow]) {
        let groups = std::mem::take(&mut self.groups);
        self.group_numbers.clear();
        self.holders.clear();
        self.holder_numbers.clear();
        for group in groups.into_iter().filter(|group| group.queues.iter().any(|queue| queue.len > 0)) {
            let number = self.add(group.owner);
            self.groups[number as usize].queues = group.queues;
            for (class, queue) in group.queues.iter().enumerate() {
                let since = queue.list.first().map(|id| flows[id as usize].since);
                self.list(number, class, queue.len, since);
            }
        }
        self.most_groups = IDLE_GROUPS + 2 * self.groups.len();
    }
}

impl Resource {
    /// Whether a flow holds this resource.
    pub(super) fn is_held_by(self, flow: &Flow) -> bool {
        Owner::of(flow).holds().contains(&self)
    }

    /// Number of resources that a flow holds.
    pub(super) const COUNT: usize = Owner::HOLDS;

    /// All resources that a flow holds.
    pub(super) fn all_of(flow: &Flow) -> [Resource; Resource::COUNT] {
        Owner::of(flow).holds()
    }

    /// Index of the resource in [`Owner::holds`].
    fn index(self) -> usize {
        match self {
            Resource::TableEntry => 0,
            Resource::Port(..) => 1,
            Resource::FrontendSlot(_) => 2,
            Resource::ServerSlot(_) => 3,
        }
    }
}

impl Owner {
    /// Number of resources that a flow holds.
    const HOLDS: usize = 4;

    fn of(flow: &Flow) -> Owner {
        let endpoint = flow.server_place();
        Owner { frontend: flow.frontend_id(), server: flow.server_id(), endpoint }
    }

    fn holds(&self) -> [Resource; Owner::HOLDS] {
        let Owner { frontend, server, endpoint } = *self;
        [
            Resource::TableEntry,
            Resource::Port(endpoint),
            Resource::FrontendSlot(frontend),
            Resource::ServerSlot(server),
        ]
    }
}

impl Queue {
    const EMPTY: Queue = Queue { list: FlowList::EMPTY, len: 0 };

    fn push(&mut self, flows: &mut [Flow], id: u32) {
        self.list.push(flows, id);
        self.len += 1;
    }

    fn remove(&mut self, flows: &mut [Flow], id: u32) {
        self.list.remove(flows, id);
        self.len -= 1;
    }
}
