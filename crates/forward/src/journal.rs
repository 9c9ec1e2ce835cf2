//! Journal of flows for the access log and traces: when each flow began, and how many bytes have
//! passed.
//!
//! The flow cache forwards most packets without an event. TCP bytes are therefore derived from
//! sequence numbers: payload, modulo 4 GiB in each direction. UDP bytes are counted until the cache
//! begins to forward the flow; the total is unknown from then on. In DSR the server's bytes do not
//! pass convey, and are unknown.

use super::{ACK, Direction, FlowEnd, FlowId, FlowOwners, FlowState, SYN, Segment, View};
use convey_model::{FlowKey, Timestamp};

/// Record of a flow that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// Key of the client's packets: from the client to the VIP.
    pub client: FlowKey,
    /// Key of the server's packets as they leave the server.
    pub server: FlowKey,
    /// Whether convey has seen the packets of both sides or of the client alone.
    pub view: View,
    /// Owners of the flow.
    pub owners: FlowOwners,
    /// Time of the first packet.
    pub began: Timestamp,
    /// Time of the end.
    pub ended: Timestamp,
    /// Payload bytes from the client, for TCP modulo 4 GiB; `None` if some were not counted.
    pub bytes_rx: Option<u64>,
    /// Payload bytes to the client, for TCP modulo 4 GiB; `None` if some were not counted.
    pub bytes_tx: Option<u64>,
    /// Reason for the end.
    pub how: FlowEnd,
}

/// Notes of the flows of one table, by their identifiers. All memory is reserved at the start; the
/// kernel provides it as flows use it.
#[derive(Debug)]
pub(super) struct Journal {
    notes: Vec<Words>,
}

/// A note in words, so that a table of zeroes is allocated without touching its memory.
type Words = [u64; 4];

/// Note of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Note {
    /// Time of the first packet; `None` if the flow began before the journal, or its end was
    /// logged.
    pub(super) began: Option<Timestamp>,
    /// TCP: sequence number of the client's first byte.
    client_base: u32,
    /// TCP: sequence number of the server's first byte; `None` while it is not known.
    server_base: Option<u32>,
    /// UDP: payload bytes counted in this note, by direction.
    bytes: [u64; 2],
    /// Whether some bytes may not have been counted.
    is_partial: bool,
}

const HAS_SERVER_BASE: u64 = 1 << 63;
const IS_PARTIAL: u64 = 1 << 62;

impl Note {
    fn from_words([began, bases, rx, tx]: Words) -> Note {
        let began = began.checked_sub(1).map(Timestamp);
        Note {
            began,
            client_base: bases as u32,
            server_base: (tx & HAS_SERVER_BASE != 0).then_some((bases >> 32) as u32),
            bytes: [rx, tx & !(HAS_SERVER_BASE | IS_PARTIAL)],
            is_partial: tx & IS_PARTIAL != 0,
        }
    }

    fn words(self) -> Words {
        let Note { began, client_base, server_base, bytes: [rx, tx], is_partial } = self;
        let began = began.map_or(0, |began| began.0.saturating_add(1));
        let bases = u64::from(client_base) | u64::from(server_base.unwrap_or_default()) << 32;
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let flags = flag(HAS_SERVER_BASE, server_base.is_some()) | flag(IS_PARTIAL, is_partial);
        [began, bases, rx, tx | flags]
    }

    /// Payload bytes of a TCP connection from and to the client; `None` for a number that is not
    /// known. `sent` is the progress of both sides, `state` the state before the end.
    pub(super) fn tcp_bytes(&self, state: FlowState, view: View, sent: [u32; 2]) -> [Option<u64>; 2] {
        // A FIN takes a sequence number.
        let (client_fin, server_fin) = match state {
            FlowState::HalfClosedByClient => (1, 0),
            FlowState::HalfClosedByServer => (0, 1),
            FlowState::Closing | FlowState::TimeWait => (1, 1),
            _ => (0, 0),
        };
        let count = |to: u32, from: u32, fin: u32| {
            let bytes = to.wrapping_sub(from).wrapping_sub(fin);
            // The numbers do not include the FIN yet.
            u64::from(if bytes == u32::MAX { 0 } else { bytes })
        };
        let [client, server] = sent;
        let to_client = match self.server_base {
            Some(base) => Some(count(server, base, server_fin)),
            // The server has sent no SYN.
            None => (state == FlowState::SynSent).then_some(0),
        };
        let bytes = [Some(count(client, self.client_base, client_fin)), to_client];
        self.known(view, bytes)
    }

    /// Payload bytes of a UDP flow from and to the client; `None` for a number that is not known.
    pub(super) fn udp_bytes(&self, view: View) -> [Option<u64>; 2] {
        self.known(view, self.bytes.map(Some))
    }

    fn known(&self, view: View, [rx, tx]: [Option<u64>; 2]) -> [Option<u64>; 2] {
        match (self.is_partial, view) {
            (true, _) => [None; 2],
            (false, View::BothSides) => [rx, tx],
            (false, View::ClientSide) => [rx, None],
        }
    }
}

/// Time when the flow of this note began, if known.
pub(super) fn began(words: Words) -> Option<Timestamp> {
    Note::from_words(words).began
}

/// Note of a flow whose beginning is known, and whose bytes are not counted.
pub(super) fn only_began(began: Timestamp) -> Words {
    Note { began: Some(began), is_partial: true, ..Note::default() }.words()
}

impl Journal {
    /// Creates a journal for a table of this capacity: 32 bytes for each flow.
    pub(super) fn new(capacity: u32) -> Journal {
        Journal { notes: vec![[0; 4]; capacity as usize] }
    }

    /// Note of a flow.
    pub(super) fn get(&self, id: FlowId) -> Note {
        self.notes.get(id.0 as usize).map_or(Note::default(), |words| Note::from_words(*words))
    }

    /// Begins the note of a flow with its first segment.
    pub(super) fn begin(&mut self, id: FlowId, segment: Segment, now: Timestamp) {
        let is_syn = segment.flags & SYN != 0;
        let is_tcp = segment.flags != 0;
        let note = Note {
            began: Some(now),
            client_base: segment.seq.wrapping_add(u32::from(is_syn)),
            server_base: (is_tcp && !is_syn).then_some(segment.ack),
            bytes: [0; 2],
            // The earlier bytes of a connection without a SYN are not known.
            is_partial: is_tcp && !is_syn,
        };
        self.set(id, note);
    }

    /// Applies an accepted segment to the note of a flow.
    pub(super) fn note_segment(&mut self, id: FlowId, direction: Direction, segment: Segment) {
        let note = self.get(id);
        if note.server_base.is_some() {
            return;
        }
        let base = match direction {
            Direction::ToClient if segment.flags & SYN != 0 => segment.seq.wrapping_add(1),
            Direction::ToServer if segment.flags & (SYN | ACK) == ACK => segment.ack,
            _ => return,
        };
        self.set(id, Note { server_base: Some(base), ..note });
    }

    /// Counts payload bytes of a datagram.
    pub(super) fn count(&mut self, id: FlowId, direction: Direction, bytes: u64) {
        if let Some(words) = self.notes.get_mut(id.0 as usize) {
            let mut note = Note::from_words(*words);
            note.bytes[direction as usize] += bytes;
            *words = note.words();
        }
    }

    /// Restarts the note of a flow with another SYN. `client_base` is the sequence number after
    /// that SYN.
    pub(super) fn restart(&mut self, id: FlowId, client_base: u32) {
        self.set(id, Note { client_base, server_base: None, ..self.get(id) });
    }

    /// Marks a flow as partially counted, because its packets bypass the journal from now on.
    pub(super) fn stop_counting(&mut self, id: FlowId) {
        self.set(id, Note { is_partial: true, ..self.get(id) });
    }

    /// Clears the note of a flow, so that nothing more is logged.
    pub(super) fn clear(&mut self, id: FlowId) {
        self.set(id, Note::default());
    }

    /// Note of a flow in words, for another process.
    pub(super) fn words(&self, id: FlowId) -> [u64; 4] {
        self.notes.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// Restores the log note of a flow that another process exported (`words`).
    pub(super) fn restore(&mut self, id: FlowId, words: [u64; 4]) {
        if let Some(note) = self.notes.get_mut(id.0 as usize) {
            *note = words;
        }
    }

    fn set(&mut self, id: FlowId, note: Note) {
        if let Some(words) = self.notes.get_mut(id.0 as usize) {
            *words = note.words();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FlowId = FlowId(3);

    fn begun(flags: u8, seq: u32, ack: u32) -> Journal {
        let mut journal = Journal::new(8);
        journal.begin(ID, Segment { flags, seq, ack, len: 1 }, Timestamp(0));
        journal
    }

    #[test]
    fn a_note_comes_out_as_it_went_in() {
        let note = Note {
            began: Some(Timestamp(0)),
            client_base: u32::MAX,
            server_base: Some(7),
            bytes: [1 << 40, 9],
            is_partial: true,
        };
        for note in
            [note, Note { began: None, server_base: None, is_partial: false, ..note }, Note::default()]
        {
            assert_eq!(Note::from_words(note.words()), note);
        }
    }

    #[test]
    fn bytes_of_tcp_are_what_its_numbers_say_without_syn_and_fin() {
        let mut journal = begun(SYN, u32::MAX, 0);
        journal.note_segment(ID, Direction::ToClient, Segment { flags: SYN | ACK, seq: 99, ack: 0, len: 1 });
        journal.note_segment(ID, Direction::ToServer, Segment { flags: ACK, seq: 0, ack: 500, len: 0 });
        let note = journal.get(ID);
        for (state, view, sent, bytes) in [
            (FlowState::Established, View::BothSides, [10, 300], [Some(10), Some(200)]),
            (FlowState::TimeWait, View::BothSides, [11, 301], [Some(10), Some(200)]),
            (FlowState::TimeWait, View::BothSides, [0, 100], [Some(0), Some(0)]),
            // The server's packets do not pass convey.
            (FlowState::HalfClosedByClient, View::ClientSide, [11, 0], [Some(10), None]),
        ] {
            assert_eq!(note.tcp_bytes(state, view, sent), bytes, "{state:?} {view:?} {sent:?}");
        }
    }

    #[test]
    fn a_server_that_has_answered_no_syn_has_sent_nothing() {
        let note = begun(SYN, 9, 0).get(ID);
        assert_eq!(note.tcp_bytes(FlowState::SynSent, View::BothSides, [10, 0]), [Some(0), Some(0)]);
        assert_eq!(note.tcp_bytes(FlowState::Established, View::BothSides, [10, 0]), [Some(0), None]);
    }

    #[test]
    fn adopted_connection_has_no_byte_counts() {
        let note = begun(ACK, 1_000, 50).get(ID);
        assert_eq!(note.tcp_bytes(FlowState::Established, View::BothSides, [1_010, 80]), [None; 2]);
    }

    #[test]
    fn datagrams_count_until_the_cache_forwards_them() {
        let mut journal = begun(0, 0, 0);
        journal.count(ID, Direction::ToServer, 5);
        journal.count(ID, Direction::ToClient, 7);
        assert_eq!(journal.get(ID).udp_bytes(View::BothSides), [Some(5), Some(7)]);
        assert_eq!(journal.get(ID).udp_bytes(View::ClientSide), [Some(5), None]);
        journal.stop_counting(ID);
        assert_eq!(journal.get(ID).udp_bytes(View::BothSides), [None; 2]);
        journal.clear(ID);
        assert_eq!(journal.get(ID), Note::default());
    }
}
