//! Retry policy for connections, datagrams and requests.
//!
//! - convey tries at most [`MAX_ATTEMPTS`] servers for a client, and each of them once.
//! - After a failure, the server is not tried again for this client, even if a new snapshot
//!   arrives.
//! - A shortage of this host ends the attempts. The exception is a shortage of local ports, which
//!   may concern only one server.
//! - If this host lacks the source address of a connection, only servers of the other address family
//!   are tried.
//!
//! The caller limits the time of each attempt and of the wait for a slot, each by
//! `timeouts.connect`.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use tokio::sync::mpsc;

use super::outcome::is_host_shortage;
use crate::{Permit, PickContext, Unavailable};
use convey_model::ConnectFailures;
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pick, Pool, Server, SourceError, WorkerArc};

/// Upper bound of the servers that convey tries for one connection, datagram or request.
const MAX_ATTEMPTS: u8 = 4;

/// Upper bound of the refusals of one request by servers that have not processed it. For example, a
/// server that shuts down its connections refuses all requests that are in flight.
const MAX_REFUSALS: u32 = 16;

/// Servers that convey has tried for one client. The list needs memory only after a failure.
#[derive(Debug)]
pub struct Attempts {
    used: u32,
    /// Maximum number of attempts.
    most: u8,
    /// Number of attempts that ended with a response, whose connection was fine.
    answered: u8,
    /// Number of refusals so far by servers that have not processed the request.
    refusals: u32,
    /// Server to try first.
    preferred: Option<Preferred>,
    /// Whether the client belongs to a server, which the first pick preferred.
    returns: bool,
    /// Servers that must not be tried again.
    passed_over: Vec<Excluded>,
    /// Server of the next attempt, if it is picked already.
    pub(super) ahead: Option<Box<Permit>>,
    /// Reason to return if there is no other server; `None` before the first failure.
    reason: Option<Unavailable>,
}

/// Servers that must not be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excluded {
    /// Server with this id.
    Server(u32),
    /// All servers to which connections come from this address, because this host lacks it.
    From(IpAddr),
}

impl Excluded {
    fn includes(self, server: &Server, pool: &Pool) -> bool {
        match self {
            Excluded::Server(id) => server.live.id == id,
            Excluded::From(source) => pool.config.source_to(server.config.addr.ip()) == Some(source),
        }
    }
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts {
            used: 0,
            most: MAX_ATTEMPTS,
            answered: 0,
            refusals: 0,
            preferred: None,
            passed_over: Vec::new(),
            ahead: None,
            returns: false,
            reason: None,
        }
    }
}

/// Server to try first.
#[derive(Debug, Clone, Copy)]
struct Preferred {
    /// Id of the server.
    server: u32,
    /// Whether the client belongs to the server.
    has_client: bool,
}

impl Attempts {
    /// Picks a server that has not failed in these attempts, without waiting in the queue.
    ///
    /// # Errors
    /// Reason why no server is available. After [`Unavailable::Full`], the client may wait for a
    /// slot.
    pub fn next(&mut self, pick: &PickContext, pool: &WorkerArc<Pool>) -> Result<Permit, Unavailable> {
        if self.are_over() {
            return Err(self.reason());
        }
        let tried = self.tried_in(pool);
        let preferred = self.take_preferred(pool, pick);
        let permit = loop {
            if let Some(permit) = preferred {
                break permit;
            }
            match pool.pick_for(pick.request, pick.client, pick.vip, &tried) {
                Pick::Server(index) => {
                    // If this returns `None`, another worker has taken the last slot since the
                    // pick: pick again.
                    if let Some(permit) = Permit::take(pool, index, pick) {
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

    /// Picks the server of the next attempt already now, if a server has a free slot and no client
    /// waits for one. Returns whether there is such a server.
    pub fn pick_ahead(&mut self, pick: &PickContext, pool: &WorkerArc<Pool>) -> bool {
        self.ahead = self.next_at_once(pick, pool).ok().map(Box::new);
        self.ahead.is_some()
    }

    /// Counts an attempt whose response the client does not get, and excludes its server from further
    /// attempts.
    pub fn note_refused_answer(&mut self, permit: &Permit) {
        self.repeat();
        self.answered = self.answered.saturating_add(1);
        self.pass_over(permit);
    }

    /// Replaces the usual maximum number of attempts.
    pub fn limit_to(&mut self, most: u8) {
        self.most = most;
    }

    /// Allows another attempt, in place of an attempt that failed without a fault of its server.
    pub fn allow_another(&mut self) {
        self.most = self.most.saturating_add(1);
    }

    /// Makes the next pick prefer the server with this id, if the server is eligible.
    pub fn prefer(&mut self, server: u32) {
        self.preferred = Some(Preferred { server, has_client: false });
    }

    /// Makes the next pick prefer the server with this id. The client belongs to this server, even
    /// if the server gets no new clients.
    pub fn return_to(&mut self, server: u32) {
        self.preferred = Some(Preferred { server, has_client: true });
        self.returns = true;
    }

    /// Whether the client belongs to a server ([`Attempts::return_to`]), even if it could not be
    /// picked.
    pub fn are_of_returning_client(&self) -> bool {
        self.returns
    }

    fn take_preferred(&mut self, pool: &WorkerArc<Pool>, pick: &PickContext) -> Option<Permit> {
        let preferred = self.preferred.take()?;
        let index = pool.servers.iter().position(|server| server.live.id == preferred.server)?;
        let may_serve = preferred.has_client || pool.is_eligible(index);
        if may_serve { Permit::take(pool, index, pick) } else { None }
    }

    /// Reports a failure of the server, and excludes it from further attempts.
    pub fn failed(&mut self, permit: &Permit, error: &io::Error, failures: &mpsc::Sender<ConnectFailures>) {
        permit.failed(error, failures);
        self.pass_over(permit);
        self.repeat();
        if let Some(fault) = SourceError::of(error) {
            if let SourceError::Missing(source) = fault {
                self.passed_over.push(Excluded::From(*source));
            }
        } else if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
            self.reason = Some(Unavailable::NoLocalPort);
        } else if is_host_shortage(error) {
            (self.used, self.reason) = (u32::MAX, Some(Unavailable::NoResources));
        }
    }

    /// Excludes the server from further attempts, although it has not failed in these attempts.
    pub fn pass_over(&mut self, permit: &Permit) {
        self.passed_over.push(Excluded::Server(permit.server().live.id));
        self.reason = self.reason.or(Some(Unavailable::Failed));
    }

    /// Counts a failed attempt after which the same server may be tried again.
    pub fn repeat(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// Counts a refusal by a server that has not processed the request. A refusal is not a failure.
    /// Returns whether convey may try again.
    pub fn was_refused(&mut self) -> bool {
        self.refusals += 1;
        self.refusals <= MAX_REFUSALS
    }

    /// Whether the connection of an attempt has failed already.
    pub fn have_begun(&self) -> bool {
        self.used > u32::from(self.answered)
    }

    /// Whether the client has used all its attempts.
    pub fn are_over(&self) -> bool {
        self.used >= u32::from(self.most)
    }

    /// Reason why no other server is available.
    pub(super) fn reason(&self) -> Unavailable {
        self.reason.unwrap_or(Unavailable::NoServer)
    }

    /// Indices of the servers that must not be tried again.
    fn tried_in(&self, pool: &Pool) -> Vec<usize> {
        if self.passed_over.is_empty() {
            return Vec::new();
        }
        let is_tried = |index: &usize| {
            self.passed_over.iter().any(|passed| passed.includes(&pool.servers[*index], pool))
        };
        (0..pool.servers.len()).filter(is_tried).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::{client, fail, pool};
    use convey_snapshot::fixture::{self, with_servers};
    use convey_snapshot::source_error;

    #[test]
    fn client_tries_four_servers_once_each() {
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
    fn failed_server_is_passed_over_in_a_newer_snapshot() {
        let (pool, mut attempts) = (pool(2, None), Attempts::default());
        let failed = attempts.next(&client(), &pool).unwrap();
        fail(&mut attempts, &failed, Errno::CONNREFUSED);
        let newer = with_servers(&pool, pool.servers.iter().rev().cloned().collect()).into();
        let next = attempts.next(&client(), &newer).unwrap();
        assert_ne!(next.server().live.id, failed.server().live.id);
        fail(&mut attempts, &next, Errno::CONNREFUSED);
        assert_eq!(attempts.next(&client(), &newer).err(), Some(Unavailable::Failed), "two of four attempts");
    }

    #[test]
    fn reason_distinguishes_faults_of_the_host_and_of_servers() {
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
    fn missing_source_leaves_the_servers_of_the_other_family() {
        let missing = IpAddr::from([192, 0, 2, 9]);
        let no_source = || source_error(Errno::ADDRNOTAVAIL.into(), missing);
        for has_ipv6 in [true, false] {
            let server = |n: u8| fixture::server(&n.to_string(), &format!("10.0.1.{n}:80"));
            let ipv6 = has_ipv6.then(|| fixture::server("c", "[2001:db8::1]:80"));
            let mut config = fixture::backend("web", (1..9).map(server).chain(ipv6).collect());
            config.source = vec![missing];
            let pool: WorkerArc<Pool> = fixture::pool_of(config).into();
            let mut attempts = Attempts::default();
            let (failures, mut reports) = mpsc::channel(1);
            let mut failed = 0;
            let found = loop {
                match attempts.next(&client(), &pool) {
                    Ok(permit) if permit.server().config.addr.is_ipv6() => break Ok(()),
                    Ok(permit) => attempts.failed(&permit, &no_source(), &failures),
                    Err(unavailable) => break Err(unavailable),
                }
                failed += 1;
            };
            assert!(failed <= 1, "{failed}");
            assert_eq!(found, if has_ipv6 { Ok(()) } else { Err(Unavailable::Failed) });
            assert!(reports.try_recv().is_err(), "no fault of the servers");
        }
    }

    #[test]
    fn full_server_is_no_failed_attempt() {
        let (pool, mut attempts) = (pool(1, Some(1)), Attempts::default());
        let other = attempts.next(&client(), &pool).unwrap();
        (0..9).for_each(|_| {
            assert_eq!(attempts.next(&client(), &pool).err(), Some(Unavailable::Full));
        });
        drop(other);
        assert!(attempts.next(&client(), &pool).is_ok());
    }
}
