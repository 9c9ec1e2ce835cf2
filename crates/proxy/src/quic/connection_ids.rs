//! Connection ids, as the library asks for them.

use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};

use super::steering::{ConnectionIdLayout, ID_LEN};

/// Makes the ids of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerIds(ConnectionIdLayout);

impl WorkerIds {
    /// They have this in common.
    pub(super) fn new(layout: ConnectionIdLayout) -> WorkerIds {
        WorkerIds(layout)
    }
}

impl ConnectionIdGenerator for WorkerIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = [0; ID_LEN];
        if convey_tls::fill_random(&mut random).is_none() {
            // Ids have to differ; who shakes hands without randomness fails by itself.
            fastrand::fill(&mut random);
        }
        ConnectionId::new(&self.0.id(random))
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
