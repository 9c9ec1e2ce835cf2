//! Dynamic table of a decoder (RFC 7541, section 2.3.2).

use std::collections::VecDeque;

use super::static_table;
use crate::section::Mark;

/// Maximum size of the table in bytes, as HPACK counts them. This is the default of HTTP/2, which
/// convey does not change.
pub(super) const MAX_SIZE: usize = 4_096;

/// Bytes that HPACK counts for an entry in addition to its name and value.
pub(crate) const ENTRY: usize = 32;

/// Field line, and the meaning of its name and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) mark: Mark,
}

impl Line<'_> {
    /// Size of the line, as HPACK counts it.
    pub(crate) fn size(&self) -> usize {
        ENTRY + self.name.len() + self.value.len()
    }
}

/// Static and dynamic table of a decoder.
#[derive(Debug)]
pub(super) struct Table {
    /// Entries, the newest first. Their size bounds their number to 128.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

/// Entry of the dynamic table.
#[derive(Debug)]
pub(super) struct Entry {
    /// Name and value.
    text: Box<[u8]>,
    name_len: usize,
    mark: Mark,
}

impl Entry {
    pub(super) fn new(line: Line<'_>) -> Entry {
        let text = [line.name, line.value].concat().into();
        Entry { text, name_len: line.name.len(), mark: line.mark }
    }

    fn line(&self) -> Line<'_> {
        let (name, value) = self.text.split_at(self.name_len);
        Line { name, value, mark: self.mark }
    }
}

impl Default for Table {
    fn default() -> Table {
        Table { entries: VecDeque::new(), size: 0, max_size: MAX_SIZE }
    }
}

impl Table {
    /// Returns the line with this index; `None`: there is no such entry.
    pub(super) fn line(&self, index: u64) -> Option<Line<'_>> {
        let index = usize::try_from(index).ok()?.checked_sub(1)?;
        match static_table::ENTRIES.get(index) {
            Some((name, value)) => {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                Some(Line { name, value, mark: Mark::of_static(index + 1, name, value) })
            }
            None => self.entries.get(index - static_table::LEN).map(Entry::line),
        }
    }

    /// Adds an entry, and removes the oldest ones for which there is no room then.
    pub(super) fn insert(&mut self, entry: Entry) {
        let size = entry.line().size();
        self.evict(self.max_size.saturating_sub(size));
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    /// Changes the maximum size of the table. Returns false if it is too large.
    pub(super) fn resize(&mut self, max_size: u64) -> bool {
        let max_size = usize::try_from(max_size).ok().filter(|size| *size <= MAX_SIZE);
        self.max_size = max_size.unwrap_or(self.max_size);
        self.evict(self.max_size);
        max_size.is_some()
    }

    /// Removes the oldest entries until the others have at most this size.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.line().size();
        }
    }
}
