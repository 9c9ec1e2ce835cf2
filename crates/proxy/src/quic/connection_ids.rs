//! Generator of connection ids, for the QUIC library.

use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};

use super::steering::{ConnectionIdLayout, ID_LEN};

/// Generator of the connection ids of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerIds(ConnectionIdLayout);

impl WorkerIds {
    /// Creates a generator of connection ids with this layout.
    pub(super) fn new(layout: ConnectionIdLayout) -> WorkerIds {
        WorkerIds(layout)
    }
}

impl ConnectionIdGenerator for WorkerIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.id(convey_random::secret()))
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
