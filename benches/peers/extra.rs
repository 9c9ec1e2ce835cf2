//! Who is compared only if the command line says so.

use std::path::PathBuf;

use anyhow::{Result, ensure};

/// Further peers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Extra {
    /// Another build of convey to compare with; results are not kept
    #[arg(long, value_name = "BINARY")]
    pub(crate) before: Option<PathBuf>,
    /// The proxy made of pingora to compare with in mode http: benches/pingora, built with --release
    #[arg(long, value_name = "BINARY")]
    pub(crate) pingora: Option<PathBuf>,
    /// Also convey with an access log in a file; results are not kept
    #[arg(long)]
    pub(crate) access_log: bool,
}

impl Extra {
    /// Makes sure that the programs are there.
    pub(crate) fn check(&self) -> Result<()> {
        for program in self.before.iter().chain(&self.pingora) {
            ensure!(program.is_file(), "there is no program {}", program.display());
        }
        Ok(())
    }

    /// Whether the results are those that everybody is to see.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.before.is_none() && !self.access_log
    }
}
