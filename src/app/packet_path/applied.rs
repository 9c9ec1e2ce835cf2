//! Comparison of snapshots: finds changes to captured and guarded traffic. Health alone is no such
//! change.

use std::sync::Arc;

use convey_model::{DrainingEndpoints, NextHops};
use convey_snapshot::{Places, Snapshot};

/// Part of a snapshot that decides which traffic is captured and guarded, and where.
pub(super) struct Applied {
    places: Arc<Places>,
    network: Arc<NextHops>,
    draining: Arc<DrainingEndpoints>,
}

impl Applied {
    pub(super) fn of(snapshot: &Snapshot) -> Applied {
        let Snapshot { places, network, draining, .. } = snapshot;
        Applied { places: places.clone(), network: network.clone(), draining: draining.clone() }
    }

    /// Whether this snapshot leads to the same decision.
    pub(super) fn is_of(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.places, &snapshot.places)
            && Arc::ptr_eq(&self.network, &snapshot.network)
            && Arc::ptr_eq(&self.draining, &snapshot.draining)
    }
}
