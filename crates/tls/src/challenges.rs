//! ACME challenges that convey serves while it orders a certificate: tokens over HTTP (RFC 8555,
//! section 8.3), and certificates in handshakes of the protocol `acme-tls/1` (RFC 8737). The ACME
//! client sets the challenges, and the frontends serve them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::HashMap;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, ServerConfig};

use crate::versions;
use convey_client_hello::{ClientHello, HelloVerdict, parse};
use convey_model::TlsVersion;

/// ALPN name of handshakes that prove control of a host name (RFC 8737, section 6.2).
pub const ACME_TLS: &str = "acme-tls/1";

/// ACME challenges that convey serves now. All frontends share them.
#[derive(Default)]
pub struct AcmeChallenges {
    /// Number of challenges. While it is 0, handshakes take no lock.
    count: AtomicUsize,
    shown: RwLock<Shown>,
}

#[derive(Default)]
struct Shown {
    /// Key authorizations by token.
    tokens: HashMap<String, Arc<str>>,
    /// Handshake settings by server name, in lower case.
    handshakes: HashMap<String, Arc<ServerConfig>>,
}

/// Proof that convey controls a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcmeProof {
    /// Text that the certificate authority reads over HTTP.
    Token {
        /// Last segment of the path of the request.
        token: String,
        /// Body of the response.
        text: String,
    },
    /// Certificate that convey presents in a handshake.
    Certificate {
        /// Server name of the handshake.
        name: String,
        /// Certificate chain, in DER.
        chain: Vec<u8>,
        /// Private key, in PKCS#8.
        key: Vec<u8>,
    },
}

impl AcmeChallenges {
    /// Path prefix of the tokens.
    pub const PATH: &'static str = "/.well-known/acme-challenge/";

    /// Replaces all challenges with the challenges for these proofs.
    ///
    /// # Errors
    /// A certificate cannot be used. After an error, the challenges are unchanged.
    pub fn show(&self, proofs: Vec<AcmeProof>) -> Result<(), Error> {
        let (mut shown, count) = (Shown::default(), proofs.len());
        for proof in proofs {
            match proof {
                AcmeProof::Token { token, text } => _ = shown.tokens.insert(token, text.into()),
                AcmeProof::Certificate { name, chain, key } => {
                    _ = shown.handshakes.insert(name, Arc::new(handshake(chain, key)?));
                }
            }
        }
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
        self.count.store(count, Ordering::Release);
        Ok(())
    }

    /// Returns the response body for a request to this path; `None` if the path belongs to no
    /// challenge.
    pub fn answer(&self, path: &[u8]) -> Option<Arc<str>> {
        let token = path.strip_prefix(AcmeChallenges::PATH.as_bytes())?;
        if !self.are_shown() {
            return None;
        }
        let token = std::str::from_utf8(token).ok()?;
        self.shown.read().unwrap_or_else(PoisonError::into_inner).tokens.get(token).cloned()
    }

    /// Whether any challenge is served.
    pub fn are_shown(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Chooses the handshake settings for a client by its first bytes. Returns the settings of a
    /// challenge if a certificate authority requests one, otherwise `usual`. Returns `None` if the
    /// ClientHello is incomplete.
    pub(crate) fn choose(&self, begins: &[u8], usual: &Arc<ServerConfig>) -> Option<Arc<ServerConfig>> {
        match parse(begins) {
            HelloVerdict::NeedMore => None,
            HelloVerdict::Hello(hello) => Some(self.of(&hello).unwrap_or_else(|| usual.clone())),
            // The usual handshake fails and reports the fault.
            HelloVerdict::NotTls | HelloVerdict::Malformed(_) => Some(usual.clone()),
        }
    }

    fn of(&self, hello: &ClientHello) -> Option<Arc<ServerConfig>> {
        if !hello.alpn().eq([ACME_TLS.as_bytes()]) {
            return None;
        }
        let name = hello.server_name.as_deref()?;
        self.shown.read().unwrap_or_else(PoisonError::into_inner).handshakes.get(name).cloned()
    }
}

impl fmt::Debug for AcmeChallenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcmeChallenges").field("count", &self.count).finish_non_exhaustive()
    }
}

fn handshake(chain: Vec<u8>, key: Vec<u8>) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let key =
        CertifiedKey::new(vec![CertificateDer::from(chain)], provider.key_provider.load_private_key(key)?);
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions::from(TlsVersion::V1_2))?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![ACME_TLS.as_bytes().to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_answered_only_while_it_is_shown() {
        let challenges = AcmeChallenges::default();
        let answer = |path: &str| challenges.answer(path.as_bytes()).map(|text| text.to_string());
        assert_eq!(answer("/.well-known/acme-challenge/abc"), None);
        let proof = AcmeProof::Token { token: "abc".to_owned(), text: "abc.key".to_owned() };
        challenges.show(vec![proof]).unwrap();
        assert_eq!(answer("/.well-known/acme-challenge/abc").as_deref(), Some("abc.key"));
        for other in ["/.well-known/acme-challenge/abcd", "/.well-known/acme-challenge/", "/abc", "/"] {
            assert_eq!(answer(other), None, "{other}");
        }
        challenges.show(Vec::new()).unwrap();
        assert_eq!(answer("/.well-known/acme-challenge/abc"), None);
    }
}
