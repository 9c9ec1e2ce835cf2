//! Failed client connections to a server that wait for a confirming probe. Pure.

use std::net::IpAddr;
use std::time::Duration;

use convey_model::{ConnectFailures, HealthCheck, ServerKey, Timestamp};

/// Minimum time between two confirming probes of a server, no matter how many clients fail. Some
/// failures can be forged.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// Outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The server answered correctly.
    Answer,
    /// The server did not respond, and the check accepts that (UDP).
    Silence,
    /// The server refused, answered incorrectly, or did not answer in time.
    Failure,
    /// This host could not send the probe, so there is no finding about the server.
    Nothing,
}

/// Request for a probe that confirms whether the server causes the failures of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// Server to probe.
    pub server: ServerKey,
    /// Check that the probe performs.
    pub check: HealthCheck,
    /// Configured check of the server at the time of the request. If a reload replaces that check,
    /// the outcome is ignored.
    pub configured: HealthCheck,
    /// Further local address from which the probe also sends its datagram; `None`: no further
    /// address.
    pub from: Option<IpAddr>,
}

/// Failures that wait for a confirming probe, and the time of the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Doubt {
    probed_at: Option<Timestamp>,
    failures: Option<ConnectFailures>,
}

impl Doubt {
    /// Records failures of clients at the server. Returns whether to send a confirming probe, which
    /// takes up to `timeout`, now. False if another probe is under way, or if one was requested
    /// within the last `CONFIRM_EVERY`.
    pub(crate) fn raise(&mut self, failures: &ConnectFailures, timeout: Duration, now: Timestamp) -> bool {
        let is_being_probed = self.failures.is_some();
        let pause = if is_being_probed { CONFIRM_EVERY.max(timeout) } else { CONFIRM_EVERY };
        if self.probed_at.is_some_and(|probed_at| now.since(probed_at) < pause) {
            return false;
        }
        (self.probed_at, self.failures) = (Some(now), Some(failures.clone()));
        true
    }

    /// Applies the finding of the confirming probe. `in_a_row` is the current number of consecutive
    /// failures. Returns the failures if the finding confirms them.
    ///
    /// If the server does not respond, this confirms only failures that cannot be forged, and only
    /// if the server has answered no client since the failures. The server's kernel limits ICMP
    /// errors to one a second, and clients' datagrams may have used up that limit.
    pub(crate) fn resolve(&mut self, found: Finding, in_a_row: u32) -> Option<ConnectFailures> {
        let failures = self.failures.take()?;
        let counts = match found {
            Finding::Failure => true,
            Finding::Silence => !failures.is_forgeable && in_a_row >= failures.in_a_row,
            Finding::Answer | Finding::Nothing => false,
        };
        counts.then_some(failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::Protocol;

    const SECOND: Duration = Duration::from_secs(1);

    fn failures(is_forgeable: bool) -> ConnectFailures {
        let server =
            ServerKey { backend: "b".into(), server: "s".into(), addr: "10.0.0.1:53".parse().unwrap() };
        let (error, protocol) = ("refused".into(), Protocol::Udp);
        ConnectFailures { server, in_a_row: 3, error, protocol, is_forgeable }
    }

    #[test]
    fn a_flood_of_failures_has_the_server_probed_once_a_second() {
        let (mut doubt, flood) = (Doubt::default(), failures(true));
        let mut probes = 0;
        // 300,000 failures in 9 s; each probe finds the server healthy.
        for n in 0..300_000 {
            if doubt.raise(&flood, SECOND / 2, Timestamp(n * 30_000)) {
                probes += 1;
                assert_eq!(doubt.resolve(Finding::Silence, 3 + n as u32), None);
            }
        }
        assert_eq!(probes, 9);
    }

    #[test]
    fn second_probe_is_not_requested_while_one_is_pending() {
        let mut doubt = Doubt::default();
        assert!(doubt.raise(&failures(false), 5 * SECOND, Timestamp(0)));
        assert!(!doubt.raise(&failures(false), 5 * SECOND, Timestamp(0).after(4 * SECOND)));
        assert!(doubt.raise(&failures(false), 5 * SECOND, Timestamp(0).after(5 * SECOND)));
    }

    #[test]
    fn next_probe_may_follow_an_answered_one_after_a_second() {
        let (mut doubt, dead) = (Doubt::default(), failures(false));
        assert!(doubt.raise(&dead, 5 * SECOND, Timestamp(0)));
        assert_eq!(doubt.resolve(Finding::Answer, 3), None);
        assert!(!doubt.raise(&dead, 5 * SECOND, Timestamp(0).after(SECOND / 2)));
        assert!(doubt.raise(&dead, 5 * SECOND, Timestamp(0).after(SECOND)), "it has died since");
        assert!(!doubt.raise(&dead, 5 * SECOND, Timestamp(0).after(3 * SECOND)), "it is being asked");
        assert!(doubt.resolve(Finding::Failure, 3).is_some());
    }

    #[test]
    fn a_probe_that_fails_confirms_and_one_that_is_answered_does_not() {
        for is_forgeable in [false, true] {
            for (found, counts) in
                [(Finding::Failure, true), (Finding::Answer, false), (Finding::Nothing, false)]
            {
                let mut doubt = Doubt::default();
                assert!(doubt.raise(&failures(is_forgeable), SECOND, Timestamp(0)));
                assert_eq!(doubt.resolve(found, 9).is_some(), counts);
                assert_eq!(doubt.resolve(found, 9), None, "told once");
            }
        }
    }

    #[test]
    fn silence_confirms_unforgeable_failures_if_no_client_was_answered() {
        for (is_forgeable, in_a_row, counts) in
            [(true, 9, false), (false, 9, true), (false, 3, true), (false, 2, false)]
        {
            let mut doubt = Doubt::default();
            assert!(doubt.raise(&failures(is_forgeable), SECOND, Timestamp(0)));
            assert_eq!(doubt.resolve(Finding::Silence, in_a_row).is_some(), counts, "{in_a_row}");
        }
    }
}
