//! Certificate chain with its private key, from PEM files.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use thiserror::Error as ThisError;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::distinguished_name;

/// Certificate chain, its private key, and properties of the first certificate.
#[derive(Clone)]
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// Host names that the certificate covers, in lower case: `example.com`, `*.example.com`.
    pub names: Vec<String>,
    /// Period in which the certificate is valid.
    pub validity: Validity,
    /// Subject of the certificate (RFC 4514), such as `CN=example.com`.
    pub subject: String,
    /// Issuer of the certificate (RFC 4514).
    pub issuer: String,
}

/// Validity of a certificate, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// First second of the validity (notBefore).
    pub from: i64,
    /// Last second of the validity (notAfter).
    pub until: i64,
}

/// Reason why a certificate chain and its key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum CertificateFault {
    /// The file is not PEM (RFC 7468).
    #[error("it is not a PEM file: {0}")]
    Pem(String),
    /// The file has no certificate.
    #[error("it has no certificate (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    /// The file has no private key.
    #[error("it has no private key (-----BEGIN PRIVATE KEY-----), or the key is encrypted with a password")]
    NoKey,
    /// The first certificate cannot be parsed.
    #[error("the first certificate cannot be parsed: {0}")]
    Certificate(String),
    /// convey does not support this kind of key.
    #[error(
        "the key is not supported: {0}; supported: ECDSA (P-256, P-384), Ed25519, RSA of 2048 bits and more"
    )]
    Key(String),
    /// The certificate and the key do not belong together.
    #[error("the private key does not match the first certificate")]
    Mismatch,
}

impl Certificate {
    /// Parses a certificate chain and its key from the contents of their PEM files. The server's
    /// own certificate must be the first of the chain.
    ///
    /// # Errors
    /// One of the files is invalid, or they do not belong together.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<Certificate, CertificateFault> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().map_err(no_pem)?;
        let first = chain.first().ok_or(CertificateFault::NoCertificate)?;
        let (_, parsed) = X509Certificate::from_der(first)
            .map_err(|error| CertificateFault::Certificate(error.to_string()))?;
        let (names, subject) = (names(&parsed), distinguished_name::write(parsed.subject()));
        let issuer = distinguished_name::write(parsed.issuer());
        let validity = Validity {
            from: parsed.validity().not_before.timestamp(),
            until: parsed.validity().not_after.timestamp(),
        };
        let key = match PrivateKeyDer::from_pem_slice(key) {
            Ok(key) => key,
            Err(PemError::NoItemsFound) => return Err(CertificateFault::NoKey),
            Err(error) => return Err(no_pem(error)),
        };
        let signing = provider.key_provider.load_private_key(key);
        let signing = signing.map_err(|error| CertificateFault::Key(error.to_string()))?;
        let key = CertifiedKey::new(chain, signing);
        match key.keys_match() {
            // rustls cannot compare every kind of key. For such a key, a mismatch shows only in the
            // first handshake, which fails.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                return Err(CertificateFault::Mismatch);
            }
            Err(error) => return Err(CertificateFault::Certificate(error.to_string())),
        }
        Ok(Certificate { key: Arc::new(key), names, validity, subject, issuer })
    }
}

impl Validity {
    /// Number of whole days until the certificate expires; negative after the expiry. `now` is in
    /// seconds since 1970.
    pub fn days_left(&self, now: i64) -> i64 {
        (self.until - now).div_euclid(24 * 60 * 60)
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Certificate { names, validity, subject, .. } = self;
        let mut shown = f.debug_struct("Certificate");
        shown.field("subject", subject).field("names", names).field("validity", validity);
        shown.finish_non_exhaustive()
    }
}

/// Parses the certificates of a PEM file. Returns each certificate as DER.
///
/// # Errors
/// The file is not PEM, or has no certificate.
pub fn certificates_of(pem: &[u8]) -> Result<Vec<Vec<u8>>, CertificateFault> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).map(|der| der.map(|der| der.to_vec())).collect();
    let found = found.map_err(no_pem)?;
    if found.is_empty() { Err(CertificateFault::NoCertificate) } else { Ok(found) }
}

/// Error: the host trusts no certificate authority. The message lists the errors that occurred
/// while reading files; it is empty if there were none.
#[derive(Debug, Clone, Default, PartialEq, Eq, ThisError)]
#[error("{}", .0.join("; "))]
pub struct NoAuthorities(Vec<String>);

/// Reads the certificate authorities that this host trusts. Returns each certificate as DER.
/// Blocks, because it reads files.
///
/// # Errors
/// The host trusts no certificate authority.
pub fn authorities_of_host() -> Result<Vec<Vec<u8>>, NoAuthorities> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(NoAuthorities(found.errors.iter().map(ToString::to_string).collect()));
    }
    Ok(found.certs.into_iter().map(|der| der.to_vec()).collect())
}

/// Returns the subject of a certificate in DER; empty if the certificate cannot be parsed.
pub(crate) fn subject(der: &[u8]) -> String {
    X509Certificate::from_der(der)
        .map(|(_, parsed)| distinguished_name::write(parsed.subject()))
        .unwrap_or_default()
}

/// Returns the host names that a certificate covers: its subject alternative names. Without this
/// extension, which is deprecated (RFC 9525, section 2), the certificate covers its common name.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<String> = match alternative {
        Some(found) => found.value.general_names.iter().filter_map(host_name).collect(),
        None => {
            let common = certificate.subject().iter_common_name();
            common.filter_map(|name| Some(name.as_str().ok()?.to_ascii_lowercase())).collect()
        }
    };
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

fn host_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
        _ => None,
    }
}

fn no_pem(error: PemError) -> CertificateFault {
    CertificateFault::Pem(error.to_string())
}
