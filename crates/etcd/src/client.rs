//! Client that reads and watches the keys below a prefix, and reports the status of the
//! configuration.

use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::json;
use thiserror::Error;

use crate::answer::{Authenticated, EtcdLease, Range, WatchLine, encoded};
use crate::connection::{Lines, MemberConnection};
use crate::tls::client_config;
use crate::{EtcdAddress, Revision, RevisionFault};

/// Lifetime of a node's status after its last renewal, in seconds.
const STATUS_LIFETIME: u64 = 60;

/// Path of requests that read keys.
const RANGE: &str = "/v3/kv/range";

/// Reason why a configuration cannot be read, or a status cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EtcdFault {
    /// No member answers, or the member refuses the request. The text is an operator-facing
    /// message.
    #[error("{0}")]
    Unreachable(String),
    /// The keys are not a configuration.
    #[error("revision {number}: {fault}")]
    NoConfiguration {
        /// The newest revision below the prefix.
        number: i64,
        /// Reason why the keys are not a configuration.
        fault: RevisionFault,
    },
}

impl From<String> for EtcdFault {
    fn from(why: String) -> EtcdFault {
        EtcdFault::Unreachable(why)
    }
}

/// Client of etcd that is connected to one member.
pub struct EtcdClient {
    address: EtcdAddress,
    tls: Option<Arc<ClientConfig>>,
    connection: MemberConnection,
    member: usize,
    password: Option<String>,
    token: Option<String>,
    lease: Option<i64>,
    /// Revision of the whole etcd store at the time of the last read.
    read_at: i64,
}

/// Version of the keys below a prefix, to detect changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixMark {
    /// Number of keys.
    pub keys: i64,
    /// Revision of the last change of these keys.
    pub revision: i64,
}

impl EtcdClient {
    /// Connects to the member with index `member` in the address.
    ///
    /// # Errors
    /// Operator-facing message: the member does not answer or refuses the user, or the TLS files
    /// cannot be used.
    pub async fn connect(
        address: &EtcdAddress,
        password: Option<&str>,
        member: usize,
    ) -> Result<EtcdClient, EtcdFault> {
        let tls = address.tls.as_ref().map(client_config).transpose()?;
        let connection = MemberConnection::open(&address.endpoints[member], tls.as_ref()).await?;
        let address = address.clone();
        let (password, token, lease, read_at) = (password.map(str::to_owned), None, None, 0);
        let mut client = EtcdClient { address, tls, connection, member, password, token, lease, read_at };
        client.authenticate().await?;
        Ok(client)
    }

    async fn authenticate(&mut self) -> Result<(), EtcdFault> {
        let Some(user) = &self.address.user else { return Ok(()) };
        let request = json!({ "name": user, "password": self.password.as_deref().unwrap_or_default() });
        let answer: Authenticated = self.connection.ask("/v3/auth/authenticate", None, &request).await?;
        self.token = Some(answer.token);
        Ok(())
    }

    /// Reads all files of the configuration.
    ///
    /// # Errors
    /// The member does not answer, or the keys are not a configuration.
    pub async fn read(&mut self) -> Result<Revision, EtcdFault> {
        let request = json!({ "key": self.prefix(), "range_end": self.prefix_end() });
        let range: Range = self.ask(RANGE, &request).await?;
        self.read_at = range.header.revision;
        let number = range.newest();
        let keys = range.kvs.into_iter().map(|kv| (kv.key, kv.value));
        Revision::of(number, &self.address.prefix, keys)
            .map_err(|fault| EtcdFault::NoConfiguration { number, fault })
    }

    /// Returns the mark of the prefix, which changes whenever a file changes.
    ///
    /// # Errors
    /// The member does not answer.
    pub async fn mark(&mut self) -> Result<PrefixMark, EtcdFault> {
        let request = json!({
            "key": self.prefix(), "range_end": self.prefix_end(),
            "sort_target": "MOD", "sort_order": "DESCEND", "limit": 1, "keys_only": true,
        });
        let range: Range = self.ask(RANGE, &request).await?;
        Ok(PrefixMark { keys: range.count, revision: range.newest() })
    }

    /// Watches for changes since the last read, on a separate connection.
    ///
    /// # Errors
    /// The member does not answer.
    pub async fn watch(&self) -> Result<EtcdWatch, EtcdFault> {
        let member = &self.address.endpoints[self.member];
        let connection = MemberConnection::open(member, self.tls.as_ref()).await?;
        let request = json!({ "create_request": {
            "key": self.prefix(), "range_end": self.prefix_end(), "start_revision": next_revision(self.read_at),
        }});
        Ok(EtcdWatch(connection.stream("/v3/watch", self.token.as_deref(), &request).await?))
    }

    /// Writes the status of the configuration under this node's key. The status expires after a
    /// minute unless [`EtcdClient::keep`] renews its lease.
    ///
    /// # Errors
    /// The member does not answer, or this user may not write the status key.
    pub async fn write_status(&mut self, node: &str, status: &str) -> Result<(), EtcdFault> {
        match self.put_status(node, status).await {
            Err(EtcdFault::Unreachable(why)) if self.lease.is_some() && is_lease_gone(&why) => {
                self.lease = None;
                self.put_status(node, status).await
            }
            put => put,
        }
    }

    async fn put_status(&mut self, node: &str, status: &str) -> Result<(), EtcdFault> {
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                let request = json!({ "TTL": STATUS_LIFETIME });
                let lease: EtcdLease = self.ask("/v3/lease/grant", &request).await?;
                *self.lease.insert(lease.id)
            }
        };
        let key = encoded(self.address.status_key(node).as_bytes());
        let request = json!({ "key": key, "value": encoded(status.as_bytes()), "lease": lease });
        self.ask::<serde_json::Value>("/v3/kv/put", &request).await.map(drop)
    }

    /// Renews the lease of the status. Returns `true` if the lease was renewed, or `false` if it
    /// has expired; the status must then be written again.
    ///
    /// # Errors
    /// The member does not answer.
    pub async fn keep(&mut self) -> Result<bool, EtcdFault> {
        let Some(id) = self.lease else { return Ok(false) };
        let lease: EtcdLease = self.ask("/v3/lease/keepalive", &json!({ "ID": id })).await?;
        let is_alive = lease.result.map_or(lease.ttl, |lease| lease.ttl) > 0;
        self.lease = self.lease.filter(|_| is_alive);
        Ok(is_alive)
    }

    async fn ask<A: serde::de::DeserializeOwned>(
        &mut self,
        path: &str,
        request: &serde_json::Value,
    ) -> Result<A, EtcdFault> {
        match self.connection.ask(path, self.token.as_deref(), request).await {
            Err(why) if self.token.is_some() && is_token_old(&why) => {
                self.authenticate().await?;
                Ok(self.connection.ask(path, self.token.as_deref(), request).await?)
            }
            answer => Ok(answer?),
        }
    }

    fn prefix(&self) -> String {
        encoded(self.address.prefix.as_bytes())
    }

    /// End of the key range: the first key after all keys with the prefix. It is the prefix with
    /// the slash at its end replaced by the next byte.
    fn prefix_end(&self) -> String {
        encoded(format!("{}0", self.address.prefix.trim_end_matches('/')).as_bytes())
    }
}

/// Whether a new token is needed: the token has expired, or users or roles have changed. The
/// password remains valid.
fn is_token_old(why: &str) -> bool {
    why.contains("invalid auth token") || why.contains("revision of auth store is old")
}

fn is_lease_gone(why: &str) -> bool {
    why.contains("requested lease not found")
}

/// Stream of changes below the prefix.
pub struct EtcdWatch(Lines);

impl EtcdWatch {
    /// Waits for a change. The future may be dropped while it waits; no change is lost.
    ///
    /// # Errors
    /// The watch has ended, because the member is gone or has compacted the revision. All files
    /// must be read again.
    pub async fn changed(&mut self) -> Result<(), EtcdFault> {
        loop {
            let WatchLine { result, error } = self.0.next().await?;
            if let Some(error) = error {
                return Err(EtcdFault::Unreachable(format!("the watch has ended: {}", error.message)));
            }
            if result.canceled {
                return Err(EtcdFault::Unreachable(format!("the watch has ended: {}", result.cancel_reason)));
            }
            if result.events > 0 {
                return Ok(());
            }
        }
    }
}

/// First revision that was not read yet: `read_at` plus one, or `i64::MAX` if there is no larger
/// number.
fn next_revision(read_at: i64) -> i64 {
    read_at.saturating_add(1)
}

/// Parses arbitrary bytes as answers, for the fuzzer: files, lines of a watch and leases.
#[cfg(feature = "test-util")]
pub fn read_answer(bytes: &[u8]) -> Option<Revision> {
    if let Ok(line) = serde_json::from_slice::<crate::answer::WatchLine>(bytes) {
        let _ = (line.result.events, line.error);
    }
    if let Ok(lease) = serde_json::from_slice::<EtcdLease>(bytes) {
        let _ = lease.result.map_or(lease.ttl, |lease| lease.ttl);
    }
    let range: Range = serde_json::from_slice(bytes).ok()?;
    assert!(next_revision(range.header.revision) >= range.header.revision);
    let number = range.newest();
    Revision::of(number, "/edge/", range.kvs.into_iter().map(|kv| (kv.key, kv.value))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_token_is_told_from_a_wrong_password() {
        assert!(is_token_old("h:2379: 401 Unauthorized: etcdserver: invalid auth token"));
        assert!(is_token_old("h:2379: 400 Bad Request: etcdserver: revision of auth store is old"));
        assert!(!is_token_old(
            "h:2379: 400 Bad Request: etcdserver: authentication failed, invalid user ID or password"
        ));
        assert!(is_lease_gone("h:2379: 404 Not Found: etcdserver: requested lease not found"));
    }
}
