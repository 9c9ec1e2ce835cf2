//! How important the lines of the log are.

use crate::Timestamp;

/// How important a line is, and which lines are written: these and more important ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Clients are refused, or something that was asked for cannot be done.
    Error,
    /// Something needs attention.
    Warn,
    /// What happens to servers, and what the operator does.
    #[default]
    Info,
    /// What happens to single connections.
    Debug,
    /// What libraries say.
    Trace,
}

impl LogLevel {
    /// All of them, the most important first.
    pub const ALL: [LogLevel; 5] =
        [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// The name in the configuration and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// The level that an operator has said while the program runs, which goes before all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidLogLevel {
    /// The least important lines that are written.
    pub level: LogLevel,
    /// When.
    pub since: Timestamp,
    /// By whom, in words for an operator.
    pub by: String,
}
