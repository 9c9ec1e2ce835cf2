//! How a frontend shakes hands with its clients.

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

/// How a frontend shakes hands. All workers share it.
pub struct TlsAcceptor {
    config: Arc<ServerConfig>,
    /// The same over QUIC, where HTTP/3 is spoken.
    quic: Option<Arc<ServerConfig>>,
    challenges: Option<Arc<AcmeChallenges>>,
    chooser: Arc<CertificateChooser>,
    /// Its certificates, in the order of the configuration.
    pub certificates: Vec<Certificate>,
}

/// The keys of a frontend's session tickets (RFC 8446, section 4.6.1). They are in no file, change every six hours, and are good for twelve.
#[derive(Clone)]
pub struct SessionTickets(Arc<dyn ProducesTickets>);

/// What is wrong with the TLS of a frontend.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum TlsFault {
    /// A pair of files; by its place in the configuration, from 0.
    #[error("{1}")]
    Certificate(usize, CertificateFault),
    /// The certificate authorities of clients, or of servers.
    #[error("{0}")]
    Authorities(String),
    /// The other settings, by the name of the key.
    #[error("{1}")]
    Setting(&'static str, String),
}

impl SessionTickets {
    /// New keys.
    ///
    /// # Errors
    /// The host has no randomness.
    pub fn new() -> Result<SessionTickets, rustls::Error> {
        ring::Ticketer::new().map(SessionTickets)
    }

    /// As the library uses them.
    pub(crate) fn producer(&self) -> Arc<dyn ProducesTickets> {
        self.0.clone()
    }
}

impl TlsAcceptor {
    /// The protocols of mode `http` (ALPN), the preferred one first.
    pub const HTTP: [&'static str; 2] = ["h2", "http/1.1"];

    /// The names of the suites that there are, the preferred one first: those of TLS 1.3, and those of TLS 1.2 with forward secrecy and
    /// authenticated encryption (RFC 9325, section 4.2).
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

    /// Of these settings. `tickets`: sessions may go on later.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(tls: &FrontendTls, tickets: Option<&SessionTickets>) -> Result<TlsAcceptor, TlsFault> {
        let provider = Arc::new(provider(tls)?);
        let certificates = tls.certificates.iter().enumerate().map(|(place, pair)| {
            Certificate::from_pem(&pair.chain, pair.key.bytes(), &provider)
                .map_err(|fault| TlsFault::Certificate(place, fault))
        });
        let certificates = certificates.collect::<Result<Vec<_>, _>>()?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions::from(tls.min_version));
        // The library knows no other reason.
        let unfit = |_| {
            TlsFault::Setting("cipher_suites", "none of them is for the versions that are spoken".to_owned())
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
        // Who speaks HTTP/1.1 speaks HTTP/1.0, too: a client that offers nothing newer is served.
        if config.alpn_protocols.iter().any(|protocol| protocol == b"http/1.1") {
            config.alpn_protocols.push(b"http/1.0".to_vec());
        }
        // What a session needs later is in its ticket: nothing that strangers fill is kept here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match tickets {
            Some(SessionTickets(tickets)) => config.ticketer = tickets.clone(),
            None => config.send_tls13_tickets = 0,
        }
        Ok(TlsAcceptor { config: Arc::new(config), quic, challenges: None, chooser, certificates })
    }

    /// The same, which shows authorities what they look for while an order runs.
    #[must_use]
    pub fn with_challenges(self, challenges: Arc<AcmeChallenges>) -> TlsAcceptor {
        TlsAcceptor { challenges: Some(challenges), ..self }
    }

    /// What authorities look for; `None`: nobody looks for anything now.
    pub(crate) fn challenges(&self) -> Option<Arc<AcmeChallenges>> {
        self.challenges.clone().filter(|challenges| challenges.are_shown())
    }

    /// Whether a request for `host`, without a port, belongs on another connection: a certificate is for it, and the certificate that
    /// clients get for `server_name` is not (RFC 9110, section 7.4). The default certificate is for any host.
    pub fn is_misdirected(&self, server_name: &str, host: &str) -> bool {
        let [server_name, host] =
            [server_name, host].map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        server_name != host && self.chooser.is_misdirected(&server_name, &host)
    }

    /// How handshakes over QUIC go (RFC 9001); `None`: the frontend speaks no HTTP/3.
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

/// The library's cryptography, with the suites that the settings allow.
fn provider(tls: &FrontendTls) -> Result<CryptoProvider, TlsFault> {
    let mut provider = ring::default_provider();
    if !tls.cipher_suites.is_empty() {
        let suite = |name: &String| {
            let found = provider.cipher_suites.iter().find(|suite| name_of(suite) == Some(name));
            let unknown = || TlsFault::Setting("cipher_suites", format!("there is no suite {name:?}"));
            found.copied().ok_or_else(unknown)
        };
        provider.cipher_suites = tls.cipher_suites.iter().map(suite).collect::<Result<_, _>>()?;
    }
    Ok(provider)
}

/// Whether a certificate can be shown with one of the suites. Those of TLS 1.3 are for every key, those of TLS 1.2 for one kind.
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
        "they are for {found} keys, and no certificate has one; name suites for {needed}, or of TLS 1.3"
    );
    Err(TlsFault::Setting("cipher_suites", why))
}

/// Who verifies the certificates of clients.
fn verifier(
    ca: &ClientCa,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsFault> {
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&ca.certificates) {
        let der = der.map_err(|error| TlsFault::Authorities(format!("it is no PEM file: {error}")))?;
        roots.add(der).map_err(|error| TlsFault::Authorities(error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if ca.is_required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| TlsFault::Authorities(error.to_string()))
}
