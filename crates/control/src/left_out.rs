//! Log limit for addresses of host names that do not become servers, because such a server would
//! lead back to a frontend: at most one line a second for each name. Pure.

use std::collections::BTreeMap;

use super::digest::LINE_PAUSE;
use convey_config::LeftOut;
use convey_model::Timestamp;

/// Pending log lines, by the names of backend and server in the file.
#[derive(Debug, Default)]
pub(super) struct LeftOutDigest(BTreeMap<(String, String), PendingLine>);

#[derive(Debug, Default)]
struct PendingLine {
    /// Time of the last log line; `None` before the first.
    last_logged: Option<Timestamp>,
    /// Most recent address to log; `None`: there is none since the last log line. `count` is the
    /// number of addresses since that line.
    last: Option<LeftOut>,
    count: usize,
}

impl LeftOutDigest {
    /// Takes addresses that have just been excluded from the servers. Returns the lines to log now.
    pub(super) fn take<'a>(
        &mut self,
        new: impl IntoIterator<Item = &'a LeftOut>,
        now: Timestamp,
    ) -> Vec<String> {
        for left_out in new {
            let name = (left_out.backend.clone(), left_out.name.clone());
            let pending = self.0.entry(name).or_default();
            pending.last = Some(left_out.clone());
            pending.count += 1;
        }
        self.due_lines(now, |pending| pending.last_logged.is_none())
    }

    /// Time at which [`LeftOutDigest::on_time`] should be called next; `None`: nothing is pending.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.0.values().filter_map(PendingLine::due).min()
    }

    /// Returns the pending lines that may be logged now.
    pub(super) fn on_time(&mut self, now: Timestamp) -> Vec<String> {
        let is_due = |pending: &PendingLine| pending.due().is_some_and(|due| due <= now);
        self.0.retain(|_, pending| pending.count > 0 || !is_due(pending));
        self.due_lines(now, is_due)
    }

    fn due_lines(&mut self, now: Timestamp, is_due: impl Fn(&PendingLine) -> bool) -> Vec<String> {
        let due = self.0.values_mut().filter(|pending| is_due(pending));
        let lines = due.filter_map(|pending| {
            pending.last_logged = Some(now);
            let count = std::mem::take(&mut pending.count);
            pending.last.take().map(|last| last.line(count))
        });
        lines.collect()
    }
}

impl PendingLine {
    /// Time at which the next line may be logged; `None` before the first line.
    fn due(&self) -> Option<Timestamp> {
        self.last_logged.map(|told| told.after(LINE_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn left_out(name: &str, host: u8) -> LeftOut {
        let addr = ([127, 0, 0, host], 80).into();
        LeftOut { backend: "pool".into(), name: name.into(), addr, why: "it leads back".into() }
    }

    #[test]
    fn left_out_addresses_of_a_name_are_logged_once_a_second() {
        let mut digest = LeftOutDigest::default();
        let all: Vec<LeftOut> = (1..=200).map(|host| left_out("app", host)).collect();
        let first =
            "server pool/app/127.0.0.200 and 199 more addresses of pool/app are not used: it leads back";
        assert_eq!(digest.take(&all, Timestamp(0)), [first]);
        for host in 201..=250 {
            assert!(digest.take(&[left_out("app", host)], Timestamp(5)).is_empty());
        }
        assert_eq!(digest.due(), Some(Timestamp(SECOND)));
        assert!(digest.on_time(Timestamp(SECOND - 1)).is_empty());
        let second =
            "server pool/app/127.0.0.250 and 49 more addresses of pool/app are not used: it leads back";
        assert_eq!(digest.on_time(Timestamp(SECOND)), [second]);
        assert!(digest.on_time(Timestamp(2 * SECOND)).is_empty());
        assert_eq!(digest.due(), None, "it is quiet, and forgotten");
    }

    #[test]
    fn other_names_are_told_at_once() {
        let mut digest = LeftOutDigest::default();
        digest.take(&[left_out("app", 1)], Timestamp(0));
        let other = digest.take(&[left_out("other", 1)], Timestamp(1));
        assert_eq!(other, ["server pool/other/127.0.0.1 is not used: it leads back"]);
    }
}
