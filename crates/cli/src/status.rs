//! The arguments of `convey status`.

use clap::{Args, ValueEnum};

/// Filters and format of the status.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct StatusArgs {
    /// Filters of the screen.
    #[command(flatten)]
    pub filter: StatusFilter,
    /// Print the whole status as JSON
    #[arg(long, conflicts_with = "StatusFilter")]
    pub json: bool,
    /// Print the last 1,000 events instead
    #[arg(long, conflicts_with = "StatusFilter")]
    pub events: bool,
}

/// Filters of the status. Everything that they select is shown with its context: frontends with
/// their routes and backends, backends and servers with their frontends. All given filters must
/// match; a filter with several values matches any of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct StatusFilter {
    /// Show these frontends with their routes and backends, and these backends with their frontends
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Show only this frontend, with its routes and backends
    #[arg(long = "frontend", value_name = "NAME")]
    pub frontends: Vec<String>,
    /// Show only this backend, with the frontends that use it
    #[arg(long = "backend", value_name = "NAME")]
    pub backends: Vec<String>,
    /// Show only this server, with its backend and the frontends that use it
    #[arg(id = "server", long = "server", value_name = "[BACKEND/]SERVER")]
    pub servers: Vec<String>,
    /// Show only this route, with its frontend and backend
    #[arg(long = "route", value_name = "NAME")]
    pub routes: Vec<String>,
    /// Show only servers in this state, with their backends and the frontends that use these
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<ServerState>,
}

/// State of a server. Of several, the first one that applies counts, in the order `maint`, `drain`,
/// `down`, `ejected`, `up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerState {
    /// Healthy and in rotation
    Up,
    /// Its health checks, or connections of clients, fail
    Down,
    /// Taken out for a while by outlier detection
    Ejected,
    /// Gets no new connections
    Drain,
    /// In maintenance: not checked, and not used
    Maint,
}

impl ServerState {
    /// Word for the state.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerState::Up => "up",
            ServerState::Down => "down",
            ServerState::Ejected => "ejected",
            ServerState::Drain => "drain",
            ServerState::Maint => "maint",
        }
    }
}
