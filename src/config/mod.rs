//! The configuration file: read, validated, compared and watched.

use std::net::SocketAddr;

use crate::model::{Backend, Frontend, Mode, Timeouts};

/// A validated configuration. Nothing downstream sees a string that could still be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How traffic is forwarded, unless the command line says otherwise.
    pub mode: Mode,
    /// Sorted by name.
    pub frontends: Vec<Frontend>,
    /// Sorted by name; those no frontend uses too.
    pub backends: Vec<Backend>,
    /// Where statistics are served.
    pub stats: Stats,
    /// Time limits of the proxy.
    pub timeouts: Timeouts,
    /// Settings of the packet modes.
    pub passthrough: Passthrough,
}

/// The statistics endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Where `/stats`, `/metrics` and `/healthz` are served.
    pub listen: SocketAddr,
}

/// Settings of the packet modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passthrough {
    /// Most flows tracked at once.
    pub connection_tracker_capacity: usize,
    /// Worker threads; `None`: one less than there are cores, at least one.
    pub workers: Option<usize>,
    /// Seconds between two reports of the workers' counters.
    pub stats_update_frequency: u64,
}
