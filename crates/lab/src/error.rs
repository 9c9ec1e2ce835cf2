//! The errors of a lab.

use std::io;

/// Why there is no lab, or why it does not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root may make network namespaces.
    #[error("a lab of network namespaces needs root; try sudo")]
    NotRoot,
    /// A program that the lab is made with is not installed.
    #[error("{program} is not installed (Debian package {package})")]
    Missing {
        /// The program that could not be started.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A program refused.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// The whole command.
        command: String,
        /// Its standard error.
        said: String,
    },
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}
