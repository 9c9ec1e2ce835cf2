//! TLS handshakes of a frontend over QUIC (RFC 9001), for HTTP/3.

use std::sync::Arc;

use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use rustls::{CipherSuite, ServerConfig, SupportedCipherSuite};

use crate::{SessionTickets, TlsFault};
use convey_model::FrontendTls;

/// ALPN name of HTTP/3 (RFC 9114, section 3.1).
const HTTP3: &str = "h3";

/// Upper bound of the stored sessions of a frontend that clients may resume with early data. Beyond
/// it, the oldest session is evicted.
const MAX_EARLY_SESSIONS: usize = 16 * 1024;

/// Creates the QUIC settings of a frontend from its TCP settings. QUIC needs TLS 1.3.
///
/// # Errors
/// The settings allow no cipher suite of TLS 1.3.
pub(crate) fn config(
    tcp: &ServerConfig,
    tls: &FrontendTls,
    tickets: Option<&SessionTickets>,
) -> Result<ServerConfig, TlsFault> {
    if !tcp.crypto_provider().cipher_suites.iter().any(|suite| suite.tls13().is_some()) {
        return Err(TlsFault::Setting("http3", "HTTP/3 needs a TLS 1.3 suite in cipher_suites".to_owned()));
    }
    let mut config = ServerConfig::clone(tcp);
    config.alpn_protocols = vec![HTTP3.as_bytes().to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match tickets {
        // For early data, tickets are keys of a session store. Each works only once, so an attacker
        // cannot replay recorded early data (RFC 8446, section 8.1).
        Some(_) if tls.early_data => {
            config.session_storage = ServerSessionMemoryCache::new(MAX_EARLY_SESSIONS);
            // This value is required: QUIC limits early data by flow control (RFC 9001, section
            // 4.6.1).
            config.max_early_data_size = u32::MAX;
        }
        Some(tickets) => config.ticketer = tickets.producer(),
        None => config.send_tls13_tickets = 0,
    }
    Ok(config)
}

/// Returns the cipher suite of Initial packets, which does not depend on the frontend's settings
/// (RFC 9001, section 5.2).
pub fn initial_suite() -> Option<rustls::quic::Suite> {
    let suites = rustls::crypto::ring::ALL_CIPHER_SUITES.iter();
    let is_initial = |suite: &&SupportedCipherSuite| suite.suite() == CipherSuite::TLS13_AES_128_GCM_SHA256;
    suites.copied().find(|suite| is_initial(&suite))?.tls13()?.quic_suite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_suite_for_first_packets() {
        assert!(initial_suite().is_some());
    }
}
