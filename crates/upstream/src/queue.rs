//! Queue for a connection slot while every server is at its `max_connections`. First come, first
//! served, across all workers.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::{Attempts, Permit, PickContext, Unavailable};
use convey_snapshot::{Pool, SLOT_RECHECK, WorkerArc};

impl Attempts {
    /// Picks the next server, unless other clients are waiting in the queue.
    ///
    /// # Errors
    /// [`Unavailable::Full`] if other clients are waiting, or no slot is free; otherwise the reason
    /// why no server is available.
    pub fn next_at_once(
        &mut self,
        pick: &PickContext,
        pool: &WorkerArc<Pool>,
    ) -> Result<Permit, Unavailable> {
        if let Some(permit) = self.ahead.take() {
            return Ok(*permit);
        }
        if self.are_over() {
            return Err(self.reason());
        }
        if pool.is_limited() && pool.live.queue.try_lock().is_err() {
            return Err(Unavailable::Full);
        }
        self.next(pick, pool)
    }

    /// Picks the next server. If other clients are waiting in the queue, or no slot is free, this
    /// client waits in the queue for at most `patience`. `newest` returns the current pool, because
    /// servers and limits may change during the wait.
    ///
    /// # Errors
    /// [`Unavailable::Full`] if no slot became free in time; otherwise the reason why no server is
    /// available.
    pub async fn next_in_turn(
        &mut self,
        pick: &PickContext,
        pool: &WorkerArc<Pool>,
        patience: Duration,
        newest: impl Fn() -> WorkerArc<Pool>,
    ) -> Result<Permit, Unavailable> {
        match self.next_at_once(pick, pool) {
            Err(Unavailable::Full) => {}
            found => return found,
        }
        let give_up = Instant::now() + patience;
        // The future is boxed, so that clients that do not wait hold no memory for it.
        let queued = Box::pin(self.queue(pick, newest));
        timeout_at(give_up, queued).await.unwrap_or(Err(Unavailable::Full))
    }

    async fn queue(
        &mut self,
        pick: &PickContext,
        newest: impl Fn() -> WorkerArc<Pool>,
    ) -> Result<Permit, Unavailable> {
        loop {
            let live = newest().live.clone();
            let _waits = live.waiters.enter();
            let _turn = live.queue.lock().await;
            loop {
                let mut freed = pin!(live.freed.notified());
                freed.as_mut().enable();
                // Loads the pool after the registration with `freed`, so that no later change is
                // missed.
                let pool = newest();
                if !Arc::ptr_eq(&live, &pool.live) {
                    break; // the frontend has another backend, with a queue of its own
                }
                match self.next(pick, &pool) {
                    Err(Unavailable::Full) => drop(timeout(SLOT_RECHECK, freed).await),
                    found => return found,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt;
    use rustix::io::Errno;

    use super::*;
    use crate::testing::{client, fail, pool};
    use convey_snapshot::fixture::with_servers;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// Waits for a permit of the newest pool, for a client whose first attempt this is.
    async fn wait(newest: &Mutex<WorkerArc<Pool>>) -> Result<Permit, Unavailable> {
        let now = || newest.lock().unwrap().clone();
        Attempts::default().next_in_turn(&client(), &now(), PATIENCE, now).await
    }

    #[tokio::test(start_paused = true)]
    async fn freed_slot_goes_to_the_first_in_the_queue() {
        let newest = Mutex::new(pool(1, Some(1)));
        let open = wait(&newest).await.unwrap();
        let (mut first, mut second) = (Box::pin(wait(&newest)), Box::pin(wait(&newest)));
        assert!(!open.is_wanted());
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        assert!(open.is_wanted());
        drop(open);
        assert!((&mut second).now_or_never().is_none(), "it asks first");
        assert!(wait(&newest).now_or_never().is_none(), "it has just come");
        let open = first.now_or_never().unwrap().unwrap();
        assert!((&mut second).now_or_never().is_none());
        drop(open);
        assert!(second.now_or_never().unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn queued_client_is_refused_after_the_connect_timeout() {
        let newest = Mutex::new(pool(1, Some(1)));
        let _open = wait(&newest).await.unwrap();
        let start = Instant::now();
        let (one, other) = tokio::join!(wait(&newest), wait(&newest));
        assert_eq!([one.err(), other.err()], [Some(Unavailable::Full); 2]);
        let waited = start.elapsed();
        assert!((PATIENCE..PATIENCE + Duration::from_millis(10)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slot_from_before_the_limit_reaches_the_queued_client() {
        let newest = Mutex::new(pool(1, Some(1)));
        let live = newest.lock().unwrap().servers[0].live.clone();
        let before = live.slots.try_take_on(0, None).unwrap();
        let mut waits = Box::pin(wait(&newest));
        assert!((&mut waits).now_or_never().is_none());
        // The connection that releases the slot has missed the queued client.
        live.slots.release_on(before);
        assert!((&mut waits).now_or_never().is_none());
        assert!(waits.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn queued_client_sees_changes_of_its_backend_and_servers() {
        let full = pool(1, Some(1));
        let open = Mutex::new(full.clone());
        let open = wait(&open).await.unwrap();
        let snapshots = [pool(1, Some(1)), with_servers(&full, pool(2, Some(1)).servers.clone()).into()];
        for next in snapshots {
            let newest = Mutex::new(full.clone());
            let mut waits = Box::pin(wait(&newest));
            assert!((&mut waits).now_or_never().is_none());
            *newest.lock().unwrap() = next.clone();
            full.live.freed.notify_waiters();
            let permit = waits.now_or_never().unwrap().unwrap();
            assert_ne!(permit.server().live.id, open.server().live.id);
        }
        let newest = Mutex::new(full.clone());
        let mut waits = Box::pin(wait(&newest));
        assert!((&mut waits).now_or_never().is_none());
        *newest.lock().unwrap() = with_servers(&full, vec![]).into();
        full.live.freed.notify_waiters();
        assert_eq!(waits.now_or_never().unwrap().err(), Some(Unavailable::NoServer));
    }

    #[tokio::test(start_paused = true)]
    async fn client_without_attempts_left_does_not_queue() {
        let full = pool(2, Some(1));
        let mut attempts = Attempts::default();
        let short = attempts.next(&client(), &full).unwrap();
        fail(&mut attempts, &short, Errno::MFILE);
        let newest = Mutex::new(full.clone());
        let _open = wait(&newest).await.unwrap();
        let mut waits = Box::pin(wait(&newest));
        assert!((&mut waits).now_or_never().is_none(), "somebody queues");
        let (client, now) = (client(), || full.clone());
        let asks = attempts.next_in_turn(&client, &full, PATIENCE, now);
        assert_eq!(asks.now_or_never().unwrap().err(), Some(Unavailable::NoResources));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_server_is_not_picked_when_it_has_a_slot() {
        let (full, mut attempts) = (pool(2, Some(1)), Attempts::default());
        let failed = attempts.next(&client(), &full).unwrap();
        let _open = Attempts::default().next(&client(), &full).unwrap();
        fail(&mut attempts, &failed, Errno::CONNREFUSED);
        let newest = || full.clone();
        let client = client();
        let mut waits = Box::pin(attempts.next_in_turn(&client, &full, PATIENCE, newest));
        assert!((&mut waits).now_or_never().is_none());
        drop(failed);
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(waits.await.err(), Some(Unavailable::Full));
    }
}
