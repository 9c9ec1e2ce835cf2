//! Refused datagrams without a valid PROXY header: collected for a rate-limited log.

use std::net::IpAddr;

use crate::header_error::HeaderError;
use crate::lines::{ClientLines, Event};
use convey_pacing::Suppressed;

/// Refusals of one worker and address since the last log line. The two kinds (untrusted sender,
/// invalid header) are separate, so that a flood of one kind does not hide the other kind.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    untrusted: Option<Refusal>,
    wrong: Option<Refusal>,
}

/// Last refused datagram of one kind, and the number of refused datagrams of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) peer: IpAddr,
    pub(super) why: HeaderError,
    /// Number of refused datagrams since the last log line, including this one.
    count: u64,
}

impl Refusals {
    /// Adds a refused datagram of the sender `peer`.
    pub(super) fn add(&mut self, peer: IpAddr, why: HeaderError) {
        let last = if why.event() == Event::Untrusted { &mut self.untrusted } else { &mut self.wrong };
        let before = last.map_or(0, |last| last.count);
        *last = Some(Refusal { peer, why, count: before + 1 });
    }

    /// Takes all collected refusals. Returns, for each kind, the refusal that may be logged now for
    /// the frontend with this id, with the number of suppressed events. `None` for a kind that must
    /// not be logged now, or that had no refusal.
    pub(super) fn take(&mut self, frontend: u32, lines: &ClientLines) -> [Option<(Refusal, Suppressed)>; 2] {
        [self.untrusted.take(), self.wrong.take()].map(|last| {
            let last = last?;
            Some((last, lines.take_all(frontend, last.why.event(), last.count)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_by_kind_with_the_last_peer_and_a_count() {
        let (lines, mut refusals) = (ClientLines::default(), Refusals::default());
        let peer = |n| IpAddr::from([192, 0, 2, n]);
        for n in 1..=3 {
            refusals.add(peer(n), HeaderError::Cut);
        }
        refusals.add(peer(9), HeaderError::Untrusted);
        let told =
            refusals.take(1, &lines).map(|told| told.map(|(last, more)| (last.peer, more.to_string())));
        let more = " (2 more since the previous line of this kind)".to_owned();
        assert_eq!(told, [Some((peer(9), String::new())), Some((peer(3), more))]);
        refusals.add(peer(1), HeaderError::Cut);
        assert_eq!(refusals.take(1, &lines), [None, None], "not again within ten seconds");
    }
}
