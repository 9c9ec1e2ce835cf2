//! Which session a datagram belongs to, and which session is over or gives way to another. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slab::Slab;

use convey_model::Timestamp;

/// What the datagrams of one session have in common, at the address that one socket is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Who asks.
    pub(super) client: SocketAddr,
    /// The address that was asked; `None` where there is only one.
    pub(super) asked: Option<IpAddr>,
}

/// The sessions of one worker, found by address and key, and by number. Those whose client has sent again after an
/// answer are streams, all others are questions.
///
/// Each address has a list of its sessions, first the one that was silent longest: for those that are over. Each frontend
/// has a list of its questions in that order, and one of its streams, first the one whose server was silent longest: for
/// those that give way.
///
/// Nothing proves that a client exists: who forges two datagrams around an answer makes a stream. Only the server's
/// datagrams cannot be forged.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Slab<Entry<T>>,
    addresses: Slab<Address>,
    groups: Slab<Group>,
    /// The group of each frontend that has sessions.
    of_frontends: HashMap<u32, usize>,
}

/// Where clients come to: one listening socket.
#[derive(Debug, Default)]
struct Address {
    numbers: HashMap<Key, usize>,
    active: List,
}

/// The sessions of one frontend.
#[derive(Debug)]
struct Group {
    frontend: u32,
    len: usize,
    /// Of questions and of streams.
    lists: [List; 2],
}

/// Sessions that are looked at for one of a certain client.
const LOOKS: usize = 64;

/// A stream whose server has sent nothing for this long may give way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of a list in [`Group::lists`].
const QUESTIONS: usize = 0;
const STREAMS: usize = 1;

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    session: T,
    address: usize,
    group: usize,
    /// When a datagram last went either way.
    active: Timestamp,
    /// When its server last sent, or it became a stream since.
    served: Timestamp,
    answered: bool,
    is_stream: bool,
    /// Its neighbours in the list of its address, and in that of its frontend.
    links: [Links; 2],
}

/// Which of an entry's lists.
#[derive(Debug, Clone, Copy)]
enum Of {
    Address,
    Frontend,
}

#[derive(Debug, Clone, Copy, Default)]
struct Links {
    previous: Option<usize>,
    next: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct List {
    first: Option<usize>,
    last: Option<usize>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        let (entries, addresses, groups) = (Slab::new(), Slab::new(), Slab::new());
        Table { entries, addresses, groups, of_frontends: HashMap::new() }
    }

    /// An address that clients come to; returns its number, for all that follows.
    pub(super) fn open(&mut self) -> usize {
        self.addresses.insert(Address::default())
    }

    /// Nobody comes to an address any more. Returns its sessions.
    pub(super) fn close(&mut self, address: usize) -> Vec<T> {
        let first = |table: &Self| table.addresses[address].active.first;
        let sessions = std::iter::from_fn(|| first(self).and_then(|number| self.remove(number))).collect();
        self.addresses.remove(address);
        sessions
    }

    /// Whether an address has no sessions.
    pub(super) fn is_empty(&self, address: usize) -> bool {
        self.addresses[address].active.first.is_none()
    }

    /// The number of a session.
    pub(super) fn find(&self, address: usize, key: &Key) -> Option<usize> {
        self.addresses[address].numbers.get(key).copied()
    }

    /// The session with this number, and its key.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<(Key, &mut T)> {
        self.entries.get_mut(number).map(|entry| (entry.key, &mut entry.session))
    }

    /// Adds the session of a client that has just sent for the first time to this address of this frontend; returns its
    /// number, which is that of no other session until it is removed. There must be none with this key.
    pub(super) fn insert(
        &mut self,
        (address, frontend): (usize, u32),
        key: Key,
        session: T,
        now: Timestamp,
    ) -> usize {
        let groups = &mut self.groups;
        let new = || groups.insert(Group { frontend, len: 0, lists: [List::default(); 2] });
        let group = *self.of_frontends.entry(frontend).or_insert_with(new);
        self.groups[group].len += 1;
        let (served, links) = (now, Default::default());
        let (answered, is_stream) = (false, false);
        let entry = Entry { key, session, address, group, active: now, served, answered, is_stream, links };
        let number = self.entries.insert(entry);
        self.addresses[address].numbers.insert(key, number);
        self.append(number, Of::Address);
        self.append(number, Of::Frontend);
        number
    }

    /// The client of a session has sent again. Returns whether that makes it a stream.
    pub(super) fn sent(&mut self, number: usize, now: Timestamp) -> bool {
        let Some(entry) = self.entries.get_mut(number) else { return false };
        entry.active = now;
        let has_become_one = entry.answered && !entry.is_stream;
        let was_stream = entry.is_stream;
        self.renew(number, Of::Address);
        // What a stream's client sends keeps no place for it.
        if !was_stream {
            self.unlink(number, Of::Frontend);
            let entry = &mut self.entries[number];
            if has_become_one {
                (entry.is_stream, entry.served) = (true, now);
            }
            self.append(number, Of::Frontend);
        }
        has_become_one
    }

    /// The client of a session was sent something.
    pub(super) fn answered(&mut self, number: usize, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        (entry.active, entry.served, entry.answered) = (now, now, true);
        self.renew(number, Of::Address);
        self.renew(number, Of::Frontend);
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        self.entries.get(number)?;
        self.unlink(number, Of::Address);
        self.unlink(number, Of::Frontend);
        let Entry { key, session, address, group, .. } = self.entries.remove(number);
        self.addresses[address].numbers.remove(&key);
        self.groups[group].len -= 1;
        if self.groups[group].len == 0 {
            let gone = self.groups.remove(group);
            self.of_frontends.remove(&gone.frontend);
        }
        Some(session)
    }

    /// Takes out the session of a frontend that gives way to a new one: of its questions the one that was silent longest.
    /// So questions long answered go first, and forged clients push out each other. Streams go last, first the one whose
    /// server was silent longest, and none whose server has just sent.
    pub(super) fn evict_of(&mut self, frontend: u32, now: Timestamp) -> Option<T> {
        let group = self.group(frontend)?;
        let number = [QUESTIONS, STREAMS].into_iter().find_map(|list| self.first(group, list, now))?;
        self.remove(number)
    }

    /// The same, of all frontends whose sessions `may` give way to one of this frontend. One that has most of the worker's
    /// sessions makes room among its own: so a flood of questions at one
    /// frontend pushes out nobody at another. Streams go after all questions, whosever these are.
    pub(super) fn evict(&mut self, frontend: u32, may: impl Fn(&T) -> bool, now: Timestamp) -> Option<T> {
        let number = [QUESTIONS, STREAMS].into_iter().find_map(|list| {
            let may_give_way = |number: &usize| may(&self.entries[*number].session);
            let first = |group| self.first(group, list, now).filter(may_give_way);
            let has_most = |group: &usize| self.groups[*group].len > self.entries.len() / 2;
            let own = self.group(frontend).filter(has_most).and_then(first);
            let of_all = || self.groups.iter().filter_map(|(group, _)| first(group));
            own.or_else(|| of_all().min_by_key(|number| self.silent_since(*number)))
        })?;
        self.remove(number)
    }

    /// The same, of the questions of a frontend whose key is one of these. Only so many are looked at, the longest silent
    /// ones: who has most of them is found there.
    pub(super) fn evict_question_of(&mut self, frontend: u32, is_one: impl Fn(&Key) -> bool) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, QUESTIONS, is_one)?;
        self.remove(found)
    }

    /// The same of streams.
    pub(super) fn evict_stream_of(
        &mut self,
        frontend: u32,
        is_one: impl Fn(&Key) -> bool,
        now: Timestamp,
    ) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, STREAMS, is_one)?;
        self.is_unserved(found, now).then(|| self.remove(found))?
    }

    fn group(&self, frontend: u32) -> Option<usize> {
        self.of_frontends.get(&frontend).copied()
    }

    /// The first of a list that may give way.
    fn first(&self, group: usize, list: usize, now: Timestamp) -> Option<usize> {
        self.groups[group].lists[list]
            .first
            .filter(|number| list == QUESTIONS || self.is_unserved(*number, now))
    }

    fn find_first(&self, group: usize, list: usize, is_one: impl Fn(&Key) -> bool) -> Option<usize> {
        let next = |number: &usize| self.entries[*number].links[Of::Frontend as usize].next;
        let mut some = std::iter::successors(self.groups[group].lists[list].first, next).take(LOOKS);
        some.find(|number| is_one(&self.entries[*number].key))
    }

    /// Its place in the order of those that give way.
    fn silent_since(&self, number: usize) -> Timestamp {
        let entry = &self.entries[number];
        if entry.is_stream { entry.served } else { entry.active }
    }

    fn is_unserved(&self, number: usize, now: Timestamp) -> bool {
        now.since(self.entries[number].served) >= PATIENCE
    }

    /// Takes out a session of an address that was silent for `idle`, if there is one.
    pub(super) fn expire(&mut self, address: usize, idle: Duration, now: Timestamp) -> Option<T> {
        let number = self.addresses[address].active.first?;
        (now.since(self.entries[number].active) >= idle).then(|| self.remove(number))?
    }

    /// Makes an entry the last of a list that it is in.
    fn renew(&mut self, number: usize, of: Of) {
        self.unlink(number, of);
        self.append(number, of);
    }

    /// Makes an entry the last of a list that it is not in.
    fn append(&mut self, number: usize, of: Of) {
        let list = self.list_of(number, of);
        let previous = list.last.replace(number);
        if previous.is_none() {
            list.first = Some(number);
        }
        if let Some(previous) = previous {
            self.entries[previous].links[of as usize].next = Some(number);
        }
        self.entries[number].links[of as usize] = Links { previous, next: None };
    }

    /// Takes an entry out of a list that it is in.
    fn unlink(&mut self, number: usize, of: Of) {
        let Links { previous, next } = self.entries[number].links[of as usize];
        match previous {
            Some(previous) => self.entries[previous].links[of as usize].next = next,
            None => self.list_of(number, of).first = next,
        }
        match next {
            Some(next) => self.entries[next].links[of as usize].previous = previous,
            None => self.list_of(number, of).last = previous,
        }
    }

    fn list_of(&mut self, number: usize, of: Of) -> &mut List {
        let entry = &self.entries[number];
        match of {
            Of::Address => &mut self.addresses[entry.address].active,
            Of::Frontend => &mut self.groups[entry.group].lists[usize::from(entry.is_stream)],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Numbers of frontends.
    const WEB: u32 = 7;
    const DNS: u32 = 8;

    fn key(port: u16) -> Key {
        Key { client: SocketAddr::from(([192, 0, 2, 1], port)), asked: None }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// A table whose clients have sent once, a second after each other; their sessions are named by their ports.
    fn asked_by(ports: &[u16]) -> Table<u16> {
        let mut table = Table::new();
        assert_eq!(table.open(), 0);
        (1..).zip(ports).for_each(|(second, port)| {
            table.insert((0, WEB), key(*port), *port, at(second));
        });
        table
    }

    #[test]
    fn a_client_is_found_again_by_its_address_and_the_one_it_asked() {
        let mut table = Table::new();
        let [here, there] = [(); 2].map(|()| table.open());
        let [first, second] = [1, 2].map(|host| Some(IpAddr::from([10, 0, 0, host])));
        let one = table.insert((here, WEB), Key { asked: first, ..key(1) }, "one", at(0));
        let two = table.insert((here, WEB), Key { asked: second, ..key(1) }, "two", at(0));
        assert_eq!(table.find(here, &Key { asked: first, ..key(1) }), Some(one));
        assert_eq!(table.find(here, &Key { asked: second, ..key(1) }), Some(two));
        assert_eq!(
            [table.find(here, &key(1)), table.find(there, &Key { asked: first, ..key(1) })],
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
    fn of_streams_the_one_whose_server_was_silent_longest_gives_way() {
        let mut table = asked_by(&[1, 2, 3]);
        let streams = [1, 2, 3].map(|port| table.find(0, &key(port)).unwrap());
        streams.iter().for_each(|stream| table.answered(*stream, at(5)));
        streams.iter().for_each(|stream| _ = table.sent(*stream, at(6)));
        table.answered(streams[0], at(7));
        table.answered(streams[2], at(8));
        table.answered(streams[0], at(20));
        // A forged client's datagrams keep nothing.
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
        let is_even = |key: &Key| key.client.port().is_multiple_of(2);
        assert_eq!([(); 2].map(|()| table.evict_question_of(WEB, is_even)), [Some(4), None]);
        let is_odd = |key: &Key| !is_even(key);
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

    /// Questions of two addresses of one frontend, and of one of another, in this order.
    fn of_two_frontends(order: &[(usize, u32)]) -> Table<u16> {
        let mut table = Table::new();
        (0..3).for_each(|_| _ = table.open());
        (1..).zip(order).for_each(|(n, place)| _ = table.insert(*place, key(n), n, at(n.into())));
        table
    }

    #[test]
    fn the_addresses_of_a_frontend_make_room_for_each_other_and_no_other_frontend_does() {
        let mut table = of_two_frontends(&[(2, DNS), (0, WEB), (1, WEB), (0, WEB)]);
        assert_eq!([(); 4].map(|()| table.evict_of(WEB, at(9))), [Some(2), Some(3), Some(4), None]);
        assert!(table.find(2, &key(1)).is_some());
        assert_eq!([0, 1, 2].map(|address| table.is_empty(address)), [true, true, false]);
    }

    #[test]
    fn where_frontends_share_a_limit_the_longest_silent_question_of_all_gives_way() {
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
    fn no_stream_of_any_frontend_gives_way_while_there_is_a_question() {
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

    #[derive(Debug, Clone)]
    enum Step {
        Send(u16),
        Answer(u16),
        Remove(u16),
        /// For a session of this port, of its frontend's or of all.
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

    /// Where clients with this port come to.
    fn place(port: u16) -> (usize, u32) {
        [(0, WEB), (1, WEB), (2, DNS)][usize::from(port % 3)]
    }

    proptest! {
        #[test]
        fn a_table_does_what_a_plain_list_of_sessions_would(steps in prop::collection::vec(step(), 0..200)) {
            const IDLE: u64 = 7;
            let mut table = of_two_frontends(&[]);
            // By port: when it was last active, when its server was or it became a stream, whether its client was
            // answered, and whether it has sent since.
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
}
