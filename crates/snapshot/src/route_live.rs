//! Counters of routes. A reload keeps the counters of routes whose names stay.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::stats::{ANSWER_TIMES, Histogram, RequestSamples, Traffic};
use convey_model::TotalRequests;

/// Part of a route that outlives snapshots.
#[derive(Debug)]
pub struct RouteLive {
    /// Counters of connections (proxy mode), or of requests and of responses by the class of their
    /// status (mode http).
    pub traffic: Traffic,
    /// Durations from the head of a request to the last byte of its response (mode http).
    pub times: Histogram,
    /// Recent samples of the requests and of their durations (mode http).
    pub samples: RequestSamples,
    /// Requests of all clients, against the route's limit (mode http).
    pub requests: Arc<TotalRequests>,
}

/// Counters of a frontend's routes.
pub struct RouteLives {
    cores: usize,
    by_name: Mutex<HashMap<Arc<str>, Arc<RouteLive>>>,
}

impl RouteLives {
    /// Creates an empty set, whose routes get counters for `cores` cores.
    pub(crate) fn new(cores: usize) -> RouteLives {
        RouteLives { cores, by_name: Mutex::default() }
    }

    /// Counters of the route with this name; a new route begins at zero.
    pub(crate) fn get(&self, name: &Arc<str>) -> Arc<RouteLive> {
        let new = || {
            Arc::new(RouteLive {
                traffic: Traffic::new(self.cores),
                times: Histogram::new(&ANSWER_TIMES, self.cores),
                samples: RequestSamples::default(),
                requests: Arc::new(TotalRequests::new(self.cores)),
            })
        };
        self.lock().entry(name.clone()).or_insert_with(new).clone()
    }

    /// Drops the counters of routes for which `stays` returns false.
    pub(crate) fn retain(&self, stays: impl Fn(&str) -> bool) {
        self.lock().retain(|name, _| stays(name));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Arc<RouteLive>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RouteLives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteLives").field("routes", &self.lock().len()).finish_non_exhaustive()
    }
}
