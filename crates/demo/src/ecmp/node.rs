//! Balancer of the demo: BIRD, and convey in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use convey_api::StatsReport;
use convey_cli::operator::Client;
use convey_lab::{EcmpLab, EcmpRole, LabError};
use convey_model::Mode;

/// Balancer of the demo, with its convey process.
#[derive(Debug)]
pub(super) struct Node {
    number: u8,
    mode: Mode,
    config: PathBuf,
    /// Common path of the balancer's log and control socket, without their file extensions.
    files: PathBuf,
    process: Option<Child>,
    /// Number of connections that this process had begun to forward at the last read.
    begun: u64,
}

impl Node {
    pub(super) fn new(number: u8, mode: Mode, config: &Path, folder: &Path) -> Node {
        let files = folder.join(format!("convey{number}"));
        Node { number, mode, config: config.to_owned(), files, process: None, begun: 0 }
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    /// Connects the balancer's network cable, and starts BIRD and convey.
    pub(super) fn start(&mut self, lab: &EcmpLab) -> Result<(), LabError> {
        lab.power_on(self.number)?;
        let refused = |source| LabError::System { what: format!("start balancer {}", self.number), source };
        let log = File::create(self.log()).map_err(refused)?;
        let program = std::env::current_exe().map_err(refused)?;
        let mut command = lab.command(EcmpRole::Balancer(self.number), program);
        command.arg(format!("--{}", self.mode.name())).arg("--config").arg(&self.config);
        command.arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(refused)?).stderr(log);
        // Ctrl-C goes only to the demo, which then ends the processes.
        command.process_group(0);
        self.process = Some(command.spawn().map_err(refused)?);
        self.begun = 0;
        Ok(())
    }

    /// Stops the balancer like a machine that loses power: neither BIRD nor convey closes its
    /// connections.
    pub(super) fn die(&mut self, lab: &EcmpLab) -> Result<(), LabError> {
        lab.power_off(self.number)?;
        self.kill();
        Ok(())
    }

    /// Number of connections that this balancer has begun to forward since the last call. `None` if
    /// the balancer does not answer.
    pub(super) async fn new_connections(&mut self) -> Option<u64> {
        self.process.as_ref()?;
        let client = Client::find(&[self.socket()]).await.ok()?;
        let StatsReport { total_connections, .. } = client.get("/v1/status").await.ok()?;
        let new = total_connections.saturating_sub(self.begun);
        self.begun = total_connections;
        Some(new)
    }

    /// Last lines of the balancer's log.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.iter().skip(lines.len().saturating_sub(3));
        last.map(|line| format!("balancer {}: {line}\n", self.number)).collect()
    }

    fn log(&self) -> PathBuf {
        self.files.with_extension("log")
    }

    fn socket(&self) -> PathBuf {
        self.files.with_extension("sock")
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
