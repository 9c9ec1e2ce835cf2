//! Eviction of UDP sessions to make room for new ones. Pure.

use std::time::Duration;

use super::lists::ListKind;
use super::{QUESTIONS, STREAMS, SessionKey, SessionTable};
use convey_model::{Prefix, Timestamp};

/// Upper bound of the sessions that one eviction searches for a session of a certain client.
const MAX_LOOKS: usize = 64;

/// A stream may be evicted after its server has been silent for this time.
const SERVER_SILENCE: Duration = Duration::from_secs(1);

impl<T> SessionTable<T> {
    /// Evicts a session of a frontend to make room for a new one: the question that has been idle
    /// longest, so that forged clients evict each other. If there are no questions, evicts the
    /// stream whose server has been silent longest, but at least for `SERVER_SILENCE`.
    pub(in crate::udp) fn evict_of(&mut self, frontend: u32, now: Timestamp) -> Option<T> {
        let group = self.group(frontend)?;
        let number = [QUESTIONS, STREAMS].into_iter().find_map(|list| self.first(group, list, now))?;
        self.remove(number)
    }

    /// Evicts a session of any frontend to make room for a new one of this frontend. Considers only
    /// sessions that `may` allows. Streams are evicted only if no question of any frontend may be
    /// evicted.
    ///
    /// A frontend with more than half of the worker's sessions evicts its own sessions first, so
    /// that a flood of questions at one frontend does not evict sessions of others.
    pub(in crate::udp) fn evict(
        &mut self,
        frontend: u32,
        may: impl Fn(&T) -> bool,
        now: Timestamp,
    ) -> Option<T> {
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

    /// Evicts a question of a frontend whose key `is_one` selects. Searches only the questions that
    /// have been idle longest. A client with many questions probably has one among them.
    pub(in crate::udp) fn evict_question_of(
        &mut self,
        frontend: u32,
        is_one: impl Fn(&SessionKey) -> bool,
    ) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, QUESTIONS, is_one)?;
        self.remove(found)
    }

    /// Evicts a stream of a frontend whose key `is_one` selects, if its server is silent. Searches
    /// like [`SessionTable::evict_question_of`].
    pub(in crate::udp) fn evict_stream_of(
        &mut self,
        frontend: u32,
        is_one: impl Fn(&SessionKey) -> bool,
        now: Timestamp,
    ) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, STREAMS, is_one)?;
        self.is_unserved(found, now).then(|| self.remove(found))?
    }

    /// Evicts a session of a source to make room for a new one of the same source: a question if
    /// there is one, otherwise a stream whose server is silent. In both cases evicts the session
    /// whose server has been silent longest. Searches at most `MAX_LOOKS` sessions.
    pub(in crate::udp) fn evict_of_source(
        &mut self,
        frontend: u32,
        source: Prefix,
        now: Timestamp,
    ) -> Option<T> {
        let first = self.sources.get(&(frontend, Some(source)))?.first;
        let next = |number: &usize| self.entries[*number].links[ListKind::Source as usize].next;
        let some = || std::iter::successors(first, next).take(MAX_LOOKS);
        let question = some().find(|number| !self.entries[*number].is_stream);
        let number = question.or_else(|| some().find(|number| self.is_unserved(*number, now)))?;
        self.remove(number)
    }

    fn group(&self, frontend: u32) -> Option<usize> {
        self.of_frontends.get(&frontend).copied()
    }

    /// Returns the first session of a list, if it may be evicted.
    fn first(&self, group: usize, list: usize, now: Timestamp) -> Option<usize> {
        self.groups[group].lists[list]
            .first
            .filter(|number| list == QUESTIONS || self.is_unserved(*number, now))
    }

    fn find_first(&self, group: usize, list: usize, is_one: impl Fn(&SessionKey) -> bool) -> Option<usize> {
        let next = |number: &usize| self.entries[*number].links[ListKind::Frontend as usize].next;
        let mut some = std::iter::successors(self.groups[group].lists[list].first, next).take(MAX_LOOKS);
        some.find(|number| is_one(&self.entries[*number].key))
    }

    /// Time of the last activity that counts for the order of evictions.
    fn silent_since(&self, number: usize) -> Timestamp {
        let entry = &self.entries[number];
        if entry.is_stream { entry.served } else { entry.active }
    }

    fn is_unserved(&self, number: usize, now: Timestamp) -> bool {
        now.since(self.entries[number].served) >= SERVER_SILENCE
    }
}
