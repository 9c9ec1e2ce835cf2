//! `convey flows`: which flows are listed, and how.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use convey_model::{FlowGrouping, FlowQuery, FlowSort, Target};

use super::duration::duration;
use super::operate;

/// Which flows, and how they are shown.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct FlowsArgs {
    /// What to do instead of listing them
    #[command(subcommand)]
    pub command: Option<FlowsCommand>,
    /// Of clients at these addresses
    #[arg(long, value_name = "IP[/LEN][:PORT]")]
    pub client: Option<String>,
    /// To this server
    #[arg(long, value_name = "BACKEND/SERVER", value_parser = operate::server)]
    pub server: Option<Target>,
    /// Of this frontend
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// To servers of this backend
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub backend: Option<String>,
    /// In this state, such as `established`
    #[arg(long, value_name = "NAME")]
    pub state: Option<String>,
    /// That began at least so long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// That have been silent for at least so long
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub idle: Option<Duration>,
    /// Of which at least so many bytes have passed, in both directions
    #[arg(long, value_name = "N")]
    pub min_bytes: Option<u64>,
    /// The most flows, or groups, that are shown
    #[arg(long, value_name = "N", default_value_t = FlowQuery::DEFAULT_LIMIT)]
    pub limit: usize,
    /// Which of them come first: the oldest, those with the most bytes, or those that have been silent for longest
    #[arg(long, value_name = "WHAT", default_value = "age", value_parser = PossibleValuesParser::new(FlowSort::ALL.map(FlowSort::name)))]
    pub sort: String,
    /// Say only how many there are
    #[arg(long, conflicts_with_all = ["count_by", "limit", "sort"])]
    pub count: bool,
    /// Say how many there are of each client, server and so on, and how many bytes
    #[arg(long, value_name = "WHAT", conflicts_with = "sort", value_parser = PossibleValuesParser::new(FlowGrouping::ALL.map(FlowGrouping::name)))]
    pub count_by: Option<String>,
    /// Print the answer of the control API, as JSON
    #[arg(long)]
    pub json: bool,
}

/// What becomes of flows.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum FlowsCommand {
    /// End flows: client and server of a connection are sent a reset
    Kill {
        /// What `convey flows` calls them
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}
