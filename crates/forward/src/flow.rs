//! One flow: its two keys, where its packets go, how far its connection is.

mod class;
mod flags;
mod handover;

pub(super) use self::class::{AtSource, Class};
use self::flags::{FlowFlags, FrontendMark};
use super::cache::Progress;
use super::handshake::{HandshakeEvent, HandshakeStep};
use super::list::FlowLinks;
use super::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};
use super::table_quota::TrafficKind;
use super::tcp_sequence::{Heard, PendingFin, TcpSequence};
use super::verdict::FlowOwners;
use super::wheel::Slot;
use convey_model::{Addr, FlowKey, Rewrite};

/// How a flow's packets get to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerWay {
    /// Their destination becomes the server's address.
    Rewritten,
    /// As they are, by the server's link-layer address alone (L2 DSR).
    OnLink,
    /// As they are, each whole in another packet to the server's address.
    Tunneled,
}

/// A flow to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewFlow {
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave it: to the SNAT address and port (passthrough), or to
    /// the client (DSR; they do not pass us). Same protocol as `client`.
    pub server: FlowKey,
    /// Whether the server's packets pass us, and are found by their key.
    pub view: View,
    /// How packets get to the server.
    pub way: ServerWay,
    /// The server, by the number the control path gave it.
    pub server_id: u32,
    /// The frontend, by the number the control path gave it.
    pub frontend_id: u32,
    /// Next hop to the server: index into the plan's next hops.
    pub to_server: u32,
    /// Next hop to the client; means nothing where the server answers it directly.
    pub to_client: u32,
    /// The client's segment that begins the flow.
    pub segment: Segment,
}

/// A recorded flow; 128 bytes.
///
/// Packets that match one key become the reverse of the other. In the first 64 bytes is what a packet to
/// the server is compared with; two lines that lie together are fetched together.
#[derive(Debug, Clone)]
#[repr(C, align(128))]
pub struct Flow {
    client: Addr,
    vip: Addr,
    server: Addr,
    client_port: u16,
    vip_port: u16,
    server_port: u16,
    snat_port: u16,
    flags: FlowFlags,
    pub(super) state: FlowState,
    /// Where in the wheel it is.
    pub(super) slot: Slot,
    /// First tick at which it has been silent for too long.
    pub(super) deadline: u32,
    snat: Addr,
    next_hops: [u16; 2],
    server_id: u32,
    frontend: FrontendMark,
    sequence: TcpSequence,
    /// When it came to be in its class, in nanoseconds; of a stream when it was last found in use. Means something if it may
    /// be evicted.
    pub(super) since: u64,
    /// Neighbours in each list it is in.
    pub(super) links: [FlowLinks; 2],
}

impl Flow {
    /// In no list, with a deadline that is to be set.
    pub(super) fn new(new: &NewFlow) -> Flow {
        debug_assert_eq!(new.client.protocol, new.server.protocol);
        let state = FlowState::first(new.client.protocol, new.segment.flags);
        Flow {
            client: new.client.src,
            vip: new.client.dst,
            server: new.server.src,
            client_port: new.client.src_port,
            vip_port: new.client.dst_port,
            server_port: new.server.src_port,
            snat_port: new.server.dst_port,
            flags: FlowFlags::new(new, state),
            state,
            slot: Slot::NONE,
            deadline: 0,
            snat: new.server.dst,
            next_hops: [new.to_server, new.to_client].map(short),
            server_id: new.server_id,
            frontend: FrontendMark::new(new.frontend_id, new.way),
            sequence: TcpSequence::first(new.segment),
            since: 0,
            links: [FlowLinks::NONE; 2],
        }
    }

    /// Key of the client's packets.
    #[inline]
    pub fn client(&self) -> FlowKey {
        FlowKey {
            src: self.client,
            dst: self.vip,
            src_port: self.client_port,
            dst_port: self.vip_port,
            protocol: self.flags.protocol(),
            reserved: [0; 3],
        }
    }

    /// Key of the server's packets as they leave it.
    #[inline]
    pub fn server(&self) -> FlowKey {
        FlowKey {
            src: self.server,
            dst: self.snat,
            src_port: self.server_port,
            dst_port: self.snat_port,
            protocol: self.flags.protocol(),
            reserved: [0; 3],
        }
    }

    /// The server's address and port.
    pub(super) fn server_place(&self) -> (Addr, u16) {
        (self.server, self.server_port)
    }

    /// What is done to packets that go this way.
    #[inline]
    pub fn rewrite(&self, direction: Direction) -> Rewrite {
        let next_hop = self.next_hop(direction);
        let FlowKey { src, dst, src_port, dst_port, .. } = match direction {
            Direction::ToServer if self.way() != ServerWay::Rewritten => self.client(),
            Direction::ToServer => self.server().reversed(),
            Direction::ToClient => self.client().reversed(),
        };
        Rewrite { src, dst, src_port, dst_port, next_hop }
    }

    /// Where packets of this direction go next: index into the plan's next hops.
    #[inline]
    pub fn next_hop(&self, direction: Direction) -> u32 {
        match self.next_hops[direction as usize] {
            u16::MAX => u32::MAX,
            index => index.into(),
        }
    }

    /// Where packets go next, by direction.
    pub(crate) fn next_hops(&self) -> [u32; 2] {
        [Direction::ToServer, Direction::ToClient].map(|direction| self.next_hop(direction))
    }

    /// Sends packets of this direction to another next hop from now on.
    pub fn set_next_hop(&mut self, direction: Direction, next_hop: u32) {
        self.next_hops[direction as usize] = short(next_hop);
    }

    /// How packets get to the server.
    #[inline]
    pub fn way(&self) -> ServerWay {
        match (self.flags.has(FlowFlags::L2_DSR), self.frontend.0 & FrontendMark::TUNNELED != 0) {
            (true, _) => ServerWay::OnLink,
            (false, true) => ServerWay::Tunneled,
            (false, false) => ServerWay::Rewritten,
        }
    }

    /// The server, by the number the control path gave it.
    pub fn server_id(&self) -> u32 {
        self.server_id
    }

    /// The frontend, by the number the control path gave it.
    pub fn frontend_id(&self) -> u32 {
        self.frontend.0 & FrontendMark::ID
    }

    /// Whether its source has it among its open connections.
    #[inline]
    pub(super) fn is_counted(&self) -> bool {
        self.frontend.0 & FrontendMark::COUNTED != 0
    }

    pub(super) fn set_counted(&mut self, counted: bool) {
        let rest = self.frontend.0 & !FrontendMark::COUNTED;
        self.frontend.0 = rest | if counted { FrontendMark::COUNTED } else { 0 };
    }

    /// What its handshake has just done.
    pub(super) fn handshake(&self, step: HandshakeStep) -> HandshakeEvent {
        let flow = FlowOwners { server: self.server_id, frontend: self.frontend_id() };
        HandshakeEvent { flow, client: self.client, step }
    }

    /// The step that a SYN of the client is, if it is one: the same one comes again until it is answered, and one with other numbers
    /// begins anew.
    pub(super) fn step_of_syn(&self, seq: u32) -> Option<HandshakeStep> {
        let next = seq.wrapping_add(1);
        let is_same = self.expected_of_client() == next || self.reopening_at() == Some(next);
        match self.state {
            FlowState::SynSent | FlowState::SynReceived if is_same => Some(HandshakeStep::Repeated),
            FlowState::SynSent | FlowState::Adopted => Some(HandshakeStep::Begun),
            _ => None,
        }
    }

    /// How far the connection is.
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// Whether the server's packets pass us too.
    pub fn view(&self) -> View {
        if self.flags.has(FlowFlags::CLIENT_SIDE) { View::ClientSide } else { View::BothSides }
    }

    /// Mode and protocol, which decide on its quota of the table.
    pub(super) fn kind(&self) -> TrafficKind {
        TrafficKind::new(self.view(), self.flags.protocol())
    }

    /// The last acknowledgement number of the client: the sequence number a reset in the server's name
    /// must have for the client to believe it (RFC 5961, section 3.2). 0 if it has not acknowledged anything.
    pub(crate) fn last_ack(&self) -> u32 {
        self.sequence.acked()
    }

    /// The sequence number a reset in the client's name must have for the server to believe it.
    pub(super) fn expected_of_client(&self) -> u32 {
        self.sequence.progress(self.flags.pending_fin(), Direction::ToServer).sent
    }

    /// UDP in passthrough: the server has sent a datagram in this tick.
    #[inline]
    pub(super) fn note_answer(&mut self, tick: u32) {
        self.sequence.note_answer(tick);
    }

    /// The tick of the server's last datagram, as far as is known here.
    pub(super) fn last_answer(&self) -> u32 {
        self.sequence.last_answer()
    }

    /// Whether it is a connection that both sides have begun and not both finished, as far as can be told.
    pub(super) fn is_open_connection(&self) -> bool {
        !self.flags.has(FlowFlags::UDP) && self.class().is_open()
    }

    /// Whether a TCP segment of this direction with this sequence number may be on its way, so that an ICMP error
    /// about it is believed. While nothing is known of the receiver, any may.
    pub(crate) fn may_be_on_its_way(&self, direction: Direction, seq: u32) -> bool {
        self.sequence.may_be_on_its_way(self.flags.pending_fin(), self.view(), direction, seq)
    }

    /// Whether the connection is over as far as we can see: a SYN of the same client address and port begins a new
    /// flow then, instead of belonging to this one.
    pub fn is_over(&self) -> bool {
        self.state.is_over(self.view())
    }

    /// Whether a packet that leaves the flow's state as it is puts its deadline off. While it begins, only the client's SYN
    /// does: a server repeats its answer to a forged one, too. Once it is over, only what somebody still needs does: else
    /// whoever knows its ports could keep it for good.
    #[inline]
    pub(super) fn is_kept_by(&self, direction: Direction, segment: Segment) -> bool {
        if self.state.is_handshake() {
            return direction == Direction::ToServer && segment.flags & SYN != 0;
        }
        let pending = self.flags.pending_fin();
        // The connection before may go on: whoever followed up on the SYN need not have been its client.
        if self.is_reopened_by_client() && segment.flags & (SYN | RST | ACK) == ACK {
            return true;
        }
        !self.is_over() || self.sequence.may_conclude(pending, self.view(), direction, segment)
    }

    /// Whether packets of this flow are handed to the flow cache: there will be more. That of UDP is not known of the first
    /// one, and a connection of which not even the SYN was seen may be made up.
    pub(super) fn may_be_cached(&self) -> bool {
        match self.state {
            // The next segment decides between the connection and the one after it.
            _ if self.is_narrow() || self.reopening_at().is_some() => false,
            FlowState::SynSent | FlowState::SynReceived | FlowState::HandshakeOnly => true,
            FlowState::Established | FlowState::UdpStream => true,
            FlowState::HalfClosedByClient | FlowState::HalfClosedByServer => !self.is_over(),
            _ => false,
        }
    }

    /// Whether its packets to the client are cut.
    #[inline]
    pub(super) fn is_narrow(&self) -> bool {
        self.flags.narrowness() != 0
    }

    /// How narrow the path to its client is: 0 if it takes what its server is told, at most 3.
    #[inline]
    pub(super) fn narrowness(&self) -> u8 {
        self.flags.narrowness()
    }

    /// Has its packets to the client be cut from now on; once into short pieces, for as long as they are cut.
    pub(super) fn set_narrow(&mut self, narrowness: u8) {
        debug_assert!(narrowness <= 3);
        let narrower = narrowness.max(self.narrowness());
        self.flags.0 = self.flags.0 & !FlowFlags::NARROW | narrower << FlowFlags::NARROW_SHIFT;
    }

    /// Has its packets to the client go on whole again.
    pub(super) fn set_wide(&mut self) {
        self.flags.set(FlowFlags::NARROW, false);
    }

    /// Whether the flow cache was told to forward packets of this flow.
    #[inline]
    pub(super) fn is_cached(&self) -> bool {
        self.flags.has(FlowFlags::CACHED)
    }

    pub(super) fn set_cached(&mut self, cached: bool) {
        self.flags.set(FlowFlags::CACHED, cached);
        self.set_server_moved(false);
    }

    /// Whether the flow cache takes the server's packets from another interface than that of the next hop to the server.
    #[inline]
    pub(super) fn is_server_moved(&self) -> bool {
        self.frontend.0 & FrontendMark::SERVER_MOVED != 0
    }

    pub(super) fn set_server_moved(&mut self, moved: bool) {
        let rest = self.frontend.0 & !FrontendMark::SERVER_MOVED;
        self.frontend.0 = rest | if moved { FrontendMark::SERVER_MOVED } else { 0 };
    }

    /// How far the sender of packets of this direction has got.
    pub(super) fn progress(&self, direction: Direction) -> Progress {
        self.sequence.progress(self.flags.pending_fin(), direction)
    }

    /// Whether the numbers of a segment that goes this way fit what is known.
    #[inline]
    pub(super) fn is_followed_by(&self, direction: Direction, segment: Segment) -> bool {
        self.sequence.is_followed_by(self.view(), direction, segment)
    }

    /// Whether a segment with this number may be the one that completes the handshake.
    pub(super) fn may_complete(&self, seq: u32) -> bool {
        self.sequence.may_complete(seq)
    }

    /// Whether the client has sent this number, and not long ago.
    pub(super) fn has_sent(&self, seq: u32) -> bool {
        self.sequence.has_sent(seq)
    }

    /// Takes note of how far client and server have got without us, as far as is known; the handshake is complete if the
    /// client has. Returns the state after it.
    pub(super) fn catch_up(&mut self, client: Option<Progress>, server: Option<Progress>) -> FlowState {
        let before = self.sequence;
        self.sequence.catch_up(self.flags.pending_fin(), client, server);
        let state = match (self.state, self.view()) {
            (FlowState::SynSent | FlowState::SynReceived, View::BothSides) => FlowState::Established,
            (FlowState::SynSent, View::ClientSide) => FlowState::HandshakeOnly,
            (state, _) => state,
        };
        if self.sequence.show_data_since(&before) { state.with_data() } else { state }
    }

    /// Number after a SYN of the client that would open the next connection between the same ends.
    pub(super) fn reopening_at(&self) -> Option<u32> {
        self.sequence.reopening_at(self.flags.pending_fin())
    }

    fn is_reopened_by_client(&self) -> bool {
        self.view() == View::ClientSide && self.flags.has(FlowFlags::REOPENED)
    }

    /// Whether the client has followed up on that SYN, which was there before its last segment.
    pub(super) fn is_reopened(&self, at: u32) -> bool {
        self.reopening_at().is_none() && self.sequence.is_at_beginning(at)
    }

    /// Whether a FIN is not believed yet.
    pub(super) fn has_pending_fin(&self) -> bool {
        matches!(self.flags.pending_fin(), PendingFin::Clients | PendingFin::Servers)
    }

    /// That FIN, as it would come again, if it has been acknowledged meanwhile.
    pub(super) fn acknowledged_fin(&self) -> Option<(Direction, Segment)> {
        self.sequence.acknowledged_fin(self.flags.pending_fin(), self.view())
    }

    /// Applies a segment or a datagram, and returns the state after it. A segment whose numbers are
    /// not those of the connection changes nothing.
    #[inline]
    pub(super) fn apply_segment(&mut self, direction: Direction, segment: Segment) -> FlowState {
        if self.flags.has(FlowFlags::UDP) {
            return self.state.next(self.view(), direction, 0);
        }
        let (view, mut pending, before) = (self.view(), self.flags.pending_fin(), self.sequence);
        let Heard { flags, ends_other } =
            self.sequence.apply_segment(&mut pending, (view, self.state), direction, segment);
        let was_reopening = self.flags.pending_fin() == PendingFin::Reopening;
        self.flags.set_pending_fin(pending);
        let is_another = view == View::ClientSide && was_reopening && flags & (SYN | ACK) == SYN | ACK;
        if is_another {
            self.flags.set(FlowFlags::REOPENED, true);
        }
        // It completes the handshake of another SYN than the first.
        if is_another && self.state.is_handshake() {
            return self.state.next(view, direction, flags & !SYN);
        }
        let state = match ends_other {
            true => self.state.next(view, direction.opposite(), FIN | ACK),
            false => self.state,
        };
        let mut state = state.next(view, direction, flags);
        // A SYN: the numbers are those of another connection.
        if view == View::ClientSide && flags & SYN == 0 && self.sequence.show_data_since(&before) {
            state = state.with_data();
        }
        // It begins after all.
        if state == FlowState::SynSent && view == View::ClientSide {
            self.flags.set(FlowFlags::MET | FlowFlags::REOPENED, false);
        }
        state
    }

    /// Applies a FIN that the flow cache has found to be exact, and returns the state after it.
    pub(super) fn apply_cached_fin(&mut self, direction: Direction, fin: Segment) -> FlowState {
        let mut pending = self.flags.pending_fin();
        let flags = self.sequence.finish(&mut pending, self.state, direction, fin);
        self.flags.set_pending_fin(pending);
        self.state.next(self.view(), direction, flags)
    }

    /// Whether packets with this key are those of the flow that go this way.
    #[inline]
    pub(super) fn matches(&self, direction: Direction, key: &FlowKey) -> bool {
        let (src, dst, src_port, dst_port) = match direction {
            Direction::ToServer => (&self.client, &self.vip, self.client_port, self.vip_port),
            Direction::ToClient => (&self.server, &self.snat, self.server_port, self.snat_port),
        };
        key.src.words() == src.words()
            && key.dst.words() == dst.words()
            && (key.src_port, key.dst_port, key.protocol) == (src_port, dst_port, self.flags.protocol())
    }
}

/// There are fewer next hops than would need more; none beyond is known.
fn short(next_hop: u32) -> u16 {
    u16::try_from(next_hop).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_takes_128_bytes_and_what_a_clients_packet_is_compared_with_the_first_64() {
        assert_eq!((size_of::<Flow>(), align_of::<Flow>()), (128, 128));
        assert_eq!(std::mem::offset_of!(Flow, snat), 64);
    }
}
