//! Waits of a connection for room in its client's share, and for a slot of its frontend.

use std::mem;
use std::pin::pin;
use std::sync::Arc;

use tokio::time::timeout;

use super::{TcpSession, reason_of};
use crate::clients::Waiting;
use convey_snapshot::SLOT_RECHECK;
use convey_snapshot::stats::Counter;
use convey_trace::ConnectionStep;

impl TcpSession {
    /// Whether the connection waits in the queue, because the client has used up its share of the
    /// frontend.
    pub(crate) fn is_beyond_share(&self) -> bool {
        self.waiting.is_some()
    }

    /// If the connection waits for its client's share of the frontend, waits until the client has
    /// room there, and then for a slot. The wait for the share takes at most `timeouts.connect`.
    ///
    /// # Errors
    /// Reason of the end, if the client had no room within `timeouts.connect`.
    pub(crate) async fn wait_for_share(&mut self) -> Result<(), Counter> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        self.trace(None, ConnectionStep::Waits);
        let live = self.frontend.live.clone();
        let waits = live.waiters.enter();
        let turn = timeout(self.timeouts.connect(), self.wait_for_turn(&mut waiting));
        turn.await.map_err(|_| Counter::ClientLimit)?;
        drop((waiting, waits));
        self.wait_for_slot().await;
        // The client may have room for another waiting connection.
        self.context.clients.call_next(&self.frontend, self.client_ip());
        Ok(())
    }

    /// Waits until the connection is the first in its client's queue, and the client has room.
    async fn wait_for_turn(&mut self, waiting: &mut Waiting) {
        loop {
            let live = self.frontend.live.clone();
            let mut changed = pin!(live.share_changed.notified());
            changed.as_mut().enable();
            // Loads the snapshot after the registration with `share_changed`, so that no later
            // change is missed.
            self.reload();
            if !Arc::ptr_eq(&live, &self.frontend.live) {
                continue;
            }
            let clients = &self.context.clients;
            if clients.count_waiting(&self.frontend, self.client_ip(), &mut self.counted, waiting) {
                return;
            }
            tokio::select! {
                () = waiting.called() => {}
                () = changed => {}
            }
        }
    }

    /// Waits for a connection slot of the frontend.
    ///
    /// # Errors
    /// A reload has denied the client meanwhile, or an operator has ended the connection.
    pub(crate) async fn wait_for_slot_or_denial(&mut self) -> Result<(), Counter> {
        let denied = self.entry.over();
        tokio::select! {
            biased;
            () = self.wait_for_slot() => Ok(()),
            end = denied => Err(reason_of(end).unwrap_or(Counter::AccessDenied)),
        }
    }

    /// Waits for a connection slot of the frontend.
    pub(crate) async fn wait_for_slot(&mut self) {
        if self.try_take_slot() {
            return;
        }
        self.trace(None, ConnectionStep::Waits);
        while !self.try_take_slot() {
            let live = self.frontend.live.clone();
            let _waits = live.waiters.enter();
            let mut freed = pin!(live.freed.notified());
            freed.as_mut().enable();
            // Loads the snapshot after the registration with `freed`, so that no later change is
            // missed.
            self.reload();
            if !Arc::ptr_eq(&live, &self.frontend.live) || self.try_take_slot() {
                continue;
            }
            while timeout(SLOT_RECHECK, freed.as_mut()).await.is_err() {
                if self.try_take_slot() {
                    return;
                }
            }
            // A reload may have replaced the frontend meanwhile.
            self.reload();
        }
    }

    /// Takes a connection slot if the frontend is below its limit. Returns whether the connection
    /// has a slot.
    pub(crate) fn try_take_slot(&mut self) -> bool {
        let live = &self.frontend.live;
        if self.slot.is_none() {
            self.slot = live.slots.try_take_on(self.context.core, self.frontend.config.max_connections);
            if self.slot.is_some() && !mem::replace(&mut self.is_open, true) {
                live.traffic.add(self.context.core, Counter::Opened, 1);
            }
        }
        self.slot.is_some()
    }

    /// Releases the connection slot, if there is one.
    pub(crate) fn release_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            let live = &self.frontend.live;
            live.slots.release_on(slot);
            if live.waiters.wait_for_slot() {
                live.freed.notify_one();
            }
        }
    }
}
