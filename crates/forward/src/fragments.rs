//! Fragments: only the first fragment of a packet has the ports that identify its flow, and the
//! others follow it.
//!
//! A path may reorder fragments, and some senders send the last fragment first. Fragments that
//! arrive before the first one are held briefly. Dropping a fragment would lose the whole datagram,
//! which UDP does not send again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::IpIds;
use convey_model::{FlowKey, Timestamp};
use convey_wire::{FragmentKey, Headers, Kind};

/// Upper bound for the packets that are remembered; the oldest makes room for another.
const MAX_PACKETS: usize = 4_096;

/// Upper bound for the fragments that wait for the first fragment of their packet.
const MAX_HELD: usize = 512;

/// Upper bound for the waiting fragments of one packet: the longest packet has 45 fragments on
/// Ethernet.
const MAX_HELD_OF_ONE: usize = 64;

/// Time for which a packet is remembered. Receivers give up after 30 s (Linux) or more (RFC 8200:
/// 60 s), but fragments hardly ever arrive more than a few seconds after the first.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Time for which a fragment waits for the first fragment of its packet. Reordering delays packets
/// by milliseconds.
const MAX_FRAGMENT_WAIT: Duration = Duration::from_millis(500);

/// Packets that arrive in fragments, and the frames `T` that wait for their first fragment.
#[derive(Debug)]
pub struct Fragments<T> {
    packets: HashMap<FragmentKey, FragmentedPacket<T>>,
    /// Packets in the order of their arrival, including some that are no longer remembered.
    order: VecDeque<(Timestamp, FragmentKey)>,
    /// Packets that wait for their first fragment, in the order in which they began to wait.
    waiting: VecDeque<(Timestamp, FragmentKey)>,
    held: usize,
    ids: IpIds,
}

/// Fields of a first fragment that the later fragments lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstFragment {
    /// Source and destination port.
    pub ports: (u16, u16),
    /// IP protocol number.
    pub protocol: u8,
    /// Identification number that convey writes into all fragments of the packet; no other packet
    /// has it at this time. Packets of several senders that leave with one source address need
    /// different numbers (RFC 6864, section 4.3).
    pub id: u16,
    /// Worker that has the flow.
    pub worker: u16,
}

impl FirstFragment {
    /// Copies the ports and the protocol of the packet to the headers of a later fragment.
    pub fn complete(&self, headers: &mut Headers) {
        if let Kind::LaterFragment { .. } = headers.kind {
            (headers.key.src_port, headers.key.dst_port) = self.ports;
            headers.key.protocol = self.protocol;
        }
    }
}

/// Result of handling a fragment that is not the first.
#[derive(Debug, PartialEq, Eq)]
pub enum Later<T> {
    /// The first fragment has arrived: the fragment follows it.
    Follows(FirstFragment, T),
    /// The fragment waits for the first fragment.
    Queued,
    /// Too many fragments wait already.
    Full(T),
}

#[derive(Debug)]
struct FragmentedPacket<T> {
    since: Timestamp,
    id: u16,
    first: Option<FirstFragment>,
    held: Vec<T>,
}

impl<T> Fragments<T> {
    /// Creates an empty state. Packets get their identification numbers from `ids`.
    pub fn new(ids: IpIds) -> Fragments<T> {
        let (packets, order, waiting) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Fragments { packets, order, waiting, held: 0, ids }
    }

    /// Number of frames that wait for their first fragment.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether there is nothing to expire.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.waiting.is_empty()
    }

    /// Handles the first fragment of a packet of `flow`, which goes to `worker`. Returns the fields
    /// that later fragments need, and the frames that waited for these fields. `drop` gets frames
    /// that are discarded to make room.
    ///
    /// A first fragment that arrives again soon is a copy; after a while, it belongs to another
    /// packet whose sender has reused the identification number.
    pub fn first(
        &mut self,
        key: FragmentKey,
        (flow, worker): (&FlowKey, u16),
        now: Timestamp,
        mut drop: impl FnMut(T),
    ) -> (FirstFragment, Vec<T>) {
        let known = self.packets.get(&key);
        if known.is_some_and(|packet| packet.first.is_some() && is_over(packet.since, MAX_FRAGMENT_WAIT, now))
        {
            self.remove(key, &mut drop);
        }
        let packet = self.packet(key, now, drop);
        let ports = (flow.src_port, flow.dst_port);
        let part = FirstFragment { ports, protocol: flow.protocol, worker, id: packet.id };
        packet.first = Some(part);
        let held = std::mem::take(&mut packet.held);
        self.held -= held.len();
        (part, held)
    }

    /// Handles a later fragment. `drop` gets frames that are discarded to make room.
    pub fn later(&mut self, key: FragmentKey, frame: T, now: Timestamp, drop: impl FnMut(T)) -> Later<T> {
        let is_full = self.held >= MAX_HELD;
        // The packet is not remembered, so that a flood of later fragments does not displace
        // packets whose first fragment has arrived.
        if is_full && !self.packets.contains_key(&key) {
            return Later::Full(frame);
        }
        let packet = self.packet(key, now, drop);
        match packet.first {
            Some(part) => Later::Follows(part, frame),
            None if is_full || packet.held.len() >= MAX_HELD_OF_ONE => Later::Full(frame),
            None => {
                let (since, is_first) = (packet.since, packet.held.is_empty());
                packet.held.push(frame);
                self.held += 1;
                if is_first {
                    self.waiting.push_back((since, key));
                }
                Later::Queued
            }
        }
    }

    /// Forgets old packets. `drop` gets the fragments whose first fragment did not arrive.
    pub fn expire(&mut self, now: Timestamp, mut drop: impl FnMut(T)) {
        while let Some(&(since, key)) =
            self.waiting.front().filter(|(since, _)| is_over(*since, MAX_FRAGMENT_WAIT, now))
        {
            self.waiting.pop_front();
            if self.packets.get(&key).is_some_and(|packet| packet.since == since && packet.first.is_none()) {
                self.remove(key, &mut drop);
            }
        }
        while let Some(&(since, key)) =
            self.order.front().filter(|(since, _)| is_over(*since, REMEMBERED, now))
        {
            self.order.pop_front();
            if self.packets.get(&key).is_some_and(|packet| packet.since == since) {
                self.remove(key, &mut drop);
            }
        }
    }

    /// The packet with this key, added if the key is new.
    fn packet(
        &mut self,
        key: FragmentKey,
        now: Timestamp,
        mut drop: impl FnMut(T),
    ) -> &mut FragmentedPacket<T> {
        if !self.packets.contains_key(&key) {
            // The queue has all remembered packets, and packets whose first fragment did not
            // arrive.
            while self.order.len() >= MAX_PACKETS
                && let Some((since, oldest)) = self.order.pop_front()
            {
                if self.packets.get(&oldest).is_some_and(|packet| packet.since == since) {
                    self.remove(oldest, &mut drop);
                }
                if self.waiting.front() == Some(&(since, oldest)) {
                    self.waiting.pop_front();
                }
            }
            self.order.push_back((now, key));
        }
        let ids = &mut self.ids;
        self.packets.entry(key).or_insert_with(|| FragmentedPacket {
            since: now,
            id: ids.take(),
            first: None,
            held: Vec::new(),
        })
    }

    fn remove(&mut self, key: FragmentKey, drop: impl FnMut(T)) {
        if let Some(packet) = self.packets.remove(&key) {
            self.held -= packet.held.len();
            packet.held.into_iter().for_each(drop);
        }
    }
}

fn is_over(since: Timestamp, patience: Duration, now: Timestamp) -> bool {
    u128::from(now.0.saturating_sub(since.0)) >= patience.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::{Addr, UDP};

    const PORTS: (u16, u16) = (4242, 53);

    fn flow((src_port, dst_port): (u16, u16)) -> FlowKey {
        let [src, dst] = [[10, 0, 0, 1], [10, 1, 0, 1]].map(Addr::v4);
        FlowKey { src, dst, src_port, dst_port, protocol: UDP, reserved: [0; 3] }
    }

    fn key(client: u16, id: u32) -> FragmentKey {
        let [high, low] = client.to_be_bytes();
        FragmentKey { src: Addr::v4([10, 0, high, low]), dst: Addr::v4([10, 1, 0, 1]), id, protocol: UDP }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000_000)
    }

    fn none_yet<T>() -> Fragments<T> {
        Fragments::new(IpIds::new(7))
    }

    fn none(frame: &str) {
        panic!("{frame} is dropped");
    }

    #[test]
    fn fragments_go_where_their_first_went() {
        let mut fragments = none_yet();
        let (part, held) = fragments.first(key(1, 9), (&flow(PORTS), 3), at(0), none);
        assert_eq!((part, held), (FirstFragment { ports: PORTS, protocol: UDP, worker: 3, id: 7 }, vec![]));
        assert_eq!(fragments.later(key(1, 9), "b", at(1), none), Later::Follows(part, "b"));
        let (other, _) = fragments.first(key(2, 9), (&flow(PORTS), 3), at(1), none);
        assert_ne!(other.id, part.id, "another client chose the same number");
    }

    #[test]
    fn early_fragments_follow_their_first_fragment() {
        let mut fragments = none_yet();
        assert_eq!(fragments.later(key(1, 9), "c", at(0), none), Later::Queued);
        assert_eq!(fragments.later(key(1, 9), "b", at(1), none), Later::Queued);
        let (part, held) = fragments.first(key(1, 9), (&flow(PORTS), 0), at(2), none);
        assert_eq!(held, ["c", "b"]);
        assert_eq!(fragments.later(key(1, 9), "d", at(3), none), Later::Follows(part, "d"));
    }

    #[test]
    fn fragments_without_a_first_are_dropped_after_half_a_second() {
        let mut fragments = none_yet();
        fragments.later(key(1, 9), "b", at(0), none);
        fragments.first(key(2, 9), (&flow(PORTS), 0), at(0), none);
        fragments.expire(at(499), none);
        let mut dropped = Vec::new();
        fragments.expire(at(500), |frame| dropped.push(frame));
        assert_eq!(dropped, ["b"]);
        assert_eq!(fragments.packets.len(), 1);
    }

    #[test]
    fn fragmented_packet_expires_after_ten_seconds() {
        let mut fragments = none_yet();
        fragments.first(key(1, 9), (&flow(PORTS), 0), at(0), none);
        fragments.expire(at(9_999), none);
        assert!(matches!(fragments.later(key(1, 9), "b", at(9_999), none), Later::Follows(..)));
        fragments.expire(at(10_000), none);
        assert_eq!(fragments.later(key(1, 9), "b", at(10_000), none), Later::Queued);
    }

    #[test]
    fn reused_fragment_id_begins_a_new_packet() {
        let mut fragments = none_yet();
        let (old, _) = fragments.first(key(1, 9), (&flow(PORTS), 3), at(0), none);
        let (copy, _) = fragments.first(key(1, 9), (&flow(PORTS), 3), at(499), none);
        assert_eq!(copy, old);
        let (new, _) = fragments.first(key(1, 9), (&flow((4243, 53)), 2), at(9_999), none);
        assert_ne!(new.id, old.id, "its receiver may still wait for more of the old one");
        fragments.expire(at(10_000), none);
        assert_eq!(fragments.later(key(1, 9), "b", at(19_998), none), Later::Follows(new, "b"));
        fragments.expire(at(19_999), none);
        assert!(fragments.packets.is_empty() && fragments.order.is_empty());
    }

    #[test]
    fn a_flood_of_fragments_takes_no_more_than_its_share() {
        let mut fragments = none_yet();
        let (mut full, mut dropped) = (0, 0);
        for n in 0..100_000 {
            if let Later::Full(_) = fragments.later(key((n >> 8) as u16, n), n, at(0), |_| dropped += 1) {
                full += 1;
            }
            assert!(fragments.held <= MAX_HELD && fragments.packets.len() <= MAX_PACKETS);
            assert!(fragments.order.len() <= MAX_PACKETS);
            assert!(fragments.waiting.len() <= MAX_HELD);
        }
        assert_eq!(full + dropped + fragments.held, 100_000);
        fragments.expire(at(1_000), |_| dropped += 1);
        assert_eq!(fragments.held, 0);
        for n in 0..1_000 {
            fragments.later(key(0, 1 << 20), n, at(1_000), |_| {});
        }
        assert!(fragments.packets[&key(0, 1 << 20)].held.len() <= MAX_HELD_OF_ONE);
        fragments.expire(at(60_000), |_| dropped += 1);
        assert!(fragments.packets.is_empty() && fragments.held == 0);
        assert!(fragments.order.is_empty() && fragments.waiting.is_empty());
    }
}
