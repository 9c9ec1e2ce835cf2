//! TLS handshake with a client.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use log::debug;
use tokio::time::timeout;

use super::context::WorkerContext;
use super::session::TcpSession;
use convey_access_log::LoggedTls;
use convey_model::{FrontendTls, Prefix, client_of};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;
use convey_stream::Leg;
use convey_tls::{ACME_TLS, SessionFacts, TlsError, TlsSession, handshake_fault};
use convey_trace::ConnectionStep;

/// Maximum time for the client to read the alert of a failed handshake.
const LINGER: Duration = Duration::from_secs(1);

/// Number of concurrent handshakes of each source. Only sources with an unfinished handshake have
/// an entry.
#[derive(Debug, Default)]
pub struct SourceHandshakes(Mutex<HashMap<Prefix, u32>>);

/// Guard that counts one handshake of a source until it is dropped.
#[derive(Debug)]
pub(super) struct HandshakeSlot {
    of: Arc<SourceHandshakes>,
    source: Prefix,
}

impl TcpSession {
    /// Performs the TLS handshake with the client, if the frontend has TLS. `early` holds the bytes
    /// that have been read already. Returns the bytes to relay first: `early` without TLS,
    /// otherwise an empty vector.
    ///
    /// # Errors
    /// Reason of the end; `None` if the client closed in order before it sent a byte.
    pub(super) async fn perform_handshake(
        &mut self,
        client: &mut Leg,
        early: Vec<u8>,
    ) -> Result<Vec<u8>, Option<Counter>> {
        let Some(settings) = self.frontend.config.tls.clone() else { return Ok(early) };
        let acceptor = self.frontend.tls.clone().ok_or(Counter::TlsHandshakeFailed)?;
        let _slot = self.handshake_slot(&settings)?;
        let session = TlsSession::accept(&acceptor).map_err(|_| Counter::TlsHandshakeFailed)?;
        let shaken = timeout(settings.handshake_timeout, client.stream.begin_tls(session, early)).await;
        match shaken {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let reason = self.handshake_failed(client, &error);
                if reason == Some(Counter::TlsHandshakeFailed) {
                    // Bytes that the client still sends would reset the connection before the
                    // client has read the alert.
                    let _ = timeout(LINGER, client.stream.discard_rest()).await;
                }
                return Err(reason);
            }
            Err(_) => return Err(Some(Counter::TlsHandshakeTimeout)),
        }
        let facts = client.stream.facts().unwrap_or_default();
        if facts.protocol == ACME_TLS {
            // This was a validation by an ACME server: it has seen the certificate, and no data
            // follows (RFC 8737, section 3).
            client.close_in_order();
            return Err(Some(Counter::AcmeHandshake));
        }
        self.note_handshake(facts);
        Ok(Vec::new())
    }

    /// Counts and traces a completed handshake, and keeps its facts for the access log.
    pub(super) fn note_handshake(&mut self, facts: SessionFacts) {
        self.count(if facts.is_resumed { Counter::TlsResumed } else { Counter::TlsHandshakes }, 1);
        self.trace(None, ConnectionStep::Handshake { version: facts.version, is_resumed: facts.is_resumed });
        self.tls = Some(Arc::new(logged(facts)));
    }

    /// # Errors
    /// The source has reached its limit of handshakes.
    fn handshake_slot(&self, settings: &FrontendTls) -> Result<Option<HandshakeSlot>, Counter> {
        let (ip, most) = (self.client_ip(), settings.max_handshakes_per_source);
        HandshakeSlot::of_client(&self.context, &self.frontend, ip, most)
    }

    /// Returns the reason of the end after a failed handshake; `None` if the client closed in order
    /// before it sent a byte.
    fn handshake_failed(&self, client: &mut Leg, error: &io::Error) -> Option<Counter> {
        let fault = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
        let Some(fault) = fault else {
            if error.kind() == io::ErrorKind::UnexpectedEof && !client.stream.has_begun_tls() {
                client.close_in_order();
                return None;
            }
            return Some(Counter::ClientReset);
        };
        // A reset could destroy the alert before the client reads it, so convey closes in order.
        client.close_in_order();
        let reason = handshake_fault(fault);
        debug!("{}: TLS handshake with {} failed: {reason} ({fault})", self.vip(), self.client());
        self.trace(None, ConnectionStep::HandshakeFailed { reason });
        Some(Counter::TlsHandshakeFailed)
    }
}

fn logged(facts: SessionFacts) -> LoggedTls {
    LoggedTls {
        version: facts.version,
        cipher_suite: facts.cipher_suite.into(),
        server_name: facts.server_name.into(),
        client_subject: facts.client_subject.into(),
    }
}

impl HandshakeSlot {
    /// Takes a handshake slot for a client, whose source may have at most `most` slots. Returns
    /// `None` for trusted proxies, which have no limit.
    ///
    /// # Errors
    /// The source has reached its limit of handshakes.
    pub(super) fn of_client(
        context: &WorkerContext,
        frontend: &Frontend,
        client: IpAddr,
        most: u32,
    ) -> Result<Option<HandshakeSlot>, Counter> {
        if frontend.config.trusts(client) {
            return Ok(None);
        }
        let (of, source) = (context.shared.handshakes.clone(), client_of(client));
        HandshakeSlot::take(of, source, most).map(Some).ok_or(Counter::TlsHandshakeLimit)
    }

    fn take(of: Arc<SourceHandshakes>, source: Prefix, most: u32) -> Option<HandshakeSlot> {
        {
            let mut sources = of.0.lock().unwrap_or_else(PoisonError::into_inner);
            let count = sources.entry(source).or_default();
            if *count >= most {
                return None;
            }
            *count += 1;
        }
        Some(HandshakeSlot { of, source })
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let mut sources = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_handshakes_are_limited_by_source() {
        let all: Arc<SourceHandshakes> = Arc::default();
        let take = |ip: &str| HandshakeSlot::take(all.clone(), client_of(ip.parse().unwrap()), 2);
        let (first, second) = (take("192.0.2.1"), take("192.0.2.1"));
        assert!(first.is_some() && second.is_some() && take("192.0.2.1").is_none());
        assert!(take("192.0.2.2").is_some());
        assert!(take("2001:db8::1").is_some());
        drop(first);
        let third = take("192.0.2.1");
        assert!(third.is_some() && take("192.0.2.1").is_none());
        drop((second, third));
        assert!(all.0.lock().unwrap().is_empty(), "nothing is remembered of those that are over");
    }
}
