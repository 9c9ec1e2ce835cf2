//! Runs the load generator wrk.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::need::tool;
use super::{Loopback, Process};

/// Running wrk that opens a new connection for every request.
pub struct Wrk {
    process: Process,
    output: PathBuf,
}

/// Summary that wrk prints when it ends.
#[derive(Debug)]
pub struct Summary {
    /// Number of answered requests.
    pub requests: u64,
    /// Number of failures: failed connects, reads and writes, requests that took longer than ten
    /// seconds, and responses with an error status.
    pub failed: u64,
    /// Whole text of the summary.
    pub text: String,
}

impl Wrk {
    /// Starts wrk with `connections` concurrent connections.
    pub fn start(lab: &Loopback, target: SocketAddr, connections: u32) -> Wrk {
        Wrk::spawn(Command::new(tool("wrk").unwrap()), lab.directory(), target, connections)
    }

    /// Starts wrk with a custom command.
    pub fn spawn(mut command: Command, directory: &Path, target: SocketAddr, connections: u32) -> Wrk {
        let output = directory.join("wrk");
        let connections = connections.to_string();
        command.args(["-t", "1", "-c", &connections, "-d", "60s", "--timeout", "10s"]);
        command.args(["-H", "Connection: close"]).arg(format!("http://{target}/"));
        let process = Process::spawn(command.stdout(File::create(&output).unwrap()));
        Wrk { process, output }
    }

    /// Stops wrk and reads its summary.
    pub fn stop(mut self) -> Summary {
        self.process.signal(Signal::INT);
        self.process.wait();
        let text = fs::read_to_string(&self.output).unwrap();
        let first_number = |line: &str| line.split_whitespace().next().and_then(|word| word.parse().ok());
        let requests = text.lines().find(|line| line.contains(" requests in ")).and_then(first_number);
        let errors = text.lines().find(|line| line.contains("Socket errors:")).unwrap_or_default();
        let status = text.lines().find(|line| line.contains("Non-2xx")).unwrap_or_default();
        let numbers = |line: &str| -> u64 {
            let words = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
            words.sum()
        };
        // Example of the line: "Non-2xx or 3xx responses: 5"
        let other_status = status.rsplit(' ').next().map_or(0, numbers);
        let requests = requests.unwrap_or_else(|| panic!("no summary from wrk: {text}"));
        Summary { requests, failed: numbers(errors) + other_status, text }
    }
}
