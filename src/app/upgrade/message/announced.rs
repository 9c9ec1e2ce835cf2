//! Messages for announced addresses in an upgrade. Pure.

use std::net::IpAddr;
use std::time::Duration;

use convey_control::KnownAnnouncement;
use convey_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::app::announce::HandedAnnouncement;

/// Message form of the [`HandedAnnouncement`] of an address. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::app::upgrade) struct AnnouncementMessage {
    address: IpAddr,
    announced: bool,
    #[serde(default)]
    since: Option<u64>,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    last: Option<u64>,
    #[serde(default)]
    in_a_row: u32,
    #[serde(default)]
    withdrawals: u64,
}

impl From<(&IpAddr, &HandedAnnouncement)> for AnnouncementMessage {
    fn from((address, handed): (&IpAddr, &HandedAnnouncement)) -> AnnouncementMessage {
        let KnownAnnouncement { is_announced, since, wait, last } = handed.announcement;
        AnnouncementMessage {
            address: *address,
            announced: is_announced,
            since: since.map(|at| at.0),
            wait: u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
            last: last.map(|(at, _)| at.0),
            in_a_row: last.map_or(0, |(_, in_a_row)| in_a_row),
            withdrawals: handed.withdrawals,
        }
    }
}

impl From<AnnouncementMessage> for (IpAddr, HandedAnnouncement) {
    fn from(message: AnnouncementMessage) -> (IpAddr, HandedAnnouncement) {
        let announcement = KnownAnnouncement {
            is_announced: message.announced,
            since: message.since.map(Timestamp),
            wait: Duration::from_nanos(message.wait),
            last: message.last.map(|at| (Timestamp(at), message.in_a_row)),
        };
        (message.address, HandedAnnouncement { announcement, withdrawals: message.withdrawals })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    #[test]
    fn announcement_arrives_as_it_was() {
        for (since, last) in [(None, None), (Some(Timestamp(4)), Some((Timestamp(3), 2)))] {
            let announcement =
                KnownAnnouncement { is_announced: false, since, wait: Duration::from_secs(4), last };
            let handed = HandedAnnouncement { announcement, withdrawals: 7 };
            let ip: IpAddr = "2001:db8::1".parse().unwrap();
            let text = serde_json::to_string(&Message::Announcement((&ip, &handed).into())).unwrap();
            let Ok(Message::Announcement(message)) = serde_json::from_str(&text) else { panic!("{text}") };
            assert_eq!(<(IpAddr, HandedAnnouncement)>::from(message), (ip, handed));
        }
    }
}
