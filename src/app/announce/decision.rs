//! State of one announced address, and the decision to announce or withdraw it.

use std::net::IpAddr;
use std::time::Duration;

use convey_control::{Announcement, LogLine, Readiness};

use super::HandedAnnouncement;
use crate::app::clock;

/// State of an address that the configuration wants to announce.
pub(super) struct AddressRow {
    pub(super) announcement: Announcement,
    pub(super) is_there: bool,
    pub(super) reason: String,
    /// Last logged reason why the address cannot be announced or withdrawn.
    pub(super) fault: Option<String>,
    pub(super) withdrawals: u64,
}

impl AddressRow {
    pub(super) fn new(is_there: bool, known: Option<HandedAnnouncement>, hold: Duration) -> AddressRow {
        let withdrawals = known.as_ref().map_or(0, |known| known.withdrawals);
        let announcement = match known {
            Some(HandedAnnouncement { announcement, .. }) => {
                Announcement::of_predecessor(announcement, is_there, hold, clock::now())
            }
            None => Announcement::new(is_there),
        };
        AddressRow { announcement, is_there, reason: String::new(), fault: None, withdrawals }
    }
}

/// Decision about one address: announce or withdraw.
pub(super) struct Decision {
    pub(super) is_wanted: bool,
    pub(super) is_changed: bool,
    pub(super) is_leaving: bool,
    pub(super) why: String,
    /// Time for which the frontends must be able to serve before convey announces the address
    /// again.
    pub(super) wait: Duration,
}

impl Decision {
    /// Log line for a decision that was carried out. `is_explained` is false if the address was
    /// missing because another program had removed it.
    pub(super) fn log_line(&self, ip: IpAddr, interface: &str, is_explained: bool) -> LogLine {
        let Decision { why, wait, .. } = self;
        match (self.is_wanted, is_explained) {
            (true, true) => LogLine::info(format!("{ip} announced on {interface}: {why}")),
            (true, false) => {
                let line = format!("{ip} announced on {interface} again: another program had removed it");
                LogLine::warn(line)
            }
            (false, _) if self.is_leaving => LogLine::info(format!("{ip} withdrawn from {interface}: {why}")),
            (false, _) => {
                let line = format!(
                    "{ip} withdrawn from {interface}: {why}; convey announces it again once a frontend has been able to serve for {wait:?}"
                );
                LogLine::warn(line)
            }
        }
    }
}

/// Readiness of the frontends at an address, with its reason.
pub(super) struct ExplainedReadiness {
    pub(super) readiness: Readiness,
    pub(super) why: String,
}

impl ExplainedReadiness {
    pub(super) fn new(readiness: Readiness, why: &str) -> ExplainedReadiness {
        ExplainedReadiness { readiness, why: why.to_owned() }
    }
}
