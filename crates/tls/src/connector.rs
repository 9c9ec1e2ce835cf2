//! TLS handshakes with the servers of a backend.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::{Certificate, TlsFault, versions};
use convey_model::BackendTls;

/// Upper bound of the sessions that convey stores for resumption, for each variant of
/// [`SpokenWithin`].
const MAX_SESSIONS: usize = 1_024;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// TLS settings of a backend for handshakes with its servers. All workers share them.
pub struct TlsConnector {
    /// Unique id of these settings.
    id: u64,
    /// Settings indexed by [`SpokenWithin`].
    configs: [Arc<ClientConfig>; 4],
}

/// Protocol that convey speaks within TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpokenWithin {
    /// Any protocol: convey offers no ALPN.
    Bytes,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/1.1 or HTTP/2: the server chooses.
    Http,
}

impl SpokenWithin {
    const ALL: [SpokenWithin; 4] =
        [SpokenWithin::Bytes, SpokenWithin::Http1, SpokenWithin::Http2, SpokenWithin::Http];

    /// Protocols that convey offers (ALPN).
    fn protocols(self) -> &'static [&'static [u8]] {
        match self {
            SpokenWithin::Bytes => &[],
            SpokenWithin::Http1 => &[b"http/1.1"],
            SpokenWithin::Http2 => &[b"h2"],
            SpokenWithin::Http => &[b"h2", b"http/1.1"],
        }
    }
}

impl TlsConnector {
    /// Creates the connector for these settings.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn new(tls: &BackendTls) -> Result<TlsConnector, TlsFault> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions::from(tls.min_version));
        let builder = builder.map_err(|error| TlsFault::Setting("min_version", error.to_string()))?;
        let builder = match tls.skip_verify {
            true => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody((*provider).clone())))
            }
            false => builder.with_root_certificates(roots(tls)?),
        };
        let config = match &tls.certificate {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let certificate = Certificate::from_pem(&pair.chain, pair.key.bytes(), &provider)
                    .map_err(|fault| TlsFault::Certificate(0, fault))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.key)))
            }
        };
        let configs = SpokenWithin::ALL.map(|within| {
            let mut config = config.clone();
            config.alpn_protocols = within.protocols().iter().map(|protocol| protocol.to_vec()).collect();
            config.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
            Arc::new(config)
        });
        Ok(TlsConnector { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), configs })
    }

    /// Unique id of these settings, at least 1.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the settings of rustls for this protocol.
    pub fn config(&self, within: SpokenWithin) -> Arc<ClientConfig> {
        self.configs[within as usize].clone()
    }
}

/// Returns the server name for SNI and for the check of the server's certificate: `name` if it is
/// set, otherwise the address `ip`.
///
/// # Errors
/// The name is not a valid host name.
pub fn server_name(name: Option<&str>, ip: IpAddr) -> Result<ServerName<'static>, Error> {
    let Some(name) = name else { return Ok(ServerName::IpAddress(ip.to_canonical().into())) };
    let invalid = |_| Error::General(format!("{name:?} is not a valid server name"));
    ServerName::try_from(name.trim_end_matches('.').to_owned()).map_err(invalid)
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

fn roots(tls: &BackendTls) -> Result<RootCertStore, TlsFault> {
    let mut roots = RootCertStore::empty();
    let certificates = tls.authorities.certificates.iter().map(|der| CertificateDer::from(der.clone()));
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added > 0 { Ok(roots) } else { Err(TlsFault::Authorities("no valid certificate".to_owned())) }
}

/// Verifier that accepts any certificate. The server must still prove that it has the private key
/// of its certificate.
#[derive(Debug)]
struct Anybody(CryptoProvider);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_name_or_for_the_servers_address() {
        let name = |name: Option<&str>, ip: &str| server_name(name, ip.parse().unwrap());
        for (asked, ip, expected) in [
            (None, "10.0.0.1", "10.0.0.1"),
            (None, "::ffff:10.0.0.1", "10.0.0.1"),
            (Some("www.example.org"), "10.0.0.1", "www.example.org"),
            (Some("www.example.org."), "::1", "www.example.org"),
            (Some("192.0.2.7"), "10.0.0.1", "192.0.2.7"),
        ] {
            assert_eq!(name(asked, ip).unwrap().to_str(), expected);
        }
        assert!(name(Some("a b"), "10.0.0.1").is_err());
    }
}
