//! A tracked flow: its two keys, its next hops and the state of its connection.

mod class;
mod flags;
mod handover;

pub(super) use self::class::{AtSource, Class};
use self::flags::{FlowFlags, FrontendMark};
use super::addr_port::AddrPort;
use super::cache::Progress;
use super::handshake::{HandshakeEvent, HandshakeStep};
use super::list::FlowLinks;
use super::state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};
use super::table_quota::TrafficKind;
use super::tcp_sequence::{AcceptedSegment, PendingFin, TcpSequence};
use super::verdict::FlowOwners;
use super::wheel::Slot;
use convey_model::{Addr, FlowKey, Rewrite};

/// How packets of a flow reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardingMethod {
    /// The destination is rewritten to the server's address.
    Rewritten,
    /// Only the destination MAC address is rewritten (L2 DSR).
    OnLink,
    /// The packet is encapsulated, unchanged, in a packet to the server's address.
    Tunneled,
}

/// A flow to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct NewFlow {
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave the server: to the SNAT address and port
    /// (passthrough), or to the client (DSR; these packets do not pass convey). Same protocol as
    /// `client`.
    pub server: FlowKey,
    /// Whether the server's packets pass convey too, and are looked up by their key.
    pub view: View,
    /// How packets reach the server.
    pub method: ForwardingMethod,
    /// Number of the server, assigned by the control path.
    pub server_id: u32,
    /// Number of the frontend, assigned by the control path.
    pub frontend_id: u32,
    /// Next hop to the server: index into the plan's next hops.
    pub to_server: u32,
    /// Next hop to the client; unused where the server answers the client directly.
    pub to_client: u32,
    /// First segment of the client.
    pub segment: Segment,
}

/// A recorded flow; 128 bytes.
///
/// A packet that matches one of the two keys leaves with the reverse of the other key. The first 64
/// bytes hold the fields that are compared with packets to the server; the CPU fetches adjacent
/// cache lines together.
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
    /// Slot of the timer wheel that holds the flow.
    pub(super) slot: Slot,
    /// First tick at which the flow has been silent for too long.
    pub(super) deadline: u32,
    snat: Addr,
    next_hops: [u16; 2],
    server_id: u32,
    frontend: FrontendMark,
    sequence: TcpSequence,
    /// Time at which the flow entered its class, in nanoseconds; for a stream, the time when it was
    /// last found in use. Only valid if the flow may be evicted.
    pub(super) since: u64,
    /// Neighbours in each list that holds the flow.
    pub(super) links: [FlowLinks; 2],
}

impl Flow {
    /// Creates a flow that is in no list, and whose deadline is not set yet.
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
            frontend: FrontendMark::new(new.frontend_id, new.method),
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

    /// Key of the server's packets as they leave the server.
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
    pub(super) fn server_place(&self) -> AddrPort {
        AddrPort::new(self.server, self.server_port)
    }

    /// Rewrite of packets in this direction.
    #[inline]
    pub fn rewrite(&self, direction: Direction) -> Rewrite {
        let next_hop = self.next_hop(direction);
        let FlowKey { src, dst, src_port, dst_port, .. } = match direction {
            Direction::ToServer if self.method() != ForwardingMethod::Rewritten => self.client(),
            Direction::ToServer => self.server().reversed(),
            Direction::ToClient => self.client().reversed(),
        };
        Rewrite { src, dst, src_port, dst_port, next_hop }
    }

    /// Next hop of packets in this direction: index into the plan's next hops.
    #[inline]
    pub fn next_hop(&self, direction: Direction) -> u32 {
        match self.next_hops[direction as usize] {
            u16::MAX => u32::MAX,
            index => index.into(),
        }
    }

    /// Next hops of packets, by direction.
    pub(crate) fn next_hops(&self) -> [u32; 2] {
        [Direction::ToServer, Direction::ToClient].map(|direction| self.next_hop(direction))
    }

    /// Changes the next hop of packets in this direction.
    pub fn set_next_hop(&mut self, direction: Direction, next_hop: u32) {
        self.next_hops[direction as usize] = short(next_hop);
    }

    /// How packets reach the server.
    #[inline]
    pub fn method(&self) -> ForwardingMethod {
        match (self.flags.has(FlowFlags::L2_DSR), self.frontend.0 & FrontendMark::TUNNELED != 0) {
            (true, _) => ForwardingMethod::OnLink,
            (false, true) => ForwardingMethod::Tunneled,
            (false, false) => ForwardingMethod::Rewritten,
        }
    }

    /// Number of the server, assigned by the control path.
    pub fn server_id(&self) -> u32 {
        self.server_id
    }

    /// Number of the frontend, assigned by the control path.
    pub fn frontend_id(&self) -> u32 {
        self.frontend.0 & FrontendMark::ID
    }

    /// Whether the flow counts among the open connections of its source.
    #[inline]
    pub(super) fn is_counted(&self) -> bool {
        self.frontend.0 & FrontendMark::COUNTED != 0
    }

    pub(super) fn set_counted(&mut self, counted: bool) {
        let rest = self.frontend.0 & !FrontendMark::COUNTED;
        self.frontend.0 = rest | if counted { FrontendMark::COUNTED } else { 0 };
    }

    /// Event for a handshake step of this flow.
    pub(super) fn handshake(&self, step: HandshakeStep) -> HandshakeEvent {
        let flow = FlowOwners { server: self.server_id, frontend: self.frontend_id() };
        HandshakeEvent { flow, client: self.client, step }
    }

    /// Handshake step of a client's SYN with this sequence number; `None` if the SYN belongs to no
    /// handshake. A SYN with the known number repeats the handshake. A SYN with another number
    /// begins a new handshake, unless the server has answered already.
    pub(super) fn step_of_syn(&self, seq: u32) -> Option<HandshakeStep> {
        let next = seq.wrapping_add(1);
        let is_same = self.expected_of_client() == next || self.reopening_at() == Some(next);
        match self.state {
            FlowState::SynSent | FlowState::SynReceived if is_same => Some(HandshakeStep::Repeated),
            FlowState::SynSent | FlowState::Adopted => Some(HandshakeStep::Begun),
            _ => None,
        }
    }

    /// State of the connection.
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// Whether the server's packets pass convey too.
    pub fn view(&self) -> View {
        if self.flags.has(FlowFlags::CLIENT_SIDE) { View::ClientSide } else { View::BothSides }
    }

    /// Mode and protocol, which select the quota of the table.
    pub(super) fn kind(&self) -> TrafficKind {
        TrafficKind::new(self.view(), self.flags.protocol())
    }

    /// Last acknowledgement number of the client; 0 if there is none. The client ignores a reset in
    /// the server's name that has another sequence number (RFC 5961, section 3.2).
    pub(crate) fn last_ack(&self) -> u32 {
        self.sequence.acked()
    }

    /// Next sequence number that the server expects from the client. The server ignores a reset in
    /// the client's name that has another sequence number.
    pub(super) fn expected_of_client(&self) -> u32 {
        self.sequence.progress(self.flags.pending_fin(), Direction::ToServer).sent
    }

    /// UDP in passthrough: notes that the server has sent a datagram in this tick.
    #[inline]
    pub(super) fn note_answer(&mut self, tick: u32) {
        self.sequence.note_answer(tick);
    }

    /// Tick of the server's last datagram that this worker has noted.
    pub(super) fn last_answer(&self) -> u32 {
        self.sequence.last_answer()
    }

    /// Whether this is a connection, not UDP, that has opened and is not over.
    pub(super) fn is_open_connection(&self) -> bool {
        !self.flags.has(FlowFlags::UDP) && self.class().is_open()
    }

    /// Whether a TCP segment with this direction and sequence number may be in flight, so that an
    /// ICMP error about the segment is accepted. Accepts any number to a client that has not
    /// acknowledged anything yet.
    pub(crate) fn may_be_in_flight(&self, direction: Direction, seq: u32) -> bool {
        self.sequence.may_be_in_flight(self.flags.pending_fin(), self.view(), direction, seq)
    }

    /// Whether the connection is over as far as convey can see. A SYN from the same client address
    /// and port then begins a new flow.
    pub fn is_over(&self) -> bool {
        self.state.is_over(self.view())
    }

    /// Whether a packet that does not change the flow's state extends its deadline. During the
    /// handshake only the client's SYN does, because a server also repeats its answer to a forged
    /// SYN. After the end, only a packet of a side that still needs the flow does; otherwise
    /// anybody who knows the ports could keep the flow forever.
    #[inline]
    pub(super) fn is_extended_by(&self, direction: Direction, segment: Segment) -> bool {
        if self.state.is_handshake() {
            return direction == Direction::ToServer && segment.flags & SYN != 0;
        }
        let pending = self.flags.pending_fin();
        // The earlier connection may continue, because another host may have forged the SYN and its
        // follow-up.
        if self.is_reopened_by_client() && segment.flags & (SYN | RST | ACK) == ACK {
            return true;
        }
        !self.is_over() || self.sequence.may_conclude(pending, self.view(), direction, segment)
    }

    /// Whether the flow cache may forward packets of this flow, because more packets are likely. A
    /// single UDP datagram may have no successor, and a connection whose SYN was not seen may be
    /// forged.
    pub(super) fn may_be_cached(&self) -> bool {
        match self.state {
            // The next segment decides between the old and the new connection.
            _ if self.is_narrow() || self.reopening_at().is_some() => false,
            FlowState::SynSent | FlowState::SynReceived | FlowState::HandshakeOnly => true,
            FlowState::Established | FlowState::UdpStream => true,
            FlowState::HalfClosedByClient | FlowState::HalfClosedByServer => !self.is_over(),
            _ => false,
        }
    }

    /// Whether convey cuts the packets to the client.
    #[inline]
    pub(super) fn is_narrow(&self) -> bool {
        self.flags.narrowness() != 0
    }

    /// Narrowness of the path to the client, from 0 to 3. At 0, the path takes the longest packets
    /// that the server sends; higher values mean that convey cuts packets to shorter lengths.
    #[inline]
    pub(super) fn narrowness(&self) -> u8 {
        self.flags.narrowness()
    }

    /// Makes convey cut packets to the client. If packets are cut already, their maximum length
    /// becomes shorter or stays as it is.
    pub(super) fn set_narrow(&mut self, narrowness: u8) {
        debug_assert!(narrowness <= 3);
        let narrower = narrowness.max(self.narrowness());
        self.flags.0 = self.flags.0 & !FlowFlags::NARROW | narrower << FlowFlags::NARROW_SHIFT;
    }

    /// Stops cutting packets to the client.
    pub(super) fn set_wide(&mut self) {
        self.flags.set(FlowFlags::NARROW, false);
    }

    /// Whether the flow cache has entries for this flow.
    #[inline]
    pub(super) fn is_cached(&self) -> bool {
        self.flags.has(FlowFlags::CACHED)
    }

    pub(super) fn set_cached(&mut self, cached: bool) {
        self.flags.set(FlowFlags::CACHED, cached);
        self.set_server_moved(false);
    }

    /// Whether the flow cache expects the server's packets on an interface other than the interface
    /// of the next hop to the server.
    #[inline]
    pub(super) fn is_server_moved(&self) -> bool {
        self.frontend.0 & FrontendMark::SERVER_MOVED != 0
    }

    pub(super) fn set_server_moved(&mut self, moved: bool) {
        let rest = self.frontend.0 & !FrontendMark::SERVER_MOVED;
        self.frontend.0 = rest | if moved { FrontendMark::SERVER_MOVED } else { 0 };
    }

    /// Progress of the sender of packets in this direction.
    pub(super) fn progress(&self, direction: Direction) -> Progress {
        self.sequence.progress(self.flags.pending_fin(), direction)
    }

    /// Whether the sequence numbers of a segment in this direction fit the numbers that are known.
    #[inline]
    pub(super) fn is_followed_by(&self, direction: Direction, segment: Segment) -> bool {
        self.sequence.is_followed_by(self.view(), direction, segment)
    }

    /// Whether a segment with this sequence number may complete the handshake.
    pub(super) fn may_complete(&self, seq: u32) -> bool {
        self.sequence.may_complete(seq)
    }

    /// Whether the client has sent this sequence number recently.
    pub(super) fn has_sent(&self, seq: u32) -> bool {
        self.sequence.has_sent(seq)
    }

    /// Applies progress of client and server that the flow cache has seen. Progress of the client
    /// completes the handshake. Returns the new state.
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

    /// Sequence number after a pending SYN of the client, which would open the next connection with
    /// the same addresses and ports; `None` if no such SYN is pending.
    pub(super) fn reopening_at(&self) -> Option<u32> {
        self.sequence.reopening_at(self.flags.pending_fin())
    }

    fn is_reopened_by_client(&self) -> bool {
        self.view() == View::ClientSide && self.flags.has(FlowFlags::REOPENED)
    }

    /// Whether the client's last segment has confirmed a SYN that was pending before. `at` is the
    /// sequence number after that SYN.
    pub(super) fn is_reopened(&self, at: u32) -> bool {
        self.reopening_at().is_none() && self.sequence.is_at_beginning(at)
    }

    /// Whether a FIN is pending: seen, but not accepted yet.
    pub(super) fn has_pending_fin(&self) -> bool {
        matches!(self.flags.pending_fin(), PendingFin::Clients | PendingFin::Servers)
    }

    /// Direction of the pending FIN, and the FIN as its sender would repeat it. `None` if no FIN is
    /// pending, or the pending FIN has not been acknowledged.
    pub(super) fn acknowledged_fin(&self) -> Option<(Direction, Segment)> {
        self.sequence.acknowledged_fin(self.flags.pending_fin(), self.view())
    }

    /// Applies a segment or a datagram, and returns the new state. A segment whose numbers do not
    /// fit the connection changes nothing.
    #[inline]
    pub(super) fn apply_segment(&mut self, direction: Direction, segment: Segment) -> FlowState {
        if self.flags.has(FlowFlags::UDP) {
            return self.state.next(self.view(), direction, 0);
        }
        let (view, mut pending, before) = (self.view(), self.flags.pending_fin(), self.sequence);
        let AcceptedSegment { flags, acks_other_fin } =
            self.sequence.apply_segment(&mut pending, (view, self.state), direction, segment);
        let was_reopening = self.flags.pending_fin() == PendingFin::Reopening;
        self.flags.set_pending_fin(pending);
        let is_another = view == View::ClientSide && was_reopening && flags & (SYN | ACK) == SYN | ACK;
        if is_another {
            self.flags.set(FlowFlags::REOPENED, true);
        }
        // The segment completes the handshake of a later SYN.
        if is_another && self.state.is_handshake() {
            return self.state.next(view, direction, flags & !SYN);
        }
        let state = match acks_other_fin {
            true => self.state.next(view, direction.opposite(), FIN | ACK),
            false => self.state,
        };
        let mut state = state.next(view, direction, flags);
        // After a SYN the numbers belong to another connection.
        if view == View::ClientSide && flags & SYN == 0 && self.sequence.show_data_since(&before) {
            state = state.with_data();
        }
        // The connection begins with this SYN, and was not picked up mid-connection.
        if state == FlowState::SynSent && view == View::ClientSide {
            self.flags.set(FlowFlags::MET | FlowFlags::REOPENED, false);
        }
        state
    }

    /// Applies a FIN whose numbers the flow cache has verified, and returns the new state.
    pub(super) fn apply_cached_fin(&mut self, direction: Direction, fin: Segment) -> FlowState {
        let mut pending = self.flags.pending_fin();
        let flags = self.sequence.finish(&mut pending, self.state, direction, fin);
        self.flags.set_pending_fin(pending);
        self.state.next(self.view(), direction, flags)
    }

    /// Whether packets with this key belong to the flow in this direction.
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

/// Shortens the index of a next hop to 16 bits. The network never has so many next hops. A larger
/// index becomes `u16::MAX`: the next hop is not known.
fn short(next_hop: u32) -> u16 {
    u16::try_from(next_hop).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_takes_two_cache_lines_with_the_client_key_first() {
        assert_eq!((size_of::<Flow>(), align_of::<Flow>()), (128, 128));
        assert_eq!(std::mem::offset_of!(Flow, snat), 64);
    }
}
