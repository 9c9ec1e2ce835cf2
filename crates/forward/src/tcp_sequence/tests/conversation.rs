//! Whole conversations over networks that lose and reorder packets.

use super::*;

const WAYS: [Direction; 2] = [ToServer, ToClient];

/// Generator of a conversation's choices: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// End of a connection that sends some segments, the last of them with a FIN.
struct Host {
    /// Sequence numbers of the segments, and the number after the FIN.
    numbers: Vec<u32>,
    /// Number of segments that the host has sent, and of those whose acknowledgement it has
    /// received.
    sent: usize,
    acknowledged: usize,
    /// Segments of the other host that have arrived.
    received: Vec<bool>,
}

/// A range of segments in one packet; empty in an acknowledgement.
struct Packet {
    from: usize,
    segments: std::ops::Range<usize>,
    ack: usize,
}

impl Host {
    fn new(begin: u32, segments: usize, longest: usize, random: &mut Random) -> Host {
        let mut numbers = vec![begin];
        for _ in 0..segments {
            let next = numbers[numbers.len() - 1].wrapping_add(1 + random.below(longest) as u32);
            // No client acknowledges the number 0.
            numbers.push(next.max(1));
        }
        Host { numbers, sent: 0, acknowledged: 0, received: Vec::new() }
    }

    fn is_done(&self) -> bool {
        self.acknowledged == self.segments()
    }

    fn segments(&self) -> usize {
        self.numbers.len() - 1
    }

    fn expected(&self) -> usize {
        self.received.iter().position(|has| !has).unwrap_or(self.received.len())
    }

    /// The next segment, a repetition of the first unacknowledged ones, or an acknowledgement.
    fn send(&mut self, from: usize, (window, may_finish): (usize, bool), random: &mut Random) -> Packet {
        let (first, end) = (self.acknowledged, self.segments() - usize::from(!may_finish));
        let segments = match random.below(10) {
            0..4 => self.sent..self.sent,
            4..8 if self.sent < end.min(first + window) => self.sent..self.sent + 1,
            _ if first < end => first..(first + 1 + random.below(2)).min(self.sent.max(first + 1)),
            _ => self.sent..self.sent,
        };
        self.sent = self.sent.max(segments.end);
        Packet { from, segments, ack: self.expected() }
    }

    fn receive(&mut self, packet: &Packet) {
        self.received[packet.segments.clone()].fill(true);
        self.acknowledged = self.acknowledged.max(packet.ack);
    }
}

/// Removes one of the first packets of a queue, and returns it unless it is lost.
fn pass(
    queue: &mut Vec<Packet>,
    reordering: usize,
    loss: Option<usize>,
    random: &mut Random,
) -> Option<Packet> {
    let at = random.below(queue.len().min(reordering).max(1));
    let packet = (at < queue.len()).then(|| queue.remove(at))?;
    (!loss.is_some_and(|loss| random.is_one_in(loss))).then_some(packet)
}

/// Flow state that convey derives from the packets.
struct Observer {
    view: View,
    state: FlowState,
    numbers: TcpSequence,
    pending: PendingFin,
}

impl Observer {
    fn apply_segment(&mut self, direction: Direction, segment: Segment) {
        if self.view == ClientSide && direction == ToClient {
            return;
        }
        let accepted =
            self.numbers.apply_segment(&mut self.pending, (self.view, self.state), direction, segment);
        if accepted.acks_other_fin {
            self.state = self.state.next(self.view, direction.opposite(), FIN_ACK);
        }
        self.state = self.state.next(self.view, direction, accepted.flags);
    }
}

/// State of a conversation's flow after each host has received the acknowledgement of all its data,
/// and has acknowledged all.
fn state_after_conversation(view: View, seed: u64) -> FlowState {
    let random = &mut Random(seed | 1);
    (0..4).for_each(|_| _ = random.below(1));
    let longest = [1, 1_448, 40_000][random.below(3)];
    let mut hosts = [0, 1].map(|_| {
        let begin = [random.below(1 << 32) as u32, u32::MAX - random.below(9_000) as u32][random.below(2)];
        let segments = 1 + random.below(20);
        Host::new(begin, segments, longest, random)
    });
    for of in [0, 1] {
        hosts[of].received = vec![false; hosts[1 - of].segments()];
    }
    // Only one FIN can be pending at a time.
    let finishes_first = random.below(2);
    let (window, reordering) = (1 + random.below(20), 1 + random.below(6));
    let losses = [0, 1].map(|_| (!random.is_one_in(4)).then_some(5 + random.below(50)));
    let [sent, acked] = [0, 1].map(|of: usize| hosts[of].numbers[0]);
    let numbers = TcpSequence { sent, acked, answered: acked };
    let mut observer = Observer { view, state: Established, numbers, pending: PendingFin::default() };
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    while !hosts.iter().all(Host::is_done) {
        let from = random.below(2);
        match random.below(3) {
            0 => {
                let may_finish = from == finishes_first || hosts[1 - from].is_done();
                before.push(hosts[from].send(from, (window, may_finish), random));
            }
            1 => {
                let Some(packet) = pass(&mut before, reordering, losses[0], random) else { continue };
                observer.apply_segment(WAYS[packet.from], segment_of(&hosts, &packet));
                behind.push(packet);
            }
            _ => {
                let Some(packet) = pass(&mut behind, reordering, losses[1], random) else { continue };
                hosts[1 - packet.from].receive(&packet);
            }
        }
    }
    for from in [0, 1] {
        let (last, ack) = (hosts[from].segments(), hosts[1 - from].segments());
        observer.apply_segment(WAYS[from], segment_of(&hosts, &Packet { from, segments: last..last, ack }));
    }
    observer.state
}

fn segment_of(hosts: &[Host; 2], Packet { from, segments, ack }: &Packet) -> Segment {
    let (own, other) = (&hosts[*from], &hosts[1 - *from]);
    let (seq, end) = (own.numbers[segments.start], own.numbers[segments.end]);
    let is_last = !segments.is_empty() && segments.end == own.segments();
    let flags = if is_last { FIN_ACK } else { ACK };
    Segment { flags, seq, ack: other.numbers[*ack], len: end.wrapping_sub(seq) }
}

proptest! {
    #[test]
    fn end_of_a_connection_is_seen_despite_loss_and_reordering(seed in any::<u64>()) {
        let state = state_after_conversation(BothSides, seed);
        prop_assert!(state.is_over(BothSides), "{:?}", state);
    }

    #[test]
    fn end_of_a_connection_in_dsr_is_seen_despite_loss_and_reordering(seed in any::<u64>()) {
        prop_assert_eq!(state_after_conversation(ClientSide, seed), HalfClosedByClient);
    }
}
