//! Limits wrong tokens at the statistics address. A client address that sends many wrong tokens
//! gets status 429, and not every wrong token is logged. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use convey_model::Timestamp;
use convey_pacing::{LogLimit, Suppressed};

/// Maximum number of wrong tokens per address and [`WINDOW`].
const MAX_WRONG: u32 = 10;

/// Window in which wrong tokens are counted. It begins with the first wrong token of an address.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of tracked addresses. Beyond it, the address with the oldest window is evicted.
const MAX_ADDRESSES: usize = 1_024;

/// Minimum interval between log lines about wrong tokens.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Recent senders of wrong tokens: IPv4 addresses, and /64 networks for IPv6.
#[derive(Debug)]
pub(super) struct WrongTokens {
    sources: HashMap<IpAddr, Window>,
    log_limit: LogLimit<Timestamp>,
}

impl Default for WrongTokens {
    fn default() -> WrongTokens {
        WrongTokens { sources: HashMap::new(), log_limit: LogLimit::once_in(LOG_PERIOD) }
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    since: Timestamp,
    wrong: u32,
}

impl WrongTokens {
    /// Remaining time for which requests with wrong tokens from this address get status 429. `None`
    /// if they get status 401.
    pub(super) fn refuses(&self, from: IpAddr, now: Timestamp) -> Option<Duration> {
        let Window { since, wrong } = self.sources.get(&source(from))?;
        let left = WINDOW.checked_sub(now.since(*since)).filter(|left| !left.is_zero())?;
        (*wrong >= MAX_WRONG).then_some(left)
    }

    /// Counts a wrong token from this address. Returns the number of earlier wrong tokens that were
    /// not logged if this one must be logged, otherwise `None`.
    pub(super) fn take(&mut self, from: IpAddr, now: Timestamp) -> Option<Suppressed> {
        let from = source(from);
        if !self.sources.contains_key(&from) && self.sources.len() >= MAX_ADDRESSES {
            let first = self.sources.iter().min_by_key(|(_, window)| window.since).map(|(from, _)| *from);
            first.iter().for_each(|first| _ = self.sources.remove(first));
        }
        let window = self.sources.entry(from).or_insert(Window { since: now, wrong: 0 });
        if now.since(window.since) >= WINDOW {
            *window = Window { since: now, wrong: 0 };
        }
        window.wrong = window.wrong.saturating_add(1);
        self.log_limit.admit(now)
    }
}

/// Key of an address: IPv6 addresses are reduced to their /64 network, because a host may use a
/// whole /64.
fn source(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs(seconds))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_with_ten_wrong_tokens_is_refused_until_the_minute_ends() {
        let mut wrong = WrongTokens::default();
        for second in 0..u64::from(MAX_WRONG) {
            assert_eq!(wrong.refuses(ip("10.0.0.9"), at(second)), None);
            wrong.take(ip("10.0.0.9"), at(second));
        }
        assert_eq!(wrong.refuses(ip("10.0.0.9"), at(20)), Some(Duration::from_secs(40)));
        assert_eq!(wrong.refuses(ip("10.0.0.8"), at(20)), None, "others are not meant");
        assert_eq!(wrong.refuses(ip("10.0.0.9"), at(60)), None);
        wrong.take(ip("10.0.0.9"), at(60));
        assert_eq!(wrong.refuses(ip("10.0.0.9"), at(61)), None, "the count begins anew");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let mut wrong = WrongTokens::default();
        (0..MAX_WRONG).for_each(|host| _ = wrong.take(ip(&format!("2001:db8::{host}")), at(0)));
        assert!(wrong.refuses(ip("2001:db8::ffff"), at(1)).is_some());
        assert_eq!(wrong.refuses(ip("2001:db8:0:1::1"), at(1)), None);
    }

    #[test]
    fn wrong_tokens_are_logged_every_ten_seconds_and_tracked_addresses_are_bounded() {
        let mut wrong = WrongTokens::default();
        let told = (0..3_000_u32).filter(|n| {
            let from = IpAddr::from(n.to_be_bytes());
            wrong.take(from, at(u64::from(*n / 300))).is_some()
        });
        assert_eq!(told.count(), 1);
        assert_eq!(wrong.sources.len(), MAX_ADDRESSES);
        assert_eq!(wrong.take(ip("10.0.0.9"), at(10)), Some(Suppressed(2_999)));
    }
}
