//! A server that fails clients, until a probe of its own says whether it is the server's fault. Pure.

use std::net::IpAddr;
use std::time::Duration;

use convey_model::{ConnectFailures, HealthCheck, ServerKey, Timestamp};

/// Clients' failures have a server probed once in this time at most, however many there are. Anybody can make some up.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The server answered as it should.
    Answer,
    /// Nothing came back, which a check allows (UDP).
    Silence,
    /// The server refused, answered wrongly, or did not answer in time.
    Failure,
    /// The probe could not be made: this host lacks something.
    Nothing,
}

/// A probe that is to show whether clients' failures are the server's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// The server.
    pub server: ServerKey,
    /// How it is probed.
    pub check: HealthCheck,
    /// Configured check of the server at that time. A reload that replaces it makes the outcome void.
    pub configured: HealthCheck,
    /// A second address of ours that a datagram is sent from, besides the usual one.
    pub from: Option<IpAddr>,
}

/// What is held against a server, and when a probe was last asked for because of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Doubt {
    asked: Option<Timestamp>,
    failures: Option<ConnectFailures>,
}

impl Doubt {
    /// Clients' failures speak against the server. Returns whether it is to be probed now, by a probe that takes up to
    /// `timeout`: no other is on its way, and none was asked for within the last `CONFIRM_EVERY`.
    pub(crate) fn raise(&mut self, failures: &ConnectFailures, timeout: Duration, now: Timestamp) -> bool {
        let is_being_probed = self.failures.is_some();
        let pause = if is_being_probed { CONFIRM_EVERY.max(timeout) } else { CONFIRM_EVERY };
        if self.asked.is_some_and(|asked| now.since(asked) < pause) {
            return false;
        }
        (self.asked, self.failures) = (Some(now), Some(failures.clone()));
        true
    }

    /// Takes what that probe found; clients have failed `in_a_row` until now. Returns the failures if they count.
    ///
    /// Silence confirms only failures that nobody can make up, and only if no client was answered meanwhile: the kernel
    /// of a server says once a second that nobody listens, and clients' datagrams may have used that up.
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
        // 300,000 in 9 s; each probe finds the server well.
        for n in 0..300_000 {
            if doubt.raise(&flood, SECOND / 2, Timestamp(n * 30_000)) {
                probes += 1;
                assert_eq!(doubt.resolve(Finding::Silence, 3 + n as u32), None);
            }
        }
        assert_eq!(probes, 9);
    }

    #[test]
    fn no_second_probe_is_asked_for_while_one_may_be_under_way() {
        let mut doubt = Doubt::default();
        assert!(doubt.raise(&failures(false), 5 * SECOND, Timestamp(0)));
        assert!(!doubt.raise(&failures(false), 5 * SECOND, Timestamp(0).after(4 * SECOND)));
        assert!(doubt.raise(&failures(false), 5 * SECOND, Timestamp(0).after(5 * SECOND)));
    }

    #[test]
    fn once_a_probe_is_answered_the_next_may_follow_within_a_second_whatever_its_timeout() {
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
    fn silence_confirms_what_only_the_server_can_have_said_if_nobody_was_answered_meanwhile() {
        for (is_forgeable, in_a_row, counts) in
            [(true, 9, false), (false, 9, true), (false, 3, true), (false, 2, false)]
        {
            let mut doubt = Doubt::default();
            assert!(doubt.raise(&failures(is_forgeable), SECOND, Timestamp(0)));
            assert_eq!(doubt.resolve(Finding::Silence, in_a_row).is_some(), counts, "{in_a_row}");
        }
    }
}
