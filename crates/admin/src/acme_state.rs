//! State of certificates that convey orders itself. The ordering thread writes it, and API requests
//! read it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// State of all ordered certificates.
#[derive(Debug, Default)]
pub struct AcmeState {
    names: ArcSwap<Vec<AcmeName>>,
    orders: [AtomicU64; 2],
    is_over: AtomicBool,
}

/// Name for which convey orders certificates. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeName {
    /// Name for which certificates are ordered.
    pub name: String,
    /// Expiry of the name's certificate. `None` if there is no certificate.
    pub not_after: Option<i64>,
    /// Time of the next order. A time in the past means that the order takes place as soon as
    /// possible.
    pub next_order: Option<i64>,
    /// Failed orders since the last successful one.
    pub failures: u32,
    /// Time at which this process first saw an order fail after the last success.
    pub failing_since: Option<i64>,
    /// Error of the last failed order.
    pub error: Option<String>,
}

impl AcmeState {
    /// Replaces the state of all names.
    pub fn set(&self, names: Vec<AcmeName>) {
        self.names.store(names.into());
    }

    /// Counts an order that has ended, as successful or as failed.
    pub fn count(&self, has_succeeded: bool) {
        self.orders[usize::from(has_succeeded)].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends all orders, because another process takes over or this process stops.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether orders have been ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// State of all names, in order.
    pub fn names(&self) -> Vec<AcmeName> {
        self.names.load().to_vec()
    }

    /// Number of failed orders, followed by the number of successful orders, since the program
    /// began.
    pub fn orders(&self) -> [u64; 2] {
        self.orders.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}
