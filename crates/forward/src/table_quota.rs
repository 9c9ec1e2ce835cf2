//! Quotas of the connection table for each kind of flow, and the choice of the flow to evict. Flows
//! that can be forged in one mode leave room for the other modes.

use super::flow::{Class, Flow};
use super::flows::Full;
use super::queues::{Queues, Resource};
use super::state::View;
use super::workers::WorkerPeers;
use convey_model::{Timestamp, UDP};

/// Kind of traffic: mode and protocol, which determine the packets that a stranger has to forge to
/// open a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrafficKind(u8);

impl TrafficKind {
    /// Number of kinds.
    pub const COUNT: usize = 4;

    /// Kind of flows with this protocol and view.
    #[inline]
    pub fn new(view: View, protocol: u8) -> TrafficKind {
        TrafficKind(u8::from(view == View::ClientSide) << 1 | u8::from(protocol == UDP))
    }

    /// Whether this is a kind of UDP.
    pub(super) fn is_udp(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the next packet of an evicted flow reaches the same server again.
    fn is_hashed(self) -> bool {
        self.0 & 2 != 0
    }

    pub(super) fn all() -> impl Iterator<Item = TrafficKind> + Clone {
        (0..TrafficKind::COUNT as u8).map(TrafficKind)
    }

    /// Classes whose flows are evicted for their place in the table, in this order, if no flow is
    /// over. Passthrough streams are excluded: whether they are in use is checked first.
    fn evictable_classes(self) -> &'static [Class] {
        if self.is_hashed() { &[Class::HalfOpen, Class::Doubtful] } else { &[Class::HalfOpen] }
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Numbers of used and free units of a limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Occupancy {
    pub(super) used: u32,
    pub(super) free: u32,
}

impl Occupancy {
    /// Occupancy of a resource with `all` units, of which `used` are taken.
    pub(super) fn of(all: u32, used: u32) -> Occupancy {
        Occupancy { used, free: all.saturating_sub(used) }
    }
}

/// Flows of each kind: their number, their quota, and the queues for eviction.
///
/// Half of the table is divided evenly among the configured kinds, as a guaranteed quota of each;
/// all kinds share the other half. A single kind may use the whole table.
#[derive(Debug)]
pub(super) struct TableQuota {
    queues: [Queues; TrafficKind::COUNT],
    counts: [u32; TrafficKind::COUNT],
    /// Guaranteed entries of each kind.
    guaranteed: [u32; TrafficKind::COUNT],
    capacity: u32,
    /// Time of the last change of class, which increases with every change.
    clock: u64,
    workers: WorkerPeers,
}

impl TableQuota {
    pub(super) fn new(capacity: u32) -> TableQuota {
        let queues = std::array::from_fn(|_| Queues::new());
        TableQuota {
            queues,
            counts: [0; TrafficKind::COUNT],
            guaranteed: [0; TrafficKind::COUNT],
            capacity,
            clock: 0,
            workers: WorkerPeers::alone(),
        }
    }

    /// Shares the number of evictable flows with the other workers.
    pub(super) fn work_with(&mut self, workers: WorkerPeers) {
        self.workers = workers;
    }

    /// Sets the configured kinds. Existing flows stay.
    pub(super) fn divide_among(&mut self, kinds: impl Iterator<Item = TrafficKind>) {
        let mut is_present = [false; TrafficKind::COUNT];
        kinds.for_each(|kind| is_present[kind.index()] = true);
        let present = is_present.into_iter().filter(|present| *present).count() as u32;
        let part = if present > 1 { self.capacity / 2 / present } else { 0 };
        self.guaranteed = is_present.map(|present| if present { part } else { 0 });
    }

    /// Current number of flows.
    pub(super) fn len(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Number of open flows, as far as convey can see.
    pub(super) fn open(&self) -> u32 {
        self.queues.iter().map(Queues::open).sum()
    }

    /// Number of flows of a kind in the table, and number of further flows of this kind that fit.
    pub(super) fn occupancy(&self, kind: TrafficKind) -> Occupancy {
        let (used, guaranteed) = (self.counts[kind.index()], self.guaranteed[kind.index()]);
        let free = self.capacity.saturating_sub(self.promised()) + guaranteed.saturating_sub(used);
        Occupancy { used, free }
    }

    /// Flow to evict for a new flow of this kind; `None` if there is room.
    ///
    /// # Errors
    /// [`Full`] if there is no room, and all candidates for eviction are open.
    pub(super) fn victim(&mut self, flows: &[Flow], new: TrafficKind) -> Result<Option<u32>, Full> {
        let is_within_its_part = self.counts[new.index()] < self.guaranteed[new.index()];
        let has_place = self.len() < self.capacity;
        if has_place && (is_within_its_part || self.promised() < self.capacity) {
            return Ok(None);
        }
        let full = if has_place { Full::Quota } else { Full::Table };
        let most_wait: [bool; TrafficKind::COUNT] =
            std::array::from_fn(|kind| self.most_wait(TrafficKind(kind as u8)));
        let over = |kind: TrafficKind| if most_wait[kind.index()] { &[][..] } else { &[Class::Closing][..] };
        let over = self.first_by_excess(flows, new, over);
        over.or_else(|| self.first_by_excess(flows, new, TrafficKind::evictable_classes))
            .map(Some)
            .ok_or(full)
    }

    /// Whether more UDP flows wait for an answer than were answered. If so, convey takes the
    /// waiting flows for forged, and evicts them before answered flows. Otherwise the waiting flows
    /// probably belong to clients, and answered flows are evicted first, because most of them are
    /// over.
    fn most_wait(&self, kind: TrafficKind) -> bool {
        let count = |class| self.count(Resource::TableEntry, kind, class);
        kind.is_udp() && count(Class::HalfOpen) > count(Class::Closing)
    }

    /// Whether a flow of this kind may be evicted so that a new flow gets its table entry: the kind
    /// exceeds its guaranteed quota, or both flows are of one kind.
    pub(super) fn may_evict(&self, kind: TrafficKind, new: TrafficKind) -> bool {
        self.excess(kind) > 0 || kind == new
    }

    /// Number of flows of a kind and class that hold this resource.
    pub(super) fn count(&self, resource: Resource, kind: TrafficKind, class: Class) -> u32 {
        self.queues[kind.index()].len(resource, class)
    }

    /// Flow of this kind that holds this resource and has been in a class for longest.
    pub(super) fn first(
        &mut self,
        flows: &[Flow],
        resource: Resource,
        kind: TrafficKind,
        class: Class,
    ) -> Option<u32> {
        self.queues[kind.index()].first(flows, resource, class)
    }

    /// Adds a flow that is in `class`.
    pub(super) fn insert(&mut self, flows: &mut [Flow], id: u32, class: Class, now: Timestamp) {
        self.counts[flows[id as usize].kind().index()] += 1;
        self.enter(flows, id, class, now);
    }

    /// Removes a flow that was in `class`.
    pub(super) fn remove(&mut self, flows: &mut [Flow], id: u32, class: Class) {
        self.counts[flows[id as usize].kind().index()] -= 1;
        self.leave(flows, id, class);
    }

    /// Notes that an existing flow has entered `class`.
    pub(super) fn enter(&mut self, flows: &mut [Flow], id: u32, class: Class, now: Timestamp) {
        self.clock = now.0.max(self.clock + 1);
        self.workers.note(&flows[id as usize], class, true);
        self.queues[flows[id as usize].kind().index()].enter(flows, id, class, self.clock);
    }

    /// Moves an evictable flow to the end of its queue, as if it had entered its class at `since`.
    pub(super) fn move_to_back(&mut self, flows: &mut [Flow], id: u32, class: Class, since: Timestamp) {
        let queues = &mut self.queues[flows[id as usize].kind().index()];
        queues.leave(flows, id, class);
        queues.enter(flows, id, class, since.0);
    }

    /// Notes that an existing flow has left `class`.
    pub(super) fn leave(&mut self, flows: &mut [Flow], id: u32, class: Class) {
        self.workers.note(&flows[id as usize], class, false);
        self.queues[flows[id as usize].kind().index()].leave(flows, id, class);
    }

    /// Entries in use, and guaranteed entries that are not in use.
    fn promised(&self) -> u32 {
        self.counts.iter().zip(&self.guaranteed).map(|(count, guaranteed)| count.max(guaranteed)).sum()
    }

    /// Flow to evict from the kind that exceeds its guaranteed quota most and has a flow in one of
    /// its `classes`. The classes of a kind are searched in order, for the flow that has been in
    /// the class for longest. Flows of a kind within its guaranteed quota are only evicted for
    /// their own kind.
    fn first_by_excess(
        &mut self,
        flows: &[Flow],
        new: TrafficKind,
        classes: impl Fn(TrafficKind) -> &'static [Class],
    ) -> Option<u32> {
        let mut found = None;
        for kind in TrafficKind::all() {
            if !self.may_evict(kind, new) {
                continue;
            }
            let queues = &mut self.queues[kind.index()];
            let first =
                classes(kind).iter().find_map(|class| queues.first(flows, Resource::TableEntry, *class));
            let excess = self.excess(kind);
            found = found.max(first.map(|id| (excess, kind.0, id)));
        }
        found.map(|(_, _, id)| id)
    }

    fn excess(&self, kind: TrafficKind) -> u32 {
        self.counts[kind.index()].saturating_sub(self.guaranteed[kind.index()])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ACK, Direction, FlowTable, NewFlow, SYN, Segment};
    use convey_model::{Addr, FlowKey, FlowTimeouts, Protocol, TCP, Timestamp};

    const PASSTHROUGH: TrafficKind = TrafficKind(0);
    const DSR: TrafficKind = TrafficKind(2);

    fn shared(capacity: u32, kinds: &[TrafficKind]) -> FlowTable {
        let mut table = FlowTable::new(capacity, &FlowTimeouts::default(), 7);
        table.divide_among(kinds.iter().copied());
        table
    }

    fn flow(view: View, protocol: Protocol, n: u32) -> NewFlow {
        let vip = "192.0.2.1:80".parse().unwrap();
        let mut client = FlowKey::new(protocol, "198.51.100.1:4000".parse().unwrap(), vip);
        client.src = Addr::v4((0xcb00_0000 + n).to_be_bytes());
        let mut server = FlowKey::new(protocol, "10.0.1.1:80".parse().unwrap(), client.source());
        if view == View::BothSides {
            server.dst = Addr::v4((0x0a01_0000 + n).to_be_bytes());
        }
        NewFlow {
            client,
            server,
            view,
            method: crate::ForwardingMethod::Rewritten,
            server_id: 1,
            frontend_id: 1,
            to_server: 1,
            to_client: 2,
            segment: Segment { flags: SYN, seq: 99, ack: 0, len: 1 },
        }
    }

    const CLIENT: (Direction, u32) = (Direction::ToServer, ACK as u32);

    /// Completes the handshake of client `n`; returns whether there was room.
    fn connect(table: &mut FlowTable, view: View, n: u32, now: Timestamp) -> bool {
        let Ok(inserted) = table.insert(&flow(view, Protocol::Tcp, n), now) else { return false };
        if view == View::BothSides {
            let answer = Segment { flags: SYN | ACK, seq: 499, ack: 100, len: 1 };
            table.on_segment(inserted.id, Direction::ToClient, answer, now);
        }
        let ack = Segment { flags: CLIENT.1 as u8, seq: 100, ack: 500, len: 0 };
        table.on_segment(inserted.id, CLIENT.0, ack, now);
        true
    }

    /// Sends the first data of client `n`.
    fn send(table: &mut FlowTable, view: View, n: u32, now: Timestamp) {
        let (id, _) = table.lookup(&flow(view, Protocol::Tcp, n).client).expect("it is there");
        table.on_segment(id, CLIENT.0, Segment { flags: ACK, seq: 100, ack: 500, len: 10 }, now);
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp(Duration::from_millis(millis).as_nanos() as u64)
    }

    #[test]
    fn kinds_are_told_apart_by_mode_and_protocol() {
        let views = [View::BothSides, View::ClientSide];
        let kinds = views.map(|view| [TrafficKind::new(view, TCP), TrafficKind::new(view, UDP)]);
        assert_eq!(kinds.concat(), TrafficKind::all().collect::<Vec<_>>());
    }

    /// Number of flows of the first kind that fit, and of each of the others after that.
    fn fit(kinds: &[(View, Protocol)]) -> Vec<usize> {
        let kinds: Vec<TrafficKind> =
            kinds.iter().map(|(view, protocol)| TrafficKind::new(*view, *protocol as u8)).collect();
        let mut shared = TableQuota::new(1_000);
        shared.divide_among(kinds.iter().copied());
        let mut fits = |kind: TrafficKind| {
            let of_kind =
                |shared: &mut TableQuota| shared.victim(&[], kind).is_ok_and(|victim| victim.is_none());
            (0..2_000)
                .take_while(|_| {
                    of_kind(&mut shared) && {
                        shared.counts[kind.index()] += 1;
                        true
                    }
                })
                .count()
        };
        kinds.iter().map(|kind| fits(*kind)).collect()
    }

    #[test]
    fn each_kind_can_count_on_its_part_however_many_the_others_have() {
        let (tcp, udp) = ((View::BothSides, Protocol::Tcp), (View::BothSides, Protocol::Udp));
        let (dsr, dsr_udp) = ((View::ClientSide, Protocol::Tcp), (View::ClientSide, Protocol::Udp));
        assert_eq!(fit(&[tcp]), [1_000]);
        assert_eq!(fit(&[tcp, tcp]), [1_000, 0], "two frontends of a kind share one part");
        assert_eq!(fit(&[dsr, tcp]), [750, 250]);
        assert_eq!(fit(&[dsr, udp, tcp]), [668, 166, 166]);
        assert_eq!(fit(&[dsr, dsr_udp, udp, tcp]), [625, 125, 125, 125]);
    }

    #[test]
    fn forged_handshakes_in_dsr_leave_passthrough_its_share_though_they_show_data() {
        let mut table = shared(1_000, &[PASSTHROUGH, DSR]);
        for n in 0..5_000 {
            if connect(&mut table, View::ClientSide, n, at(0)) {
                send(&mut table, View::ClientSide, n, at(0));
            }
        }
        assert_eq!(table.len(), 750);
        assert_eq!(
            table.insert(&flow(View::ClientSide, Protocol::Tcp, 9_999), at(0)).unwrap_err(),
            Full::Quota
        );
        assert!((10_000..10_250).all(|n| connect(&mut table, View::BothSides, n, at(0))));
        assert_eq!((table.len(), table.open()), (1_000, 1_000));
        assert_eq!(
            table.insert(&flow(View::BothSides, Protocol::Tcp, 20_000), at(0)).unwrap_err(),
            Full::Table
        );
    }

    #[test]
    fn flood_in_one_mode_spares_the_share_of_the_other() {
        for (flooded, other) in [(View::ClientSide, View::BothSides), (View::BothSides, View::ClientSide)] {
            let mut table = shared(1_000, &[PASSTHROUGH, DSR]);
            for n in 0..250 {
                table.insert(&flow(other, Protocol::Tcp, 10_000 + n), at(0)).unwrap();
            }
            for n in 0..5_000 {
                table.insert(&flow(flooded, Protocol::Tcp, n), at(1)).unwrap();
            }
            assert_eq!(table.len(), 1_000);
            assert!((0..250).all(|n| table.lookup(&flow(other, Protocol::Tcp, 10_000 + n).client).is_some()));
            for n in 250..500 {
                let evicted =
                    table.insert(&flow(other, Protocol::Tcp, 10_000 + n), at(2)).unwrap().evicted.unwrap();
                assert_eq!(evicted.view(), flooded, "who has most beyond its share gives way");
            }
        }
    }

    #[test]
    fn slow_client_handshake_outlives_forged_instant_ones() {
        let mut table = shared(1_000, &[DSR]);
        table.insert(&flow(View::ClientSide, Protocol::Tcp, 10_000), at(0)).unwrap();
        for n in 0..900 {
            connect(&mut table, View::ClientSide, n, at(10));
        }
        let id = table.lookup(&flow(View::ClientSide, Protocol::Tcp, 10_000).client).unwrap().0;
        let ack = Segment { flags: ACK, seq: 100, ack: 500, len: 0 };
        table.on_segment(id, Direction::ToServer, ack, at(50));
        send(&mut table, View::ClientSide, 10_000, at(60));
        for n in 900..9_000 {
            connect(&mut table, View::ClientSide, n, at(70));
        }
        assert!(table.lookup(&flow(View::ClientSide, Protocol::Tcp, 10_000).client).is_some());
        assert_eq!(table.len(), 1_000);
    }
}
