//! Checks of servers and routers whose MAC address has changed: the old address stays in use until
//! the kernel has verified the new one. Pure.

use std::collections::HashMap;

use super::table::{self, Certainty, NeighbourChange};
use convey_model::{Neighbour, NeighbourKey, NetworkTables};

/// Maximum number of simultaneous checks. Changes of further neighbours apply unchecked.
const MAX_CHECKED: usize = 1_024;

/// Maximum number of queries on the link in one check.
const MAX_QUESTIONS: u8 = 3;

/// Number of calls of [`MovedNeighbours::age`] after which a check expires.
const MAX_AGE: u8 = 2;

/// Neighbours that are being checked. Meanwhile packets go to their old MAC address.
#[derive(Debug, Default)]
pub(super) struct MovedNeighbours(HashMap<NeighbourKey, Check>);

#[derive(Debug)]
struct Check {
    questions: u8,
    /// Whether the kernel has discarded the neighbour's old state. The next answer of the neighbour
    /// then belongs to our query.
    was_reset: bool,
    age: u8,
}

/// Treatment of a neighbour's change.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Follow,
    Keep,
    /// Keep the old address, and make the kernel query the link.
    Ask,
}

impl MovedNeighbours {
    /// Applies changes to the table. Returns the neighbours that the kernel must query again.
    pub(super) fn apply(
        &mut self,
        table: &mut NetworkTables,
        changes: Vec<NeighbourChange>,
    ) -> Vec<NeighbourKey> {
        let mut asked = Vec::new();
        for change in changes {
            let known = table::find(table, change.key());
            match self.step(known, &change, false) {
                Step::Follow => table::set(table, change),
                Step::Keep => {}
                Step::Ask => asked.push(change.key()),
            }
        }
        asked
    }

    /// Applies a newly read table. Neighbours that are being checked keep their state from the
    /// table `before`. `listed` contains all neighbours that were read. Returns the neighbours that
    /// the kernel must query again.
    pub(super) fn apply_list(
        &mut self,
        before: &NetworkTables,
        new: &mut NetworkTables,
        listed: &[NeighbourChange],
    ) -> Vec<NeighbourKey> {
        let mut asked = Vec::new();
        let missing: Vec<NeighbourChange> = self
            .0
            .keys()
            .filter(|key| listed.iter().all(|change| change.key() != **key))
            .map(|key| NeighbourChange::missing(*key))
            .collect();
        for change in listed.iter().chain(&missing) {
            let Some(known) = table::find(before, change.key()) else {
                self.0.remove(&change.key());
                continue;
            };
            let step = self.step(Some(known), change, true);
            if step != Step::Follow {
                table::set(new, NeighbourChange::same(known));
            }
            if step == Step::Ask {
                asked.push(change.key());
            }
        }
        asked
    }

    /// Ends the check of a neighbour, if there is one.
    pub(super) fn cancel(&mut self, key: NeighbourKey) {
        self.0.remove(&key);
    }

    /// Ends checks that take too long. Returns whether any check ended; the caller must then read
    /// the table again.
    pub(super) fn age(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|_, check| {
            check.age += 1;
            check.age < MAX_AGE
        });
        self.0.len() < before
    }

    fn step(&mut self, known: Option<Neighbour>, change: &NeighbourChange, is_listed: bool) -> Step {
        let Some(known) = known else {
            self.0.remove(&change.key());
            return Step::Follow;
        };
        let is_same = change.now.is_some_and(|now| now.mac == known.mac);
        let Some(check) = self.0.get_mut(&change.key()) else {
            let is_doubted = change.now.is_some() && !is_same && change.is_managed;
            if !is_doubted || change.certainty == Certainty::Static || self.0.len() >= MAX_CHECKED {
                return Step::Follow;
            }
            self.0.insert(change.key(), Check { questions: 1, was_reset: false, age: 0 });
            return Step::Ask;
        };
        check.was_reset |= is_listed || change.now.is_none();
        let is_answer = check.was_reset && change.certainty == Certainty::Confirmed;
        match change.now {
            None => Step::Keep,
            Some(_) if is_same || is_answer || change.certainty == Certainty::Static => {
                self.0.remove(&change.key());
                Step::Follow
            }
            Some(_) if !check.was_reset => Step::Keep,
            Some(_) if check.questions < MAX_QUESTIONS => {
                check.questions += 1;
                check.was_reset = false;
                Step::Ask
            }
            Some(_) => Step::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: NeighbourKey =
        NeighbourKey { interface: 3, ip: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)) };

    fn change(mac: Option<u8>, certainty: Certainty) -> NeighbourChange {
        let now = mac.map(|mac| Neighbour { interface: KEY.interface, ip: KEY.ip, mac: [mac; 6] });
        NeighbourChange { now, certainty, is_managed: true, ..NeighbourChange::missing(KEY) }
    }

    struct Lab {
        moved: MovedNeighbours,
        table: NetworkTables,
    }

    impl Lab {
        fn new() -> Lab {
            let mut lab = Lab { moved: MovedNeighbours::default(), table: NetworkTables::default() };
            assert!(!lab.apply(change(Some(1), Certainty::Confirmed)));
            lab
        }

        /// Applies a change; returns whether the kernel must query the link.
        fn apply(&mut self, change: NeighbourChange) -> bool {
            self.moved.apply(&mut self.table, vec![change]) == [KEY]
        }

        fn reads(&mut self, listed: &[NeighbourChange]) -> bool {
            let mut new = NetworkTables::default();
            listed.iter().for_each(|change| table::set(&mut new, *change));
            let is_asked = self.moved.apply_list(&self.table, &mut new, listed) == [KEY];
            self.table = new;
            is_asked
        }

        fn mac(&self) -> Option<u8> {
            table::find(&self.table, KEY).map(|neighbour| neighbour.mac[0])
        }
    }

    #[test]
    fn forged_answer_changes_nothing_once_the_neighbour_answers_itself() {
        for forged in [Certainty::Confirmed, Certainty::Unconfirmed] {
            let mut lab = Lab::new();
            assert!(lab.apply(change(Some(9), forged)));
            assert!(!lab.apply(change(Some(9), forged)), "a notification from before the question");
            assert_eq!(lab.mac(), Some(1));
            assert!(!lab.apply(change(None, Certainty::Unconfirmed)));
            assert_eq!(lab.mac(), Some(1), "while the kernel asks");
            assert!(!lab.apply(change(Some(1), Certainty::Confirmed)));
            assert_eq!(lab.mac(), Some(1));
            assert!(lab.moved.0.is_empty());
        }
    }

    #[test]
    fn neighbour_that_has_moved_is_followed_once_it_answers() {
        let mut lab = Lab::new();
        assert!(lab.apply(change(Some(2), Certainty::Unconfirmed)));
        lab.apply(change(None, Certainty::Unconfirmed));
        assert!(!lab.apply(change(Some(2), Certainty::Confirmed)));
        assert_eq!(lab.mac(), Some(2));
        assert!(lab.moved.0.is_empty());
    }

    #[test]
    fn forged_answers_in_a_row_are_asked_about_three_times() {
        let mut lab = Lab::new();
        let mut asked = 0;
        for _ in 0..10 {
            asked += u32::from(lab.apply(change(Some(9), Certainty::Unconfirmed)));
            lab.apply(change(None, Certainty::Unconfirmed));
        }
        assert_eq!((asked, lab.mac()), (3, Some(1)));
    }

    #[test]
    fn neighbour_that_is_gone_is_kept_for_two_looks_at_most() {
        let mut lab = Lab::new();
        lab.apply(change(Some(9), Certainty::Unconfirmed));
        lab.apply(change(None, Certainty::Unconfirmed));
        assert!(!lab.moved.age());
        assert!(!lab.reads(&[]));
        assert_eq!(lab.mac(), Some(1));
        assert!(lab.moved.age());
        assert!(!lab.reads(&[]));
        assert_eq!(lab.mac(), None);
    }

    #[test]
    fn static_entries_clients_and_new_neighbours_are_followed_at_once() {
        let mut lab = Lab::new();
        assert!(!lab.apply(change(Some(2), Certainty::Static)));
        assert_eq!(lab.mac(), Some(2));
        assert!(!lab.apply(NeighbourChange { is_managed: false, ..change(Some(3), Certainty::Unconfirmed) }));
        assert_eq!(lab.mac(), Some(3));
        assert!(!lab.apply(change(None, Certainty::Unconfirmed)));
        assert!(!lab.apply(change(Some(4), Certainty::Confirmed)));
        assert_eq!(lab.mac(), Some(4));
    }

    #[test]
    fn table_that_is_read_anew_keeps_what_is_checked() {
        let mut lab = Lab::new();
        assert!(lab.reads(&[change(Some(9), Certainty::Unconfirmed)]));
        assert_eq!(lab.mac(), Some(1));
        assert!(!lab.reads(&[change(None, Certainty::Unconfirmed)]));
        assert_eq!(lab.mac(), Some(1));
        assert!(!lab.reads(&[change(Some(1), Certainty::Confirmed)]));
        assert_eq!(lab.mac(), Some(1));
        assert!(lab.moved.0.is_empty());
    }
}
