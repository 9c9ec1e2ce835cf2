//! Model test: the table is compared with a list of flows that is searched linearly, over random
//! packets in virtual time.

use proptest::prelude::*;

use super::*;
use convey_model::UDP;

const CAPACITY: usize = 8;
/// Number of clients. Half of them use TCP, the others UDP with the same addresses and ports.
const CLIENTS: u16 = 24;

/// A flow of the model.
#[derive(Debug)]
struct Known {
    client: u16,
    state: FlowState,
    /// Time of the last packet.
    heard: Duration,
    /// Number of the step in which the flow became open, half-open, doubtful or closing.
    since: usize,
    /// Whether the flow was picked up mid-connection.
    is_adopted: bool,
    /// Whether the client of an open connection has sent a SYN, and neither side has continued.
    is_reopening: bool,
    /// Bytes that the client has sent.
    sent: u32,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Client, direction, flags, whether the numbers are invalid, and whether there is data.
    Packet(u16, Direction, u8, bool, bool),
    Remove(u16),
    Wait(Duration),
}

/// Even clients are in passthrough mode, odd ones in DSR mode; every third has an IPv6 address.
fn new_flow(client: u16) -> NewFlow {
    let who = client % (CLIENTS / 2);
    let flow = if who.is_multiple_of(2) { passthrough(who) } else { dsr(who) };
    let protocol = if who == client { TCP } else { UDP };
    let addr = |addr: Addr| {
        if who.is_multiple_of(3) { Addr::v6([addr.v4_bytes(); 4].concat().try_into().unwrap()) } else { addr }
    };
    let key = |key: FlowKey| FlowKey { src: addr(key.src), dst: addr(key.dst), protocol, ..key };
    // Frontends share servers, and one server address has several numbers.
    let (frontend_id, server_id) = ((client / 2 % 3).into(), (client / 3 % 4).into());
    NewFlow { client: key(flow.client), server: key(flow.server), frontend_id, server_id, ..flow }
}

/// Resources that the flow of a client holds.
fn resources_of(client: u16) -> [Resource; 4] {
    let NewFlow { server, frontend_id, server_id, .. } = new_flow(client);
    [
        Resource::TableEntry,
        Resource::Port(AddrPort::source(&server)),
        Resource::FrontendSlot(frontend_id),
        Resource::ServerSlot(server_id),
    ]
}

impl Known {
    fn view(&self) -> View {
        new_flow(self.client).view
    }

    fn kind(&self) -> TrafficKind {
        let new = new_flow(self.client);
        TrafficKind::new(new.view, new.client.protocol)
    }

    fn half_open(&self) -> bool {
        let half_open = [
            FlowState::SynSent,
            FlowState::SynReceived,
            FlowState::Adopted,
            FlowState::HandshakeOnly,
            FlowState::UdpNew,
        ];
        half_open.contains(&self.state)
    }

    fn doubtful(&self) -> bool {
        let is_adopted = self.is_adopted && self.state == FlowState::Established;
        (self.view() == View::ClientSide && is_adopted) || self.state == FlowState::UdpStream
    }

    fn is_in(&self, class: Class) -> bool {
        match class {
            Class::Closing => self.closing(),
            Class::HalfOpen => self.half_open(),
            Class::Doubtful => self.doubtful(),
            Class::Open => !self.class().contains(&true),
        }
    }

    fn class(&self) -> [bool; 3] {
        [self.half_open(), self.doubtful(), self.closing()]
    }

    fn closing(&self) -> bool {
        let unseen_end = self.state == FlowState::HalfClosedByClient && self.view() == View::ClientSide;
        let closing = [FlowState::Closing, FlowState::TimeWait, FlowState::Closed, FlowState::UdpAnswered];
        unseen_end || closing.contains(&self.state)
    }

    /// Applies a packet; a forged segment changes nothing. During the handshake only the client's
    /// SYN extends the deadline, and after the end only segments of the connection do.
    fn apply_segment(
        &mut self,
        direction: Direction,
        (flags, is_forged, has_data): (u8, bool, bool),
        now: Duration,
    ) {
        let is_udp = self.client >= CLIENTS / 2;
        let before = self.state;
        // The server's reset of a SYN is validated by its acknowledgement number.
        let is_nothing = direction == ToClient && self.state == FlowState::SynSent && flags == RST;
        let may_reopen = matches!(
            self.state,
            FlowState::HandshakeOnly
                | FlowState::Established
                | FlowState::HalfClosedByClient
                | FlowState::HalfClosedByServer
        );
        let is_answer = direction == ToClient && flags == SYN | ACK && may_reopen;
        let is_stray = is_answer && !self.is_reopening;
        // All SYNs of this model have the same sequence number.
        let follows_up = self.is_reopening
            && self.view() == View::ClientSide
            && flags == ACK
            && (has_data || self.sent == 0);
        if is_udp || !(is_nothing || is_forged || is_stray) {
            if is_answer || (direction == ToClient && flags & (SYN | RST | ACK) == ACK) {
                self.is_reopening = false;
            }
            if is_answer && !is_udp {
                self.sent = 0;
            }
            self.state = self.state.next(self.view(), direction, flags);
            if follows_up {
                (self.sent, self.is_reopening) = (has_data.into(), false);
            } else if has_data && self.sent == 0 {
                self.state = self.state.with_data();
                self.sent = 1;
                self.is_reopening = false;
            }
        }
        self.is_reopening |= may_reopen && (direction, flags, is_udp) == (ToServer, SYN, false);
        self.is_adopted &= self.state != FlowState::SynSent;
        let is_syn = direction == ToServer && flags & SYN != 0;
        // The client's byte is the only data that is repeated here.
        let is_part = !is_forged
            && flags & (SYN | RST | ACK) == ACK
            && (self.view() == View::ClientSide || (direction == ToServer && has_data));
        let keeps = match self.state {
            state if state.is_handshake() => is_syn,
            state if state.is_over(self.view()) => is_part,
            _ => true,
        };
        if self.state != before || keeps {
            self.heard = now;
        }
    }

    /// Whether the flow has ended by `now`. A flow ends at its timeout, or at the next quarter of a
    /// second after it.
    fn ended(&self, now: Duration) -> bool {
        let quarters = |time: Duration| time.as_nanos() as f64 / 250e6;
        let timeout = self.state.timeout(&FlowTimeouts::default());
        quarters(now).floor() >= quarters(self.heard).ceil() + quarters(timeout)
    }
}

/// Removes the flow of a kind for which `which` has been true for longest.
fn take_oldest(known: &mut Vec<Known>, of: TrafficKind, which: impl Fn(&Known) -> bool) -> Option<Known> {
    let fits = |flow: &Known| flow.kind() == of && which(flow);
    let oldest =
        known.iter().enumerate().filter(|(_, flow)| fits(flow)).min_by_key(|(_, flow)| flow.since)?.0;
    Some(known.remove(oldest))
}

/// Whether more UDP flows of a kind wait for an answer than were answered.
fn most_wait(known: &[Known], of: TrafficKind) -> bool {
    let count = |which: fn(&Known) -> bool| known.iter().filter(|f| f.kind() == of && which(f)).count();
    of.is_udp() && count(Known::half_open) > count(Known::closing)
}

/// Removes the flow of a kind that is evicted if none is over. The table never evicts passthrough
/// streams by itself.
fn take_victim(known: &mut Vec<Known>, of: TrafficKind) -> Option<Known> {
    let is_last_resort = |flow: &Known| flow.doubtful() && flow.view() == View::ClientSide;
    take_oldest(known, of, Known::half_open).or_else(|| take_oldest(known, of, is_last_resort))
}

/// Makes room for a flow. Returns the evicted flow, or `Err` if there is no room.
fn make_room(known: &mut Vec<Known>, new: TrafficKind, present: &[TrafficKind]) -> Result<Option<Known>, ()> {
    let part = if present.len() > 1 { CAPACITY / 2 / present.len() } else { 0 };
    let guaranteed = |kind: TrafficKind| if present.contains(&kind) { part } else { 0 };
    let count = |known: &[Known], kind| known.iter().filter(|flow| flow.kind() == kind).count();
    let is_within_its_part = count(known, new) < guaranteed(new);
    let promised: usize = kinds().iter().map(|kind| count(known, *kind).max(guaranteed(*kind))).sum();
    if known.len() < CAPACITY && (is_within_its_part || promised < CAPACITY) {
        return Ok(None);
    }
    assert!(!is_within_its_part, "whoever has less than its part has room");
    let mut by_excess: Vec<(usize, TrafficKind)> =
        kinds().map(|kind| (count(known, kind).saturating_sub(guaranteed(kind)), kind)).into();
    by_excess.retain(|(excess, kind)| *excess > 0 || *kind == new);
    // Of equal kinds, the last one is chosen.
    by_excess.sort_by_key(|(excess, _)| *excess);
    by_excess.reverse();
    let mut first = |take: fn(&mut Vec<Known>, TrafficKind) -> Option<Known>| {
        by_excess.iter().find_map(|(_, kind)| take(known, *kind))
    };
    let over = first(|known, kind| match most_wait(known, kind) {
        true => None,
        false => take_oldest(known, kind, Known::closing),
    });
    over.or_else(|| first(take_victim)).map(Some).ok_or(())
}

fn kinds() -> [TrafficKind; TrafficKind::COUNT] {
    [(View::BothSides, TCP), (View::BothSides, UDP), (View::ClientSide, TCP), (View::ClientSide, UDP)]
        .map(|(view, protocol)| TrafficKind::new(view, protocol))
}

fn any_step() -> impl Strategy<Value = Step> {
    let flags =
        prop::sample::select(vec![SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, 0]);
    let direction = prop::sample::select(vec![ToServer, ToServer, ToClient]);
    let wait = prop::sample::select(vec![
        1, 249, 250, 1_000, 9_900, 29_700, 59_000, 200_000, 299_700, 3_600_000, 20_000_000,
    ]);
    prop_oneof![
        20 => (0..CLIENTS, direction, flags, prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(client, method, flags, forged, data)| Step::Packet(client, method, flags, forged, data)),
        1 => (0..CLIENTS).prop_map(Step::Remove),
        4 => wait.prop_map(|millis| Step::Wait(Duration::from_millis(millis))),
    ]
}

proptest! {
    #[test]
    fn the_table_knows_what_a_plain_list_knows(
        steps in prop::collection::vec(any_step(), 1..300),
        present in prop::sample::subsequence(kinds().to_vec(), 0..=TrafficKind::COUNT),
    ) {
        let mut flows = table(CAPACITY as u32);
        flows.divide_among(present.iter().copied());
        let mut known: Vec<Known> = Vec::new();
        let mut clock = Duration::from_millis(77);
        for (number, &step) in steps.iter().enumerate() {
            let now = Timestamp(clock.as_nanos() as u64);
            match step {
                Step::Wait(duration) => {
                    clock += duration;
                    let now = Timestamp(clock.as_nanos() as u64);
                    let ended: HashSet<_> = expire_all(&mut flows, now).iter().map(Flow::client).collect();
                    let expected = known.extract_if(.., |flow| flow.ended(clock));
                    prop_assert_eq!(ended, expected.map(|flow| new_flow(flow.client).client).collect());
                }
                Step::Remove(client) => {
                    known.retain(|flow| flow.client != client);
                    if let Some((id, _)) = flows.lookup(&new_flow(client).client) {
                        prop_assert_eq!(flows.remove(id).client(), new_flow(client).client);
                    }
                }
                Step::Packet(client, direction, flags, is_forged, has_data) => {
                    // A SYN sets the numbers, so none can be recognized as forged.
                    let is_forged = is_forged && flags != SYN;
                    let new = NewFlow { segment: segment(flags), ..new_flow(client) };
                    if direction == ToClient && new.view == View::ClientSide {
                        continue;
                    }
                    let key = if direction == ToServer { new.client } else { new.server };
                    let mut found = flows.lookup(&key);
                    if let Some((id, _)) = found && flags == SYN && flows.get(id).is_over() {
                        flows.remove(id);
                        found = None;
                        let index = known.iter().position(|flow| flow.client == client).unwrap();
                        prop_assert!(known.remove(index).closing());
                    }
                    if let Some((id, method)) = found {
                        prop_assert_eq!(method, direction);
                        let flow = known.iter_mut().find(|flow| flow.client == client).unwrap();
                        // Each segment repeats the client's byte.
                        let may_send = flow.state != FlowState::SynSent || flow.view() == View::ClientSide;
                        let has_data = has_data && direction == ToServer && flags == ACK && may_send;
                        let packet = match segment(flags) {
                            _ if is_forged => forged(flags),
                            packet if has_data => Segment { len: 1, ..packet },
                            packet if direction == ToServer && flags != SYN => {
                                Segment { seq: packet.seq + flow.sent, ..packet }
                            }
                            packet => packet,
                        };
                        flows.on_segment(id, direction, packet, now);
                        let was = flow.class();
                        flow.apply_segment(direction, (flags, is_forged, has_data), clock);
                        if flow.class() != was {
                            flow.since = number;
                        }
                    } else if direction == ToServer {
                        // In passthrough, convey does not pick up connections.
                        let is_udp = client >= CLIENTS / 2;
                        if !is_udp && new.view == View::BothSides && flags != SYN {
                            continue;
                        }
                        let inserted = flows.insert(&new, now);
                        let kind = TrafficKind::new(new.view, new.client.protocol);
                        if let Ok(evicted) = make_room(&mut known, kind, &present) {
                            let evicted = evicted.map(|flow| new_flow(flow.client).client);
                            prop_assert_eq!(inserted.unwrap().evicted.map(|flow| flow.client()), evicted);
                            let state = FlowState::first(new.client.protocol, flags);
                            let is_adopted = state == FlowState::Adopted;
                            let heard = clock;
                            known.push(Known {
                                client,
                                state,
                                heard,
                                since: number,
                                is_adopted,
                                is_reopening: false,
                                sent: 0,
                            });
                        } else {
                            prop_assert!(inserted.is_err());
                        }
                    }
                }
            }
            same(&mut flows, &known, number)?;
        }
    }
}

/// Checks that all queries of the table match the model after this step.
fn same(flows: &mut FlowTable, known: &[Known], number: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(flows.len() as usize, known.len());
    prop_assert!(flows.flows.len() <= CAPACITY, "places of flows that have ended are used again");
    for state in FlowState::ALL {
        let expected = known.iter().filter(|flow| flow.state == state).count();
        prop_assert_eq!(flows.count(state) as usize, expected, "{:?}", state);
    }
    for client in 0..CLIENTS {
        let new = new_flow(client);
        let flow = known.iter().find(|flow| flow.client == client);
        let found = flows.lookup(&new.client);
        prop_assert_eq!(found.map(|(id, _)| flows.get(id).state()), flow.map(|flow| flow.state));
        let replies = flow.filter(|flow| flow.view() == View::BothSides);
        let expected = replies.and(found).map(|(id, _)| (id, ToClient));
        prop_assert_eq!(flows.lookup(&new.server), expected);
    }
    // Check one client per step.
    let resource = resources_of((number % usize::from(CLIENTS)) as u16);
    for (resource, kind) in resource.into_iter().flat_map(|resource| kinds().map(|kind| (resource, kind))) {
        for class in [Class::Closing, Class::HalfOpen, Class::Doubtful] {
            let holds = |flow: &&Known| {
                flow.kind() == kind && flow.is_in(class) && resources_of(flow.client).contains(&resource)
            };
            let oldest = known.iter().filter(holds).min_by_key(|flow| flow.since);
            let first = flows.first_of(resource, kind, class).map(|id| flows.get(id).client());
            prop_assert_eq!(
                first,
                oldest.map(|flow| new_flow(flow.client).client),
                "{:?} {:?}",
                resource,
                class
            );
            prop_assert_eq!(
                flows.count_of(resource, kind, class) as usize,
                known.iter().filter(holds).count()
            );
        }
    }
    Ok(())
}
