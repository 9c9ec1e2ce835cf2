//! A certificate chain with its key, as two files have them.

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

/// A chain and its key, and what the first certificate says of itself.
#[derive(Clone)]
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// The names that it is for, in lower case: `example.com`, `*.example.com`.
    pub names: Vec<String>,
    /// When it is good.
    pub validity: Validity,
    /// Whom it is for (RFC 4514), such as `CN=example.com`.
    pub subject: String,
    /// Who issued it.
    pub issuer: String,
}

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before this.
    pub from: i64,
    /// Not after this.
    pub until: i64,
}

/// Why a chain and a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum CertificateFault {
    /// The file is no PEM (RFC 7468).
    #[error("it is no PEM file: {0}")]
    Pem(String),
    /// There is none in the file.
    #[error("it has no certificate (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    /// There is none in the file.
    #[error("it has no private key (-----BEGIN PRIVATE KEY-----), or one with a password")]
    NoKey,
    /// The first one cannot be read.
    #[error("its first certificate cannot be read: {0}")]
    Certificate(String),
    /// A kind of key that convey cannot use.
    #[error("its key cannot be used: {0}; usable: ECDSA (P-256, P-384), Ed25519, RSA of 2048 bits and more")]
    Key(String),
    /// They belong to two pairs.
    #[error("the private key does not belong to its first certificate")]
    Mismatch,
}

impl Certificate {
    /// The pair in these files: the chain, the server's own certificate first, and its key.
    ///
    /// # Errors
    /// What is wrong with them.
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
            // What a key does not tell of itself shows in the first handshake.
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
    /// Whole days that are left; negative once it is over.
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

/// The certificates of a PEM file, in DER; at least one.
///
/// # Errors
/// It is no PEM file, or has none.
pub fn certificates_of(pem: &[u8]) -> Result<Vec<Vec<u8>>, CertificateFault> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).map(|der| der.map(|der| der.to_vec())).collect();
    let found = found.map_err(no_pem)?;
    if found.is_empty() { Err(CertificateFault::NoCertificate) } else { Ok(found) }
}

/// The certificate authorities that this host trusts, in DER. It reads files.
///
/// # Errors
/// There is none: what kept them from being read, in words for an operator; empty if nothing did.
pub fn authorities_of_host() -> Result<Vec<Vec<u8>>, String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(errors.join("; "));
    }
    Ok(found.certs.into_iter().map(|der| der.to_vec()).collect())
}

/// The subject of a certificate; empty if it cannot be read.
pub(crate) fn subject(der: &[u8]) -> String {
    X509Certificate::from_der(der)
        .map(|(_, parsed)| distinguished_name::write(parsed.subject()))
        .unwrap_or_default()
}

/// The names of hosts that it is for. One without any, which is out of use (RFC 9525, section 2), is for its common name.
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
