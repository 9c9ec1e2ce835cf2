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
/// streams. These are in one list and all others in another, the one that was silent longest first.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Slab<Entry<T>>,
    numbers: HashMap<Key, usize>,
    lists: [List; 2],
}

/// Sessions that are looked at for one of a certain client.
const LOOKS: usize = 64;

/// Number of a list in [`Table::lists`].
const QUESTIONS: usize = 0;
const STREAMS: usize = 1;

#[derive(Debug)]
struct Entry<T> {
    key: Key,
    session: T,
    /// When a datagram last went either way.
    active: Timestamp,
    answered: bool,
    list: usize,
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
        Table { entries: Slab::new(), numbers: HashMap::new(), lists: [List::default(); 2] }
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
        let entry =
            Entry { key, session, active: now, answered: false, list: QUESTIONS, previous: None, next: None };
        let number = self.entries.insert(entry);
        self.numbers.insert(key, number);
        self.append(number);
        number
    }

    /// The client of a session has sent again.
    pub(super) fn sent(&mut self, number: usize, now: Timestamp) {
        self.touch(number, now, |entry| {
            if entry.answered {
                entry.list = STREAMS;
            }
        });
    }

    /// The client of a session was sent something.
    pub(super) fn answered(&mut self, number: usize, now: Timestamp) {
        self.touch(number, now, |entry| entry.answered = true);
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        self.unlink(number);
        let entry = self.entries.try_remove(number)?;
        self.numbers.remove(&entry.key);
        Some(entry.session)
    }

    /// Takes out the session that gives way to a new one: of those that are no streams the one that was silent longest. So
    /// questions long answered go first, and forged clients push out each other.
    pub(super) fn evict(&mut self) -> Option<T> {
        self.remove(self.lists[QUESTIONS].first?)
    }

    /// The same, of those whose key is one of these. Only so many are looked at, the longest silent ones: who has most of
    /// them is found there.
    pub(super) fn evict_of(&mut self, is_one: impl Fn(&Key) -> bool) -> Option<T> {
        let next = |number: &usize| self.entries[*number].next;
        let mut questions = std::iter::successors(self.lists[QUESTIONS].first, next).take(LOOKS);
        let found = questions.find(|number| is_one(&self.entries[*number].key))?;
        self.remove(found)
    }

    /// Takes out a session that was silent for `idle`, if there is one.
    pub(super) fn expire(&mut self, idle: Duration, now: Timestamp) -> Option<T> {
        let silent = |list: &List| list.first.filter(|first| now.since(self.entries[*first].active) >= idle);
        let number = self.lists.iter().find_map(silent)?;
        self.remove(number)
    }

    fn touch(&mut self, number: usize, now: Timestamp, change: impl FnOnce(&mut Entry<T>)) {
        self.unlink(number);
        if let Some(entry) = self.entries.get_mut(number) {
            entry.active = now;
            change(entry);
            self.append(number);
        }
    }

    /// Makes an entry that is in no list the last of its own.
    fn append(&mut self, number: usize) {
        let list = &mut self.lists[self.entries[number].list];
        let before = list.last.replace(number);
        match before {
            Some(before) => self.entries[before].next = Some(number),
            None => list.first = Some(number),
        }
        let entry = &mut self.entries[number];
        (entry.previous, entry.next) = (before, None);
    }

    fn unlink(&mut self, number: usize) {
        let Some(&Entry { list, previous, next, .. }) = self.entries.get(number) else { return };
        match previous {
            Some(previous) => self.entries[previous].next = next,
            None => self.lists[list].first = next,
        }
        match next {
            Some(next) => self.entries[next].previous = previous,
            None => self.lists[list].last = previous,
        }
    }
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
    fn clients_that_send_again_once_they_were_answered_give_way_to_nobody() {
        let mut table = asked_by(&[1, 2, 3, 4]);
        let [stream, asks_twice, answered] = [1, 2, 3].map(|port| table.find(&key(port)).unwrap());
        table.answered(stream, at(5));
        table.sent(stream, at(6));
        table.sent(asks_twice, at(7));
        table.answered(answered, at(8));
        assert_eq!([(); 4].map(|()| table.evict()), [Some(4), Some(2), Some(3), None]);
        assert!(table.find(&key(1)).is_some());
    }

    #[test]
    fn a_client_that_makes_room_does_so_among_its_own() {
        let mut table = asked_by(&[1, 2, 3, 4]);
        let stream = table.find(&key(2)).unwrap();
        table.answered(stream, at(5));
        table.sent(stream, at(6));
        let is_even = |key: &Key| key.client.port().is_multiple_of(2);
        assert_eq!([table.evict_of(is_even), table.evict_of(is_even)], [Some(4), None]);
        assert_eq!(table.evict(), Some(1));
        let mut many = asked_by(&(1..=100).collect::<Vec<_>>());
        assert_eq!(many.evict_of(|key| key.client.port() > 64), None, "it would take too long");
        assert_eq!(many.evict_of(|key| key.client.port() > 63), Some(64));
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
            // By port: when it was last active, whether its client was answered, and whether it has sent since.
            let mut model: BTreeMap<u16, (u64, bool, bool)> = BTreeMap::new();
            for (now, step) in (1..).zip(steps) {
                match step {
                    Step::Send(port) => {
                        match table.find(&key(port)) {
                            Some(number) => table.sent(number, at(now)),
                            None => { table.insert(key(port), port, at(now)); }
                        }
                        let (_, answered, stream) = model.get(&port).copied().unwrap_or_default();
                        model.insert(port, (now, answered, stream || answered));
                    }
                    Step::Answer(port) => {
                        let found = table.find(&key(port));
                        prop_assert_eq!(found.is_some(), model.contains_key(&port));
                        if let Some(number) = found {
                            table.answered(number, at(now));
                            model.entry(port).and_modify(|entry| (entry.0, entry.1) = (now, true));
                        }
                    }
                    Step::Remove(port) => {
                        let removed = table.find(&key(port)).and_then(|number| table.remove(number));
                        prop_assert_eq!(removed, model.remove(&port).map(|_| port));
                    }
                    Step::Evict => {
                        let questions = model.iter().filter(|(_, (_, _, stream))| !stream);
                        let victim = questions.min_by_key(|(_, entry)| entry.0).map(|(port, _)| *port);
                        prop_assert_eq!(table.evict(), victim);
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
