//! Which session gives way to a new one. Pure.

use std::time::Duration;

use super::lists::ListKind;
use super::{QUESTIONS, STREAMS, SessionKey, SessionTable};
use convey_model::{Prefix, Timestamp};

/// Sessions that are looked at for one of a certain client.
const MAX_LOOKS: usize = 64;

/// A stream whose server has sent nothing for this long may give way.
const SERVER_SILENCE: Duration = Duration::from_secs(1);

impl<T> SessionTable<T> {
    /// Takes out the session of a frontend that gives way to a new one: of its questions the one that was silent longest.
    /// So questions long answered go first, and forged clients push out each other. Streams go last, first the one whose
    /// server was silent longest, and none whose server has just sent.
    pub(in crate::udp) fn evict_of(&mut self, frontend: u32, now: Timestamp) -> Option<T> {
        let group = self.group(frontend)?;
        let number = [QUESTIONS, STREAMS].into_iter().find_map(|list| self.first(group, list, now))?;
        self.remove(number)
    }

    /// The same, of all frontends whose sessions `may` give way to one of this frontend. One that has most of the worker's
    /// sessions makes room among its own: so a flood of questions at one
    /// frontend pushes out nobody at another. Streams go after all questions, whosever these are.
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

    /// The same, of the questions of a frontend whose key is one of these. Only so many are looked at, the longest silent
    /// ones: the client that has most of them is found there.
    pub(in crate::udp) fn evict_question_of(
        &mut self,
        frontend: u32,
        is_one: impl Fn(&SessionKey) -> bool,
    ) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, QUESTIONS, is_one)?;
        self.remove(found)
    }

    /// The same of streams.
    pub(in crate::udp) fn evict_stream_of(
        &mut self,
        frontend: u32,
        is_one: impl Fn(&SessionKey) -> bool,
        now: Timestamp,
    ) -> Option<T> {
        let found = self.find_first(self.group(frontend)?, STREAMS, is_one)?;
        self.is_unserved(found, now).then(|| self.remove(found))?
    }

    /// Takes out a session that is counted at a source, for another one of that: a question first, then a stream whose server is
    /// silent. Of each the one whose server was silent longest. Only so many are looked at.
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

    /// The first of a list that may give way.
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

    /// Its place in the order of those that give way.
    fn silent_since(&self, number: usize) -> Timestamp {
        let entry = &self.entries[number];
        if entry.is_stream { entry.served } else { entry.active }
    }

    fn is_unserved(&self, number: usize, now: Timestamp) -> bool {
        now.since(self.entries[number].served) >= SERVER_SILENCE
    }
}
