//! The table against a list of flows that is searched from end to end, over random packets in virtual time.

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 6;
const CLIENTS: u16 = 12;

/// A flow of the list.
#[derive(Debug)]
struct Known {
    client: u16,
    state: TcpState,
    /// When it last had a packet.
    heard: Duration,
    /// Number of the step in which it came to be open, half-open or closing.
    since: usize,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Packet(u16, Direction, u8),
    Remove(u16),
    Wait(Duration),
}

/// Even clients are served in passthrough mode, odd ones in DSR mode.
fn new_flow(client: u16) -> NewFlow {
    if client.is_multiple_of(2) { passthrough(client) } else { dsr(client) }
}

impl Known {
    fn view(&self) -> View {
        new_flow(self.client).view
    }

    fn half_open(&self) -> bool {
        matches!(self.state, TcpState::SynSent | TcpState::SynReceived | TcpState::Adopted)
    }

    fn closing(&self) -> bool {
        let unseen_end = self.state == TcpState::HalfClosedByClient && self.view() == View::ClientSide;
        unseen_end || matches!(self.state, TcpState::Closing | TcpState::TimeWait | TcpState::Closed)
    }

    /// Ends at the first quarter of a second that is no earlier than the timeout says.
    fn ended(&self, now: Duration) -> bool {
        let quarters = |time: Duration| time.as_nanos() as f64 / 250e6;
        let timeout = self.state.timeout(&FlowTimeouts::default());
        quarters(now).floor() >= quarters(self.heard).ceil() + quarters(timeout)
    }
}

/// Takes the flow that has been what `which` says for longest.
fn take_oldest(known: &mut Vec<Known>, which: impl Fn(&Known) -> bool) -> Option<Known> {
    let oldest =
        known.iter().enumerate().filter(|(_, flow)| which(flow)).min_by_key(|(_, flow)| flow.since)?.0;
    Some(known.remove(oldest))
}

fn any_step() -> impl Strategy<Value = Step> {
    let flags =
        prop::sample::select(vec![SYN, SYN | ACK, ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, 0]);
    let direction = prop::sample::select(vec![ToServer, ToServer, ToClient]);
    let wait = prop::sample::select(vec![1, 249, 250, 1_000, 9_900, 59_000, 200_000, 3_600_000, 20_000_000]);
    prop_oneof![
        20 => (0..CLIENTS, direction, flags).prop_map(|(client, way, flags)| Step::Packet(client, way, flags)),
        1 => (0..CLIENTS).prop_map(Step::Remove),
        4 => wait.prop_map(|millis| Step::Wait(Duration::from_millis(millis))),
    ]
}

proptest! {
    #[test]
    fn the_table_knows_what_a_plain_list_knows(steps in prop::collection::vec(any_step(), 1..300)) {
        let mut flows = table(CAPACITY as u32);
        let mut known: Vec<Known> = Vec::new();
        let mut clock = Duration::from_millis(77);
        for (number, &step) in steps.iter().enumerate() {
            let now = Timestamp(clock.as_nanos() as u64);
            match step {
                Step::Wait(duration) => {
                    clock += duration;
                    let mut ended = expire(&mut flows, Timestamp(clock.as_nanos() as u64));
                    let expected = known.extract_if(.., |flow| flow.ended(clock));
                    let mut expected: Vec<_> = expected.map(|flow| client(flow.client)).collect();
                    ended.sort();
                    expected.sort();
                    prop_assert_eq!(ended, expected);
                }
                Step::Remove(client) => {
                    known.retain(|flow| flow.client != client);
                    if let Some((id, _)) = flows.lookup(&new_flow(client).client) {
                        prop_assert_eq!(flows.remove(id).client(), new_flow(client).client);
                    }
                }
                Step::Packet(client, direction, flags) => {
                    let new = NewFlow { segment: segment(flags), ..new_flow(client) };
                    if direction == ToClient && new.view == View::ClientSide {
                        continue;
                    }
                    let key = if direction == ToServer { new.client } else { new.server };
                    let mut found = flows.lookup(&key);
                    if let Some((id, _)) = found && flags == SYN && flows.get(id).may_be_replaced_by_syn() {
                        flows.remove(id);
                        found = None;
                        let index = known.iter().position(|flow| flow.client == client).unwrap();
                        prop_assert!(known.remove(index).closing());
                    }
                    if let Some((id, way)) = found {
                        prop_assert_eq!(way, direction);
                        flows.on_segment(id, direction, segment(flags), now);
                        let flow = known.iter_mut().find(|flow| flow.client == client).unwrap();
                        let was = (flow.half_open(), flow.closing());
                        flow.state = flow.state.next(new.view, direction, flags);
                        flow.heard = clock;
                        if (flow.half_open(), flow.closing()) != was {
                            flow.since = number;
                        }
                    } else if direction == ToServer {
                        let inserted = flows.insert(&new, now);
                        let mut evicted = None;
                        if known.len() == CAPACITY {
                            evicted = take_oldest(&mut known, Known::closing)
                                .or_else(|| take_oldest(&mut known, Known::half_open));
                        }
                        if known.len() < CAPACITY {
                            let evicted = evicted.map(|flow| new_flow(flow.client).client);
                            prop_assert_eq!(inserted.unwrap().evicted.map(|flow| flow.client()), evicted);
                            let state = TcpState::first(flags);
                            known.push(Known { client, state, heard: clock, since: number });
                        } else {
                            prop_assert_eq!(inserted.unwrap_err(), Full);
                        }
                    }
                }
            }
            same(&flows, &known)?;
        }
    }
}

/// Every question to the table has the list's answer.
fn same(flows: &FlowTable, known: &[Known]) -> Result<(), TestCaseError> {
    prop_assert_eq!(flows.len() as usize, known.len());
    prop_assert!(flows.flows.len() <= CAPACITY, "places of flows that have ended are used again");
    for state in TcpState::ALL {
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
    for server in [0, 1] {
        let of_server = |flow: &&Known| flow.closing() && flow.client % 2 == server;
        let oldest = known.iter().filter(of_server).min_by_key(|flow| flow.since);
        let found = flows.closing_of_server(to(server), TCP).map(|id| flows.get(id).client());
        prop_assert_eq!(found, oldest.map(|flow| new_flow(flow.client).client));
    }
    Ok(())
}
