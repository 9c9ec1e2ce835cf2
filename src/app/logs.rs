//! The log and the access log: applies the logging settings of a configuration.

use std::io;
use std::iter;
use std::sync::Arc;

use convey_access_log::AccessLog;
use convey_config::{Config, LogLevel, LogOutput};
use convey_logging::{AccessWriter, Log, LogSink};
use log::{error, info};

use super::clock;

/// Configuration keys of the outputs of both logs.
const LOG: &str = "log.output";
const ACCESS_LOG: &str = "access_log.output";

/// The log and the access log, with the settings in force.
pub(super) struct Logs {
    files: LogFiles,
    output: LogOutput,
    access_output: Option<LogOutput>,
    /// Whether Landlock limits convey to the folders that it knew at its start.
    has_landlock: bool,
}

/// Logging settings of a configuration, with all outputs already open.
pub(super) struct ReadyLogs {
    wanted: convey_config::LogConfig,
    /// New destination of the log. `None` if the destination does not change.
    sink: Option<LogSink>,
    access_wanted: convey_config::AccessLogConfig,
    access_sink: Option<LogSink>,
}

/// Writers of both logs.
#[derive(Debug, Clone)]
pub(super) struct LogFiles {
    log: Log,
    access: AccessWriter,
}

impl LogFiles {
    /// Reopens both log files, for example after a rotation.
    pub(super) fn reopen(&self) {
        self.log.reopen();
        self.access.reopen();
    }

    /// Turns the access log off. Called when no more connections end in this process.
    pub(super) fn end_access_log(&self) {
        self.access.flush();
        self.access.turn_off();
    }

    /// Waits until the access log is written, at most one second.
    pub(super) fn flush(&self) {
        self.access.flush();
    }
}

impl Logs {
    /// Starts with the log on standard error, and without an access log.
    pub(super) fn new(log: Log, has_landlock: bool) -> Logs {
        let files = LogFiles { log, access: AccessWriter::new(clock::now, clock::start()) };
        Logs { files, output: LogOutput::Stderr, access_output: None, has_landlock }
    }

    /// Opens the outputs that differ from the current ones.
    ///
    /// # Errors
    /// An output cannot be opened: operator-facing message. The current settings stay in force.
    pub(super) fn prepare(&self, config: &Config) -> Result<ReadyLogs, String> {
        let (wanted, access_wanted) = (config.log.clone(), config.access_log.clone());
        let open = |output: &LogOutput, key| {
            LogSink::open(output).map_err(|error| self.problem(output, key, &error))
        };
        let sink = (wanted.output != self.output).then(|| open(&wanted.output, LOG));
        let access = access_wanted.output.as_ref().filter(|_| access_wanted.output != self.access_output);
        let access_sink = access.map(|output| open(output, ACCESS_LOG));
        let (sink, access_sink) = (sink.transpose()?, access_sink.transpose()?);
        Ok(ReadyLogs { wanted, sink, access_wanted, access_sink })
    }

    /// Puts the prepared settings into force.
    pub(super) fn switch(&mut self, ready: ReadyLogs) {
        let ReadyLogs { wanted, sink, access_wanted, access_sink } = ready;
        if sink.is_some() && self.output == LogOutput::Stderr {
            info!("the log continues in {}", wanted.output);
        }
        self.files.log.follow(&wanted, sink);
        self.output = wanted.output;
        let convey_config::AccessLogConfig { output, format, sample } = access_wanted;
        let access = &self.files.access;
        self.access_output = output.filter(|_| match access.turn_on(format, access_sink, sample) {
            Ok(()) => true,
            Err(error) => {
                error!("cannot start the access log: {error}");
                false
            }
        });
        if self.access_output.is_none() {
            access.turn_off();
        }
    }

    /// Sets the log level to an operator's override. `None` removes the override.
    pub(super) fn set_level(&self, said: Option<LogLevel>) {
        self.files.log.set_level(said);
    }

    fn problem(&self, output: &LogOutput, key: &str, error: &io::Error) -> String {
        let problem = problem(output, key, error);
        if self.has_landlock && error.kind() == io::ErrorKind::PermissionDenied {
            return problem
                + "; with Landlock, a reload can move the log only to /var/log or to the folder of a log at convey's start: restart convey for another folder";
        }
        problem
    }

    /// Handle with which both logs can be reopened.
    pub(super) fn files(&self) -> LogFiles {
        self.files.clone()
    }

    /// Access log in which the data path records ended connections.
    pub(super) fn access_log(&self) -> Arc<AccessLog> {
        self.files.access.log()
    }
}

/// Problems that prevent convey from writing the configured logs, one per line.
pub(super) fn obstacles(config: &Config) -> Vec<String> {
    let access = config.access_log.output.iter().map(|output| (output, ACCESS_LOG));
    let outputs = iter::once((&config.log.output, LOG)).chain(access);
    let obstacle = |(output, key)| LogSink::try_out(output).err().map(|error| problem(output, key, &error));
    outputs.filter_map(obstacle).collect()
}

fn problem(output: &LogOutput, key: &str, error: &io::Error) -> String {
    format!("cannot log to {output} ({key}): {error}")
}
