//! Random TCP conversations, segment by segment, as they reach a balancer in the middle: with loss
//! before and after it, late, damaged and forged segments, and reused ports. Pure.

use std::fmt;

use convey_wire::TestPacket;
use fastrand::Rng;

/// Maximum number of bytes in flight of a side: half of the window in its segments.
const MAX_IN_FLIGHT: u32 = 30_000;

/// Distance to numbers that no window reaches.
const FAR: u32 = 1 << 30;

/// Uses of a client's port in a conversation.
const MAX_USES: u32 = 3;

/// The sender of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    Server,
}

/// The role of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    /// Retransmission of the client's SYN.
    SynAgain,
    /// The client opens its next connection from the same port.
    NextSyn,
    /// A SYN with other numbers in an open connection: forged, or from a client that has forgotten
    /// the connection.
    StraySyn,
    SynAck,
    /// An acknowledgement without data.
    Ack,
    Data,
    /// Data that was lost before, or is retransmitted for lack of an acknowledgement.
    Repeated,
    Fin,
    /// A reset with the number that the receiver expects.
    Reset,
    /// A reset with a close number.
    NearReset,
    /// A reset with a distant number.
    FarReset,
    FarData,
    /// An acknowledgement of more bytes than were sent.
    FutureAck,
}

/// A segment that reaches the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) from: Sender,
    pub(super) seq: u32,
    pub(super) ack: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    pub(super) len: u16,
    /// Whether bits have changed on the way; the checksum reveals it.
    pub(super) is_damaged: bool,
    /// The receiver lacks earlier data of the sender.
    pub(super) is_behind_gap: bool,
    /// Whether both sides have finished, or one has reset the connection.
    pub(super) is_over: bool,
    /// The server has sent nothing that fits since a stray SYN.
    pub(super) follows_stray_syn: bool,
}

impl Step {
    /// Fills this segment into a packet that has its addresses.
    pub(super) fn fill(&self, packet: TestPacket) -> TestPacket {
        let mut packet = packet.seq(self.seq);
        if let Some(ack) = self.ack {
            packet = packet.ack(ack);
        }
        if self.syn {
            packet = packet.syn();
        }
        if self.fin {
            packet = packet.fin();
        }
        if self.rst {
            packet = packet.rst();
        }
        let payload: Vec<u8> = (0..self.len).map(|n| (self.seq as u16).wrapping_add(n) as u8).collect();
        packet.payload(&payload)
    }

    pub(super) fn is_to_server(&self) -> bool {
        self.from == Sender::Client
    }
}

/// One end of the connection.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    /// Number of the next byte to send.
    next: u32,
    /// First byte that the other side has not acknowledged.
    unacked: u32,
    /// Next expected number.
    expected: u32,
    /// Whether the side has sent its SYN.
    is_open: bool,
    /// Number after its FIN, once that is sent.
    end: Option<u32>,
}

/// Progress of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begins,
    Opening,
    Open,
    Over,
}

pub(super) struct Conversation {
    rng: Rng,
    stage: Stage,
    client: Side,
    server: Side,
    uses: u32,
    /// Segments after the end.
    late: u32,
    /// Whether the server has sent nothing that fits since a stray SYN.
    has_stray_syn: bool,
}

impl Conversation {
    pub(super) fn new(seed: u64) -> Conversation {
        let side = Side::default();
        let rng = Rng::with_seed(seed);
        let (client, server, has_stray_syn) = (side, side, false);
        Conversation { rng, stage: Stage::Begins, client, server, uses: 0, late: 0, has_stray_syn }
    }

    /// The next segment; `None` once the conversation has ended.
    pub(super) fn step(&mut self) -> Option<Step> {
        loop {
            let step = match self.stage {
                Stage::Begins => Some(self.begin(Kind::Syn)),
                Stage::Opening => Some(self.open()),
                Stage::Open => self.go_on(),
                Stage::Over if self.late == 0 => {
                    self.uses += 1;
                    if self.uses == MAX_USES {
                        return None;
                    }
                    Some(self.begin(Kind::NextSyn))
                }
                Stage::Over => {
                    self.late -= 1;
                    let from = self.any_side();
                    Some(self.segment(Kind::Ack, from))
                }
            };
            if let Some(step) = step {
                self.note_stray_syn(&step);
                return Some(step);
            }
        }
    }

    fn note_stray_syn(&mut self, step: &Step) {
        let fits = matches!(step.kind, Kind::SynAck | Kind::Ack | Kind::Data | Kind::Repeated | Kind::Fin);
        if step.kind == Kind::StraySyn {
            self.has_stray_syn = true;
        } else if step.kind == Kind::NextSyn || (step.from == Sender::Server && fits && !step.is_damaged) {
            self.has_stray_syn = false;
        }
    }

    fn any_side(&mut self) -> Sender {
        if self.rng.bool() { Sender::Client } else { Sender::Server }
    }

    fn side(&mut self, of: Sender) -> &mut Side {
        match of {
            Sender::Client => &mut self.client,
            Sender::Server => &mut self.server,
        }
    }

    fn peer(&mut self, of: Sender) -> &mut Side {
        match of {
            Sender::Client => &mut self.server,
            Sender::Server => &mut self.client,
        }
    }

    /// Initial number of a connection: random, and often one that wraps soon.
    fn first_number(&mut self) -> u32 {
        if self.rng.bool() { self.rng.u32(..) } else { 0u32.wrapping_sub(self.rng.u32(1..3000)) }
    }

    fn begin(&mut self, kind: Kind) -> Step {
        // A host that reuses a port has a later number (RFC 6191).
        let number = match kind {
            Kind::NextSyn => self.client.next.wrapping_add(self.rng.u32(1..1 << 20)),
            _ => self.first_number(),
        };
        self.client =
            Side { next: number.wrapping_add(1), unacked: number, is_open: true, ..Side::default() };
        self.server = Side::default();
        self.stage = Stage::Opening;
        let step = self.segment(kind, Sender::Client);
        Step { seq: number, ack: None, syn: true, ..step }
    }

    /// Sends a segment of the handshake. Now and then, it is lost after the balancer, and sent
    /// again.
    fn open(&mut self) -> Step {
        let number = self.client.next.wrapping_sub(1);
        if !self.server.is_open {
            if self.rng.u32(..8) == 0 {
                let step = self.segment(Kind::SynAgain, Sender::Client);
                return Step { seq: number, ack: None, syn: true, ..step };
            }
            let first = self.first_number();
            self.server = Side {
                next: first.wrapping_add(1),
                unacked: first,
                expected: self.client.next,
                is_open: true,
                end: None,
            };
            return self.syn_ack();
        }
        match self.rng.u32(..8) {
            0 => self.syn_ack(),
            1 => {
                let step = self.segment(Kind::StraySyn, Sender::Client);
                Step { seq: number.wrapping_add(FAR), ack: None, syn: true, ..step }
            }
            _ => {
                (self.client.expected, self.client.unacked) = (self.server.next, self.client.next);
                self.server.unacked = self.server.next;
                self.stage = Stage::Open;
                self.segment(Kind::Ack, Sender::Client)
            }
        }
    }

    fn syn_ack(&mut self) -> Step {
        let step = self.segment(Kind::SynAck, Sender::Server);
        Step { seq: self.server.next.wrapping_sub(1), syn: true, ..step }
    }

    /// A segment of the open connection; `None` if it was lost before the balancer, or if its
    /// sender has nothing to send.
    fn go_on(&mut self) -> Option<Step> {
        let from = self.any_side();
        let step = match self.rng.u32(..40) {
            0..=9 => self.data(from)?,
            10..=13 => self.repeat(from)?,
            14..=20 => self.acknowledge(from),
            21..=23 => self.finish(from)?,
            24 => self.reset(from)?,
            25 => self.near_reset(from),
            26 => {
                let step = self.segment(Kind::FarReset, from);
                Step { seq: step.seq.wrapping_add(FAR), ack: None, rst: true, ..step }
            }
            27 => {
                let step = self.segment(Kind::FarData, from);
                Step { seq: step.seq.wrapping_add(FAR), len: self.rng.u16(1..1000), ..step }
            }
            28 => {
                let step = self.segment(Kind::FutureAck, from);
                Step { ack: step.ack.map(|ack| ack.wrapping_add(100_000)), ..step }
            }
            29 => {
                let step = self.segment(Kind::StraySyn, Sender::Client);
                Step { seq: self.rng.u32(..), ack: None, syn: true, ..step }
            }
            30 => self.damaged(from),
            31..=35 => self.data(from)?,
            _ => self.acknowledge(from),
        };
        if self.client.end.is_some_and(|end| end == self.client.unacked)
            && self.server.end.is_some_and(|end| end == self.server.unacked)
        {
            self.end();
        }
        Some(step)
    }

    fn end(&mut self) {
        self.stage = Stage::Over;
        self.late = self.rng.u32(..3);
    }

    /// A segment without data at its sender's current number.
    fn segment(&mut self, kind: Kind, from: Sender) -> Step {
        let peer = *self.peer(from);
        let have_finished = [self.client, self.server].iter().all(|side| side.end.is_some());
        let is_over = self.stage == Stage::Over || have_finished;
        let Side { next, expected, .. } = *self.side(from);
        Step {
            kind,
            from,
            seq: next,
            ack: Some(expected),
            syn: false,
            fin: false,
            rst: false,
            len: 0,
            is_damaged: false,
            is_behind_gap: peer.is_open && peer.expected != next,
            is_over,
            follows_stray_syn: self.has_stray_syn,
        }
    }

    fn data(&mut self, from: Sender) -> Option<Step> {
        let len = self.rng.u16(1..=1000);
        let (is_lost_before, is_lost_behind) = (self.rng.u32(..6) == 0, self.rng.u32(..6) == 0);
        let side = *self.side(from);
        if side.end.is_some() || side.next.wrapping_sub(side.unacked) > MAX_IN_FLIGHT {
            return None;
        }
        let step = Step { len, ..self.segment(Kind::Data, from) };
        self.side(from).next = side.next.wrapping_add(len.into());
        if is_lost_before {
            return None;
        }
        if !is_lost_behind {
            self.arrive(&step);
        }
        Some(step)
    }

    /// Retransmits from the first unacknowledged byte. A FIN is sent again with the last bytes.
    fn repeat(&mut self, from: Sender) -> Option<Step> {
        let side = *self.side(from);
        let outstanding = side.next.wrapping_sub(side.unacked);
        if outstanding == 0 {
            return None;
        }
        let data = outstanding - u32::from(side.end.is_some());
        let len = data.min(self.rng.u32(1..=2000)).min(1400) as u16;
        let fin = side.end.is_some() && u32::from(len) == data;
        let expected = self.peer(from).expected;
        let step = Step {
            seq: side.unacked,
            len,
            fin,
            is_behind_gap: is_after(side.unacked, expected),
            ..self.segment(Kind::Repeated, from)
        };
        self.arrive(&step);
        Some(step)
    }

    fn acknowledge(&mut self, from: Sender) -> Step {
        let step = self.segment(Kind::Ack, from);
        if self.rng.u32(..6) != 0 {
            self.arrive(&step);
        }
        step
    }

    fn finish(&mut self, from: Sender) -> Option<Step> {
        let side = *self.side(from);
        if side.end.is_some() {
            return None;
        }
        let step = Step { fin: true, ..self.segment(Kind::Fin, from) };
        let end = side.next.wrapping_add(1);
        (self.side(from).next, self.side(from).end) = (end, Some(end));
        if self.rng.u32(..6) != 0 {
            self.arrive(&step);
        }
        Some(step)
    }

    /// Makes a reset, if there is no gap: otherwise its receiver sends a challenge ACK.
    fn reset(&mut self, from: Sender) -> Option<Step> {
        let step = self.segment(Kind::Reset, from);
        if step.is_behind_gap || self.rng.bool() {
            return None;
        }
        self.end();
        Some(Step { rst: true, ..step })
    }

    fn near_reset(&mut self, from: Sender) -> Step {
        let near = self.rng.u32(1..1000);
        let (peer, step) = (*self.peer(from), self.segment(Kind::NearReset, from));
        Step { seq: peer.expected.wrapping_add(near), rst: true, ..step }
    }

    /// A damaged segment changes nothing, whatever its flags are.
    fn damaged(&mut self, from: Sender) -> Step {
        let step = Step { is_damaged: true, ..self.segment(Kind::Data, from) };
        match self.rng.u32(..3) {
            0 => Step { len: self.rng.u16(1..1000), ..step },
            1 => Step { kind: Kind::Fin, fin: true, ..step },
            _ => Step { kind: Kind::Reset, rst: true, ..step },
        }
    }

    /// The receiver takes a segment.
    fn arrive(&mut self, step: &Step) {
        let from = step.from;
        let end = step.seq.wrapping_add(u32::from(step.len) + u32::from(step.fin));
        let peer = self.peer(from);
        if !is_after(step.seq, peer.expected) && is_after(end, peer.expected) {
            peer.expected = end;
        }
        if let Some(ack) = step.ack.filter(|ack| is_after(*ack, peer.unacked)) {
            peer.unacked = ack;
        }
    }
}

fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags =
            [(self.syn, " SYN"), (self.fin, " FIN"), (self.rst, " RST"), (self.is_damaged, " damaged")];
        let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
        let gap = if self.is_behind_gap { ", behind a gap" } else { "" };
        write!(
            f,
            "{:?} of the {:?}:{flags} seq {} ack {:?} len {}{gap}",
            self.kind, self.from, self.seq, self.ack, self.len
        )
    }
}
