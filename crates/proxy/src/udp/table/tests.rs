use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Ids of frontends.
const WEB: u32 = 7;
const DNS: u32 = 8;

fn key(port: u16) -> SessionKey {
    SessionKey { client: SocketAddr::from(([192, 0, 2, 1], port)), via: None, asked: None }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

/// Table whose clients have sent one datagram each, at intervals of one second. The value of each
/// session is the port of its client.
fn asked_by(ports: &[u16]) -> SessionTable<u16> {
    let mut table = SessionTable::new(7);
    assert_eq!(table.open(), 0);
    (1..).zip(ports).for_each(|(second, port)| {
        table.insert((0, WEB), key(*port), *port, at(second));
    });
    table
}

#[test]
fn session_is_found_by_client_and_requested_address() {
    let mut table = SessionTable::new(7);
    let [here, there] = [(); 2].map(|()| table.open());
    let [first, second] = [1, 2].map(|host| Some(IpAddr::from([10, 0, 0, host])));
    let one = table.insert((here, WEB), SessionKey { asked: first, ..key(1) }, "one", at(0));
    let two = table.insert((here, WEB), SessionKey { asked: second, ..key(1) }, "two", at(0));
    assert_eq!(table.find(here, &SessionKey { asked: first, ..key(1) }), Some(one));
    assert_eq!(table.find(here, &SessionKey { asked: second, ..key(1) }), Some(two));
    assert_eq!(
        [table.find(here, &key(1)), table.find(there, &SessionKey { asked: first, ..key(1) })],
        [None; 2]
    );
    assert_eq!(table.get_mut(two).unwrap().1, &"two");
}

#[test]
fn a_session_ends_when_neither_side_has_sent_for_the_idle_timeout() {
    let mut table = asked_by(&[1, 2, 3]);
    let idle = Duration::from_secs(10);
    table.answered(table.find(0, &key(1)).unwrap(), at(8));
    table.sent(table.find(0, &key(2)).unwrap(), at(9));
    assert_eq!(table.expire(0, idle, at(12)), None);
    assert_eq!(table.expire(0, idle, at(13)), Some(3));
    assert_eq!(table.expire(0, idle, at(17)), None);
    assert_eq!([table.expire(0, idle, at(19)), table.expire(0, idle, at(19))], [Some(1), Some(2)]);
    assert!(table.is_empty(0) && table.find(0, &key(1)).is_none());
}

#[test]
fn clients_that_send_again_once_they_were_answered_give_way_last() {
    let mut table = asked_by(&[1, 2, 3, 4]);
    let [stream, asks_twice, answered] = [1, 2, 3].map(|port| table.find(0, &key(port)).unwrap());
    table.answered(stream, at(5));
    assert!(table.sent(stream, at(6)) && !table.sent(stream, at(6)));
    assert!(!table.sent(asks_twice, at(7)));
    table.answered(answered, at(8));
    table.answered(stream, at(8));
    assert_eq!([(); 4].map(|()| table.evict_of(WEB, at(8))), [Some(4), Some(2), Some(3), None]);
    assert!(table.find(0, &key(1)).is_some());
    assert_eq!(table.evict_of(WEB, at(9)), Some(1));
    assert!(table.is_empty(0));
}

#[test]
fn stream_whose_server_was_silent_longest_is_evicted_first() {
    let mut table = asked_by(&[1, 2, 3]);
    let streams = [1, 2, 3].map(|port| table.find(0, &key(port)).unwrap());
    streams.iter().for_each(|stream| table.answered(*stream, at(5)));
    streams.iter().for_each(|stream| _ = table.sent(*stream, at(6)));
    table.answered(streams[0], at(7));
    table.answered(streams[2], at(8));
    table.answered(streams[0], at(20));
    // Datagrams of the client may be forged, so they do not postpone the eviction.
    table.sent(streams[1], at(20));
    assert_eq!([(); 3].map(|()| table.evict_of(WEB, at(20))), [Some(2), Some(3), None]);
    let just_before = Timestamp(at(21).0 - 1);
    assert_eq!([just_before, at(21)].map(|now| table.evict_of(WEB, now)), [None, Some(1)]);
}

#[test]
fn a_client_that_makes_room_does_so_among_its_own() {
    let mut table = asked_by(&[1, 2, 3, 4]);
    let stream = table.find(0, &key(2)).unwrap();
    table.answered(stream, at(5));
    table.sent(stream, at(6));
    let is_even = |key: &SessionKey| key.client.port().is_multiple_of(2);
    assert_eq!([(); 2].map(|()| table.evict_question_of(WEB, is_even)), [Some(4), None]);
    let is_odd = |key: &SessionKey| !is_even(key);
    assert_eq!(
        [table.evict_stream_of(WEB, is_odd, at(7)), table.evict_stream_of(WEB, is_even, at(6))],
        [None; 2]
    );
    assert_eq!(table.evict_stream_of(WEB, is_even, at(7)), Some(2));
    assert_eq!(table.evict_of(WEB, at(7)), Some(1));
    let mut many = asked_by(&(1..=100).collect::<Vec<_>>());
    assert_eq!(many.evict_question_of(WEB, |key| key.client.port() > 64), None, "it would take too long");
    assert_eq!(many.evict_question_of(WEB, |key| key.client.port() > 63), Some(64));
}

#[test]
fn a_source_makes_room_among_its_own_however_many_others_there_are() {
    let [own, others] = ["192.0.2.1", "192.0.2.2"].map(|net| net.parse().unwrap());
    let mut table = asked_by(&(1..=1_000).collect::<Vec<_>>());
    for port in 1..=1_000 {
        let number = table.find(0, &key(port)).unwrap();
        table.set_source(number, if port > 997 { own } else { others });
        if port != 999 {
            table.answered(number, at(2_000));
            table.sent(number, at(2_000));
        }
    }
    table.answered(table.find(0, &key(998)).unwrap(), at(2_003));
    // Evicts first the question, then the stream whose server is silent. Evicts no session in use,
    // and no session of another source.
    let evicted = [(); 3].map(|()| table.evict_of_source(WEB, own, at(2_003)));
    assert_eq!(evicted, [Some(999), Some(1_000), None]);
    assert_eq!(table.evict_of_source(DNS, own, at(3_000)), None, "another frontend");
    assert_eq!(table.evict_of_source(WEB, own, at(3_000)), Some(998));
    assert_eq!(table.sources.len(), 1, "nothing is remembered of who has none");
}

/// Table of questions in this order, at three addresses: two of one frontend, and one of another
/// frontend.
fn of_two_frontends(order: &[(usize, u32)]) -> SessionTable<u16> {
    let mut table = SessionTable::new(7);
    (0..3).for_each(|_| _ = table.open());
    (1..).zip(order).for_each(|(n, place)| _ = table.insert(*place, key(n), n, at(n.into())));
    table
}

#[test]
fn eviction_spans_the_addresses_of_one_frontend_only() {
    let mut table = of_two_frontends(&[(2, DNS), (0, WEB), (1, WEB), (0, WEB)]);
    assert_eq!([(); 4].map(|()| table.evict_of(WEB, at(9))), [Some(2), Some(3), Some(4), None]);
    assert!(table.find(2, &key(1)).is_some());
    assert_eq!([0, 1, 2].map(|address| table.is_empty(address)), [true, true, false]);
}

#[test]
fn shared_limit_evicts_the_longest_silent_query_of_any_frontend() {
    let mut table = of_two_frontends(&[(2, DNS), (0, WEB), (2, DNS), (1, WEB)]);
    let any = |_: &u16| true;
    assert_eq!([(); 4].map(|()| table.evict(WEB, any, at(9))), [Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(table.evict(WEB, any, at(9)), None);
    let mut table = of_two_frontends(&[(2, DNS), (0, WEB)]);
    assert_eq!(table.evict(WEB, |session| *session != 1, at(9)), Some(2), "only some may");
}

#[test]
fn a_flood_at_one_frontend_pushes_out_nobody_at_another() {
    let mut table = of_two_frontends(&[(2, DNS), (0, WEB), (0, WEB), (1, WEB)]);
    assert_eq!([(); 2].map(|()| table.evict(WEB, |_| true, at(9))), [Some(2), Some(3)]);
    let mut table = of_two_frontends(&[(0, WEB), (2, DNS), (0, WEB), (1, WEB)]);
    assert_eq!(table.evict(DNS, |_| true, at(9)), Some(1), "who has few takes from it");
}

#[test]
fn queries_of_any_frontend_are_evicted_before_streams() {
    let mut table = of_two_frontends(&[(0, WEB), (0, WEB), (2, DNS)]);
    for number in [1, 2].map(|port| table.find(0, &key(port)).unwrap()) {
        table.answered(number, at(4));
        assert!(table.sent(number, at(4)));
    }
    assert_eq!([(); 3].map(|()| table.evict(WEB, |_| true, at(9))), [Some(3), Some(1), Some(2)]);
}

#[test]
fn an_address_that_closes_takes_its_sessions_along() {
    let mut table = of_two_frontends(&[(0, WEB), (1, WEB), (0, WEB)]);
    assert_eq!(table.close(0), [1, 3]);
    assert_eq!((table.open(), table.is_empty(0)), (0, true));
    assert_eq!([(); 2].map(|()| table.evict_of(WEB, at(9))), [Some(2), None]);
    assert!(table.groups.is_empty() && table.of_frontends.is_empty());
}

proptest! {
    #[test]
    fn lists_agree_with_the_sessions_after_any_calls(
        calls in prop::collection::vec(any::<[u8; 3]>(), 1..300),
    ) {
        exercise_session_table(&calls.concat());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(u16),
    Answer(u16),
    Remove(u16),
    /// Evicts a session to make room for a client with this port. `true` evicts from any frontend,
    /// `false` only from the client's frontend.
    Evict(u16, bool),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    let port = 1..6u16;
    prop_oneof![
        4 => port.clone().prop_map(Step::Send),
        2 => port.clone().prop_map(Step::Answer),
        1 => port.clone().prop_map(Step::Remove),
        2 => (port, any::<bool>()).prop_map(|(port, all)| Step::Evict(port, all)),
        1 => Just(Step::Expire),
    ]
}

/// Address and frontend of clients with this port.
fn place(port: u16) -> (usize, u32) {
    [(0, WEB), (1, WEB), (2, DNS)][usize::from(port % 3)]
}

proptest! {
    #[test]
    fn a_table_does_what_a_plain_list_of_sessions_would(steps in prop::collection::vec(step(), 0..200)) {
        const IDLE: u64 = 7;
        let mut table = of_two_frontends(&[]);
        // Expected sessions by the port of the client: the time of the last activity, the time of
        // the server's last datagram or of the change to a stream, whether the client was answered,
        // and whether it has sent again after that.
        let mut model: BTreeMap<u16, (u64, u64, bool, bool)> = BTreeMap::new();
        for (now, step) in (1..).zip(steps) {
            match step {
                Step::Send(port) => {
                    match table.find(place(port).0, &key(port)) {
                        Some(number) => _ = table.sent(number, at(now)),
                        None => { table.insert(place(port), key(port), port, at(now)); }
                    }
                    let (_, served, answered, stream) = model.get(&port).copied().unwrap_or_default();
                    let served = if answered && !stream { now } else { served };
                    model.insert(port, (now, served, answered, stream || answered));
                }
                Step::Answer(port) => {
                    let found = table.find(place(port).0, &key(port));
                    prop_assert_eq!(found.is_some(), model.contains_key(&port));
                    if let Some(number) = found {
                        table.answered(number, at(now));
                        model.entry(port).and_modify(|entry| (entry.0, entry.1, entry.2) = (now, now, true));
                    }
                }
                Step::Remove(port) => {
                    let removed = table.find(place(port).0, &key(port)).and_then(|number| table.remove(number));
                    prop_assert_eq!(removed, model.remove(&port).map(|_| port));
                }
                Step::Evict(port, all) => {
                    let frontend = place(port).1;
                    let of = |own: bool, stream: bool| {
                        let is_one = move |(port, entry): &(&u16, &(u64, u64, bool, bool))| {
                            entry.3 == stream && (!own || place(**port).1 == frontend)
                        };
                        let silent_since = |entry: &(u64, u64, bool, bool)| if stream { entry.1 } else { entry.0 };
                        let some = model.iter().filter(is_one);
                        some.min_by_key(|(_, entry)| silent_since(entry)).map(|(port, _)| *port)
                    };
                    let own = model.keys().filter(|port| place(**port).1 == frontend).count();
                    let has_most = own > model.len() / 2;
                    let victim = [false, true].into_iter().find_map(|stream| match all {
                        false => of(true, stream),
                        true => of(true, stream).filter(|_| has_most).or_else(|| of(false, stream)),
                    });
                    let later = at(now + 1); // every stream may give way
                    let evicted =
                        if all { table.evict(frontend, |_| true, later) } else { table.evict_of(frontend, later) };
                    prop_assert_eq!(evicted, victim);
                    victim.map(|port| model.remove(&port));
                }
                Step::Expire => {
                    for address in 0..3 {
                        while let Some(port) = table.expire(address, Duration::from_secs(IDLE), at(now)) {
                            prop_assert!(model.remove(&port).is_some_and(|entry| now - entry.0 >= IDLE));
                        }
                    }
                    prop_assert!(model.values().all(|entry| now - entry.0 < IDLE));
                }
            }
            prop_assert_eq!((0..3).all(|address| table.is_empty(address)), model.is_empty());
            prop_assert_eq!(table.groups.iter().map(|(_, group)| group.len).sum::<usize>(), model.len());
        }
    }
}
