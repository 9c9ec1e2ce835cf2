//! Errors of a lab.

use std::io;

/// Errors of lab networks.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root may create network namespaces.
    #[error("a lab of network namespaces needs root; try sudo")]
    NotRoot,
    /// A program that the lab needs is not installed.
    #[error("{program} is not installed (Debian package {package})")]
    Missing {
        /// Name of the program.
        program: &'static str,
        /// Package that contains the program.
        package: &'static str,
    },
    /// A program failed.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// Command line that failed.
        command: String,
        /// Standard error of the command.
        said: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// Attempted operation, as text that follows the word "cannot".
        what: String,
        /// The system's error.
        source: io::Error,
    },
}
