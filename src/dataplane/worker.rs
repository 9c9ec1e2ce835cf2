//! A worker: owns its flows, turns frames into frames, counts verdicts.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender};

use super::Buffer;
use super::ledger::Ledger;
use super::pipeline::PATIENCE;
use crate::forward::{Direction, Forwarder, Frame, Part, TcpState, Verdict};
use crate::model::{DropReason, Timestamp};
use crate::snapshot::Snapshot;
use crate::stats::{Counter, Gauge, PacketStats};
use crate::wire::Checksum;

/// How often time passes for a worker that gets no frames.
const TICK: Duration = Duration::from_millis(50);

/// A frame and the interface it came from or goes to.
pub(super) type Parcel = (u32, Buffer);

/// What a worker needs.
pub(super) struct Worker {
    /// Index of its counters.
    pub(super) core: usize,
    pub(super) forwarder: Forwarder,
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) stats: Arc<PacketStats>,
    pub(super) frames: Receiver<Vec<Parcel>>,
    pub(super) out: Sender<Vec<Parcel>>,
    pub(super) spares: Sender<Vec<Parcel>>,
    pub(super) wanted: tokio::sync::mpsc::Sender<(std::net::IpAddr, u32)>,
    pub(super) now: fn() -> Timestamp,
}

impl Worker {
    /// Works until no capture thread is left to send it frames.
    pub(super) fn run(mut self) {
        let mut ledger = Ledger::new(self.core);
        let mut is_behind = false;
        loop {
            let patience = if is_behind { Duration::ZERO } else { TICK };
            let batch = match self.frames.recv_timeout(patience) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let snapshot = self.snapshot.load();
            let now = (self.now)();
            ledger.follow(&snapshot);
            let mut out = Vec::with_capacity(batch.len());
            is_behind = self.forwarder.handle_timeout(&snapshot, now, |frame, interface| {
                let mut buffer = Buffer::default();
                buffer.set_frame(&frame);
                out.push((interface, buffer));
            });
            let mut spare = Vec::new();
            self.forwarder.prefetch(batch.iter().map(|(_, buffer)| buffer.frame()));
            for (interface, buffer) in batch {
                self.handle(interface, buffer, &snapshot, now, &ledger, &mut out, &mut spare);
            }
            self.send(out, spare);
            self.report(&ledger);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a frame and where it may go")]
    fn handle(
        &mut self,
        interface: u32,
        mut buffer: Buffer,
        snapshot: &Snapshot,
        now: Timestamp,
        ledger: &Ledger,
        out: &mut Vec<Parcel>,
        spare: &mut Vec<Parcel>,
    ) {
        let checksum = if buffer.checksum_is_partial() { Checksum::Partial } else { Checksum::Complete };
        let segment_size = buffer.segment_size();
        let len = buffer.frame().len() as u64;
        let mut frame = Frame { bytes: buffer.frame_mut(), checksum, segment_size };
        match self.forwarder.handle_frame(&mut frame, snapshot, now) {
            Verdict::Transmit(forwarded) => {
                let (packets, bytes) = match forwarded.direction {
                    Direction::ToServer => (Counter::PacketsRx, Counter::BytesRx),
                    Direction::ToClient => (Counter::PacketsTx, Counter::BytesTx),
                };
                ledger.count(forwarded.flow, packets, 1);
                ledger.count(forwarded.flow, bytes, len);
                match forwarded.part {
                    Part::First => ledger.count(forwarded.flow, Counter::Opened, 1),
                    Part::Later => {}
                    Part::Unrecorded => self.stats.unrecorded(self.core, 1),
                }
                out.push((forwarded.interface, buffer));
            }
            Verdict::Reply { len, reason } => {
                self.stats.dropped(self.core, reason, 1);
                buffer.make_own(len);
                out.push((interface, buffer));
            }
            Verdict::Drop(reason) => {
                self.stats.dropped(self.core, reason, 1);
                spare.push((interface, buffer));
            }
            Verdict::Pass => {
                self.stats.passed(self.core, 1);
                spare.push((interface, buffer));
            }
        }
    }

    fn send(&self, out: Vec<Parcel>, spare: Vec<Parcel>) {
        if !out.is_empty()
            && let Err(SendTimeoutError::Timeout(lost)) = self.out.send_timeout(out, PATIENCE)
        {
            self.stats.dropped(self.core, DropReason::TransmitQueueFull, lost.len() as u64);
            let _ = self.spares.try_send(lost);
        }
        if !spare.is_empty() {
            let _ = self.spares.try_send(spare); // full: nobody needs them
        }
    }

    fn report(&mut self, ledger: &Ledger) {
        let news = self.forwarder.news();
        for ended in news.ended.drain(..) {
            ledger.ended(ended);
        }
        for wanted in news.wanted.drain(..) {
            let _ = self.wanted.try_send(wanted); // full: the next packet asks again
        }
        for state in TcpState::ALL {
            let flows = self.forwarder.flows().count(state);
            self.stats.set(self.core, Gauge::Flows(state as usize), flows.into());
        }
        self.stats.set(self.core, Gauge::OpenFlows, self.forwarder.flows().open().into());
        self.stats.set(self.core, Gauge::SnatPorts, self.forwarder.snat_ports_in_use() as u64);
    }
}
