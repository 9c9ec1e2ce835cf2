//! Command line.

use std::net::SocketAddr;
use std::sync::OnceLock;

/// Parts of a load balancer that the relay has, its address and its servers.
#[derive(Debug)]
pub(crate) struct Options {
    /// Relay bytes instead of HTTP.
    pub(crate) tcp: bool,
    /// Find the route of each request among 100 routes.
    pub(crate) route: bool,
    /// Validate heads as convey does.
    pub(crate) strict: bool,
    /// Count requests, bytes, statuses and durations.
    pub(crate) counters: bool,
    /// Set a deadline for each wait.
    pub(crate) deadlines: bool,
    /// End idle connections at SIGTERM, and the others after their request.
    pub(crate) drain: bool,
    /// Bytes of each connection's memory that a request reads and writes.
    pub(crate) touch: usize,
    pub(crate) listen: SocketAddr,
    pub(crate) servers: Vec<SocketAddr>,
}

/// Bytes that `--all` touches.
const ALL_TOUCHES: usize = 2048;

static OPTIONS: OnceLock<Options> = OnceLock::new();

impl Options {
    /// Parses the arguments.
    ///
    /// # Errors
    /// A flag is unknown, or an address is missing or invalid.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let [mut tcp, mut route, mut strict, mut counters, mut deadlines, mut drain] = [false; 6];
        let (mut touch, mut addresses) = (0, Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--tcp" => tcp = true,
                "--route" => route = true,
                "--strict" => strict = true,
                "--counters" => counters = true,
                "--deadlines" => deadlines = true,
                "--drain" => drain = true,
                "--touch" => touch = number(arguments.next())?,
                "--all" => {
                    [route, strict, counters, deadlines, drain] = [true; 5];
                    touch = ALL_TOUCHES;
                }
                flag if flag.starts_with('-') => return Err(format!("unknown flag {flag}")),
                address => addresses.push(parsed(address)?),
            }
        }
        let (listen, servers) =
            addresses.split_first().ok_or("usage: floor-peer [FLAGS] LISTEN SERVER...")?;
        if servers.is_empty() {
            return Err("no server is given".to_owned());
        }
        let (listen, servers) = (*listen, servers.to_vec());
        Ok(Options { tcp, route, strict, counters, deadlines, drain, touch, listen, servers })
    }

    /// Makes these the options of all workers.
    pub(crate) fn publish(self) -> &'static Options {
        OPTIONS.get_or_init(|| self)
    }

    /// Options of all workers.
    pub(crate) fn get() -> &'static Options {
        OPTIONS.get().expect("main publishes them first")
    }
}

fn number(argument: Option<String>) -> Result<usize, String> {
    let argument = argument.ok_or("--touch takes a number of bytes")?;
    argument.parse().map_err(|_| format!("{argument:?} is no number of bytes"))
}

fn parsed(address: &str) -> Result<SocketAddr, String> {
    address.parse().map_err(|_| format!("{address:?} is no address with a port"))
}
