//! Notifications of the kernel (rtnetlink), until somebody takes them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use tokio::sync::Notify;

use super::table::NeighbourChange;

/// Notifications about neighbours that are kept. Where there are more, reading the whole table is cheaper.
const MAX_EVENTS: usize = 4_096;

/// The notifications since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    told: Notify,
    pending: Mutex<Pending>,
}

/// What has changed.
#[derive(Debug)]
pub(super) enum Pending {
    /// These neighbours, one after the other.
    Neighbours(Vec<NeighbourChange>),
    /// Anything.
    Any,
}

impl Default for Pending {
    fn default() -> Self {
        Pending::Neighbours(Vec::new())
    }
}

impl Notifications {
    /// Takes in a message. One that says that others were lost means anything.
    pub(super) fn hear(&self, message: &NetlinkMessage<RouteNetlinkMessage>) {
        let neighbour = match &message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                NeighbourChange::new(entry)
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(entry)) => {
                NeighbourChange::gone(entry)
            }
            _ => return self.anything(),
        };
        // None: it is a bridge's, say, which tells of every host behind it.
        let Some(neighbour) = neighbour else { return };
        let mut pending = self.pending();
        match &mut *pending {
            Pending::Neighbours(neighbours) if neighbours.len() < MAX_EVENTS => neighbours.push(neighbour),
            pending => *pending = Pending::Any,
        }
        self.told.notify_one();
    }

    /// Anything may have changed.
    pub(super) fn anything(&self) {
        *self.pending() = Pending::Any;
        self.told.notify_one();
    }

    /// Waits for a notification since this was last called.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// What has changed since this was last called.
    pub(super) fn take(&self) -> Pending {
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
