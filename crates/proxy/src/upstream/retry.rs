//! The retry policy, one for connections and datagrams.
//!
//! - A client tries [`MAX_ATTEMPTS`] servers, and none of them twice.
//! - convey passes over a server that failed the client in newer snapshots, too.
//! - A shortage of this host ends the attempts. Only local ports are short towards one server alone.
//!
//! The caller limits the time of each attempt (`timeouts.connect`) and the wait for a slot (the same).

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::sync::mpsc;

use super::outcome::is_host_shortage;
use super::{Downstream, Permit, Unavailable};
use convey_model::ConnectFailures;
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pick, Pool};

/// Servers tried for one client's connection or datagram: the first and three others.
const MAX_ATTEMPTS: u32 = 4;

/// Servers may refuse a request so often, having done nothing of it: one that ends its connections in order refuses all that were on
/// their way.
const MAX_REFUSALS: u32 = 16;

/// What one client has tried. It allocates only once a server has failed.
#[derive(Debug, Default)]
pub struct Attempts {
    used: u32,
    /// How often it was refused in order.
    refusals: u32,
    /// The server that is tried first, by id.
    preferred: Option<u32>,
    /// Servers that are not tried again, by id.
    passed_over: Vec<u32>,
    /// Why there is no other server, once one has failed.
    reason: Option<Unavailable>,
}

impl Attempts {
    /// A permit for a server that has not failed this client.
    ///
    /// # Errors
    /// Why there is none. [`Unavailable::Full`] may be over soon.
    pub(crate) fn next(&mut self, downstream: &Downstream, pool: &Arc<Pool>) -> Result<Permit, Unavailable> {
        if self.are_over() {
            return Err(self.reason());
        }
        let tried = self.tried_in(pool);
        let preferred = self.take_preferred(pool, downstream);
        let permit = loop {
            if let Some(permit) = preferred {
                break permit;
            }
            match pool.pick_for(downstream.request, downstream.client, downstream.vip, &tried) {
                Pick::Server(index) => {
                    // `None`: another worker took the last slot since the pick.
                    if let Some(permit) = Permit::take(pool, index, downstream) {
                        break permit;
                    }
                }
                Pick::Busy => return Err(Unavailable::Full),
                Pick::Nobody => return Err(self.reason()),
            }
        };
        if !self.passed_over.is_empty() {
            permit.count(Counter::Retries, 1);
        }
        Ok(permit)
    }

    /// The server with this number is tried first, if it can be chosen then.
    pub fn prefer(&mut self, server: u32) {
        self.preferred = Some(server);
    }

    fn take_preferred(&mut self, pool: &Arc<Pool>, downstream: &Downstream) -> Option<Permit> {
        let preferred = self.preferred.take()?;
        let index = pool.servers.iter().position(|server| server.live.id == preferred)?;
        if pool.is_eligible(index) { Permit::take(pool, index, downstream) } else { None }
    }

    /// The server has failed this client: health is told, and another server is next.
    pub fn failed(&mut self, permit: &Permit, error: &io::Error, failures: &mpsc::Sender<ConnectFailures>) {
        permit.failed(error, failures);
        self.pass_over(permit);
        self.used += 1;
        if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
            self.reason = Some(Unavailable::NoLocalPort);
        } else if is_host_shortage(error) {
            (self.used, self.reason) = (MAX_ATTEMPTS, Some(Unavailable::NoResources));
        }
    }

    /// The server is not the next one, though it has not failed in these attempts.
    pub fn pass_over(&mut self, permit: &Permit) {
        self.passed_over.push(permit.server().live.id);
        self.reason = self.reason.or(Some(Unavailable::Failed));
    }

    /// The same server is tried again.
    pub fn repeat(&mut self) {
        self.used += 1;
    }

    /// The server has done nothing of the request, and says so: no failure. Whether it may be asked once more.
    pub fn was_refused(&mut self) -> bool {
        self.refusals += 1;
        self.refusals <= MAX_REFUSALS
    }

    /// Whether one has failed already.
    pub fn have_begun(&self) -> bool {
        self.used > 0
    }

    /// Whether the client has used up what it may try.
    pub fn are_over(&self) -> bool {
        self.used >= MAX_ATTEMPTS
    }

    /// Why there is no other server.
    pub(super) fn reason(&self) -> Unavailable {
        self.reason.unwrap_or(Unavailable::NoServer)
    }

    /// The indices of the servers that are not tried again.
    fn tried_in(&self, pool: &Pool) -> Vec<usize> {
        if self.passed_over.is_empty() {
            return Vec::new();
        }
        let is_tried = |index: &usize| self.passed_over.contains(&pool.servers[*index].live.id);
        (0..pool.servers.len()).filter(is_tried).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::testing::{client, fail, pool};
    use super::*;
    use convey_snapshot::fixture::with_servers;

    #[test]
    fn a_client_tries_four_servers_and_none_of_them_twice() {
        let (pool, mut attempts, mut tried) = (pool(9, None), Attempts::default(), HashSet::new());
        while let Ok(permit) = attempts.next(&client(), &pool) {
            tried.insert(permit.server().live.id);
            assert!(fail(&mut attempts, &permit, Errno::CONNREFUSED).is_some());
        }
        assert_eq!(tried.len(), 4);
        assert_eq!(attempts.next(&client(), &pool).err(), Some(Unavailable::Failed));
        assert_eq!(pool.live.traffic.sum(Counter::Retries), 3);
    }

    #[test]
    fn a_server_that_failed_is_passed_over_in_a_newer_snapshot_too() {
        let (pool, mut attempts) = (pool(2, None), Attempts::default());
        let failed = attempts.next(&client(), &pool).unwrap();
        fail(&mut attempts, &failed, Errno::CONNREFUSED);
        let newer = with_servers(&pool, pool.servers.iter().rev().cloned().collect());
        let next = attempts.next(&client(), &newer).unwrap();
        assert_ne!(next.server().live.id, failed.server().live.id);
        fail(&mut attempts, &next, Errno::CONNREFUSED);
        assert_eq!(attempts.next(&client(), &newer).err(), Some(Unavailable::Failed), "two of four attempts");
    }

    #[test]
    fn the_reason_says_whose_fault_it_is() {
        let next_after = |servers, errno| {
            let (pool, mut attempts) = (pool(servers, None), Attempts::default());
            if let Ok(permit) = attempts.next(&client(), &pool) {
                let told = fail(&mut attempts, &permit, errno);
                assert_eq!(told.is_some(), errno == Errno::CONNREFUSED, "{errno:?}");
            }
            attempts.next(&client(), &pool).map(drop)
        };
        assert_eq!(next_after(0, Errno::CONNREFUSED), Err(Unavailable::NoServer));
        assert_eq!(next_after(1, Errno::CONNREFUSED), Err(Unavailable::Failed));
        assert_eq!(next_after(1, Errno::ADDRNOTAVAIL), Err(Unavailable::NoLocalPort));
        assert_eq!(next_after(2, Errno::ADDRNOTAVAIL), Ok(()), "there are ports towards another server");
        assert_eq!(
            next_after(2, Errno::MFILE),
            Err(Unavailable::NoResources),
            "another server needs one, too"
        );
        assert_eq!(next_after(2, Errno::AGAIN), Err(Unavailable::NoResources), "UDP: no port");
    }

    #[test]
    fn a_full_server_is_no_failed_attempt_and_its_slot_is_given_back() {
        let (pool, mut attempts) = (pool(1, Some(1)), Attempts::default());
        let other = attempts.next(&client(), &pool).unwrap();
        (0..9).for_each(|_| {
            assert_eq!(attempts.next(&client(), &pool).err(), Some(Unavailable::Full));
        });
        drop(other);
        assert!(attempts.next(&client(), &pool).is_ok());
    }
}
