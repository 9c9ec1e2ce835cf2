//! How certificates are ordered (ACME, RFC 8555), as the file has it and the files that it names. Pure.

use std::path::PathBuf;

use crate::{Authorities, SecretBytes};

/// `[acme]`: whom convey orders certificates from, and for which names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeConfig {
    /// Where the directory of the certificate authority is: an `https` URL.
    pub directory: String,
    /// Whom the authority writes to; `None`: nobody.
    pub email: Option<String>,
    /// The names, in lower case, each once. Each gets a certificate of its own.
    pub domains: Vec<String>,
    /// How the authority is shown that a name is ours.
    pub challenge: AcmeChallenge,
    /// The account with the authority that the new one belongs to.
    pub external_account: Option<ExternalAccount>,
    /// Who issues the certificate of the directory itself.
    pub authorities: Authorities,
    /// What is kept of this directory: the account, certificates, and what an order needs.
    pub folder: PathBuf,
}

/// How an authority is shown that a name is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// It asks for a file by HTTP, at port 80 of the name (RFC 8555, section 8.3).
    Http01,
    /// It shakes hands, at port 443 of the name (RFC 8737).
    TlsAlpn01,
}

/// External account binding (RFC 8555, section 7.3.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The number that the authority has given for its key.
    pub key_id: String,
    /// Where the key is.
    pub key_path: PathBuf,
    /// The key.
    pub key: SecretBytes,
}

impl AcmeConfig {
    /// Let's Encrypt.
    pub const PRODUCTION: &'static str = "https://acme-v02.api.letsencrypt.org/directory";

    /// Its certificates nobody trusts, and its limits are wide: for trying things out.
    pub const STAGING: &'static str = "https://acme-staging-v02.api.letsencrypt.org/directory";

    /// The folder of certificates within that of a directory.
    pub const CERTIFICATES: &'static str = "certificates";

    /// The name of a folder for what is kept of a directory: an account and its certificates are of this one alone.
    pub fn folder_name(directory: &str) -> String {
        let place = directory.strip_prefix("https://").unwrap_or(directory);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        place.trim_end_matches('/').chars().map(plain).collect()
    }
}

impl AcmeChallenge {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [AcmeChallenge; 2] = [AcmeChallenge::Http01, AcmeChallenge::TlsAlpn01];

    /// The name in the configuration.
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
