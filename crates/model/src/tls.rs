//! TLS settings of frontends and backends, including the contents of files that they name. Pure.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// TLS settings of a frontend towards clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendTls {
    /// Certificates; at least one, unless `acme` provides them. A client whose server name is
    /// missing or unknown gets the first certificate.
    pub certificates: Vec<CertificatePair>,
    /// Whether the frontend also serves the certificates that convey orders (ACME).
    pub acme: bool,
    /// Whether to refuse clients whose server name matches no certificate.
    pub refuse_unknown_names: bool,
    /// Minimum TLS version.
    pub min_version: TlsVersion,
    /// Cipher suites, the preferred one first; empty: all safe suites.
    pub cipher_suites: Vec<String>,
    /// Application protocols (ALPN, RFC 7301), the preferred one first; empty: no ALPN.
    pub alpn: Vec<String>,
    /// Authorities for client certificates; `None`: convey requests no client certificate.
    pub client_ca: Option<ClientCa>,
    /// Whether clients may resume earlier sessions.
    pub session_tickets: bool,
    /// Time limit of a handshake.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent handshakes of one source (IPv6: one /64). `trusted_clients` are
    /// exempt.
    pub max_handshakes_per_source: u32,
    /// Whether to serve HTTP/3 over QUIC at the addresses of the frontend, in addition to TCP (mode
    /// `http`).
    pub http3: bool,
    /// Whether a returning client may send a request over HTTP/3 before its handshake is complete
    /// (0-RTT, RFC 8446, section 2.3). Such requests can be replayed by an attacker, so only safe
    /// methods are accepted.
    pub early_data: bool,
}

/// Certificate chain and key, as read from files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePair {
    /// Path of the chain.
    pub chain_path: PathBuf,
    /// Path of the key; may be equal to the path of the chain.
    pub key_path: PathBuf,
    /// The chain, in PEM.
    pub chain: Arc<[u8]>,
    /// The key, in PEM.
    pub key: SecretBytes,
}

/// Certificate authorities for clients' certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCa {
    /// Path of the authorities' certificates.
    pub path: PathBuf,
    /// Authorities' certificates, in PEM.
    pub certificates: Arc<[u8]>,
    /// Whether clients without a certificate are refused.
    pub is_required: bool,
}

/// TLS settings of a backend towards its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTls {
    /// Authorities for servers' certificates.
    pub authorities: Authorities,
    /// Server name (SNI) in the handshake, which the certificate must match; `None`: the server's
    /// host name if it has one, otherwise its address.
    pub server_name: Option<String>,
    /// Client certificate of convey; `None`: convey sends no certificate.
    pub certificate: Option<CertificatePair>,
    /// Whether convey accepts any server certificate.
    pub skip_verify: bool,
    /// Minimum TLS version.
    pub min_version: TlsVersion,
}

/// Certificate authorities.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorities {
    /// Path of the file; `None`: the authorities that this host trusts.
    pub path: Option<PathBuf>,
    /// Certificates of the authorities, in DER.
    pub certificates: Arc<[Vec<u8>]>,
}

/// Secret bytes that never appear in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Arc<[u8]>);

/// TLS version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    #[default]
    V1_2,
    /// TLS 1.3 (RFC 8446).
    V1_3,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Authorities { path, certificates } = self;
        f.debug_struct("Authorities").field("path", path).field("certificates", &certificates.len()).finish()
    }
}

impl FrontendTls {
    /// Default time limit of a handshake.
    pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

    /// Default limit of concurrent handshakes per source. It is high enough for an office behind
    /// one address.
    pub const MAX_HANDSHAKES_PER_SOURCE: u32 = 256;
}

impl TlsVersion {
    /// All versions, in the order the documentation lists them.
    pub const ALL: [TlsVersion; 2] = [TlsVersion::V1_2, TlsVersion::V1_3];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::V1_2 => "1.2",
            TlsVersion::V1_3 => "1.3",
        }
    }
}

impl SecretBytes {
    /// The secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for SecretBytes {
    fn from(bytes: Vec<u8>) -> SecretBytes {
        SecretBytes(bytes.into())
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes")
    }
}
