//! TLS of frontends and backends, as the file has it and the files that it names. Pure.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a frontend shakes hands with clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendTls {
    /// The certificates; at least one, unless `acme` brings them. Clients that ask for no name, or for another one, get the first.
    pub certificates: Vec<CertificatePair>,
    /// Whether it has the certificates that convey orders, too.
    pub acme: bool,
    /// Whether clients that ask for a name that no certificate has are refused.
    pub refuse_unknown_names: bool,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
    /// The suites that are spoken, the preferred one first; empty: all that are safe.
    pub cipher_suites: Vec<String>,
    /// The protocols within (ALPN, RFC 7301), the preferred one first; empty: clients are asked for none.
    pub alpn: Vec<String>,
    /// Who issues the certificates of clients; `None`: clients need none.
    pub client_ca: Option<ClientCa>,
    /// Whether clients may go on with an earlier session.
    pub session_tickets: bool,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How many handshakes one source may have at once (of IPv6: one /64). `trusted_clients` have no such limit.
    pub max_handshakes_per_source: u32,
    /// Whether HTTP/3 is spoken too, over QUIC at the same addresses (mode `http`).
    pub http3: bool,
    /// Whether a client that returns may send a request before its handshake is over (0-RTT, RFC 8446, section 2.3), over HTTP/3. Somebody
    /// who has recorded it can repeat it, so only safe methods are taken then.
    pub early_data: bool,
}

/// A certificate chain and its key, as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePair {
    /// Where the chain is.
    pub chain_path: PathBuf,
    /// Where the key is: it may be the same file.
    pub key_path: PathBuf,
    /// The chain, in PEM.
    pub chain: Arc<[u8]>,
    /// The key, in PEM.
    pub key: SecretBytes,
}

/// Who issues the certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCa {
    /// Where the authorities' certificates are.
    pub path: PathBuf,
    /// They, in PEM.
    pub certificates: Arc<[u8]>,
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

/// How convey shakes hands with the servers of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendTls {
    /// Who issues the certificates of servers.
    pub authorities: Authorities,
    /// The name that servers are asked for, and that their certificates are for; `None`: the name that a server is known by, or else its
    /// address.
    pub server_name: Option<String>,
    /// The certificate that convey shows; `None`: none.
    pub certificate: Option<CertificatePair>,
    /// Whether any certificate will do.
    pub skip_verify: bool,
    /// The oldest version that is spoken.
    pub min_version: TlsVersion,
}

/// Certificate authorities.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorities {
    /// Where they are; `None`: they are those that this host trusts.
    pub path: Option<PathBuf>,
    /// Their certificates, in DER.
    pub certificates: Arc<[Vec<u8>]>,
}

/// What nobody is to see in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Arc<[u8]>);

/// A version of TLS.
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
    /// How long a handshake takes at most, where the file does not say.
    pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

    /// How many handshakes a source has at once, where the file does not say: as many as an office behind one address begins at once.
    pub const MAX_HANDSHAKES_PER_SOURCE: u32 = 256;
}

impl TlsVersion {
    /// All of them, in the order the documentation lists them.
    pub const ALL: [TlsVersion; 2] = [TlsVersion::V1_2, TlsVersion::V1_3];

    /// The name in the configuration.
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
