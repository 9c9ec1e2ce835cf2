//! State of servers whose record is missing from a DNS answer. Most of these servers return: a name
//! server with many addresses for a name returns only some of them, and others in each answer.
//! Pure.

use std::collections::HashMap;
use std::time::Duration;

use super::server::ServerEntry;
use convey_model::{ServerKey, Timestamp};

/// Time for which the state of a removed server is kept. Names are looked up at least every five
/// minutes, so two consecutive answers may lack a record.
const GRACE: Duration = Duration::from_secs(600);
/// Maximum number of removed servers that are kept, so that a name whose addresses change all the
/// time does not fill the memory.
const MAX_SERVERS: usize = 1_024;

/// Removed servers that may return, each with the end of its grace time and its state.
#[derive(Default)]
pub(super) struct DnsGrace(HashMap<ServerKey, (Timestamp, ServerEntry)>);

impl DnsGrace {
    /// Drops the servers whose grace time has ended.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.0.retain(|_, (until, _)| *until > now);
    }

    /// Adds removed servers. Beyond [`MAX_SERVERS`], drops the servers that were removed first.
    pub(super) fn add_removed(&mut self, gone: HashMap<ServerKey, ServerEntry>, now: Timestamp) {
        let until = now.after(GRACE);
        self.0.extend(gone.into_iter().map(|(server, entry)| (server, (until, entry))));
        let surplus = self.0.len().saturating_sub(MAX_SERVERS);
        if surplus > 0 {
            let mut first: Vec<_> =
                self.0.iter().map(|(server, (until, _))| (*until, server.clone())).collect();
            first.sort_unstable();
            first[..surplus].iter().for_each(|(_, server)| drop(self.0.remove(server)));
        }
    }

    /// Takes the state of a server that returns; `None` if the state was not kept.
    pub(super) fn take(&mut self, server: &ServerKey) -> Option<ServerEntry> {
        self.0.remove(server).map(|(_, entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use convey_snapshot::{ServerLive, fixture};

    fn server(n: u16) -> ServerKey {
        ServerKey { backend: "pool".into(), server: "app".into(), addr: ([10, 0, 0, 3], n).into() }
    }

    fn entry(n: u16) -> ServerEntry {
        let live = Arc::new(ServerLive::new(n.into(), 1));
        ServerEntry::new(live, fixture::backend("pool", vec![]).health_check, Timestamp(0))
    }

    #[test]
    fn a_server_is_remembered_for_a_while_and_once() {
        let (mut grace, end) = (DnsGrace::default(), Timestamp(0).after(GRACE));
        grace.add_removed([1, 2].map(|n| (server(n), entry(n))).into(), Timestamp(0));
        grace.expire(Timestamp(end.0 - 1));
        assert_eq!(grace.take(&server(1)).unwrap().live().id, 1);
        assert!(grace.take(&server(1)).is_none(), "it has come back");
        grace.expire(end);
        assert!(grace.0.is_empty());
    }

    #[test]
    fn dns_grace_evicts_the_servers_that_left_first() {
        let mut grace = DnsGrace::default();
        for n in 0..=MAX_SERVERS as u16 {
            grace.add_removed([(server(n), entry(n))].into(), Timestamp(n.into()));
        }
        assert_eq!(grace.0.len(), MAX_SERVERS);
        assert!(grace.take(&server(0)).is_none() && grace.take(&server(1)).is_some());
    }
}
