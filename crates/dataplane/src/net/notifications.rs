//! Change notifications of the kernel (rtnetlink) that have not been processed yet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use tokio::sync::Notify;

use super::table::NeighbourChange;

/// Maximum number of stored neighbour notifications. Beyond this, reading the whole table is
/// cheaper.
const MAX_EVENTS: usize = 4_096;

/// Notifications since the last call of `take`.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    changed: Notify,
    pending: Mutex<Pending>,
}

/// Changes since the notifications were last taken.
#[derive(Debug)]
pub(super) enum Pending {
    /// Only these neighbours have changed; the changes are in order.
    Neighbours(Vec<NeighbourChange>),
    /// Anything may have changed.
    Any,
}

impl Default for Pending {
    fn default() -> Self {
        Pending::Neighbours(Vec::new())
    }
}

impl Notifications {
    /// Adds a notification. Any message that is not about a neighbour marks everything as changed.
    pub(super) fn note(&self, message: &NetlinkMessage<RouteNetlinkMessage>) {
        let neighbour = match &message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                NeighbourChange::new(entry)
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(entry)) => {
                NeighbourChange::deleted(entry)
            }
            _ => return self.anything(),
        };
        // `None` for a bridge's forwarding entry, for example: a bridge reports every host behind
        // it.
        let Some(neighbour) = neighbour else { return };
        let mut pending = self.pending();
        match &mut *pending {
            Pending::Neighbours(neighbours) if neighbours.len() < MAX_EVENTS => neighbours.push(neighbour),
            pending => *pending = Pending::Any,
        }
        self.changed.notify_one();
    }

    /// Marks everything as changed.
    pub(super) fn anything(&self) {
        *self.pending() = Pending::Any;
        self.changed.notify_one();
    }

    /// Waits until a notification has arrived since the last call.
    pub(super) async fn wait(&self) {
        self.changed.notified().await;
    }

    /// Takes the changes since the last call.
    pub(super) fn take(&self) -> Pending {
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
