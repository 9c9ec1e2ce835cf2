//! TLS of health checks: TLS 1.2 and 1.3, by rustls and ring.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use http::uri::Authority;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use convey_config::files;
use convey_model::{HttpCheck, TlsCheck};

/// Why there is no TLS with a server, in words for an operator.
#[derive(Debug, Error)]
pub(super) enum TlsError {
    #[error("{0}")]
    Handshake(io::Error),
    #[error("no certificate authority is installed on this host (package ca-certificates): {0}")]
    NoAuthority(String),
    #[error("{0:?} is no name that a certificate can have")]
    Name(String),
    #[error("{0}")]
    Setup(rustls::Error),
}

/// Shakes hands with the server at `ip`. Its certificate must be for the host of the check, or else for `ip`.
pub(super) async fn connect(
    stream: TcpStream,
    ip: IpAddr,
    check: &HttpCheck,
    tls: TlsCheck,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = server_name(ip, check)?;
    let config = match tls.skip_verify {
        true => UNVERIFIED.clone().map_err(TlsError::Setup)?,
        false => verified().await?,
    };
    TlsConnector::from(config).connect(name, stream).await.map_err(TlsError::Handshake)
}

fn server_name(ip: IpAddr, check: &HttpCheck) -> Result<ServerName<'static>, TlsError> {
    let Some(host) = &check.host else { return Ok(ServerName::IpAddress(ip.into())) };
    let authority = host.parse::<Authority>().ok();
    let name = authority.as_ref().map_or(host.as_str(), Authority::host).trim_matches(['[', ']']).to_owned();
    ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name))
}

/// Trusts whom this host trusts. The authorities are read once, when the first check needs them.
async fn verified() -> Result<Arc<ClientConfig>, TlsError> {
    static VERIFIED: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();
    let config = VERIFIED.get_or_try_init(|| async {
        let found = files::aside(rustls_native_certs::load_native_certs).await.unwrap_or_default();
        let mut roots = RootCertStore::empty();
        if roots.add_parsable_certificates(found.certs).0 == 0 {
            let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            return Err(TlsError::NoAuthority(errors.join("; ")));
        }
        let config = builder().map_err(TlsError::Setup)?.with_root_certificates(roots);
        Ok(Arc::new(config.with_no_client_auth()))
    });
    config.await.cloned()
}

static UNVERIFIED: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> = LazyLock::new(|| {
    let verifier = Arc::new(Anybody(ring::default_provider()));
    let config = builder()?.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(config.with_no_client_auth()))
});

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
}

/// Takes any certificate. The handshake still has to fit it.
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
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
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
    fn a_certificate_is_for_the_host_of_the_check_or_for_the_servers_address() {
        let name = |host: Option<&str>| {
            let check = HttpCheck { host: host.map(str::to_owned), ..HttpCheck::default() };
            server_name("10.0.0.1".parse().unwrap(), &check).map(|name| name.to_str().into_owned())
        };
        for (host, expected) in [
            (None, "10.0.0.1"),
            (Some("www.example.org"), "www.example.org"),
            (Some("app.internal:8443"), "app.internal"),
            (Some("[::1]:443"), "::1"),
        ] {
            assert_eq!(name(host).unwrap(), expected);
        }
        assert!(name(Some("a b")).is_err());
    }
}
