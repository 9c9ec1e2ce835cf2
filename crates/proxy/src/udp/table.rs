//! Table of UDP sessions: lookup by key, expiry and eviction. Pure.

mod evict;
#[cfg(any(test, feature = "test-util"))]
mod exercise;
mod lists;
mod view;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use slab::Slab;

use convey_model::{Prefix, Timestamp};
#[cfg(any(test, feature = "test-util"))]
pub use exercise::exercise_session_table;
use lists::{ListKind, SessionLinks, SessionList};
pub(super) use view::SessionEntryView;

/// Key of a UDP session, unique within one listen address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    /// Address and port of the client.
    pub(crate) client: SocketAddr,
    /// Proxy that sends the client's datagrams, if PROXY headers name the client.
    pub(crate) via: Option<SocketAddr>,
    /// Destination address of the client's datagrams; `None` unless the listening socket is bound
    /// to a wildcard.
    pub(crate) asked: Option<IpAddr>,
}

impl SessionKey {
    /// Peer that sends the client's datagrams and receives the answers: the proxy, or else the
    /// client.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.via.unwrap_or(self.client)
    }
}

/// UDP sessions of one worker, by address and key, and by number. A session is a question until its
/// client sends again after an answer; then the session becomes a stream.
///
/// Each address has a list of its sessions for expiry. The session that has been idle longest comes
/// first. Each frontend has two lists for eviction: its questions in the same order, and its
/// streams. In the list of streams, the stream whose server has been silent longest comes first.
///
/// The source address of a client may always be forged: two forged datagrams, with an answer
/// between them, make a stream. Only datagrams of the server are trustworthy.
#[derive(Debug)]
pub(super) struct SessionTable<T> {
    entries: Slab<SessionEntry<T>>,
    addresses: Slab<Address>,
    groups: Slab<FrontendSessions>,
    /// Index in `groups` of each frontend that has sessions, by its id.
    of_frontends: HashMap<u32, usize>,
    /// Lists of the sessions that are counted at their source, by frontend and source. The session
    /// whose server has been silent longest comes first.
    sources: HashMap<(u32, Option<Prefix>), SessionList>,
    /// Serial number of the next session.
    next_serial: u32,
}

/// Sessions of one listen address, by key and in the order of their last activity.
#[derive(Debug, Default)]
struct Address {
    numbers: HashMap<SessionKey, usize>,
    active: SessionList,
}

/// Sessions of one frontend, in the order of their eviction.
#[derive(Debug)]
struct FrontendSessions {
    frontend: u32,
    len: usize,
    /// Lists of questions and of streams.
    lists: [SessionList; 2],
}

/// Index of the list of questions in [`FrontendSessions::lists`].
const QUESTIONS: usize = 0;
const STREAMS: usize = 1;

#[derive(Debug)]
struct SessionEntry<T> {
    /// Serial number, which distinguishes the session from earlier sessions with the same number.
    serial: u32,
    /// Time of the client's first datagram.
    began: Timestamp,
    key: SessionKey,
    session: T,
    address: usize,
    group: usize,
    /// Time of the last datagram in either direction.
    active: Timestamp,
    /// Time of the server's last datagram, or of the session's change to a stream if the change was
    /// later.
    served: Timestamp,
    answered: bool,
    is_stream: bool,
    /// Source at which the session is counted; `None` if it is not counted.
    source: Option<Prefix>,
    /// Neighbours in the lists of the address, of the frontend, and of the source.
    links: [SessionLinks; 3],
}

impl<T> SessionTable<T> {
    /// Creates an empty table. `first_serial` must be random, so that a session id of another
    /// process does not match a session of this one.
    pub(super) fn new(first_serial: u32) -> SessionTable<T> {
        let (entries, addresses, groups) = (Slab::new(), Slab::new(), Slab::new());
        let (of_frontends, sources, next_serial) = (HashMap::new(), HashMap::new(), first_serial);
        SessionTable { entries, addresses, groups, of_frontends, sources, next_serial }
    }

    /// Adds a listen address. Returns its number.
    pub(super) fn open(&mut self) -> usize {
        self.addresses.insert(Address::default())
    }

    /// Removes a listen address. Returns its sessions.
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

    /// Returns the number of the session with this key.
    pub(super) fn find(&self, address: usize, key: &SessionKey) -> Option<usize> {
        self.addresses[address].numbers.get(key).copied()
    }

    /// Returns the session with this number, and its key.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<(SessionKey, &mut T)> {
        self.entries.get_mut(number).map(|entry| (entry.key, &mut entry.session))
    }

    /// Adds the session of a client that has just sent its first datagram to this address of this
    /// frontend. The key must not be in the table yet. Returns the number of the session, which is
    /// unique until the session is removed.
    pub(super) fn insert(
        &mut self,
        (address, frontend): (usize, u32),
        key: SessionKey,
        session: T,
        now: Timestamp,
    ) -> usize {
        let groups = &mut self.groups;
        let new = || groups.insert(FrontendSessions { frontend, len: 0, lists: [SessionList::default(); 2] });
        let group = *self.of_frontends.entry(frontend).or_insert_with(new);
        self.groups[group].len += 1;
        let (served, links) = (now, Default::default());
        let (answered, is_stream, source, active) = (false, false, None, now);
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let entry = SessionEntry {
            serial,
            began: now,
            key,
            session,
            address,
            group,
            active,
            served,
            answered,
            is_stream,
            source,
            links,
        };
        let number = self.entries.insert(entry);
        self.addresses[address].numbers.insert(key, number);
        self.append(number, ListKind::Address);
        self.append(number, ListKind::Frontend);
        number
    }

    /// Records the source at which a session is counted. The session must not have a source yet.
    pub(super) fn set_source(&mut self, number: usize, source: Prefix) {
        self.entries[number].source = Some(source);
        self.append(number, ListKind::Source);
    }

    /// Counts the sessions of an address and a frontend again at their sources, after a reload.
    /// `count` counts one session and returns its source; `None` if the session is not counted.
    pub(super) fn recount(
        &mut self,
        address: usize,
        frontend: u32,
        mut count: impl FnMut(&SessionKey, &mut T) -> Option<Prefix>,
    ) {
        let Some(group) = self.of_frontends.get(&frontend).copied() else { return };
        let all = self.addresses[address].numbers.values().copied();
        let mut numbers: Vec<usize> = all.filter(|number| self.entries[*number].group == group).collect();
        numbers.sort_by_key(|number| self.entries[*number].served);
        for number in numbers {
            self.clear_source(number);
            let SessionEntry { key, session, .. } = &mut self.entries[number];
            if let Some(source) = count(key, session) {
                self.set_source(number, source);
            }
        }
    }

    /// Removes a session from the list of its source.
    fn clear_source(&mut self, number: usize) {
        if self.entries[number].source.is_none() {
            return;
        }
        self.unlink(number, ListKind::Source);
        let entry = &mut self.entries[number];
        let at_source = (self.groups[entry.group].frontend, entry.source.take());
        if self.sources.get(&at_source).is_some_and(|list| list.first.is_none()) {
            self.sources.remove(&at_source);
        }
    }

    /// Returns the sessions of an address; the session that has been idle longest comes first. For
    /// each session, returns its key, its value, whether its client was answered, and whether it is
    /// a stream.
    pub(super) fn of_address(&self, address: usize) -> impl Iterator<Item = (SessionKey, &T, [bool; 2])> {
        let next = |number: &usize| self.entries[*number].links[ListKind::Address as usize].next;
        let numbers = std::iter::successors(self.addresses[address].active.first, next);
        numbers.map(|number| {
            let entry = &self.entries[number];
            (entry.key, &entry.session, [entry.answered, entry.is_stream])
        })
    }

    /// Sets the progress of a session that began in another process: whether its client was
    /// answered, and whether it is a stream.
    pub(super) fn set(&mut self, number: usize, [answered, is_stream]: [bool; 2]) {
        self.unlink(number, ListKind::Frontend);
        let entry = &mut self.entries[number];
        (entry.answered, entry.is_stream) = (answered, is_stream);
        self.append(number, ListKind::Frontend);
    }

    /// Records a further datagram of a session's client. Returns whether this datagram turns the
    /// session into a stream.
    pub(super) fn sent(&mut self, number: usize, now: Timestamp) -> bool {
        let Some(entry) = self.entries.get_mut(number) else { return false };
        entry.active = now;
        let has_become_one = entry.answered && !entry.is_stream;
        let was_stream = entry.is_stream;
        self.renew(number, ListKind::Address);
        // Datagrams from the client of a stream may be forged, so they do not postpone the eviction
        // of the stream.
        if !was_stream {
            self.unlink(number, ListKind::Frontend);
            let entry = &mut self.entries[number];
            if has_become_one {
                (entry.is_stream, entry.served) = (true, now);
            }
            self.append(number, ListKind::Frontend);
        }
        has_become_one
    }

    /// Records a datagram from the server to a session's client.
    pub(super) fn answered(&mut self, number: usize, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        (entry.active, entry.served, entry.answered) = (now, now, true);
        let is_counted = entry.source.is_some();
        self.renew(number, ListKind::Address);
        self.renew(number, ListKind::Frontend);
        if is_counted {
            self.renew(number, ListKind::Source);
        }
    }

    /// Removes a session, and returns its value. `None` if no session has this number.
    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        self.entries.get(number)?;
        self.unlink(number, ListKind::Address);
        self.unlink(number, ListKind::Frontend);
        self.clear_source(number);
        let SessionEntry { key, session, address, group, .. } = self.entries.remove(number);
        self.addresses[address].numbers.remove(&key);
        self.groups[group].len -= 1;
        if self.groups[group].len == 0 {
            let gone = self.groups.remove(group);
            self.of_frontends.remove(&gone.frontend);
        }
        Some(session)
    }

    /// Removes the sessions of an address whose keys `is_meant` selects, and returns them. Checks
    /// every session of the address.
    pub(super) fn remove_where(&mut self, address: usize, is_meant: impl Fn(&SessionKey) -> bool) -> Vec<T> {
        let all = self.addresses[address].numbers.iter();
        let meant: Vec<usize> = all.filter(|(key, _)| is_meant(key)).map(|(_, number)| *number).collect();
        meant.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Removes and returns one session of an address that has been idle for this time. `None` if
    /// there is no such session.
    pub(super) fn expire(&mut self, address: usize, idle: Duration, now: Timestamp) -> Option<T> {
        let number = self.addresses[address].active.first?;
        (now.since(self.entries[number].active) >= idle).then(|| self.remove(number))?
    }
}

#[cfg(test)]
mod tests;
