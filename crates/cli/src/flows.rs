//! The arguments of `convey flows`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use convey_model::{FlowGrouping, FlowQuery, FlowSort, Target};

use super::duration::duration;
use super::operate;

/// Filters of flows, and the form of the list.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct FlowsArgs {
    /// A command on flows, instead of the list
    #[command(subcommand)]
    pub command: Option<FlowsCommand>,
    /// Only flows of clients at these addresses
    #[arg(long, value_name = "IP[/LEN][:PORT]")]
    pub client: Option<String>,
    /// Only flows to this server
    #[arg(long, value_name = "BACKEND/SERVER", value_parser = operate::server)]
    pub server: Option<Target>,
    /// Only flows of this frontend
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// Only flows to servers of this backend
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub backend: Option<String>,
    /// Only flows in this state, such as `established`
    #[arg(long, value_name = "NAME")]
    pub state: Option<String>,
    /// Only flows that began at least this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Only flows that have been idle for at least this long
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub idle: Option<Duration>,
    /// Only flows with at least this many bytes in both directions together
    #[arg(long, value_name = "N")]
    pub min_bytes: Option<u64>,
    /// Show at most this many flows or groups
    #[arg(long, value_name = "N", default_value_t = FlowQuery::DEFAULT_LIMIT)]
    pub limit: usize,
    /// Sort by age (oldest first), bytes (most first) or idle time (longest first)
    #[arg(long, value_name = "WHAT", default_value = "age", value_parser = PossibleValuesParser::new(FlowSort::ALL.map(FlowSort::name)))]
    pub sort: String,
    /// Print only the number of flows
    #[arg(long, conflicts_with_all = ["count_by", "limit", "sort"])]
    pub count: bool,
    /// Print the number of flows and their bytes for each client, server and so on
    #[arg(long, value_name = "WHAT", conflicts_with = "sort", value_parser = PossibleValuesParser::new(FlowGrouping::ALL.map(FlowGrouping::name)))]
    pub count_by: Option<String>,
    /// Print the response of the control API, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Commands on flows.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum FlowsCommand {
    /// End flows: convey resets the client and the server of a connection
    Kill {
        /// IDs of flows, from the list of `convey flows`
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}
