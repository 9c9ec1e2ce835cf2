//! Random calls of a session table, with checks after each call. For the fuzzer and a test. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::lists::ListKind;
use super::{SessionKey, SessionList, SessionTable};
use convey_model::{Prefix, Timestamp};

/// A stream may be evicted after its server has been silent for this time.
const SILENCE: Duration = Duration::from_secs(1);

/// Expected state of a session in the table.
#[derive(Debug, Clone, Copy)]
struct Expected {
    address: usize,
    frontend: u32,
    key: SessionKey,
    active: Timestamp,
    served: Timestamp,
    answered: bool,
    is_stream: bool,
    source: Option<Prefix>,
}

/// Session table under test, and its expected contents. The value of each session is a unique
/// number.
struct Exercise {
    table: SessionTable<u32>,
    sessions: BTreeMap<u32, Expected>,
    /// Listen addresses: two for each frontend.
    addresses: [usize; 4],
    next: u32,
    now: Timestamp,
}

/// Makes the calls that these bytes encode. Each call has three bytes: its kind, a client, and a
/// number.
///
/// # Panics
/// The table differs from its expected contents.
pub fn exercise_session_table(bytes: &[u8]) {
    let mut table = SessionTable::new(u32::MAX - 2);
    let addresses = [(); 4].map(|()| table.open());
    let mut exercise =
        Exercise { table, sessions: BTreeMap::new(), addresses, next: 0, now: Timestamp(1_000_000_000) };
    for step in bytes.chunks_exact(3) {
        exercise.step(step[0], step[1], step[2]);
        exercise.check();
    }
}

impl Exercise {
    fn step(&mut self, call: u8, who: u8, number: u8) {
        let place = usize::from(who & 3);
        let (address, frontend) = (self.addresses[place], place as u32 & 1);
        let client = who >> 2 & 15;
        let key = SessionKey {
            client: SocketAddr::from(([192, 0, 2, client], 4_242)),
            via: (who & 64 != 0).then(|| SocketAddr::from(([10, 0, 0, 9], 99))),
            asked: (who & 128 != 0).then(|| IpAddr::from([10, 0, 0, 1])),
        };
        let source = Prefix::of(key.client.ip(), 30);
        let found = self.table.find(address, &key);
        let is_odd = |key: &SessionKey| key.client.ip().is_ipv4() && client_of(key) & 1 == 1;
        match call % 16 {
            0..=3 => match found {
                Some(found) => self.sent(found),
                None => self.insert((address, frontend), key, number, source),
            },
            4 | 5 => found.into_iter().for_each(|found| self.answered(found)),
            6 => {
                let removed = found.and_then(|found| self.table.remove(found));
                assert_eq!(removed.is_some(), found.is_some());
                self.gone(removed);
            }
            7 => {
                let evicted = self.table.evict_of(frontend, self.now);
                self.check_evicted(evicted, |one| one.frontend == frontend, true);
                self.gone(evicted);
            }
            8 => {
                let may = |session: &u32| session % 3 != u32::from(number % 4);
                let evicted = self.table.evict(frontend, may, self.now);
                assert!(evicted.is_none_or(|session| may(&session)));
                self.check_evicted(evicted, |_| true, false);
                self.gone(evicted);
            }
            9 => {
                let evicted = self.table.evict_question_of(frontend, is_odd);
                let may = |one: &Expected| one.frontend == frontend && !one.is_stream && is_odd(&one.key);
                self.check_first(evicted, may, |one| one.active);
                self.gone(evicted);
            }
            10 => {
                let evicted = self.table.evict_stream_of(frontend, is_odd, self.now);
                if let Some(session) = evicted {
                    let one = self.sessions[&session];
                    assert!(one.is_stream && is_odd(&one.key) && self.is_silent(&one));
                }
                self.gone(evicted);
            }
            11 => {
                let evicted = self.table.evict_of_source(frontend, source, self.now);
                let is_own = |one: &Expected| one.frontend == frontend && one.source == Some(source);
                self.check_evicted(evicted, is_own, false);
                let own = self.sessions.values().filter(|one| is_own(one));
                let may = own.filter(|one| !one.is_stream || self.is_silent(one)).count();
                assert_eq!(evicted.is_some(), may > 0);
                self.gone(evicted);
            }
            12 => {
                let idle = Duration::from_millis(u64::from(number) * 100);
                let expired = self.table.expire(address, idle, self.now);
                let is_over = |one: &Expected| one.address == address && self.now.since(one.active) >= idle;
                self.check_first(expired, is_over, |one| one.active);
                self.gone(expired);
            }
            13 => {
                let removed = self.table.remove_where(address, is_odd);
                let meant = self.sessions.values().filter(|one| one.address == address && is_odd(&one.key));
                assert_eq!(removed.len(), meant.count());
                removed.into_iter().for_each(|session| self.gone(Some(session)));
            }
            14 => {
                let closed = self.table.close(address);
                let meant = self.sessions.values().filter(|one| one.address == address);
                assert_eq!(closed.len(), meant.count());
                closed.into_iter().for_each(|session| self.gone(Some(session)));
                self.addresses[place] = self.table.open();
            }
            _ => self.now = self.now.after(Duration::from_millis(u64::from(number) * 100)),
        }
    }

    fn insert(&mut self, (address, frontend): (usize, u32), key: SessionKey, number: u8, source: Prefix) {
        let (session, now) = (self.next, self.now);
        self.next += 1;
        let at = self.table.insert((address, frontend), key, session, now);
        let (answered, is_stream) = (number & 2 != 0, number & 6 == 6);
        // Simulates a session that was handed over with its progress.
        if answered {
            self.table.set(at, [answered, is_stream]);
        }
        let source = (number & 1 != 0).then_some(source);
        source.into_iter().for_each(|source| self.table.set_source(at, source));
        let one = Expected { address, frontend, key, active: now, served: now, answered, is_stream, source };
        self.sessions.insert(session, one);
    }

    fn sent(&mut self, at: usize) {
        let has_become_stream = self.table.sent(at, self.now);
        let one = self.expected(at);
        assert_eq!(has_become_stream, one.answered && !one.is_stream);
        one.is_stream |= has_become_stream;
        let now = self.now;
        let one = self.expected(at);
        one.active = now;
        if has_become_stream {
            one.served = now;
        }
    }

    fn answered(&mut self, at: usize) {
        self.table.answered(at, self.now);
        let now = self.now;
        let one = self.expected(at);
        (one.active, one.served, one.answered) = (now, now, true);
    }

    fn expected(&mut self, at: usize) -> &mut Expected {
        let (_, session) = self.table.get_mut(at).expect("a session of this number");
        self.sessions.get_mut(session).expect("a session that was inserted")
    }

    fn gone(&mut self, session: Option<u32>) {
        if let Some(session) = session {
            assert!(self.sessions.remove(&session).is_some(), "session {session} ends twice");
        }
    }

    fn is_silent(&self, one: &Expected) -> bool {
        self.now.since(one.served) >= SILENCE
    }

    /// Checks an eviction: questions are evicted before streams, and a stream only if its server is
    /// silent. With `of_all`, the table must evict a session if any may be evicted, and it must
    /// evict the first one in the order of evictions.
    fn check_evicted(&self, evicted: Option<u32>, may: impl Fn(&Expected) -> bool, of_all: bool) {
        let some = || self.sessions.values().filter(|one| may(one));
        match evicted.map(|session| self.sessions[&session]) {
            Some(one) => {
                assert!(may(&one));
                assert!(!one.is_stream || self.is_silent(&one), "its server has just sent");
            }
            None => assert!(!of_all || some().all(|one| one.is_stream && !self.is_silent(one))),
        }
        if of_all && let Some(one) = evicted.map(|session| self.sessions[&session]) {
            let place = |one: &Expected| (one.is_stream, if one.is_stream { one.served } else { one.active });
            assert!(some().all(|other| place(&one) <= place(other)), "another one was silent longer");
        }
    }

    /// Checks that the evicted session is the one with the oldest activity among the sessions that
    /// may be evicted.
    fn check_first(
        &self,
        taken: Option<u32>,
        may: impl Fn(&Expected) -> bool,
        since: impl Fn(&Expected) -> Timestamp,
    ) {
        let first = self.sessions.values().filter(|one| may(one)).map(&since).min();
        assert_eq!(taken.map(|session| since(&self.sessions[&session])), first);
        assert!(taken.is_none_or(|session| may(&self.sessions[&session])));
    }

    /// Checks that the table has exactly the expected sessions, and that each session is in its
    /// lists and in no other list.
    fn check(&self) {
        let Exercise { table, sessions, .. } = self;
        assert_eq!(table.entries.len(), sessions.len());
        let mut listed = [0; 3];
        for address in self.addresses {
            let numbers = self.walk(table.addresses[address].active, ListKind::Address);
            assert!(numbers.iter().all(|number| table.entries[*number].address == address));
            assert_eq!(numbers.len(), table.addresses[address].numbers.len());
            assert_eq!(table.is_empty(address), numbers.is_empty());
            listed[0] += numbers.len();
        }
        for (number, group) in &table.groups {
            assert_eq!(table.of_frontends.get(&group.frontend), Some(&number));
            let lists = group.lists.map(|list| self.walk(list, ListKind::Frontend));
            assert_eq!(lists[0].len() + lists[1].len(), group.len);
            assert!(group.len > 0, "a group without sessions");
            listed[1] += group.len;
        }
        assert_eq!(table.of_frontends.len(), table.groups.len());
        for list in table.sources.values() {
            let numbers = self.walk(*list, ListKind::Source);
            assert!(!numbers.is_empty(), "a source without sessions");
            listed[2] += numbers.len();
        }
        let counted = sessions.values().filter(|one| one.source.is_some()).count();
        assert_eq!(listed, [sessions.len(), sessions.len(), counted]);
        for (number, entry) in &table.entries {
            let one = &sessions[&entry.session];
            assert_eq!((entry.address, entry.key), (one.address, one.key));
            assert_eq!((entry.answered, entry.is_stream), (one.answered, one.is_stream));
            assert_eq!((entry.active, entry.served, entry.source), (one.active, one.served, one.source));
            assert_eq!(table.groups[entry.group].frontend, one.frontend);
            assert_eq!(table.find(entry.address, &entry.key), Some(number));
        }
    }

    /// Returns the entries of a list, and checks the links in both directions.
    fn walk(&self, list: SessionList, kind: ListKind) -> BTreeSet<usize> {
        let (mut numbers, mut previous, mut next) = (BTreeSet::new(), None, list.first);
        while let Some(number) = next {
            assert!(numbers.insert(number), "a list that is a circle");
            let links = self.table.entries[number].links[kind as usize];
            assert_eq!(links.previous, previous);
            (previous, next) = (next, links.next);
        }
        assert_eq!(list.last, previous);
        numbers
    }
}

fn client_of(key: &SessionKey) -> u8 {
    match key.client.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    }
}
