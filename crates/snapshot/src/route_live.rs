//! What is counted of routes. Reloads keep it, by the routes' names.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::stats::{ANSWER_TIMES, Histogram, Traffic};

/// The part of a route that outlives snapshots.
#[derive(Debug)]
pub struct RouteLive {
    /// Its connections (proxy mode). Its requests, and the responses by the class of their status (mode http).
    pub traffic: Traffic,
    /// From the head of a request to the last byte of its response (mode http).
    pub times: Histogram,
}

/// The routes of a frontend that are counted. They are as many as the configuration has.
pub struct RouteLives {
    cores: usize,
    by_name: Mutex<HashMap<Arc<str>, Arc<RouteLive>>>,
}

impl RouteLives {
    /// None yet, counted by `cores` cores.
    pub(crate) fn new(cores: usize) -> RouteLives {
        RouteLives { cores, by_name: Mutex::default() }
    }

    /// The route with this name, from zero if it is new.
    pub(crate) fn get(&self, name: &Arc<str>) -> Arc<RouteLive> {
        let new = || {
            Arc::new(RouteLive {
                traffic: Traffic::new(self.cores),
                times: Histogram::new(&ANSWER_TIMES, self.cores),
            })
        };
        self.lock().entry(name.clone()).or_insert_with(new).clone()
    }

    /// Forgets all but those that `stay`.
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
