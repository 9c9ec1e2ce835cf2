//! Test support for other crates: a mock of the kernel's flow cache, whose packets the forwarder
//! does not see, and the flow table alone.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::black_hole;
pub use crate::flow::{Flow, NewFlow};
pub use crate::flows::{FlowId, FlowTable, Full, Inserted};
use crate::plan::Plan;
use crate::tcp_sequence;
use crate::{
    ACK, CacheEvent, CachedActivity, CachedRoute, Direction, FIN, FlowCache, FlowOwners, Frame, Progress,
    SYN, Segment, View,
};
use convey_model::{FlowKey, NextHop, Rewrite, TCP, Timestamp};
use convey_wire::{self as wire, Envelope, Headers, Kind};

/// Maximum distance of a valid sequence number from the known number, in bytes.
pub const WINDOW: u32 = tcp_sequence::WINDOW;
/// Like [`WINDOW`], during the handshake.
pub const FIRST_WINDOW: u32 = tcp_sequence::FIRST_WINDOW;
/// DSR: maximum gap, in bytes, before a client's segment that still moves the client's sequence
/// number.
pub const MAX_GAP: u32 = tcp_sequence::MAX_GAP;
/// DSR: maximum advance of the acknowledgement number, in bytes, in a client's segment that follows
/// a gap.
pub const MAX_GAP_ACK: u32 = tcp_sequence::MAX_GAP_ACK;
/// Packet length, in bytes, up to which convey suspects no black hole.
pub const MAX_UNSUSPECTED: u32 = black_hole::MAX_UNSUSPECTED as u32;

thread_local! {
    static HAS_CACHE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a scenario in which balancers have a flow cache.
pub fn run_with_cache(case: impl FnOnce()) {
    HAS_CACHE.set(true);
    case();
}

/// Mock flow cache, shared by the forwarder and the scenario, which plays the driver and passes the
/// packets.
#[derive(Debug, Clone, Default)]
pub struct MockKernel {
    entries: Arc<Mutex<HashMap<FlowKey, MockEntry>>>,
    /// Events that were not taken yet.
    events: Arc<Mutex<Vec<CacheEvent>>>,
    /// Number of entry lookups.
    lookups: Arc<AtomicUsize>,
    /// Maximum number of entries, if there is a limit.
    room: Option<usize>,
    /// Whether changes are held back.
    is_held: Arc<AtomicBool>,
}

#[derive(Debug)]
struct MockEntry {
    route: CachedRoute,
    last: Option<Timestamp>,
    progress: Progress,
    is_finished: bool,
    is_alone: bool,
    packets: u32,
}

impl MockKernel {
    /// Flow cache for this scenario; `None` if the scenario runs without one.
    pub fn of_test() -> Option<MockKernel> {
        HAS_CACHE.get().then(MockKernel::default)
    }

    /// Flow cache with at most `room` entries.
    #[allow(dead_code, reason = "the forwarder's own tests have no use for it")]
    pub fn with_room(room: usize) -> MockKernel {
        MockKernel { room: Some(room), ..MockKernel::default() }
    }

    /// The forwarder's interface to this cache.
    pub fn cache(&self) -> Box<dyn FlowCache> {
        Box::new(Writer { kernel: self.clone(), changes: Vec::new() })
    }

    /// Forwards a frame if the cache can, and if the frame `fits` its path. Returns the outgoing
    /// interface, and the tunnel that the frame is to be put into; `None` if the cache does not
    /// forward the frame.
    pub fn forward(
        &self,
        frame: &mut Frame<'_>,
        fits: impl FnOnce(&Frame<'_>, &Headers, &NextHop) -> bool,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<(u32, Option<Envelope>)> {
        let headers = wire::parse(frame.bytes).ok().filter(|headers| headers.kind == Kind::Whole)?;
        let ip_len = if headers.is_v4() { 20 } else { 40 };
        let is_plain = !headers.is_error() && headers.l4 == 14 + ip_len && headers.ttl > 1;
        if !is_plain || headers.flags.rst() {
            return None;
        }
        // The kernel drops the frame, and so does the forwarder.
        let changes_state = headers.flags.0 & (SYN | FIN) != 0;
        if changes_state && !frame.is_intact(&headers) {
            return None;
        }
        let len = u32::from(headers.payload_len) + u32::from(headers.flags.fin());
        let segment = Segment { flags: headers.flags.0, seq: headers.seq, ack: headers.ack, len };
        let mut entries = self.entries.lock().unwrap();
        let entry = entries.get(&headers.key)?;
        if entry.route.from.is_some_and(|usual| frame.interface.is_some_and(|from| from != usual)) {
            return None;
        }
        let key_of_other = entry.key_of_other(headers.key.protocol);
        let other = entries.get(&key_of_other).map(|other| Other {
            progress: other.progress,
            has_sent: other.last.is_some(),
            is_restored: other.route.is_restored,
        });
        if !entry.may_pass(segment, other) {
            return None;
        }
        let is_repeated = entry.is_repeated(segment, frame, &headers, now);
        let hop = plan.network.get(entry.route.rewrite.next_hop)?;
        let envelope = entry.route.envelope;
        let packet = frame.bytes.get(headers.l3..headers.end)?;
        let is_super = frame.segment_size.is_some();
        let is_beyond = |envelope: Envelope| {
            is_super && envelope.has_checksum() || !envelope.follows_from_headers(packet)
        };
        if envelope.is_some_and(is_beyond) {
            return None;
        }
        let overhead = envelope.map_or(0, |envelope| envelope.tunnel.overhead());
        if !fits(frame, &headers, &NextHop { mtu: hop.mtu.saturating_sub(overhead), ..*hop }) {
            return None;
        }
        if is_repeated {
            entries.get_mut(&headers.key)?.last = Some(now);
            return None;
        }
        wire::rewrite(frame.bytes, &headers, &entry.route.rewrite, hop, frame.checksum);
        let entry = entries.get_mut(&headers.key)?;
        if entry.route.opening.is_some() || (headers.flags.fin() && !entry.is_finished) {
            self.events.lock().unwrap().push(CacheEvent { key: headers.key, segment });
        }
        let completes = entry.advance(segment, other);
        (entry.last, entry.packets) = (Some(now), entry.packets + 1);
        if completes && let Some(answer) = entries.get_mut(&key_of_other) {
            answer.route.opening = None;
        }
        Some((hop.interface, envelope))
    }

    /// Events since the last call.
    pub fn events(&self) -> Vec<CacheEvent> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    /// Number of forwarded packets with this key; `None` if the key has no entry.
    pub fn forwarded(&self, key: &FlowKey) -> Option<u32> {
        self.entries.lock().unwrap().get(key).map(|entry| entry.packets)
    }

    /// Number of entry lookups.
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Holds changes back, as if the worker that has written them is not scheduled; or carries them
    /// out from the next flush on.
    pub fn hold_changes(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    /// Loses all entries, as if there had never been room for them.
    pub fn lose_all(&self) {
        self.entries.lock().unwrap().clear();
    }
}

#[derive(Debug)]
struct Writer {
    kernel: MockKernel,
    changes: Vec<(FlowKey, Option<CachedRoute>)>,
}

impl FlowCache for Writer {
    fn put(&mut self, key: &FlowKey, route: &CachedRoute) {
        if self.changes.iter().any(|(_, route)| route.is_none()) {
            self.flush();
        }
        self.changes.push((*key, Some(*route)));
    }

    fn remove(&mut self, key: &FlowKey, _owners: FlowOwners) {
        self.changes.push((*key, None));
    }

    fn seen(&mut self, key: &FlowKey) -> Option<CachedActivity> {
        self.kernel.lookups.fetch_add(1, Ordering::Relaxed);
        let entries = self.kernel.entries.lock().unwrap();
        let entry = entries.get(key)?;
        let progress = (key.protocol == TCP && !entry.route.is_restored).then_some(entry.progress);
        let (is_opening, is_finished) = (entry.route.opening.is_some(), entry.is_finished);
        let is_to_client = entry.route.direction == Direction::ToClient;
        let from = is_to_client.then(|| entry.route.from.unwrap_or_default() as u16);
        entry.last.map(|at| CachedActivity { at, from, progress, is_opening, is_finished })
    }

    fn advance(&mut self, key: &FlowKey, progress: Progress) {
        assert!(self.changes.is_empty(), "{:?}", self.changes);
        if let Some(entry) = self.kernel.entries.lock().unwrap().get_mut(key) {
            entry.progress = progress;
        }
    }

    fn is_restored(&mut self, key: &FlowKey) -> bool {
        let entries = self.kernel.entries.lock().unwrap();
        entries.get(key).is_some_and(|entry| entry.route.is_restored && entry.route.opening.is_none())
    }

    fn flush(&mut self) {
        if self.kernel.is_held.load(Ordering::Relaxed) {
            return;
        }
        let mut entries = self.kernel.entries.lock().unwrap();
        for (key, route) in self.changes.drain(..) {
            let is_full = self.kernel.room.is_some_and(|room| entries.len() >= room);
            match route {
                Some(_) if is_full && !entries.contains_key(&key) => {}
                Some(route) => {
                    let CachedRoute { last, progress, .. } = route;
                    let is_alone = route.view == View::ClientSide;
                    let entry = MockEntry { route, last, progress, is_finished: false, is_alone, packets: 0 };
                    entries.insert(key, entry);
                }
                None => drop(entries.remove(&key)),
            }
        }
    }
}

/// State of the receiver of an entry's packets.
#[derive(Clone, Copy)]
struct Other {
    progress: Progress,
    has_sent: bool,
    is_restored: bool,
}

/// Silence of a flow after which a repeated large segment is left to the forwarder.
const REPEATED_AFTER: Duration = Duration::from_millis(100);

/// Maximum lag of an entry's numbers behind its sender.
const LAG: u32 = 1 << 20;

// Like `bpf/tcp_sequence.h`.
impl MockEntry {
    fn is_to_server(&self) -> bool {
        self.route.direction == Direction::ToServer
    }

    fn key_of_other(&self, protocol: u8) -> FlowKey {
        let Rewrite { src, dst, src_port, dst_port, .. } = self.route.rewrite;
        FlowKey { src, dst, src_port, dst_port, protocol, reserved: [0; 3] }.reversed()
    }

    /// Whether the cache may forward a segment without the forwarder.
    fn may_pass(&self, segment: Segment, other: Option<Other>) -> bool {
        match self.route.opening {
            None => segment.flags & SYN == 0 && (segment.flags & FIN == 0 || self.finishes(segment, other)),
            Some(_) if self.is_to_server() => self.completes(segment, other),
            Some(_) => self.answers(segment),
        }
    }

    /// Whether the sender repeats a large segment after a pause.
    fn is_repeated(&self, segment: Segment, frame: &Frame<'_>, headers: &Headers, now: Timestamp) -> bool {
        let behind = self.progress.sent.wrapping_sub(segment.seq);
        headers.is_tcp()
            && frame.sent_len(headers) > black_hole::MAX_UNSUSPECTED
            && behind >= segment.len
            && behind <= WINDOW
            && self.last.is_none_or(|last| now.since(last) > REPEATED_AFTER)
    }

    fn answers(&self, Segment { flags, seq, ack, .. }: Segment) -> bool {
        flags & (SYN | ACK | FIN) == SYN | ACK
            && is_next(ack, self.progress.acked)
            && (self.last.is_none() || seq.wrapping_add(1) == self.progress.sent)
    }

    fn completes(&self, Segment { flags, seq, ack, .. }: Segment, other: Option<Other>) -> bool {
        let knows_answer = || other.is_some_and(|other| other.has_sent && is_next(ack, other.progress.sent));
        flags & (SYN | ACK | FIN) == ACK
            && is_next(seq, self.progress.sent)
            && (self.is_alone || knows_answer())
    }

    fn finishes(&self, segment: Segment, other: Option<Other>) -> bool {
        let behind = self.confirmed(other).wrapping_sub(segment.seq);
        self.believes(segment)
            && match behind.wrapping_sub(segment.len) {
                0 => self.is_finished,
                _ => behind == 0 || behind.wrapping_add(1) == segment.len,
            }
    }

    fn believes(&self, Segment { flags, seq, ack, .. }: Segment) -> bool {
        let is_near = |number: u32, known: u32| number.wrapping_sub(known).wrapping_add(WINDOW) <= 2 * WINDOW;
        flags & ACK != 0 && is_near(seq, self.progress.sent) && is_near(ack, self.progress.acked)
    }

    fn confirmed(&self, other: Option<Other>) -> u32 {
        let mut sent = self.progress.sent;
        if let Some(other) = other.filter(|_| !self.is_alone) {
            advance(&mut sent, other.progress.acked);
        }
        sent
    }

    fn is_forwarded(&mut self, Segment { flags, seq, ack, len }: Segment, other: Option<Other>) -> bool {
        let Progress { sent, acked } = self.progress;
        if !self.is_to_server() || sent.wrapping_sub(seq) <= len {
            return true;
        }
        if self.is_alone {
            return seq.wrapping_sub(sent) <= MAX_GAP && ack.wrapping_sub(acked) <= MAX_GAP_ACK;
        }
        if len > 0 && flags & FIN == 0 && seq.wrapping_sub(sent) <= LAG {
            return false;
        }
        self.progress.sent = self.confirmed(other);
        self.progress.sent.wrapping_sub(seq) <= len
    }

    fn acknowledge(&mut self, ack: u32, other: Option<Other>) {
        let is_far = ack.wrapping_sub(self.progress.acked).wrapping_sub(LAG) <= WINDOW;
        let has_sent = |other: Other| other.progress.sent.wrapping_sub(ack) as i32 >= 0;
        if !self.is_alone && is_far && other.is_some_and(has_sent) {
            self.progress.acked = ack;
        }
    }

    /// Takes over the numbers of a segment, for a flow that another process had: these numbers do
    /// not follow from the known numbers.
    fn take_up(&mut self, segment: Segment, other: Option<Other>) {
        let Segment { flags, seq, ack, .. } = segment;
        if flags & (SYN | ACK | FIN) != ACK {
            return;
        }
        if !self.is_to_server() || self.is_alone {
            let is_believed = self.believes(segment);
            if is_believed && self.is_forwarded(segment, other) {
                self.route.is_restored = false;
            } else if !is_believed || self.progress.sent.wrapping_sub(seq) > WINDOW {
                self.progress = Progress { sent: seq, acked: ack };
            }
            return;
        }
        let agrees = |other: &Other| {
            let Progress { sent, acked } = other.progress;
            !other.is_restored
                && seq.wrapping_sub(acked).wrapping_add(WINDOW) <= 2 * WINDOW
                && sent.wrapping_sub(ack) <= WINDOW
        };
        if let Some(other) = other.filter(agrees) {
            self.route.is_restored = false;
            if !self.believes(segment) {
                self.progress = Progress { sent: other.progress.acked, acked: ack };
            }
        }
    }

    /// Applies a forwarded segment. Returns whether it completes the handshake.
    fn advance(&mut self, segment: Segment, other: Option<Other>) -> bool {
        let Segment { flags, seq, ack, len } = segment;
        if self.route.opening.is_some() {
            match flags & SYN {
                0 if len == 0 && !self.is_alone => {}
                0 => self.progress.sent = seq.wrapping_add(len),
                _ => self.progress.sent = seq.wrapping_add(1),
            }
            self.progress.acked = ack;
            self.route.is_restored = false;
            if self.is_to_server() {
                self.route.opening = None;
            }
            return self.is_to_server();
        }
        if self.route.is_restored {
            self.take_up(segment, other);
        }
        if self.believes(segment) {
            if !self.is_forwarded(segment, other) {
                self.acknowledge(ack, other);
                return false;
            }
            advance(&mut self.progress.sent, seq.wrapping_add(len));
            advance(&mut self.progress.acked, ack);
            self.is_finished |= flags & FIN != 0;
        }
        false
    }
}

fn is_next(number: u32, expected: u32) -> bool {
    number.wrapping_sub(expected) <= FIRST_WINDOW
}

fn advance(known: &mut u32, number: u32) {
    if number.wrapping_sub(*known) as i32 > 0 {
        *known = number;
    }
}
