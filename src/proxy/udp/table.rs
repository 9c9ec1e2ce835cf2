//! Which session a datagram belongs to, and which session is over or gives way to another. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slab::Slab;

use crate::model::Timestamp;

/// What the datagrams of one session have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Who asks.
    pub(super) client: SocketAddr,
    /// The address that was asked; `None` where there is only one.
    pub(super) asked: Option<IpAddr>,
}

/// The sessions of one listener, found by key and by number. Those whose client has sent again after an answer are
/// streams. These are in one list and all others in another, the one that was silent longest first. Streams are in a
/// third one, too: first the one whose server was silent longest.
///
/// Nothing proves that a client exists: who forges two datagrams around an answer makes a stream. Only the server's
/// datagrams cannot be forged.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Slab<Entry<T>>,
    numbers: HashMap<Key, usize>,
    lists: [List; 3],
}

/// Sessions that are looked at for one of a certain client.
const LOOKS: usize = 64;

/// A stream whose server has sent nothing for this long may give way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of a list in [`Table::lists`].
const QUESTIONS: usize = 0;
const STREAMS: usize = 1;
const STREAMS_BY_SERVER: usize = 2;

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    session: T,
    /// When a datagram last went either way.
    active: Timestamp,
    /// When its server last sent, or it became a stream since.
    served: Timestamp,
    answered: bool,
    is_stream: bool,
    /// Its neighbours in the list of what is active, and in that of streams by their server.
    links: [Links; 2],
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
        Table { entries: Slab::new(), numbers: HashMap::new(), lists: [List::default(); 3] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of a session.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// The session with this number, and its key.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<(Key, &mut T)> {
        self.entries.get_mut(number).map(|entry| (entry.key, &mut entry.session))
    }

    /// Adds the session of a client that has just sent for the first time; returns its number, which is that of no
    /// other session until it is removed. There must be none with this key.
    pub(super) fn insert(&mut self, key: Key, session: T, now: Timestamp) -> usize {
        let (served, links) = (now, Default::default());
        let entry = Entry { key, session, active: now, served, answered: false, is_stream: false, links };
        let number = self.entries.insert(entry);
        self.numbers.insert(key, number);
        self.append(number, QUESTIONS);
        number
    }

    /// The client of a session has sent again. Returns whether that makes it a stream.
    pub(super) fn sent(&mut self, number: usize, now: Timestamp) -> bool {
        let Some(entry) = self.entries.get_mut(number) else { return false };
        let (was_stream, is_stream) = (entry.is_stream, entry.is_stream || entry.answered);
        (entry.active, entry.is_stream) = (now, is_stream);
        self.unlink(number, list_of(was_stream));
        self.append(number, list_of(is_stream));
        let has_become_one = is_stream && !was_stream;
        if has_become_one {
            self.entries[number].served = now;
            self.append(number, STREAMS_BY_SERVER);
        }
        has_become_one
    }

    /// The client of a session was sent something.
    pub(super) fn answered(&mut self, number: usize, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        (entry.active, entry.served, entry.answered) = (now, now, true);
        let is_stream = entry.is_stream;
        for list in [Some(list_of(is_stream)), is_stream.then_some(STREAMS_BY_SERVER)].into_iter().flatten() {
            self.unlink(number, list);
            self.append(number, list);
        }
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        let is_stream = self.entries.get(number)?.is_stream;
        self.unlink(number, list_of(is_stream));
        if is_stream {
            self.unlink(number, STREAMS_BY_SERVER);
        }
        let entry = self.entries.remove(number);
        self.numbers.remove(&entry.key);
        Some(entry.session)
    }

    /// Takes out the session that gives way to a new one: of those that are no streams the one that was silent longest. So
    /// questions long answered go first, and forged clients push out each other. Streams go last, first the one whose server
    /// was silent longest, and none whose server has just sent.
    pub(super) fn evict(&mut self, now: Timestamp) -> Option<T> {
        let stream = self.lists[STREAMS_BY_SERVER].first.filter(|number| self.is_unserved(*number, now));
        self.remove(self.lists[QUESTIONS].first.or(stream)?)
    }

    /// The same, of those that are no streams and whose key is one of these. Only so many are looked at, the longest silent
    /// ones: who has most of them is found there.
    pub(super) fn evict_question_of(&mut self, is_one: impl Fn(&Key) -> bool) -> Option<T> {
        let found = self.find_first(QUESTIONS, is_one)?;
        self.remove(found)
    }

    /// The same of streams.
    pub(super) fn evict_stream_of(&mut self, is_one: impl Fn(&Key) -> bool, now: Timestamp) -> Option<T> {
        let found = self.find_first(STREAMS_BY_SERVER, is_one)?;
        self.is_unserved(found, now).then(|| self.remove(found))?
    }

    fn find_first(&self, list: usize, is_one: impl Fn(&Key) -> bool) -> Option<usize> {
        let next = |number: &usize| self.entries[*number].links[links_of(list)].next;
        let mut some = std::iter::successors(self.lists[list].first, next).take(LOOKS);
        some.find(|number| is_one(&self.entries[*number].key))
    }

    fn is_unserved(&self, number: usize, now: Timestamp) -> bool {
        now.since(self.entries[number].served) >= PATIENCE
    }

    /// Takes out a session that was silent for `idle`, if there is one.
    pub(super) fn expire(&mut self, idle: Duration, now: Timestamp) -> Option<T> {
        let silent = |list: &List| list.first.filter(|first| now.since(self.entries[*first].active) >= idle);
        let number = [QUESTIONS, STREAMS].iter().find_map(|list| silent(&self.lists[*list]))?;
        self.remove(number)
    }

    /// Makes an entry the last of a list that it is not in.
    fn append(&mut self, number: usize, list: usize) {
        let links = links_of(list);
        let list = &mut self.lists[list];
        let previous = list.last.replace(number);
        match previous {
            Some(previous) => self.entries[previous].links[links].next = Some(number),
            None => list.first = Some(number),
        }
        self.entries[number].links[links] = Links { previous, next: None };
    }

    /// Takes an entry out of a list that it is in.
    fn unlink(&mut self, number: usize, list: usize) {
        let links = links_of(list);
        let Links { previous, next } = self.entries[number].links[links];
        match previous {
            Some(previous) => self.entries[previous].links[links].next = next,
            None => self.lists[list].first = next,
        }
        match next {
            Some(next) => self.entries[next].links[links].previous = previous,
            None => self.lists[list].last = previous,
        }
    }
}

/// The list that has a session by when it was last active.
fn list_of(is_stream: bool) -> usize {
    if is_stream { STREAMS } else { QUESTIONS }
}

/// Which of an entry's links are those of this list.
fn links_of(list: usize) -> usize {
    usize::from(list == STREAMS_BY_SERVER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(port: u16) -> Key {
        Key { client: SocketAddr::from(([192, 0, 2, 1], port)), asked: None }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// A table whose clients have sent once, a second after each other; their sessions are named by their ports.
    fn asked_by(ports: &[u16]) -> Table<u16> {
        let mut table = Table::new();
        (1..).zip(ports).for_each(|(second, port)| {
            table.insert(key(*port), *port, at(second));
        });
        table
    }

    #[test]
    fn a_client_is_found_again_by_its_address_and_the_one_it_asked() {
        let mut table = Table::new();
        let [first, second] = [1, 2].map(|host| Some(IpAddr::from([10, 0, 0, host])));
        let one = table.insert(Key { asked: first, ..key(1) }, "one", at(0));
        let two = table.insert(Key { asked: second, ..key(1) }, "two", at(0));
        assert_eq!(table.find(&Key { asked: first, ..key(1) }), Some(one));
        assert_eq!(table.find(&Key { asked: second, ..key(1) }), Some(two));
        assert_eq!(table.find(&key(1)), None);
        assert_eq!(table.get_mut(two).unwrap().1, &"two");
    }

    #[test]
    fn a_session_ends_when_neither_side_has_sent_for_the_idle_timeout() {
        let mut table = asked_by(&[1, 2, 3]);
        let idle = Duration::from_secs(10);
        table.answered(table.find(&key(1)).unwrap(), at(8));
        table.sent(table.find(&key(2)).unwrap(), at(9));
        assert_eq!(table.expire(idle, at(12)), None);
        assert_eq!(table.expire(idle, at(13)), Some(3));
        assert_eq!(table.expire(idle, at(17)), None);
        assert_eq!([table.expire(idle, at(19)), table.expire(idle, at(19))], [Some(1), Some(2)]);
        assert!(table.is_empty() && table.find(&key(1)).is_none());
    }

    #[test]
    fn clients_that_send_again_once_they_were_answered_give_way_last() {
        let mut table = asked_by(&[1, 2, 3, 4]);
        let [stream, asks_twice, answered] = [1, 2, 3].map(|port| table.find(&key(port)).unwrap());
        table.answered(stream, at(5));
        assert!(table.sent(stream, at(6)) && !table.sent(stream, at(6)));
        assert!(!table.sent(asks_twice, at(7)));
        table.answered(answered, at(8));
        table.answered(stream, at(8));
        assert_eq!([(); 4].map(|()| table.evict(at(8))), [Some(4), Some(2), Some(3), None]);
        assert!(table.find(&key(1)).is_some());
        assert_eq!(table.evict(at(9)), Some(1));
        assert!(table.is_empty());
    }

    #[test]
    fn of_streams_the_one_whose_server_was_silent_longest_gives_way() {
        let mut table = asked_by(&[1, 2, 3]);
        let streams = [1, 2, 3].map(|port| table.find(&key(port)).unwrap());
        streams.iter().for_each(|stream| table.answered(*stream, at(5)));
        streams.iter().for_each(|stream| _ = table.sent(*stream, at(6)));
        table.answered(streams[0], at(7));
        table.answered(streams[2], at(8));
        table.answered(streams[0], at(20));
        // A forged client's datagrams keep nothing.
        table.sent(streams[1], at(20));
        assert_eq!([(); 3].map(|()| table.evict(at(20))), [Some(2), Some(3), None]);
        let just_before = Timestamp(at(21).0 - 1);
        assert_eq!([just_before, at(21)].map(|now| table.evict(now)), [None, Some(1)]);
    }

    #[test]
    fn a_client_that_makes_room_does_so_among_its_own() {
        let mut table = asked_by(&[1, 2, 3, 4]);
        let stream = table.find(&key(2)).unwrap();
        table.answered(stream, at(5));
        table.sent(stream, at(6));
        let is_even = |key: &Key| key.client.port().is_multiple_of(2);
        assert_eq!([(); 2].map(|()| table.evict_question_of(is_even)), [Some(4), None]);
        let is_odd = |key: &Key| !is_even(key);
        assert_eq!([table.evict_stream_of(is_odd, at(7)), table.evict_stream_of(is_even, at(6))], [None; 2]);
        assert_eq!(table.evict_stream_of(is_even, at(7)), Some(2));
        assert_eq!(table.evict(at(7)), Some(1));
        let mut many = asked_by(&(1..=100).collect::<Vec<_>>());
        assert_eq!(many.evict_question_of(|key| key.client.port() > 64), None, "it would take too long");
        assert_eq!(many.evict_question_of(|key| key.client.port() > 63), Some(64));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Send(u16),
        Answer(u16),
        Remove(u16),
        Evict,
        Expire,
    }

    fn step() -> impl Strategy<Value = Step> {
        let port = 1..6u16;
        prop_oneof![
            4 => port.clone().prop_map(Step::Send),
            2 => port.clone().prop_map(Step::Answer),
            1 => port.prop_map(Step::Remove),
            1 => Just(Step::Evict),
            1 => Just(Step::Expire),
        ]
    }

    proptest! {
        #[test]
        fn a_table_does_what_a_plain_list_of_sessions_would(steps in prop::collection::vec(step(), 0..200)) {
            const IDLE: u64 = 7;
            let mut table = Table::new();
            // By port: when it was last active, when its server was or it became a stream, whether its client was
            // answered, and whether it has sent since.
            let mut model: BTreeMap<u16, (u64, u64, bool, bool)> = BTreeMap::new();
            for (now, step) in (1..).zip(steps) {
                match step {
                    Step::Send(port) => {
                        match table.find(&key(port)) {
                            Some(number) => _ = table.sent(number, at(now)),
                            None => { table.insert(key(port), port, at(now)); }
                        }
                        let (_, served, answered, stream) = model.get(&port).copied().unwrap_or_default();
                        let served = if answered && !stream { now } else { served };
                        model.insert(port, (now, served, answered, stream || answered));
                    }
                    Step::Answer(port) => {
                        let found = table.find(&key(port));
                        prop_assert_eq!(found.is_some(), model.contains_key(&port));
                        if let Some(number) = found {
                            table.answered(number, at(now));
                            model.entry(port).and_modify(|entry| (entry.0, entry.1, entry.2) = (now, now, true));
                        }
                    }
                    Step::Remove(port) => {
                        let removed = table.find(&key(port)).and_then(|number| table.remove(number));
                        prop_assert_eq!(removed, model.remove(&port).map(|_| port));
                    }
                    Step::Evict => {
                        let questions = model.iter().filter(|(_, (_, _, _, stream))| !stream);
                        let streams = model.iter().filter(|(_, (_, _, _, stream))| *stream);
                        let question = questions.min_by_key(|(_, entry)| entry.0);
                        let victim = question.or(streams.min_by_key(|(_, entry)| entry.1));
                        let victim = victim.map(|(port, _)| *port);
                        prop_assert_eq!(table.evict(at(now)), victim);
                        victim.map(|port| model.remove(&port));
                    }
                    Step::Expire => {
                        while let Some(port) = table.expire(Duration::from_secs(IDLE), at(now)) {
                            prop_assert!(model.remove(&port).is_some_and(|entry| now - entry.0 >= IDLE));
                        }
                        prop_assert!(model.values().all(|entry| now - entry.0 < IDLE));
                    }
                }
                prop_assert_eq!(table.is_empty(), model.is_empty());
            }
        }
    }
}
