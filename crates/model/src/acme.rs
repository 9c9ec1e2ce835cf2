//! Settings for ordering certificates (ACME, RFC 8555), including the files that they name. Pure.

use std::path::PathBuf;

use crate::{Authorities, SecretBytes};

/// `[acme]`: the certificate authority, and the names to order certificates for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeConfig {
    /// Directory of the certificate authority: an `https` URL.
    pub directory: String,
    /// Contact address for mail from the authority; `None`: no address.
    pub email: Option<String>,
    /// Names in lower case, without duplicates. Each name gets its own certificate.
    pub domains: Vec<String>,
    /// Challenge that proves control of a name to the authority.
    pub challenge: AcmeChallenge,
    /// External account at the certificate authority, to which convey's ACME account is bound;
    /// `None`: no binding.
    pub external_account: Option<ExternalAccount>,
    /// Certificate authorities that convey trusts for connections to the directory.
    pub authorities: Authorities,
    /// Folder for the state of this directory: account, certificates, and data of open orders.
    pub folder: PathBuf,
}

/// Challenge that proves control of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// The authority fetches a file over HTTP, at port 80 of the name (RFC 8555, section 8.3).
    Http01,
    /// The authority starts a TLS handshake, at port 443 of the name (RFC 8737).
    TlsAlpn01,
}

/// External account binding (RFC 8555, section 7.3.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Key identifier that the authority assigned.
    pub key_id: String,
    /// Path of the key.
    pub key_path: PathBuf,
    /// The key.
    pub key: SecretBytes,
}

impl AcmeConfig {
    /// Let's Encrypt, production directory.
    pub const PRODUCTION: &'static str = "https://acme-v02.api.letsencrypt.org/directory";

    /// Let's Encrypt, staging directory for tests: its certificates are not trusted, and its rate
    /// limits are high.
    pub const STAGING: &'static str = "https://acme-staging-v02.api.letsencrypt.org/directory";

    /// Name of the folder of certificates, within a directory's folder.
    pub const CERTIFICATES: &'static str = "certificates";

    /// Name of the folder for the state of a directory, derived from its URL. Directories have
    /// separate folders, because accounts and certificates belong to one directory.
    pub fn folder_name(directory: &str) -> String {
        let place = directory.strip_prefix("https://").unwrap_or(directory);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        place.trim_end_matches('/').chars().map(plain).collect()
    }
}

impl AcmeChallenge {
    /// All challenges, in the order the documentation lists them.
    pub const ALL: [AcmeChallenge; 2] = [AcmeChallenge::Http01, AcmeChallenge::TlsAlpn01];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_a_folder_of_its_own() {
        for (directory, folder) in [
            (AcmeConfig::PRODUCTION, "acme-v02.api.letsencrypt.org-directory"),
            (AcmeConfig::STAGING, "acme-staging-v02.api.letsencrypt.org-directory"),
            ("https://127.0.0.1:14000/dir/", "127.0.0.1-14000-dir"),
        ] {
            assert_eq!(AcmeConfig::folder_name(directory), folder);
        }
    }
}
