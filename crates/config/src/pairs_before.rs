//! Certificates of the last loaded configuration. If a pair in a folder is broken, a reload keeps
//! the previous pair. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Config;
use convey_model::CertificatePair;

/// Pairs by the path of their chain.
#[derive(Debug, Clone, Default)]
pub struct PairsBefore(BTreeMap<PathBuf, CertificatePair>);

impl PairsBefore {
    /// Pairs of a configuration.
    pub fn of(config: &Config) -> PairsBefore {
        let tables = config.frontends.iter().filter_map(|frontend| frontend.tls.as_ref());
        let pairs = tables.flat_map(|tls| &tls.certificates);
        PairsBefore(pairs.map(|pair| (pair.chain_path.clone(), pair.clone())).collect())
    }

    /// Pair with the chain at this path.
    pub(super) fn get(&self, chain: &Path) -> Option<&CertificatePair> {
        self.0.get(chain)
    }
}
