//! Errors of a lab.

use std::io;

/// Errors of building and operating a lab.
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
        /// The whole command.
        command: String,
        /// Its standard error.
        said: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}
