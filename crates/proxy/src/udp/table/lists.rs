//! Linked lists through the entries of a session table. Pure.

use super::SessionTable;

/// Kind of a list that contains an entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListKind {
    Address,
    Frontend,
    /// List of the source, if the session is counted there.
    Source,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SessionLinks {
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SessionList {
    pub(super) first: Option<usize>,
    pub(super) last: Option<usize>,
}

impl<T> SessionTable<T> {
    /// Moves an entry to the end of its list.
    pub(super) fn renew(&mut self, number: usize, of: ListKind) {
        self.unlink(number, of);
        self.append(number, of);
    }

    /// Appends an entry to a list that it is not in.
    pub(super) fn append(&mut self, number: usize, of: ListKind) {
        let list = self.list_of(number, of);
        let previous = list.last.replace(number);
        if previous.is_none() {
            list.first = Some(number);
        }
        if let Some(previous) = previous {
            self.entries[previous].links[of as usize].next = Some(number);
        }
        self.entries[number].links[of as usize] = SessionLinks { previous, next: None };
    }

    /// Removes an entry from its list.
    pub(super) fn unlink(&mut self, number: usize, of: ListKind) {
        let SessionLinks { previous, next } = self.entries[number].links[of as usize];
        match previous {
            Some(previous) => self.entries[previous].links[of as usize].next = next,
            None => self.list_of(number, of).first = next,
        }
        match next {
            Some(next) => self.entries[next].links[of as usize].previous = previous,
            None => self.list_of(number, of).last = previous,
        }
    }

    fn list_of(&mut self, number: usize, of: ListKind) -> &mut SessionList {
        let entry = &self.entries[number];
        match of {
            ListKind::Address => &mut self.addresses[entry.address].active,
            ListKind::Frontend => &mut self.groups[entry.group].lists[usize::from(entry.is_stream)],
            ListKind::Source => {
                let source = (self.groups[entry.group].frontend, entry.source);
                self.sources.entry(source).or_default()
            }
        }
    }
}
