//! The arguments of `convey trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration::duration;

/// What is shown, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TraceArgs {
    /// Show these clients alone; also who comes by a PROXY header
    #[arg(long, value_name = "IP[/LEN][:PORT]")]
    pub client: Option<String>,
    /// Show this frontend alone
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// Show this server alone, from when it is chosen
    #[arg(long, value_name = "BACKEND/SERVER")]
    pub server: Option<String>,
    /// Show only what is dropped, refused or ends early; with a reason, only for that one
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "any")]
    pub drops: Option<String>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Show one in this many connections or flows, with all of its events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: Option<u32>,
    /// Show at most this many events a second; a line says how many are left out
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Print a line of JSON for each event
    #[arg(long)]
    pub json: bool,
    /// Write packets to this file as well, as they came and as they went (packet modes; pcapng, 256 bytes of each); `-` is standard output, and no event is printed then
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}
