//! Detects whether a new snapshot changes the captured and guarded traffic. A change of health
//! alone does not.

use std::sync::Arc;

use convey_model::{DrainingEndpoints, NextHops};
use convey_snapshot::{Places, Snapshot};

/// Part of a snapshot that determines which traffic is captured and guarded, and on which
/// interfaces.
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

    /// Whether this snapshot leads to the same captured and guarded traffic.
    pub(super) fn is_of(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.places, &snapshot.places)
            && Arc::ptr_eq(&self.network, &snapshot.network)
            && Arc::ptr_eq(&self.draining, &snapshot.draining)
    }
}
