//! Events in virtual time, and the checks of files that follow.

use proptest::prelude::*;

use super::FileChange::{Attributes, Created, Gone, Modified, Opened, Whole};
use super::*;

const MAIN: FileId = 0;
const LIST: FileId = 1;
const DAY: Duration = Duration::from_secs(86_400);

/// A schedule of two unchanged files, and its clock.
struct Clock {
    schedule: CheckSchedule,
    now: Duration,
}

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

impl Clock {
    fn at_rest() -> Clock {
        let mut clock = Clock { schedule: CheckSchedule::default(), now: ms(0) };
        let included = [(PathBuf::from("/conf.d"), Pattern::new("*.toml").unwrap())];
        for (id, path, listed) in [(MAIN, "/main", &included[..]), (LIST, "/list", &[])] {
            clock.schedule.add(id, clock.now);
            clock.schedule.set_places(id, [PathBuf::from(path)], listed, DAY);
        }
        assert_eq!(clock.next_checks(), None);
        clock.now = ms(10_000);
        clock
    }

    fn event(&mut self, path: &str, change: FileChange) -> &mut Clock {
        self.schedule.event(Path::new(path), change, self.now);
        self
    }

    fn pass(&mut self, time: u64) -> &mut Clock {
        self.now += ms(time);
        assert_eq!(self.schedule.due(self.now), [], "no look until {:?}", self.now);
        self
    }

    /// Files that are checked within this time.
    fn checks_within(&mut self, time: Duration) -> Vec<FileId> {
        let (end, mut checks) = (self.now + time, Vec::new());
        while let Some(at) = self.schedule.wake_at().filter(|at| *at <= end) {
            self.now = at;
            for (id, _) in self.schedule.due(at) {
                self.schedule.schedule_next(id, false, at);
                checks.push(id);
            }
        }
        self.now = end;
        checks
    }

    /// Time until the next checks of complete files, and these files; `None` if only polls are due.
    fn next_checks(&mut self) -> Option<(Duration, Vec<FileId>)> {
        let start = self.now;
        loop {
            let at = self.schedule.wake_at().unwrap();
            if at > start + DAY / 2 {
                return None;
            }
            self.now = at;
            let checks = self.schedule.due(self.now);
            assert!(self.schedule.wake_at() > Some(self.now), "the thread would not sleep");
            for (id, _) in &checks {
                self.schedule.schedule_next(*id, false, self.now);
            }
            let whole: Vec<FileId> =
                checks.iter().filter(|(_, kind)| *kind == CheckKind::Whole).map(|(id, _)| *id).collect();
            if !whole.is_empty() {
                return Some((self.now - start, whole));
            }
        }
    }
}

#[test]
fn closed_file_is_read_after_the_time_to_settle() {
    for change in [Whole, Created, Gone, Attributes] {
        let mut clock = Clock::at_rest();
        assert_eq!(clock.event("/list", change).next_checks(), Some((SETTLE, vec![LIST])), "{change:?}");
        assert_eq!(clock.next_checks(), None, "once");
    }
}

#[test]
fn file_written_in_pieces_is_read_once_it_is_closed() {
    let mut clock = Clock::at_rest();
    clock.event("/main", Modified).pass(100).event("/main", Modified).pass(2_900);
    clock.event("/main", Modified).pass(2_900).event("/main", Whole);
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![MAIN])));
}

#[test]
fn new_file_that_its_writer_opened_is_read_once_it_is_closed() {
    let mut clock = Clock::at_rest();
    clock.event("/conf.d/a.toml", Created).event("/conf.d/a.toml", Opened).pass(1_000);
    clock.event("/conf.d/a.toml", Attributes).pass(1_000).event("/conf.d/a.toml", Whole);
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![MAIN])));
    assert_eq!(clock.event("/conf.d/a.toml", Opened).next_checks(), None, "a reader");
}

#[test]
fn names_that_no_pattern_matches_wake_nobody() {
    let mut clock = Clock::at_rest();
    for path in ["/conf.d/a", "/conf.d/.a.toml", "/conf.d/deeper/a.toml", "/other", "/conf.d", "/"] {
        clock.event(path, Modified).event(path, Whole);
        assert!(!clock.schedule.concerns(Path::new(path), Whole));
    }
    assert_eq!(clock.next_checks(), None);
}

#[test]
fn save_of_one_file_waits_for_the_writer_of_another() {
    let mut clock = Clock::at_rest();
    clock.event("/main", Modified).event("/list", Whole).pass(500).event("/main", Whole);
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![MAIN, LIST])));
}

#[test]
fn reload_waits_for_a_writer_that_comes_while_files_are_read() {
    let mut clock = Clock::at_rest();
    clock.event("/list", Whole).next_checks();
    clock.schedule.want_reload();
    clock.event("/main", Modified);
    assert!(!clock.schedule.take_reload());
    clock.event("/main", Whole);
    assert!(!clock.schedule.take_reload(), "the burst is not over");
    clock.next_checks();
    assert!(clock.schedule.take_reload());
    assert!(!clock.schedule.take_reload(), "once");
}

#[test]
fn file_that_is_never_closed_is_read_once_its_writer_is_quiet() {
    let mut clock = Clock::at_rest();
    clock.event("/main", Modified).pass(1_000).event("/main", Modified);
    assert_eq!(clock.next_checks(), Some((QUIET_WRITER, vec![MAIN])));
    assert_eq!(clock.next_checks(), None, "once");
    clock.event("/main", Modified);
    assert_eq!(clock.next_checks(), Some((QUIET_WRITER, vec![MAIN])), "again");
}

#[test]
fn endless_writer_holds_up_no_other_file_for_ever() {
    let mut clock = Clock::at_rest();
    for _ in 0..29 {
        clock.event("/main", Modified).pass(1_000);
    }
    assert_eq!(clock.event("/main", Modified).next_checks(), Some((ms(1_000), vec![MAIN])));
    clock.event("/main", Modified).event("/list", Whole);
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![LIST])));
    assert_eq!(clock.next_checks(), Some((ENDLESS_WRITER_READ_EVERY - SETTLE, vec![MAIN])));
    clock.event("/main", Modified);
    assert_eq!(clock.next_checks(), Some((ENDLESS_WRITER_READ_EVERY, vec![MAIN])), "the last part");
    assert_eq!(clock.next_checks(), None, "it is quiet");
}

#[test]
fn endless_writer_with_pauses_holds_up_no_other_file() {
    for pause in (200..=2_900).step_by(100).map(ms) {
        let mut clock = Clock::at_rest();
        let end = clock.now + MAX_WRITE;
        while clock.now < end {
            clock.event("/main", Modified).checks_within(pause);
        }
        for _ in 0..100 {
            let checks = clock.event("/main", Modified).event("/list", Whole).checks_within(pause);
            assert!(checks.contains(&LIST), "pauses of {pause:?}");
        }
    }
}

#[test]
fn thousand_events_make_one_look() {
    let mut clock = Clock::at_rest();
    for n in 0..1_000_u64 {
        let path = format!("/conf.d/{n}.toml");
        clock.event(&path, Gone).event(&path, Created).event(&path, Opened).event(&path, Modified);
        clock.event(&path, Whole);
        clock.now += Duration::from_micros(200);
    }
    assert_eq!(clock.next_checks(), Some((SETTLE - Duration::from_micros(200), vec![MAIN])));
    assert_eq!(clock.next_checks(), None);
}

#[test]
fn endless_burst_is_read_once_a_second() {
    let mut clock = Clock::at_rest();
    for _ in 0..MAX_BURST.as_millis() / 40 {
        clock.event("/list", Whole);
        clock.now += ms(40);
    }
    assert_eq!(clock.schedule.due(clock.now), [(LIST, CheckKind::Whole)]);
}

#[test]
fn event_before_the_thread_wakes_up_does_not_delay_an_endless_burst() {
    let mut clock = Clock::at_rest();
    let end = clock.now + MAX_BURST;
    while clock.now < end {
        clock.event("/list", Whole);
        clock.now += ms(40);
    }
    clock.event("/list", Whole);
    assert_eq!(clock.schedule.due(clock.now), [(LIST, CheckKind::Whole)]);
}

#[test]
fn burst_that_has_waited_for_a_writer_begins_anew() {
    let mut clock = Clock::at_rest();
    clock.event("/main", Modified).event("/list", Whole).pass(2_000).event("/main", Whole).pass(40);
    clock.event("/list", Whole).pass(40).event("/list", Whole);
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![MAIN, LIST])));
}

#[test]
fn lost_events_have_every_file_polled() {
    let mut clock = Clock::at_rest();
    clock.event("/list", Whole);
    clock.schedule.lost_events(clock.now);
    assert_eq!(clock.schedule.due(clock.now + SETTLE), [], "a writer may be at work");
    let checks = clock.schedule.due(clock.now + LOOK_EVERY);
    assert_eq!(checks, [(MAIN, CheckKind::Poll), (LIST, CheckKind::Poll)]);
}

#[test]
fn open_writers_are_bounded() {
    let mut clock = Clock::at_rest();
    for n in 0..2 * MAX_OPEN_WRITES {
        clock.event(&format!("/conf.d/{n}.toml"), Modified);
    }
    assert_eq!(clock.schedule.writes.len(), MAX_OPEN_WRITES);
    for n in 0..2 * MAX_OPEN_WRITES {
        clock.event(&format!("/conf.d/{n}.toml"), Whole);
    }
    assert_eq!(clock.next_checks(), Some((SETTLE, vec![MAIN])));
}

#[test]
fn removed_file_leaves_nothing_behind() {
    let mut clock = Clock::at_rest();
    for id in [MAIN, LIST] {
        clock.schedule.remove(id);
    }
    clock.event("/main", Whole).event("/conf.d/a.toml", Modified);
    let schedule = &clock.schedule;
    assert!(schedule.paths.is_empty() && schedule.listed.is_empty() && schedule.writes.is_empty());
    assert_eq!(schedule.wake_at(), None);
}

#[test]
fn writer_of_a_file_no_longer_watched_holds_up_no_reload() {
    for is_removed in [true, false] {
        let mut clock = Clock::at_rest();
        clock.event("/list", Modified).schedule.want_reload();
        assert!(!clock.schedule.take_reload());
        match is_removed {
            true => clock.schedule.remove(LIST),
            false => clock.schedule.set_places(LIST, [PathBuf::from("/other")], &[], DAY),
        }
        assert!(clock.schedule.is_reload_due() && clock.schedule.take_reload());
        assert!(!clock.schedule.is_reload_due(), "once");
    }
}

#[test]
fn writer_goes_on_holding_up_a_reload_while_its_file_is_watched() {
    let mut clock = Clock::at_rest();
    clock.event("/conf.d/a.toml", Modified).schedule.want_reload();
    clock.schedule.remove(LIST);
    let included = [(PathBuf::from("/conf.d"), Pattern::new("*.toml").unwrap())];
    clock.schedule.set_places(MAIN, [PathBuf::from("/main")], &included, DAY);
    assert!(!clock.schedule.take_reload());
}

#[test]
fn idle_files_are_polled_at_the_same_time() {
    let mut clock = Clock::at_rest();
    for id in [MAIN, LIST] {
        clock.schedule.poll_every(id, ms(30_000));
        clock.schedule.schedule_next(id, false, ms(61_000 + id));
    }
    assert_eq!(clock.schedule.wake_at(), Some(ms(90_000)));
    clock.schedule.schedule_next(LIST, true, ms(61_000));
    assert_eq!(clock.schedule.wake_at(), Some(ms(61_200)), "an active file is polled soon");
}

proptest! {
    /// After any sequence of events, the thread sleeps between two checks, and the last change of
    /// each file is checked in the end.
    #[test]
    fn last_change_of_each_file_is_looked_at(
        events in prop::collection::vec((0..3_usize, 0..6_usize, 0..4_000_u64), 0..60),
    ) {
        let mut clock = Clock::at_rest();
        let mut changed_at = BTreeMap::new();
        let mut looked_at = BTreeMap::new();
        let turn = |clock: &mut Clock, looked_at: &mut BTreeMap<FileId, Duration>, until: Duration| {
            while let Some(at) = clock.schedule.wake_at().filter(|at| *at <= until) {
                clock.now = clock.now.max(at);
                for (id, _) in clock.schedule.due(clock.now) {
                    looked_at.insert(id, clock.now);
                    clock.schedule.schedule_next(id, false, clock.now);
                }
                assert!(clock.schedule.wake_at() > Some(clock.now));
            }
            clock.now = clock.now.max(until);
        };
        for (file, change, pause) in events {
            let (id, path) = [(MAIN, "/main"), (LIST, "/list"), (MAIN, "/conf.d/a.toml")][file];
            let change = [Opened, Created, Modified, Attributes, Whole, Gone][change];
            clock.event(path, change);
            if change != Opened {
                changed_at.insert(id, clock.now);
            }
            let until = clock.now + ms(pause);
            turn(&mut clock, &mut looked_at, until);
        }
        let until = clock.now + MAX_WRITE + MAX_BURST;
        turn(&mut clock, &mut looked_at, until);
        for (id, at) in changed_at {
            prop_assert!(looked_at.get(&id).is_some_and(|looked| *looked >= at));
        }
        prop_assert!(clock.schedule.writes.is_empty() && !clock.schedule.is_held());
    }
}
