//! A flow cache as the kernel's is: what it forwards, the forwarder never sees. For tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub use crate::numbers::{FIRST_WINDOW, MAX_GAP, MAX_GAP_ACK, WINDOW};
use crate::plan::Plan;
use crate::{CachedRoute, Direction, FlowCache, FlowOwners, Frame, Progress, Seen, Segment, View};
use convey_model::{FlowKey, NextHop, Rewrite, TCP, Timestamp};
use convey_wire::{self as wire, Headers, Kind, TcpFlags};

thread_local! {
    static HAS_CACHE: Cell<bool> = const { Cell::new(false) };
}

/// Has a story told in which balancers have a flow cache.
pub fn told_with_cache(story: impl FnOnce()) {
    HAS_CACHE.set(true);
    story();
}

/// What the forwarder and the story share; the story is the driver that has the packets come by.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    entries: Arc<Mutex<HashMap<FlowKey, Entry>>>,
    /// What nobody was told of yet.
    told: Arc<Mutex<Vec<(FlowKey, Segment)>>>,
    /// How often it was asked for an entry.
    asked: Arc<AtomicUsize>,
    /// Most entries, if there is a limit.
    room: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    route: CachedRoute,
    last: Option<Timestamp>,
    progress: Progress,
    is_finished: bool,
    is_alone: bool,
    packets: u32,
}

impl Kernel {
    /// None where this story is told without.
    pub fn of_story() -> Option<Kernel> {
        HAS_CACHE.get().then(Kernel::default)
    }

    /// One that takes no more entries than that.
    #[allow(dead_code, reason = "the forwarder's own tests have no use for it")]
    pub fn with_room(room: usize) -> Kernel {
        Kernel { room: Some(room), ..Kernel::default() }
    }

    /// The forwarder's end of it.
    pub fn cache(&self) -> Box<dyn FlowCache> {
        Box::new(Writer { kernel: self.clone(), changes: Vec::new() })
    }

    /// Forwards a frame if it can, and if it `fits` where it goes. Returns the interface it leaves by.
    pub fn forward(
        &self,
        frame: &mut Frame<'_>,
        fits: impl FnOnce(&Frame<'_>, &Headers, &NextHop) -> bool,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<u32> {
        let headers = wire::parse(frame.bytes).ok().filter(|headers| headers.kind == Kind::Whole)?;
        let ip_len = if headers.is_v4() { 20 } else { 40 };
        let is_plain = !headers.is_error() && headers.l4 == 14 + ip_len && headers.ttl > 1;
        if !is_plain || headers.flags.rst() {
            return None;
        }
        let mut entries = self.entries.lock().unwrap();
        let entry = entries.get(&headers.key)?;
        if entry.route.from.is_some_and(|usual| frame.interface.is_some_and(|from| from != usual)) {
            return None;
        }
        let to_server = entry.route.direction == Direction::ToServer;
        let is_believed = headers.flags.ack() && is_believed(&entry.progress, headers.seq, headers.ack);
        let len = u32::from(headers.payload_len) + u32::from(headers.flags.fin());
        let key_of_other = opposite(&entry.route, headers.key.protocol);
        // What its receiver has acknowledged may be more than what has passed without a gap.
        let other = entries.get(&key_of_other).filter(|_| !entry.is_alone);
        let mut confirmed = entry.progress.sent;
        other.inspect(|other| advance(&mut confirmed, other.progress.acked));
        let behind = confirmed.wrapping_sub(headers.seq);
        let is_exact = behind == 0 || behind == len || behind.wrapping_add(1) == len;
        let is_close = headers.seq.wrapping_sub(entry.progress.sent) <= 4 << 20
            && headers.ack.wrapping_sub(entry.progress.acked) <= 1 << 20;
        let goes_on_from_there = behind <= len || (entry.is_alone && is_close) || !to_server;
        let goes_on = match entry.route.opening {
            None => !headers.flags.syn() && (!headers.flags.fin() || (is_believed && is_exact)),
            Some(view) if to_server => {
                let answer = entries.get(&opposite(&entry.route, headers.key.protocol));
                let answer = answer.filter(|answer| answer.last.is_some()).map(|answer| answer.progress.sent);
                let fits = answer.is_some_and(|sent| is_next(headers.ack, sent));
                is_just(&headers, TcpFlags::ACK)
                    && is_next(headers.seq, entry.progress.sent)
                    && (fits || view == View::ClientSide)
            }
            Some(_) => {
                is_just(&headers, TcpFlags::SYN | TcpFlags::ACK) && is_next(headers.ack, entry.progress.acked)
            }
        };
        if !goes_on {
            return None;
        }
        let hop = plan.network.get(entry.route.rewrite.next_hop)?;
        if !fits(frame, &headers, hop) {
            return None;
        }
        wire::rewrite(frame.bytes, &headers, &entry.route.rewrite, hop, frame.checksum);
        let (key, other) = (headers.key, opposite(&entry.route, headers.key.protocol));
        let completes = to_server && entry.route.opening.is_some();
        if completes && let Some(answer) = entries.get_mut(&other) {
            answer.route.opening = None;
        }
        let entry = entries.get_mut(&key)?;
        entry.last = Some(now);
        entry.packets += 1;
        let Headers { flags, seq, ack, .. } = headers;
        let makes_event = entry.route.opening.is_some() || (flags.fin() && !entry.is_finished);
        if entry.route.opening.is_some() {
            entry.progress = Progress { sent: seq.wrapping_add(len + u32::from(flags.syn())), acked: ack };
        } else if is_believed && goes_on_from_there {
            advance(&mut entry.progress.sent, confirmed);
            advance(&mut entry.progress.sent, seq.wrapping_add(len));
            advance(&mut entry.progress.acked, ack);
            entry.is_finished |= flags.fin();
        }
        if completes {
            entry.route.opening = None;
        }
        if makes_event {
            self.told.lock().unwrap().push((key, Segment { flags: flags.0, seq, ack, len }));
        }
        Some(hop.interface)
    }

    /// What it has to tell since it was last asked.
    pub fn told(&self) -> Vec<(FlowKey, Segment)> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// How many packets of this key it has forwarded; `None` if it is not there.
    pub fn forwarded(&self, key: &FlowKey) -> Option<u32> {
        self.entries.lock().unwrap().get(key).map(|entry| entry.packets)
    }

    /// How often it was asked for an entry.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// How many keys it knows.
    pub fn entries(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    /// Loses everything, as if it had never had room.
    pub fn lose_all(&self) {
        self.entries.lock().unwrap().clear();
    }
}

#[derive(Debug)]
struct Writer {
    kernel: Kernel,
    changes: Vec<(FlowKey, Option<CachedRoute>)>,
}

impl FlowCache for Writer {
    fn put(&mut self, key: &FlowKey, route: &CachedRoute) {
        self.changes.push((*key, Some(*route)));
    }

    fn remove(&mut self, key: &FlowKey, _owners: FlowOwners) {
        self.changes.push((*key, None));
    }

    fn seen(&mut self, key: &FlowKey) -> Option<Seen> {
        self.kernel.asked.fetch_add(1, Ordering::Relaxed);
        let entries = self.kernel.entries.lock().unwrap();
        let entry = entries.get(key)?;
        let progress = (key.protocol == TCP).then_some(entry.progress);
        let (is_opening, is_finished) = (entry.route.opening.is_some(), entry.is_finished);
        entry.last.map(|at| Seen { at, progress, is_opening, is_finished })
    }

    fn flush(&mut self) {
        let mut entries = self.kernel.entries.lock().unwrap();
        for (key, route) in self.changes.drain(..) {
            let is_full = self.kernel.room.is_some_and(|room| entries.len() >= room);
            match route {
                Some(_) if is_full && !entries.contains_key(&key) => {}
                Some(route) => {
                    let CachedRoute { last, progress, .. } = route;
                    let is_alone = route.view == View::ClientSide;
                    let entry = Entry { route, last, progress, is_finished: false, is_alone, packets: 0 };
                    entries.insert(key, entry);
                }
                None => drop(entries.remove(&key)),
            }
        }
    }
}

// As `bpf/tcp_sequence.h` does it.

fn opposite(route: &CachedRoute, protocol: u8) -> FlowKey {
    let Rewrite { src, dst, src_port, dst_port, .. } = route.rewrite;
    FlowKey { src, dst, src_port, dst_port, protocol, reserved: [0; 3] }.reversed()
}

fn is_just(headers: &Headers, flags: u8) -> bool {
    headers.flags.0 & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::FIN) == flags
}

fn is_next(number: u32, expected: u32) -> bool {
    number.wrapping_sub(expected) <= 64 << 10
}

fn is_believed(progress: &Progress, seq: u32, ack: u32) -> bool {
    const WINDOW: u32 = 16 << 20;
    let is_near = |number: u32, known: u32| number.wrapping_sub(known).wrapping_add(WINDOW) <= 2 * WINDOW;
    is_near(seq, progress.sent) && is_near(ack, progress.acked)
}

fn advance(known: &mut u32, number: u32) {
    if number.wrapping_sub(*known) as i32 > 0 {
        *known = number;
    }
}
