//! What is known of certificates that convey orders itself. The thread that orders writes it, whoever asks reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// What is known of all of them.
#[derive(Debug, Default)]
pub struct AcmeState {
    names: ArcSwap<Vec<AcmeName>>,
    orders: [AtomicU64; 2],
    is_over: AtomicBool,
}

/// A name that convey orders certificates for. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeName {
    /// The name.
    pub name: String,
    /// When its certificate expires; `None`: it has none.
    pub not_after: Option<i64>,
    /// When the next order is due; in the past: as soon as it can be.
    pub next_order: Option<i64>,
    /// Orders that have failed since the last one that has not.
    pub failures: u32,
    /// When this process has first seen that they fail.
    pub failing_since: Option<i64>,
    /// Why the last of them has.
    pub error: Option<String>,
}

impl AcmeState {
    /// These are all.
    pub fn set(&self, names: Vec<AcmeName>) {
        self.names.store(names.into());
    }

    /// An order has ended.
    pub fn count(&self, has_succeeded: bool) {
        self.orders[usize::from(has_succeeded)].fetch_add(1, Ordering::Relaxed);
    }

    /// Has no further order begin: another process serves, or nobody.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether no further order begins.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// All of them, by name.
    pub fn names(&self) -> Vec<AcmeName> {
        self.names.load().to_vec()
    }

    /// Orders that have failed, and that have not, since the program began.
    pub fn orders(&self) -> [u64; 2] {
        self.orders.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}
