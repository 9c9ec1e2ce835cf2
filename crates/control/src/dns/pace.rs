//! When a name is looked up again. Pure.

use std::time::Duration;

use convey_model::{Lookup, Missing};

/// The shortest time to live: a shorter one counts as this.
const MIN_TTL: Duration = Duration::from_secs(1);
/// The longest: a longer one counts as this.
const MAX_TTL: Duration = Duration::from_secs(300);
/// After a lookup that failed, also if for one family only, the next one waits this long, and twice as long each time it
/// fails again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait, unless there are records: then it is their time to live.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// How often a name is looked up.
#[derive(Debug, Default)]
pub(super) struct LookupPace {
    /// What the last lookup did not find.
    missing: Option<Missing>,
    failures_in_a_row: u32,
}

impl LookupPace {
    /// How long to wait after this lookup for the next one.
    pub(super) fn wait(&mut self, lookup: &Lookup) -> Duration {
        let longest = lookup.ttl().map_or(LAST_RETRY, |ttl| ttl.clamp(MIN_TTL, MAX_TTL));
        let missing = lookup.fault().map(|fault| fault.missing);
        if std::mem::replace(&mut self.missing, missing) != missing {
            self.failures_in_a_row = 0;
        }
        if missing.is_none() {
            return longest;
        }
        let doubled = FIRST_RETRY * (1 << self.failures_in_a_row.min(9));
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        doubled.min(longest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use convey_model::DnsRecords;

    type Records = Result<DnsRecords, String>;

    fn records(addresses: &[&str], ttl: u64) -> Records {
        Ok(DnsRecords::new(addresses.iter().map(|ip| ip.parse().unwrap()), Duration::from_secs(ttl)))
    }

    fn failed() -> Records {
        Err("request timed out".into())
    }

    /// How many seconds follow a lookup.
    fn wait(pace: &mut LookupPace, v4: Records, v6: Records) -> u64 {
        let (host, refused) = ("app.internal".to_owned(), BTreeSet::new());
        pace.wait(&Lookup { host, name_servers: vec![], v4, v6, from_hosts: false, refused }).as_secs()
    }

    #[test]
    fn a_name_is_asked_again_when_its_shortest_record_ends_but_not_every_moment_nor_only_tomorrow() {
        for (v4, v6, expected) in [(60, 30, 30), (7, 30, 7), (0, 0, 1), (86_400, 86_400, 300)] {
            let (v4, v6) = (records(&["10.0.0.3"], v4), records(&["2001:db8::3"], v6));
            assert_eq!(wait(&mut LookupPace::default(), v4, v6), expected);
        }
        let only_v4 = wait(&mut LookupPace::default(), records(&["10.0.0.3"], 60), records(&[], 0));
        assert_eq!(only_v4, 60, "what a family does not have has no time to live");
    }

    #[test]
    fn a_name_whose_one_family_is_never_answered_is_asked_when_the_records_of_the_other_end() {
        let mut pace = LookupPace::default();
        for expected in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
            let waits = wait(&mut pace, records(&["10.0.0.3"], 100), failed());
            assert_eq!(waits, expected, "sooner only at first: one datagram may be lost");
        }
        assert_eq!(wait(&mut pace, failed(), failed()), 1);
    }

    #[test]
    fn a_name_that_fails_is_asked_more_and_more_seldom_until_it_works() {
        let mut pace = LookupPace::default();
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(wait(&mut pace, failed(), failed()), expected);
        }
        wait(&mut pace, records(&["10.0.0.3"], 60), records(&[], 60));
        assert_eq!(wait(&mut pace, failed(), failed()), 1);
    }
}
