//! The arguments of `convey trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::duration::duration;

/// Filters, limits and format of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TraceArgs {
    /// Show only these clients, selected by their own address or by the address in a PROXY header
    #[arg(long, value_name = "IP[/LEN][:PORT]")]
    pub client: Option<String>,
    /// Show only this frontend
    #[arg(long, value_name = "NAME")]
    pub frontend: Option<String>,
    /// Show only this server, from the moment it is chosen
    #[arg(long, value_name = "BACKEND/SERVER")]
    pub server: Option<String>,
    /// Show only drops, refusals and early ends; with a reason, only those with that reason
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "any")]
    pub drops: Option<String>,
    /// Show only requests with this method
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Show only requests for this host; *.DOMAIN is each host below DOMAIN
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Show only requests whose path and query begin with this
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// Show only requests of this route
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// Show only requests with this status, or a status of this class, such as 404 or 5xx
    #[arg(long, value_name = "STATUS")]
    pub status: Option<String>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Show one in this many connections or flows, with all of its events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: Option<u32>,
    /// Show at most this many events a second; a line shows how many are left out
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Print a line of JSON for each event
    #[arg(long)]
    pub json: bool,
    /// Also write received and sent packets to this file (packet modes; pcapng, 256 bytes of each);
    /// `-` is standard output, and then no events are printed
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}
