//! Notices about log lines that could not be written. The first loss is reported immediately on
//! standard error. Once a write succeeds again, the log reports the number of lost lines.

use std::fmt::Display;
use std::mem::take;

use super::sink::Lost;

/// Log lines lost since the last successful write.
#[derive(Debug, Default)]
pub(super) struct Losses {
    lines: u64,
    why: String,
    /// Whether a notice about the losses was written to the log. The notice itself may be lost as
    /// well.
    is_reported: bool,
}

/// Text of a notice, by its destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LossNotice {
    OnStderr(String),
    InLog(String),
}

impl Losses {
    /// Returns the notice to write after a write to `place` that succeeded or failed. `None` if no
    /// notice is due.
    pub(super) fn after(&mut self, written: &Result<(), Lost>, place: impl Display) -> Option<LossNotice> {
        let Err(Lost { lines, error }) = written else { return self.after_success() };
        let is_first = self.lines == 0;
        // If the notice itself was lost, it does not count as a lost line.
        self.lines += lines.saturating_sub(take(&mut self.is_reported).into());
        self.why = error.to_string();
        is_first.then(|| {
            LossNotice::OnStderr(format!(
                "convey: cannot write the log to {place}: {error}; lines are lost until a write succeeds\n"
            ))
        })
    }

    fn after_success(&mut self) -> Option<LossNotice> {
        if take(&mut self.is_reported) || self.lines == 0 {
            *self = Losses::default();
            return None;
        }
        self.is_reported = true;
        Some(LossNotice::InLog(format!(
            "{} lines of the log are lost, because writing it failed: {}",
            self.lines, self.why
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn first_write_error_is_reported_at_once_and_lost_lines_later() {
        let mut losses = Losses::default();
        let lost = |lines| Err(Lost { lines, error: Error::from(ErrorKind::StorageFull) });
        let mut after = |written| losses.after(&written, "/var/log/convey.log");
        assert_eq!(after(Ok(())), None);
        let first = "convey: cannot write the log to /var/log/convey.log: no storage space; lines are lost until a write succeeds\n";
        assert_eq!(after(lost(2)), Some(LossNotice::OnStderr(first.to_owned())));
        assert_eq!(after(lost(3)), None, "once");
        let told = |lines| {
            let text =
                format!("{lines} lines of the log are lost, because writing it failed: no storage space");
            Some(LossNotice::InLog(text))
        };
        assert_eq!(after(Ok(())), told(5));
        // The notice and two other lines are lost.
        assert_eq!(after(lost(3)), None);
        assert_eq!(after(Ok(())), told(7));
        assert_eq!([after(Ok(())), after(Ok(()))], [None, None]);
        assert!(matches!(after(lost(1)), Some(LossNotice::OnStderr(_))), "again");
    }
}
