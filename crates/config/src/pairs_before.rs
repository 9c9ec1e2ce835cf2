//! The certificates of the configuration that was loaded last: where a pair of a folder is broken, a reload keeps the one before. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Config;
use convey_model::CertificatePair;

/// Pairs by the path of their chain.
#[derive(Debug, Clone, Default)]
pub struct PairsBefore(BTreeMap<PathBuf, CertificatePair>);

impl PairsBefore {
    /// Those of a configuration.
    pub fn of(config: &Config) -> PairsBefore {
        let tables = config.frontends.iter().filter_map(|frontend| frontend.tls.as_ref());
        let pairs = tables.flat_map(|tls| &tls.certificates);
        PairsBefore(pairs.map(|pair| (pair.chain_path.clone(), pair.clone())).collect())
    }

    /// The one whose chain was here.
    pub(super) fn get(&self, chain: &Path) -> Option<&CertificatePair> {
        self.0.get(chain)
    }
}
