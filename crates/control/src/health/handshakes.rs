//! Detection of servers that complete no handshakes. In mode `dsr`, handshakes are the only sign of
//! a server's health that convey can see. Pure.

use std::time::Duration;

use convey_model::Timestamp;

/// Maximum age of the handshake counts by which a server is judged, so that older floods have no
/// effect.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Minimum age of the handshake counts by which a server is judged. Clients repeat a SYN after one
/// second, and again two seconds later.
const MIN_AGE: Duration = Duration::from_secs(3);

/// Minimum number of client networks that repeat SYNs to a server before the server counts as
/// silent. If clients of the other servers come from fewer networks, the smaller number is enough.
const NETWORKS: u32 = 3;

/// Total numbers of begun handshakes, completed handshakes and repeated SYNs of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HandshakeCounts {
    pub(crate) begun: u64,
    pub(crate) completed: u64,
    pub(crate) repeated: u64,
}

/// Handshakes of a server's clients during a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HandshakesSeen {
    pub(crate) counts: HandshakeCounts,
    /// Networks of clients that completed a handshake, as a bit set.
    pub(crate) completing: u64,
    /// Networks of clients that repeated SYNs, as a bit set.
    pub(crate) repeating: u64,
}

/// Handshakes of a server since the last completed handshake, or since the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HandshakeRow {
    since: Option<Timestamp>,
    last: HandshakeCounts,
    seen: HandshakesSeen,
    other_servers: HandshakesSeen,
    /// Number of handshakes begun since the last completed handshake.
    unanswered: u64,
    /// Whether the server was reported since the last completed handshake.
    is_reported: bool,
}

/// Counts of a server that completes no handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilentServer {
    /// Number of handshakes that clients began with the server.
    pub(crate) begun: u64,
    /// Number of repeated SYNs.
    pub(crate) repeated: u64,
}

impl HandshakesSeen {
    /// Sum of these handshakes and the handshakes of another server.
    pub(crate) fn and(self, other: HandshakesSeen) -> HandshakesSeen {
        HandshakesSeen {
            counts: HandshakeCounts {
                begun: self.counts.begun + other.counts.begun,
                completed: self.counts.completed + other.counts.completed,
                repeated: self.counts.repeated + other.counts.repeated,
            },
            completing: self.completing | other.completing,
            repeating: self.repeating | other.repeating,
        }
    }
}

impl HandshakeRow {
    /// Applies the server's current totals, and the networks of clients since the last call.
    /// Returns the handshakes since the last call.
    pub(crate) fn advance(
        &mut self,
        now: HandshakeCounts,
        completing: u64,
        repeating: u64,
    ) -> HandshakesSeen {
        let before = std::mem::replace(&mut self.last, now);
        let counts = HandshakeCounts {
            begun: now.begun.saturating_sub(before.begun),
            completed: now.completed.saturating_sub(before.completed),
            repeated: now.repeated.saturating_sub(before.repeated),
        };
        self.unanswered = if counts.completed > 0 { 0 } else { self.unanswered + counts.begun };
        HandshakesSeen { counts, completing, repeating }
    }

    /// Number of handshakes that clients began since the last completed handshake.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Adds new handshakes of this server and of the other servers of its backend. Returns counts
    /// if the server seems to answer no client: at least `least` handshakes were begun and `least`
    /// SYNs repeated, none was completed, and the other servers complete most of their handshakes.
    /// A server is reported once, until it completes a handshake.
    ///
    /// A flood of forged SYNs does not meet these conditions: attackers do not repeat SYNs like
    /// clients do, a flood hits all servers, and its handshakes are completed at no server.
    pub(crate) fn evaluate(
        &mut self,
        own: HandshakesSeen,
        other_servers: HandshakesSeen,
        least: u32,
        now: Timestamp,
    ) -> Option<SilentServer> {
        let since = *self.since.get_or_insert(now);
        if own.counts.completed > 0 {
            self.restart(now);
            self.is_reported = false;
            return None;
        }
        self.seen = self.seen.and(own);
        self.other_servers = self.other_servers.and(other_servers);
        let (mine, theirs, least) = (self.seen.counts, self.other_servers.counts, u64::from(least));
        let age = now.since(since);
        let enough = NETWORKS.min(self.other_servers.completing.count_ones()).max(1);
        let is_silent = age >= MIN_AGE
            && mine.begun >= least
            && mine.repeated >= least
            && self.seen.repeating.count_ones() >= enough
            && theirs.completed >= least
            && theirs.completed.saturating_mul(2) >= theirs.begun;
        if !is_silent {
            if age >= MAX_AGE {
                self.restart(now);
            }
            return None;
        }
        let silent = SilentServer { begun: mine.begun, repeated: mine.repeated };
        let is_news = !std::mem::replace(&mut self.is_reported, true);
        self.restart(now);
        is_news.then_some(silent)
    }

    /// Whether the server was reported, and has completed no handshake since the report.
    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Clears the counts, so that earlier handshakes no longer count against the server.
    pub(crate) fn restart(&mut self, now: Timestamp) {
        (self.since, self.seen, self.other_servers) =
            (Some(now), HandshakesSeen::default(), HandshakesSeen::default());
    }

    /// Clears the counts of a server that returns to service. The server may be reported again.
    pub(crate) fn forgive(&mut self, now: Timestamp) {
        self.restart(now);
        self.is_reported = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 5;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).after(Duration::from_secs(seconds))
    }

    /// Handshakes of one second. `networks` is a bit set.
    fn second(begun: u64, completed: u64, repeated: u64, networks: u64) -> HandshakesSeen {
        let counts = HandshakeCounts { begun, completed, repeated };
        HandshakesSeen { counts, completing: networks, repeating: networks }
    }

    #[test]
    fn stalled_handshakes_are_counted_until_one_completes() {
        let mut row = HandshakeRow::default();
        let mut incomplete_after = |begun, completed| {
            row.advance(HandshakeCounts { begun, completed, repeated: 0 }, 0, 0);
            row.unanswered()
        };
        assert_eq!(
            [incomplete_after(1_000, 1_000), incomplete_after(1_004, 1_000), incomplete_after(1_009, 1_000)],
            [0, 4, 9]
        );
        assert_eq!(incomplete_after(1_010, 1_001), 0);
    }

    /// Second in which a server is reported, if the handshakes of all seconds are equal.
    fn reported(own: HandshakesSeen, other_servers: HandshakesSeen) -> Option<u64> {
        let mut row = HandshakeRow::default();
        (0..600).find(|&now| row.evaluate(own, other_servers, LEAST, at(now)).is_some())
    }

    #[test]
    fn stalled_server_is_logged_within_seconds_if_others_complete() {
        assert_eq!(reported(second(2, 0, 3, 0b111), second(2, 2, 0, 0b1111)), Some(3));
    }

    #[test]
    fn a_server_with_few_clients_is_told_of_all_the_same() {
        let mut row = HandshakeRow::default();
        let busy = second(9, 9, 0, 0b1111);
        let reported = (0..60).find(|now| {
            let own = if now % 5 == 0 { second(1, 0, 2, 1 << (now / 5)) } else { HandshakesSeen::default() };
            row.evaluate(own, busy, LEAST, at(*now)).is_some()
        });
        assert_eq!(reported, Some(20));
    }

    #[test]
    fn server_that_completes_some_handshakes_is_not_logged() {
        assert_eq!(reported(second(20, 1, 30, 0b111), second(2, 2, 0, 0b1111)), None);
    }

    #[test]
    fn a_flood_of_syns_is_no_servers_fault() {
        // Forged SYNs go to both servers. Only the first server answers its clients, and some
        // clients repeat SYNs.
        let flood = |clients: u64| second(10_000 + clients, clients, 50, u64::MAX);
        assert_eq!(reported(second(10_000, 0, 50, u64::MAX), flood(20)), None);
        // Forged SYNs go to one server, which also has clients.
        assert_eq!(reported(flood(1), second(20, 20, 0, 0b111)), None);
        // Forged SYNs go to one server without clients. Forged SYNs are not repeated.
        assert_eq!(reported(second(10_000, 0, 0, 0), second(20, 20, 0, 0b111)), None);
    }

    #[test]
    fn clients_of_one_network_are_not_enough_unless_there_is_no_other() {
        assert_eq!(reported(second(2, 0, 3, 0b1), second(9, 9, 0, 0b111)), None);
        assert_eq!(reported(second(2, 0, 3, 0b1), second(9, 9, 0, 0b1)), Some(3));
    }

    #[test]
    fn stalled_server_is_not_logged_if_no_other_completes() {
        assert_eq!(reported(second(2, 0, 3, 0b111), second(0, 0, 0, 0)), None);
        assert_eq!(reported(second(2, 0, 3, 0b111), second(9, 2, 9, 0b111)), None);
    }

    #[test]
    fn stalled_server_is_logged_once_until_it_answers_again() {
        let (mut row, mut reported) = (HandshakeRow::default(), 0);
        let (silent, well, other_servers) =
            (second(2, 0, 3, 0b111), second(2, 2, 0, 0b111), second(9, 9, 0, 0b111));
        (0..100).for_each(|now| {
            reported += usize::from(row.evaluate(silent, other_servers, LEAST, at(now)).is_some())
        });
        assert_eq!(reported, 1);
        assert_eq!(row.evaluate(well, other_servers, LEAST, at(100)), None);
        (101..110).for_each(|now| {
            reported += usize::from(row.evaluate(silent, other_servers, LEAST, at(now)).is_some())
        });
        assert_eq!(reported, 2);
    }

    #[test]
    fn handshake_counts_advance_by_the_difference() {
        let mut row = HandshakeRow::default();
        let counts = |begun, completed, repeated| HandshakeCounts { begun, completed, repeated };
        row.advance(counts(5, 3, 1), 0, 0);
        assert_eq!(
            row.advance(counts(7, 4, 1), 1, 2),
            HandshakesSeen { counts: counts(2, 1, 0), completing: 1, repeating: 2 }
        );
    }
}
