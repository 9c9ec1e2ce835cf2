//! Renewal schedule of certificates. Pure: times are in seconds since 1970, and the caller provides
//! `chance`, a random number from 0 to 1.

use std::collections::BTreeMap;
use std::time::Duration;

use convey_pacing::BackoffPolicy;
use convey_tls::Validity;
use serde::{Deserialize, Serialize};

/// Delays after failed orders of a name; the authority may request longer delays. Let's Encrypt
/// allows five failures per hour for each name.
const ORDERS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(5 * 60),
    cap: Duration::from_secs(24 * 60 * 60),
    jitter: 0.25,
    reset_after: Duration::ZERO,
};

/// Maximum delay in seconds that an authority may request.
const MAX_RETRY_AFTER: i64 = 7 * 24 * 60 * 60;

/// Divisor for the period over which renewals are spread. The period begins after two thirds of a
/// certificate's lifetime, and takes one fiftieth of the lifetime.
const SPREAD: f64 = 50.0;

/// Names that need a certificate, with the certificate and the last failure of each name.
#[derive(Debug, Clone, Default)]
pub struct RenewalSchedule {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    certificate: Option<Validity>,
    /// Position of the renewal within the spread, from 0 (start) to 1 (end).
    chance: f64,
    failure: Option<OrderFailure>,
}

/// Failure of the last order of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderFailure {
    /// Number of consecutive failures.
    pub count: u32,
    /// Time of the next attempt, in seconds since 1970.
    pub next: i64,
    /// Operator-facing reason of the failure.
    pub error: String,
}

impl RenewalSchedule {
    /// Replaces the set of names. Names that were in the set before keep their state.
    pub fn set_names<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        let mut before = std::mem::take(&mut self.entries);
        self.entries = names.map(|name| (name.clone(), before.remove(name).unwrap_or_default())).collect();
    }

    /// Updates the state of a name from the store. `chance` returns the random position of the
    /// renewal within the spread; it is called only for a certificate that is new to the schedule.
    pub fn found(
        &mut self,
        name: &str,
        certificate: Option<Validity>,
        failure: Option<OrderFailure>,
        chance: impl FnOnce() -> f64,
    ) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if entry.certificate != certificate {
            entry.chance = chance();
        }
        (entry.certificate, entry.failure) = (certificate, failure);
    }

    /// Time of the next order for a name, in seconds since 1970; `None` if the name needs no
    /// certificate.
    pub fn due(&self, name: &str) -> Option<i64> {
        self.entries.get(name).map(Entry::due)
    }

    /// Names that are due at `now`, with the longest overdue name first.
    pub fn due_now(&self, now: i64) -> Vec<&str> {
        let mut due: Vec<(i64, &str)> =
            self.entries.iter().map(|(name, entry)| (entry.due(), &**name)).collect();
        due.retain(|(at, _)| *at <= now);
        due.sort_unstable();
        due.into_iter().map(|(_, name)| name).collect()
    }

    /// Each name with its certificate and its last failure.
    pub fn names(&self) -> impl Iterator<Item = (&str, Option<Validity>, Option<&OrderFailure>)> {
        self.entries.iter().map(|(name, entry)| (&**name, entry.certificate, entry.failure.as_ref()))
    }
}

impl Entry {
    fn due(&self) -> i64 {
        let renewal = self.certificate.map_or(i64::MIN, |validity| renewal(validity, self.chance));
        renewal.max(self.failure.as_ref().map_or(i64::MIN, |failure| failure.next))
    }
}

impl OrderFailure {
    /// Corrects a failure that was read at `now`. If the next attempt is later than the maximum
    /// delay allows, the failure was saved while the clock was ahead. The next attempt is then due
    /// now.
    #[must_use]
    pub fn bounded(self, now: i64) -> OrderFailure {
        let is_possible = self.next <= now.saturating_add(MAX_RETRY_AFTER);
        OrderFailure { next: if is_possible { self.next } else { now }, ..self }
    }

    /// Failure that follows the earlier failure `before`, if any. `retry_after` is the number of
    /// seconds that the authority requested to wait.
    pub fn after(
        before: Option<&OrderFailure>,
        error: String,
        retry_after: Option<u64>,
        now: i64,
        chance: f64,
    ) -> OrderFailure {
        let count = before.map_or(0, |before| before.count).saturating_add(1);
        let delay = i64::try_from(ORDERS.delay(count, chance).as_secs()).unwrap_or(i64::MAX);
        let asked = retry_after.and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
        let next = now.saturating_add(delay.max(asked.min(MAX_RETRY_AFTER)));
        OrderFailure { count, next, error }
    }
}

/// Time of renewal: after two thirds of a certificate's lifetime, plus up to one fiftieth of the
/// lifetime.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "lives of certificates fit")]
fn renewal(Validity { from, until }: Validity, chance: f64) -> i64 {
    let life = until.saturating_sub(from).max(0);
    let spread = (life as f64 / SPREAD * chance.clamp(0.0, 1.0)) as i64;
    from.saturating_add(life / 3 * 2 + life % 3 * 2 / 3).saturating_add(spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 60 * 60;

    fn schedule(names: &[&str]) -> RenewalSchedule {
        let mut schedule = RenewalSchedule::default();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        schedule.set_names(names.iter());
        schedule
    }

    #[test]
    fn missing_certificates_are_due_at_once_and_renewals_at_two_thirds() {
        let mut schedule = schedule(&["a", "b"]);
        assert_eq!(schedule.due_now(0), ["a", "b"]);
        let validity = Validity { from: 0, until: 90 * DAY };
        schedule.found("a", Some(validity), None, || 0.0);
        assert_eq!((schedule.due_now(0), schedule.due("a")), (vec!["b"], Some(60 * DAY)));
        assert_eq!(schedule.due_now(60 * DAY - 1), ["b"]);
        assert_eq!(schedule.due_now(60 * DAY), ["b", "a"], "who has none goes first");
        // The same certificate keeps its time of renewal; a new certificate gets another one.
        schedule.found("a", Some(validity), None, || 1.0);
        assert_eq!(schedule.due("a"), Some(60 * DAY));
        let renewed = Validity { from: 60 * DAY, until: 150 * DAY };
        schedule.found("a", Some(renewed), None, || 1.0);
        assert_eq!(schedule.due("a"), Some(120 * DAY + 90 * DAY / 50));
    }

    #[test]
    fn renewal_is_between_two_thirds_and_seven_tenths_of_the_validity() {
        for life in [3, 60, 3_600, 6 * DAY, 90 * DAY, 400 * DAY] {
            let at = |chance| renewal(Validity { from: 1_000, until: 1_000 + life }, chance) - 1_000;
            assert_eq!(at(0.0), life * 2 / 3);
            assert!((at(0.0)..=life * 7 / 10).contains(&at(1.0)), "{life}: {}", at(1.0));
        }
        assert_eq!(renewal(Validity { from: 5, until: 0 }, 0.5), 5, "one that ends before it begins");
    }

    #[test]
    fn retry_pauses_double_up_to_a_day_and_respect_retry_after() {
        let (mut now, mut failure) = (0, None);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let next = OrderFailure::after(failure.as_ref(), "no".to_owned(), None, now, 1.0);
            pauses.push((next.next - now) / 60);
            (now, failure) = (next.next, Some(next));
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440, 1440]);
        assert_eq!(failure.as_ref().map(|failure| failure.count), Some(12));
        let after = |asked, chance| OrderFailure::after(None, String::new(), asked, 0, chance).next;
        assert_eq!((after(None, 0.0), after(None, 1.0)), (225, 300));
        assert_eq!((after(Some(10), 1.0), after(Some(7_200), 1.0)), (300, 7_200));
        assert_eq!(after(Some(u64::MAX), 1.0), 300, "no time that there is");
        assert_eq!(after(Some(1 << 40), 1.0), 7 * DAY);
    }

    #[test]
    fn a_failure_holds_back_a_renewal_and_never_hastens_it() {
        let mut schedule = schedule(&["a"]);
        let failure = |next| OrderFailure { count: 1, next, error: "no".to_owned() };
        schedule.found("a", None, Some(failure(100)), || 0.0);
        assert_eq!(schedule.due("a"), Some(100));
        let validity = Validity { from: 0, until: 90 * DAY };
        schedule.found("a", Some(validity), Some(failure(100)), || 0.0);
        assert_eq!(schedule.due("a"), Some(60 * DAY));
        schedule.found("a", Some(validity), Some(failure(61 * DAY)), || 0.0);
        assert_eq!(schedule.due("a"), Some(61 * DAY));
    }

    #[test]
    fn failure_saved_by_a_clock_that_was_ahead_is_due() {
        let failure = |next| OrderFailure { count: 3, next, error: "no".to_owned() };
        for (next, expected) in [
            (5, 5),
            (100 + 7 * DAY, 100 + 7 * DAY),
            (101 + 7 * DAY, 100),
            (i64::MAX, 100),
            (i64::MIN, i64::MIN),
        ] {
            assert_eq!(failure(next).bounded(100), failure(expected), "{next}");
        }
    }

    #[test]
    fn a_name_that_nobody_wants_any_more_is_forgotten() {
        let mut schedule = schedule(&["a", "b"]);
        schedule.found("a", None, Some(OrderFailure { count: 1, next: 9, error: String::new() }), || 0.0);
        schedule.set_names(["a".to_owned()].iter());
        assert_eq!((schedule.due("a"), schedule.due("b")), (Some(9), None));
    }
}
