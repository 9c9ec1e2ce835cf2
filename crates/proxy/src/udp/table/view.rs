//! Views of sessions, for lists of sessions. Pure.

use super::{SessionKey, SessionTable};
use convey_model::Timestamp;

/// View of one session of the table.
#[derive(Debug)]
pub(in crate::udp) struct SessionEntryView<'a, T> {
    /// Number of the session in the table.
    pub(in crate::udp) number: usize,
    /// Serial number, which distinguishes the session from earlier sessions with the same number.
    pub(in crate::udp) serial: u32,
    /// Key of the session.
    pub(in crate::udp) key: SessionKey,
    /// Value of the session.
    pub(in crate::udp) session: &'a T,
    /// Time of the client's first datagram.
    pub(in crate::udp) began: Timestamp,
    /// Time of the last datagram in either direction.
    pub(in crate::udp) active: Timestamp,
    /// Whether the client was answered, and whether it has sent again after that.
    pub(in crate::udp) progress: [bool; 2],
}

impl<T> SessionTable<T> {
    /// Returns the session with this number, if it exists.
    pub(in crate::udp) fn at(&self, number: usize) -> Option<SessionEntryView<'_, T>> {
        let entry = self.entries.get(number)?;
        Some(SessionEntryView {
            number,
            serial: entry.serial,
            key: entry.key,
            session: &entry.session,
            began: entry.began,
            active: entry.active,
            progress: [entry.answered, entry.is_stream],
        })
    }

    /// Number of entries of the table, used or free: all numbers of sessions are below it.
    pub(in crate::udp) fn places(&self) -> usize {
        self.entries.capacity()
    }
}
