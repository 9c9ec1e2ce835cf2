//! A TCP connection as its ends see it, and their actions.

use convey_forward::FlowState;
use convey_model::{FlowKey, Mode, Timestamp};

use super::EventSequence;

/// With this many bytes in flight, a side retransmits the first ones instead of sending more.
const WINDOW: u32 = 10_000;

/// Maximum size of a segment, in bytes.
const SEGMENT: u32 = 1_400;

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The packet arrives where the balancer sends it.
    Delivered,
    /// The packet is lost before the balancer.
    LostBefore,
    /// The packet is lost after the balancer.
    LostAfter,
}

impl Fate {
    pub(super) fn of(byte: u8) -> Fate {
        match byte % 16 {
            1 | 3 => Fate::LostBefore,
            5 | 7 => Fate::LostAfter,
            _ => Fate::Delivered,
        }
    }
}

/// A client's connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// Key of the client's first packet as its server got it.
    pub(super) delivered: Option<FlowKey>,
    /// The balancer has seen the answer to the SYN, and the client has received it.
    answer_passed: bool,
    is_answered: bool,
    /// The balancer has seen the client's acknowledgement or data.
    pub(super) is_open: bool,
    client: Side,
    server: Side,
    /// Time of its last packet at the balancer, genuine or forged.
    pub(super) last: Timestamp,
    /// Time of its server's last packet at the balancer.
    pub(super) served: Timestamp,
    /// Time of its last SYN at the balancer, or of its last progress.
    pub(super) begun: Timestamp,
    /// State of its flow after the previous event.
    pub(super) before: Option<FlowState>,
    /// Whether its flow did not begin with a SYN.
    pub(super) is_adopted: bool,
}

/// Sequence numbers of one side.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    /// Sequence number of the next byte that it sends.
    next: u32,
    /// Sequence number up to which the other side has received its bytes without a gap.
    got: u32,
}

impl Side {
    /// Sends `len` more bytes, or retransmits the first unacknowledged ones. Returns sequence
    /// number and length.
    fn send(&mut self, len: u32) -> (u32, u32) {
        if self.in_flight() > WINDOW {
            return self.send_again();
        }
        let seq = self.next;
        self.next = seq.wrapping_add(len);
        (seq, len)
    }

    fn send_again(&self) -> (u32, u32) {
        (self.got, self.in_flight().min(SEGMENT))
    }

    fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.got)
    }

    /// The other side receives a segment with this sequence number and length, and discards it if
    /// there is a gap before it.
    fn arrives(&mut self, (seq, len): (u32, u32)) {
        if seq == self.got {
            self.got = seq.wrapping_add(len);
        }
    }

    /// Sets the numbers to the byte after the SYN.
    fn begin(&mut self, seq: u32) {
        (self.next, self.got) = (seq, seq);
    }
}

impl Connection {
    /// First connection of a client. Its numbers are far from those of other clients (RFC 6528): a
    /// late answer to the previous owner of its SNAT port does not fit.
    pub(super) fn first(client: usize) -> Connection {
        let seq = (client as u32) << 28;
        let side = Side { next: seq, got: seq };
        Connection { client: side, server: side, ..Connection::new() }
    }

    fn new() -> Connection {
        Connection {
            delivered: None,
            answer_passed: false,
            is_answered: false,
            is_open: false,
            client: Side::default(),
            server: Side::default(),
            last: Timestamp(0),
            served: Timestamp(0),
            begun: Timestamp(0),
            before: None,
            is_adopted: false,
        }
    }
}

impl EventSequence {
    pub(super) fn syn(&mut self, n: usize, fate: Fate) {
        let connection = &self.connections[n];
        if connection.is_open || fate == Fate::LostBefore {
            return;
        }
        // A retransmission has the same number.
        let seq = connection.client.got.wrapping_sub(u32::from(connection.delivered.is_some()));
        let delivered = self.arrive(Some(n), &self.packet(n).syn().seq(seq));
        if delivered.is_none() {
            return;
        }
        let now = self.balancer.now();
        let connection = &mut self.connections[n];
        (connection.begun, connection.answer_passed) = (now, false);
        if fate == Fate::Delivered {
            connection.delivered = delivered;
            connection.is_answered = false;
            connection.client.begin(seq.wrapping_add(1));
        }
    }

    pub(super) fn answer(&mut self, n: usize, fate: Fate) {
        let Connection { client, server, is_open, is_answered, delivered, .. } = self.connections[n];
        if is_open || delivered.is_none() {
            return;
        }
        let seq = server.got.wrapping_sub(u32::from(is_answered));
        let passes = match self.reply(n) {
            Some(_) if fate == Fate::LostBefore => return,
            Some(reply) => self.arrive_from_server(n, &reply.syn().seq(seq).ack(client.got)),
            None => true,
        };
        let now = self.balancer.now();
        let is_seen = self.shows_replies();
        let connection = &mut self.connections[n];
        if passes && is_seen && !connection.answer_passed {
            (connection.answer_passed, connection.begun) = (true, now);
        }
        if passes && fate == Fate::Delivered && !is_answered {
            connection.is_answered = true;
            connection.server.begin(seq.wrapping_add(1));
        }
    }

    pub(super) fn client_sends(&mut self, n: usize, len: usize, fate: Fate) {
        let sent = self.connections[n].client;
        self.client_sends_what(n, fate, |client| client.send(len as u32), sent);
    }

    pub(super) fn client_sends_again(&mut self, n: usize, fate: Fate) {
        let sent = self.connections[n].client;
        self.client_sends_what(n, fate, |client| client.send_again(), sent);
    }

    fn client_sends_what(
        &mut self,
        n: usize,
        fate: Fate,
        sends: impl FnOnce(&mut Side) -> (u32, u32),
        mut client: Side,
    ) {
        let Connection { server, is_open, is_answered, .. } = self.connections[n];
        if !(is_open || is_answered) {
            return;
        }
        let segment = sends(&mut client);
        self.connections[n].client = client;
        if fate == Fate::LostBefore {
            return;
        }
        let packet = self.packet(n).seq(segment.0).ack(server.got).payload(&vec![7; segment.1 as usize]);
        let (arrived, is_hidden) = (self.arrive(Some(n), &packet), !self.shows_replies());
        let connection = &mut self.connections[n];
        // Another server has no such connection, and neither does the same server under another
        // client's key.
        if arrived.is_none() || arrived != connection.delivered {
            return self.is_gone(n);
        }
        // An acknowledgement proves nothing where the SYN of the flow has no answer yet.
        connection.is_open |= is_hidden || connection.answer_passed;
        if fate == Fate::Delivered {
            connection.client.arrives(segment);
        }
    }

    pub(super) fn server_sends(&mut self, n: usize, len: usize, fate: Fate) {
        let mut server = self.connections[n].server;
        let segment = server.send(len as u32);
        self.server_sends_what(n, fate, server, segment);
    }

    pub(super) fn server_sends_again(&mut self, n: usize, fate: Fate) {
        let server = self.connections[n].server;
        self.server_sends_what(n, fate, server, server.send_again());
    }

    fn server_sends_what(&mut self, n: usize, fate: Fate, server: Side, segment: (u32, u32)) {
        let Connection { client, is_open, .. } = self.connections[n];
        if !is_open {
            return;
        }
        self.connections[n].server = server;
        if let Some(reply) = self.reply(n).filter(|_| fate != Fate::LostBefore) {
            let packet = reply.seq(segment.0).ack(client.got).payload(&vec![7; segment.1 as usize]);
            if !self.arrive_from_server(n, &packet) {
                return self.is_gone(n);
            }
        }
        if fate == Fate::Delivered {
            self.connections[n].server.arrives(segment);
        }
    }

    /// Both sides finish, one after the other; or only one side finishes, and the other never
    /// notices.
    pub(super) fn finish(&mut self, n: usize, who: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        if !is_open {
            return;
        }
        if !who.is_multiple_of(3) {
            self.arrive(Some(n), &self.packet(n).seq(client.next).ack(server.got).fin());
        }
        if let Some(reply) = self.reply(n).filter(|_| who % 3 != 1) {
            let ack = client.got.wrapping_add(u32::from(who % 3 == 2 && client.got == client.next));
            self.arrive_from_server(n, &reply.seq(server.next).ack(ack).fin());
        }
        self.is_gone(n);
    }

    pub(super) fn reset(&mut self, n: usize, who: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        if !is_open {
            return;
        }
        match self.reply(n).filter(|_| who.is_multiple_of(2)) {
            Some(reply) => _ = self.arrive_from_server(n, &reply.rst().seq(server.next)),
            None => _ = self.arrive(Some(n), &self.packet(n).rst().seq(client.next)),
        }
        self.is_gone(n);
    }

    /// The server aborts, and its reset gets lost: the client may use its port again at once.
    pub(super) fn abort(&mut self, n: usize) {
        if self.connections[n].is_open {
            self.is_gone(n);
        }
    }

    /// Damages a FIN, a reset or a SYN of a connection on its way.
    pub(super) fn damage(&mut self, n: usize, what: u8, at: u8) {
        let Connection { client, server, .. } = self.connections[n];
        let before = self.state(n);
        let packet = self.packet(n).seq(client.next).ack(server.got);
        match what % 4 {
            0 => self.arrive_damaged(&packet.fin(), at),
            1 => self.arrive_damaged(&packet.rst(), at),
            2 => self.arrive_damaged(&self.packet(n).syn().seq(client.next), at),
            _ => {
                let Some(reply) = self.reply(n) else { return };
                self.arrive_damaged(&reply.seq(server.next).ack(client.got).fin(), at);
            }
        }
        assert_eq!(self.state(n), before);
    }

    /// Somebody off the path forges a packet in the name of a client, with luckily close numbers.
    /// In an open connection, it can only change the idle timeout.
    pub(super) fn forge(&mut self, n: usize, flags: u8, off: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        // In DSR the balancer cannot distinguish an acknowledgement of the real client from a
        // forged one.
        if self.setup.mode == Mode::Dsr || !is_open {
            return;
        }
        let seq = client.next.wrapping_add((1 + u32::from(off)) * 60_000);
        let packet = self.packet(n).seq(seq).ack(server.got);
        let packet = if flags & 1 != 0 { packet.fin() } else { packet };
        let packet = if flags & 2 != 0 { packet.rst() } else { packet };
        let before = self.state(n);
        self.arrive(Some(n), &packet);
        // Any packet may make the core process what the cache has seen.
        let has_learnt = matches!(before, Some(FlowState::SynSent | FlowState::SynReceived))
            && self.state(n) == Some(FlowState::Established);
        assert!(self.state(n) == before || has_learnt, "{flags:#x}: {before:?} -> {:?}", self.state(n));
    }

    /// Both ends forget the connection; the next SYN begins another.
    pub(super) fn is_gone(&mut self, n: usize) {
        let Connection { client, server, last, served, begun, before, is_adopted, .. } = self.connections[n];
        let mut connection = Connection { last, served, begun, before, is_adopted, ..Connection::new() };
        // The new numbers differ from those of the last FINs, which may wait to be acknowledged.
        connection.client.begin(client.next.wrapping_add(1 << 20));
        connection.server.begin(server.next.wrapping_add(1 << 20));
        self.connections[n] = connection;
    }
}
