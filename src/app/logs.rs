//! The log as the balancer sees it: what a file changes about it.

use std::io;

use log::info;

use crate::config::{self, Config, LogOutput};
use crate::logging::{Log, Outlet};

/// The log, and what is in force of the file's wishes.
pub(super) struct Logs {
    log: Log,
    output: LogOutput,
    /// Whether Landlock keeps convey to the folders of its start.
    is_kept: bool,
}

/// What a file wants, with everything opened that it takes.
pub(super) struct ReadyLogs {
    wanted: config::Log,
    /// Where lines go from now on, if that changes.
    outlet: Option<Outlet>,
}

impl Logs {
    /// A log that goes to standard error still.
    pub(super) fn new(log: Log, is_kept: bool) -> Logs {
        Logs { log, output: LogOutput::Stderr, is_kept }
    }

    /// Opens what the file names anew.
    ///
    /// # Errors
    /// It cannot be opened: in words for an operator. Nothing has changed.
    pub(super) fn prepare(&self, config: &Config) -> Result<ReadyLogs, String> {
        let (wanted, output) = (config.log.clone(), &config.log.output);
        let open = || Outlet::open(output).map_err(|error| self.problem(output, &error));
        let outlet = if *output == self.output { None } else { Some(open()?) };
        Ok(ReadyLogs { wanted, outlet })
    }

    /// Has it be so.
    pub(super) fn switch(&mut self, ReadyLogs { wanted, outlet }: ReadyLogs) {
        if outlet.is_some() && self.output == LogOutput::Stderr {
            info!("the log goes on in {}", wanted.output);
        }
        self.log.follow(&wanted, outlet);
        self.output = wanted.output;
    }

    fn problem(&self, output: &LogOutput, error: &io::Error) -> String {
        let problem = problem(output, error);
        if self.is_kept && error.kind() == io::ErrorKind::PermissionDenied {
            return problem
                + "; Landlock lets convey log to the folder of its start, and to /var/log: another one needs a restart";
        }
        problem
    }

    /// What opens files again.
    pub(super) fn log(&self) -> &Log {
        &self.log
    }
}

/// What keeps convey from logging where the file says.
pub(super) fn obstacle(config: &Config) -> Option<String> {
    let output = &config.log.output;
    Outlet::try_out(output).err().map(|error| problem(output, &error))
}

fn problem(output: &LogOutput, error: &io::Error) -> String {
    format!("cannot log to {output} (log.output): {error}")
}
