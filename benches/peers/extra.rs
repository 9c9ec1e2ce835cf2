//! Peers that are compared only on request.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::feature::Feature;

/// Further peers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Extra {
    /// Another build of convey to compare with; results are not kept
    #[arg(long, value_name = "BINARY")]
    pub(crate) before: Option<PathBuf>,
    /// The proxy made of pingora to compare with in mode http: benches/pingora, built with
    /// --release
    #[arg(long, value_name = "BINARY")]
    pub(crate) pingora: Option<PathBuf>,
    /// The floor, built with --release; if not given, the benchmark builds benches/floor itself
    #[arg(long, value_name = "BINARY")]
    pub(crate) floor: Option<PathBuf>,
    /// Also convey with a feature switched on; may be repeated; results are not kept
    #[arg(long, value_name = "FEATURE")]
    pub(crate) with: Vec<Feature>,
}

impl Extra {
    /// Checks that the programs exist.
    pub(crate) fn check(&self) -> Result<()> {
        for program in self.before.iter().chain(&self.pingora).chain(&self.floor) {
            ensure!(program.is_file(), "there is no program {}", program.display());
        }
        Ok(())
    }

    /// Whether the results may be published.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.before.is_none() && self.with.is_empty()
    }
}
