//! Log limit for each host name: at most one line a second about the health of its servers, and one
//! line a second about its addresses that do not become servers. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::HealthChange;
use super::left_out::LeftOutDigest;
use crate::health::HealthTransition;
use convey_model::{ServerKey, Timestamp};

/// Minimum time between two log lines about a name. Names whose addresses change all the time would
/// fill any log.
pub(super) const LINE_PAUSE: Duration = Duration::from_secs(1);

/// Events that wait to be logged.
#[derive(Debug, Default)]
pub struct Digest {
    /// Pending changes of health, by the names of backend and server in the file.
    servers: BTreeMap<(String, String), PendingSummary>,
    pub(super) left_out: LeftOutDigest,
}

#[derive(Debug)]
struct PendingSummary {
    /// Time of the last log line.
    last_logged: Timestamp,
    summary: Option<ChangeSummary>,
}

/// Summary of the changes of several servers of a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChangeSummary {
    /// Number of servers that went down or were ejected.
    lost: usize,
    /// Number of servers that came up or returned.
    won: usize,
    /// Most recent change.
    last: HealthChange,
}

impl Digest {
    /// Takes a change of health. Returns the change if it should be logged now, otherwise `None`:
    /// the next summary then contains the change.
    pub(super) fn take(&mut self, change: HealthChange, now: Timestamp) -> Option<HealthChange> {
        let Some(name) = named(&change.server) else { return Some(change) };
        let Some(pending) = self.servers.get_mut(&name) else {
            self.servers.insert(name, PendingSummary { last_logged: now, summary: None });
            return Some(change);
        };
        let (lost, won) = pending.summary.as_ref().map_or((0, 0), |summary| (summary.lost, summary.won));
        let (lost, won) = match change.change {
            // No line is needed: `/stats` has the latest reason.
            HealthTransition::StillDown => return None,
            HealthTransition::Up | HealthTransition::Returned => (lost, won + 1),
            HealthTransition::Down | HealthTransition::Ejected(_) => (lost + 1, won),
        };
        pending.summary = Some(ChangeSummary { lost, won, last: change });
        None
    }

    /// Time at which [`Digest::on_time`] should be called next; `None`: nothing is pending.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let servers = self.servers.values().map(|pending| pending.last_logged.after(LINE_PAUSE));
        servers.chain(self.left_out.due()).min()
    }

    /// Returns the summaries of servers' health that are due now.
    pub(super) fn on_time(&mut self, now: Timestamp) -> Vec<ChangeSummary> {
        let mut last_logged = Vec::new();
        self.servers.retain(|_, pending| {
            if pending.last_logged.after(LINE_PAUSE) > now {
                return true;
            }
            pending.last_logged = now;
            let summary = pending.summary.take();
            let is_quiet = summary.is_none();
            last_logged.extend(summary);
            !is_quiet
        });
        last_logged
    }
}

/// Backend and server name in the file, if the server belongs to a host name.
fn named(server: &ServerKey) -> Option<(String, String)> {
    let (name, _) = server.server.split_once('/')?;
    Some((server.backend.clone(), name.to_owned()))
}

impl ChangeSummary {
    /// The only change of the summary; `None` if the summary has several.
    pub(super) fn single(&self) -> Option<&HealthChange> {
        (self.lost + self.won == 1).then_some(&self.last)
    }
}

impl fmt::Display for ChangeSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangeSummary { lost, won, last: HealthChange { server, reason, eligible, of, .. } } = self;
        let name = server.server.split('/').next().unwrap_or_default();
        write!(
            f,
            "servers of {}/{name}: {lost} more went down, {won} came up ({eligible} of {of} can be chosen); \
             last change: {server}: {reason}",
            server.backend
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn change(server: &str, change: HealthTransition) -> HealthChange {
        let server =
            ServerKey { backend: "pool".into(), server: server.into(), addr: "10.0.0.3:80".parse().unwrap() };
        HealthChange { server, change, reason: "refused".into(), eligible: 1, of: 9 }
    }

    #[test]
    fn changes_of_a_resolved_server_are_logged_once_a_second() {
        let mut digest = Digest::default();
        let first = change("app/10.0.0.3", HealthTransition::Down);
        assert_eq!(digest.take(first.clone(), Timestamp(0)), Some(first));
        for _ in 0..200 {
            assert_eq!(digest.take(change("app/10.0.0.4", HealthTransition::Down), Timestamp(5)), None);
        }
        assert_eq!(digest.take(change("app/10.0.0.5", HealthTransition::Up), Timestamp(9)), None);
        assert_eq!(digest.take(change("app/10.0.0.4", HealthTransition::StillDown), Timestamp(9)), None);
        assert_eq!(digest.due(), Some(Timestamp(SECOND)));
        assert_eq!(digest.on_time(Timestamp(SECOND - 1)), []);
        let last_logged: Vec<String> =
            digest.on_time(Timestamp(SECOND)).iter().map(ChangeSummary::to_string).collect();
        let line = "servers of pool/app: 200 more went down, 1 came up (1 of 9 can be chosen); last change: pool/app/10.0.0.5 (10.0.0.3:80): refused";
        assert_eq!(last_logged, [line]);
        assert_eq!(
            digest.take(change("app/10.0.0.4", HealthTransition::Up), Timestamp(SECOND)),
            None,
            "not within a second of it"
        );
        let last_logged = digest.on_time(Timestamp(2 * SECOND));
        assert_eq!(last_logged[0].single(), Some(&change("app/10.0.0.4", HealthTransition::Up)));
        assert_eq!(digest.on_time(Timestamp(3 * SECOND)), []);
        assert_eq!(digest.due(), None, "it is quiet, and forgotten");
    }

    #[test]
    fn other_servers_and_other_names_are_told_at_once() {
        let mut digest = Digest::default();
        for server in ["a", "a", "app/10.0.0.3", "other/10.0.0.3"] {
            assert!(digest.take(change(server, HealthTransition::Down), Timestamp(0)).is_some(), "{server}");
        }
    }
}
