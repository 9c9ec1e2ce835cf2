//! Sessions for an operator, a slice at a time. Pure.

use super::{SessionKey, SessionTable};
use convey_model::Timestamp;

/// A session as it is when it is looked at.
#[derive(Debug)]
pub(in crate::udp) struct SessionSight<'a, T> {
    /// Its number.
    pub(in crate::udp) number: usize,
    /// Which of the sessions that had its number it is.
    pub(in crate::udp) serial: u32,
    /// What its datagrams have in common.
    pub(in crate::udp) key: SessionKey,
    /// The session.
    pub(in crate::udp) session: &'a T,
    /// When its client first sent.
    pub(in crate::udp) began: Timestamp,
    /// When a datagram last went either way.
    pub(in crate::udp) active: Timestamp,
    /// Whether its client was answered, and has sent again after that.
    pub(in crate::udp) progress: [bool; 2],
}

impl<T> SessionTable<T> {
    /// The session with this number, if there is one.
    pub(in crate::udp) fn at(&self, number: usize) -> Option<SessionSight<'_, T>> {
        let entry = self.entries.get(number)?;
        Some(SessionSight {
            number,
            serial: entry.serial,
            key: entry.key,
            session: &entry.session,
            began: entry.began,
            active: entry.active,
            progress: [entry.answered, entry.is_stream],
        })
    }

    /// All numbers of sessions are below this one.
    pub(in crate::udp) fn places(&self) -> usize {
        self.entries.capacity()
    }
}
