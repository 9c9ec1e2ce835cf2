//! Log levels.

use crate::Timestamp;

/// Log level of a line; as a setting, the least important level that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LogLevel {
    /// Clients are refused, or a requested action failed.
    Error,
    /// Something needs attention.
    Warn,
    /// Events of servers, and actions of the operator.
    #[default]
    Info,
    /// Events of single connections.
    Debug,
    /// Messages of libraries.
    Trace,
}

impl LogLevel {
    /// All levels, the most important first.
    pub const ALL: [LogLevel; 5] =
        [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// Name in the configuration and on the command line.
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

/// Log level that an operator set at runtime. It overrides all other settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidLogLevel {
    /// Least important level that is written.
    pub level: LogLevel,
    /// Time at which the level was set.
    pub since: Timestamp,
    /// Operator-facing name of the person or program that set it.
    pub by: String,
}
