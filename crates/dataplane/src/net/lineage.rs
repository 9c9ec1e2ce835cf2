//! Lineages: a process, its predecessors and its successors in upgrades.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lineage of this process.
pub(super) static THIS: Lineage = Lineage::new();

/// Number of this process's lineage, shared with its predecessors and successors in upgrades and
/// with no other process. The names that these processes bind contain the number. The number is
/// never 0.
pub fn lineage() -> u64 {
    THIS.number()
}

/// Continues the lineage of this process's predecessor in an upgrade. A number other than 0 has no
/// effect if this process has already used its own number.
///
/// A predecessor of a version without lineages passes 0. Then a new lineage begins, and names
/// without a lineage count as the predecessor's until [`end_inheritance`].
pub fn inherit_lineage(lineage: u64) {
    THIS.inherit(lineage);
}

/// Ends the inheritance of names without a lineage. Call this function when the predecessor has
/// exited: from then on, names without a lineage belong to other processes.
pub fn end_inheritance() {
    THIS.end_inheritance();
}

#[derive(Debug)]
pub(super) struct Lineage {
    number: OnceLock<u64>,
    /// Whether the predecessor has no lineage, and may still hold names.
    follows_none: AtomicBool,
}

impl Lineage {
    pub(super) const fn new() -> Lineage {
        Lineage { number: OnceLock::new(), follows_none: AtomicBool::new(false) }
    }

    /// Number of this lineage: the inherited number, or a random one.
    pub(super) fn number(&self) -> u64 {
        *self.number.get_or_init(|| convey_random::secret_u64().max(1))
    }

    pub(super) fn inherit(&self, number: u64) {
        if number == 0 {
            self.follows_none.store(true, Ordering::Relaxed);
        } else {
            let _ = self.number.set(number);
        }
    }

    pub(super) fn end_inheritance(&self) {
        self.follows_none.store(false, Ordering::Relaxed);
    }

    /// Whether `number`, which is part of a name, means that a process of this lineage has bound
    /// the name. 0 is the number of a name without a lineage.
    pub(super) fn has(&self, number: u64) -> bool {
        number == self.number() || number == 0 && self.follows_none.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn of(number: u64) -> Lineage {
        let lineage = Lineage::new();
        lineage.inherit(number);
        lineage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_of_versions_without_lineages_begin_lineages_of_their_own() {
        let [one, other] = [0, 0].map(Lineage::of);
        assert!(one.has(0) && other.has(0), "the names of their predecessors");
        assert!(one.number() != 0 && !one.has(other.number()) && !other.has(one.number()));
        one.end_inheritance();
        assert!(!one.has(0) && one.has(one.number()));
        let next = Lineage::of(one.number());
        assert!(next.has(one.number()) && one.has(next.number()) && !next.has(0));
    }
}
