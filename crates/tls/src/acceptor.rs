//! TLS handshakes with the clients of a frontend.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SignatureAlgorithm, SupportedCipherSuite};
use thiserror::Error as ThisError;

use crate::chooser::CertificateChooser;
use crate::{AcmeChallenges, Certificate, CertificateFault, quic, versions};
use convey_model::{ClientCa, FrontendTls};

/// TLS settings of a frontend for handshakes with clients. All workers share them.
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    /// Settings of handshakes over QUIC; `None` without HTTP/3.
    quic: Option<Arc<ServerConfig>>,
    challenges: Option<Arc<AcmeChallenges>>,
    chooser: Arc<CertificateChooser>,
    /// Certificates of the frontend, in the order of the configuration.
    pub certificates: Vec<Certificate>,
}

/// Keys of a frontend's session tickets (RFC 8446, section 4.6.1). The keys are only in memory,
/// change every six hours, and are valid for twelve hours.
#[derive(Clone)]
pub struct SessionTickets(Arc<dyn ProducesTickets>);

/// Fault in the TLS settings of a frontend or a backend.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum TlsFault {
    /// Fault of a certificate and its key, with the index of the pair in the configuration.
    #[error("{1}")]
    Certificate(usize, CertificateFault),
    /// Fault of the certificate authorities that verify clients or servers.
    #[error("{0}")]
    Authorities(String),
    /// Fault of another setting, with its name in the configuration.
    #[error("{1}")]
    Setting(&'static str, String),
}

impl SessionTickets {
    /// Creates new keys.
    ///
    /// # Errors
    /// The host cannot provide random numbers.
    pub fn new() -> Result<SessionTickets, rustls::Error> {
        ring::Ticketer::new().map(SessionTickets)
    }

    /// Returns the keys in the form that rustls uses.
    pub(crate) fn producer(&self) -> Arc<dyn ProducesTickets> {
        self.0.clone()
    }
}

impl TlsAcceptor {
    /// Protocols of mode `http` (ALPN), the preferred one first.
    pub const HTTP: [&'static str; 2] = ["h2", "http/1.1"];

    /// Names of the supported cipher suites, the preferred one first: the suites of TLS 1.3, and
    /// the suites of TLS 1.2 with forward secrecy and authenticated encryption (RFC 9325, section
    /// 4.2).
    pub const CIPHER_SUITES: [&'static str; 9] = [
        "TLS13_AES_256_GCM_SHA384",
        "TLS13_AES_128_GCM_SHA256",
        "TLS13_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ];

    /// Creates the acceptor for these settings. With `tickets`, clients can resume sessions.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(tls: &FrontendTls, tickets: Option<&SessionTickets>) -> Result<TlsAcceptor, TlsFault> {
        let provider = Arc::new(provider(tls)?);
        let certificates = tls.certificates.iter().enumerate().map(|(place, pair)| {
            Certificate::from_pem(&pair.chain, pair.key.bytes(), &provider)
                .map_err(|fault| TlsFault::Certificate(place, fault))
        });
        let certificates = certificates.collect::<Result<Vec<_>, _>>()?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions::from(tls.min_version));
        // rustls returns an error here only for this reason.
        let unfit = |_| {
            TlsFault::Setting("cipher_suites", "no listed suite is for an enabled TLS version".to_owned())
        };
        let builder = builder.map_err(unfit)?;
        check_suites(&provider, &certificates)?;
        let builder = match &tls.client_ca {
            Some(ca) => builder.with_client_cert_verifier(verifier(ca, provider)?),
            None => builder.with_no_client_auth(),
        };
        let chooser = Arc::new(CertificateChooser::new(&certificates, tls.refuse_unknown_names));
        let mut config = builder.with_cert_resolver(chooser.clone());
        let quic = tls.http3.then(|| quic::config(&config, tls, tickets)).transpose()?.map(Arc::new);
        config.alpn_protocols = tls.alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        // A server of HTTP/1.1 also serves HTTP/1.0, so clients that offer only HTTP/1.0 are
        // accepted.
        if config.alpn_protocols.iter().any(|protocol| protocol == b"http/1.1") {
            config.alpn_protocols.push(b"http/1.0".to_vec());
        }
        // The tickets carry the state of the sessions. So there is no store here that attackers
        // could fill.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match tickets {
            Some(SessionTickets(tickets)) => config.ticketer = tickets.clone(),
            None => config.send_tls13_tickets = 0,
        }
        Ok(TlsAcceptor { config: Arc::new(config), quic, challenges: None, chooser, certificates })
    }

    /// Adds the ACME challenges. While convey orders a certificate, the acceptor serves the
    /// challenges to certificate authorities.
    #[must_use]
    pub fn with_challenges(self, challenges: Arc<AcmeChallenges>) -> TlsAcceptor {
        TlsAcceptor { challenges: Some(challenges), ..self }
    }

    /// Returns the ACME challenges; `None` while convey serves no challenge.
    pub(crate) fn challenges(&self) -> Option<Arc<AcmeChallenges>> {
        self.challenges.clone().filter(|challenges| challenges.are_shown())
    }

    /// Whether a request for `host` (without port) is misdirected (RFC 9110, section 7.4): the
    /// certificate of the connection does not cover `host`, but another certificate of the frontend
    /// does. `server_name` is the server name for which the certificate was chosen. Returns `false`
    /// if no certificate covers `server_name`, so that the connection has the default certificate.
    pub fn is_misdirected(&self, server_name: &str, host: &str) -> bool {
        let [server_name, host] =
            [server_name, host].map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        server_name != host && self.chooser.is_misdirected(&server_name, &host)
    }

    /// Returns the settings of handshakes over QUIC (RFC 9001); `None` if the frontend does not
    /// serve HTTP/3.
    pub fn quic(&self) -> Option<Arc<ServerConfig>> {
        self.quic.clone()
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

impl fmt::Debug for SessionTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionTickets")
    }
}

fn name_of(suite: &SupportedCipherSuite) -> Option<&'static str> {
    suite.suite().as_str()
}

/// Returns the cryptography provider of rustls, restricted to the cipher suites that the settings
/// allow.
fn provider(tls: &FrontendTls) -> Result<CryptoProvider, TlsFault> {
    let mut provider = ring::default_provider();
    if !tls.cipher_suites.is_empty() {
        let suite = |name: &String| {
            let found = provider.cipher_suites.iter().find(|suite| name_of(suite) == Some(name));
            let unknown = || TlsFault::Setting("cipher_suites", format!("unknown cipher suite {name:?}"));
            found.copied().ok_or_else(unknown)
        };
        provider.cipher_suites = tls.cipher_suites.iter().map(suite).collect::<Result<_, _>>()?;
    }
    Ok(provider)
}

/// Checks that at least one certificate works with one of the cipher suites. A suite of TLS 1.3
/// works with every kind of key, a suite of TLS 1.2 with only one kind.
fn check_suites(provider: &CryptoProvider, certificates: &[Certificate]) -> Result<(), TlsFault> {
    let fits = |certificate: &Certificate, suite: &SupportedCipherSuite| match suite {
        SupportedCipherSuite::Tls13(_) => true,
        SupportedCipherSuite::Tls12(suite) => certificate.key.key.choose_scheme(suite.sign).is_some(),
    };
    let is_usable = |certificate| provider.cipher_suites.iter().any(|suite| fits(certificate, suite));
    if certificates.is_empty() || certificates.iter().any(is_usable) {
        return Ok(());
    }
    let [needed, found] =
        match certificates.iter().any(|one| one.key.key.algorithm() == SignatureAlgorithm::RSA) {
            true => ["RSA", "ECDSA"],
            false => ["ECDSA", "RSA"],
        };
    let why = format!(
        "the listed suites need a certificate with an {found} key, and there is none; add {needed} or TLS 1.3 suites"
    );
    Err(TlsFault::Setting("cipher_suites", why))
}

/// Returns the verifier of client certificates.
fn verifier(
    ca: &ClientCa,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsFault> {
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&ca.certificates) {
        let der = der.map_err(|error| TlsFault::Authorities(format!("it is not a PEM file: {error}")))?;
        roots.add(der).map_err(|error| TlsFault::Authorities(error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if ca.is_required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| TlsFault::Authorities(error.to_string()))
}
