//! Report on a configuration in etcd, for `/stats`. Pure.

use std::time::{Duration, SystemTime};

use convey_api::EtcdReport;

use crate::RemoteState;

/// Report on etcd. `None` if the configuration is in a file.
pub(crate) fn etcd_report(state: &RemoteState, started: SystemTime) -> Option<EtcdReport> {
    let known = state.now();
    let (refused_revision, problems) =
        known.refused.map_or((None, Vec::new()), |refused| (Some(refused.number), refused.problems));
    Some(EtcdReport {
        address: known.address?,
        connected: known.is_connected,
        since: (started + Duration::from_nanos(known.since.0)).into(),
        error: known.fault,
        revision: known.revision,
        refused_revision,
        problems,
    })
}
