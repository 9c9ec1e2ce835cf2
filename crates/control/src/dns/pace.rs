//! Time between lookups of a name. Pure.

use std::time::Duration;

use convey_model::{Lookup, Missing};
use convey_pacing::{Backoff, BackoffPolicy};

/// Lower bound for the time to live, and for the delay after a lookup that found records.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Upper bound for the time to live.
const MAX_TTL: Duration = Duration::from_secs(300);
/// Delays after a failed lookup. A lookup has failed if the query for IPv4 or for IPv6 addresses
/// failed. If the lookup found other records, their time to live replaces `cap` as the maximum
/// delay.
const RETRIES: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    cap: Duration::from_secs(30),
    jitter: 0.5,
    reset_after: Duration::ZERO,
};

/// Delays between the lookups of one name.
#[derive(Debug)]
pub(super) struct LookupPace {
    /// Records that the last lookup did not find; `None` if no records were missing.
    missing: Option<Missing>,
    backoff: Backoff,
}

impl Default for LookupPace {
    fn default() -> LookupPace {
        LookupPace { missing: None, backoff: Backoff::new(RETRIES) }
    }
}

impl LookupPace {
    /// Delay before the next lookup. `random` is a random number from 0 to 1, for jitter.
    pub(super) fn wait(&mut self, lookup: &Lookup, random: f64) -> Duration {
        let ttl = lookup.ttl().map(|ttl| ttl.clamp(MIN_TTL, MAX_TTL));
        let longest = ttl.unwrap_or(RETRIES.cap);
        let missing = lookup.fault().map(|fault| fault.missing);
        if std::mem::replace(&mut self.missing, missing) != missing {
            self.backoff.reset();
        }
        match missing {
            None => longest,
            Some(_) => {
                let delay = self.backoff.next_delay_up_to(longest, random);
                // Without this bound, jitter could double the rate of lookups of short-lived
                // records.
                if ttl.is_some() { delay.max(MIN_TTL) } else { delay }
            }
        }
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

    fn lookup(v4: Records, v6: Records) -> Lookup {
        let (host, refused) = ("app.internal".to_owned(), BTreeSet::new());
        Lookup { host, name_servers: vec![], v4, v6, from_hosts: false, refused }
    }

    /// Delay after a lookup in seconds, without jitter.
    fn wait(pace: &mut LookupPace, v4: Records, v6: Records) -> u64 {
        pace.wait(&lookup(v4, v6), 1.0).as_secs()
    }

    #[test]
    fn lookup_interval_is_the_shortest_ttl_within_bounds() {
        for (v4, v6, expected) in [(60, 30, 30), (7, 30, 7), (0, 0, 1), (86_400, 86_400, 300)] {
            let (v4, v6) = (records(&["10.0.0.3"], v4), records(&["2001:db8::3"], v6));
            assert_eq!(wait(&mut LookupPace::default(), v4, v6), expected);
        }
        let only_v4 = wait(&mut LookupPace::default(), records(&["10.0.0.3"], 60), records(&[], 0));
        assert_eq!(only_v4, 60, "what a family does not have has no time to live");
    }

    #[test]
    fn lookup_with_one_failing_family_backs_off_to_the_other_ttl() {
        let mut pace = LookupPace::default();
        for expected in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
            let waits = wait(&mut pace, records(&["10.0.0.3"], 100), failed());
            assert_eq!(waits, expected, "sooner only at first: one datagram may be lost");
        }
        assert_eq!(wait(&mut pace, failed(), failed()), 1);
    }

    #[test]
    fn records_with_a_short_life_are_looked_up_once_a_second_at_most() {
        for ttl in [0, 1] {
            let mut pace = LookupPace::default();
            for _ in 0..9 {
                let half = lookup(records(&["10.0.0.3"], ttl), failed());
                assert_eq!(pace.wait(&half, 0.0), MIN_TTL, "{ttl} s");
            }
        }
    }

    #[test]
    fn failing_lookups_back_off_until_one_succeeds() {
        let mut pace = LookupPace::default();
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(wait(&mut pace, failed(), failed()), expected);
        }
        wait(&mut pace, records(&["10.0.0.3"], 60), records(&[], 60));
        assert_eq!(wait(&mut pace, failed(), failed()), 1);
    }
}
