//! TLS for tests: certificate authorities, certificates, and clients that return the negotiated
//! parameters.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned, SupportedProtocolVersion,
};
use time::{Duration, OffsetDateTime};

/// Certificate authority of a test.
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    /// Certificate in PEM.
    pub chain: String,
    /// Private key in PEM.
    pub key: String,
}

impl TestAuthority {
    /// Creates an authority with this name.
    pub fn new(name: &str) -> TestAuthority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        TestAuthority { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate of the authority in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes the authority's certificate to a file, and returns its path.
    pub fn save(&self, directory: &Path) -> PathBuf {
        let path = directory.join("authority.pem");
        fs::write(&path, &self.pem).unwrap();
        path
    }

    /// Issues a certificate for a server with these names, valid for 90 days.
    pub fn issue(&self, names: &[&str]) -> TestCertificate {
        self.issue_for(names, 90)
    }

    /// Issues a server certificate that is valid for `days` from now. With a negative number, the
    /// certificate has already expired.
    pub fn issue_for(&self, names: &[&str], days: i64) -> TestCertificate {
        self.sign(names, names.first().unwrap_or(&"none"), days, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a certificate for a client with this name, valid for 90 days.
    pub fn issue_to_client(&self, name: &str) -> TestCertificate {
        self.sign(&[], name, 90, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        names: &[&str],
        subject: &str,
        days: i64,
        usage: ExtendedKeyUsagePurpose,
    ) -> TestCertificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.extended_key_usages = vec![usage];
        let now = OffsetDateTime::now_utc();
        // Add an hour, so that the test sees whole days.
        params.not_after = now + Duration::days(days) + Duration::hours(1);
        params.not_before = params.not_after - Duration::days(365);
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        TestCertificate { chain, key: key.serialize_pem() }
    }
}

impl TestCertificate {
    /// Writes `NAME.pem` and `NAME.key`, like a program that renews certificates.
    pub fn save(&self, directory: &Path, name: &str) {
        let key = directory.join(format!("{name}.key"));
        let new = directory.join(format!(".{name}.key.new"));
        fs::write(&new, &self.key).unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, key).unwrap();
        fs::write(directory.join(format!("{name}.pem")), &self.chain).unwrap();
    }

    /// TLS configuration of a server with this certificate.
    pub fn server(&self) -> Arc<ServerConfig> {
        let chain = vec![CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}

/// TLS settings of clients that trust an authority.
pub struct TlsSettings {
    roots: RootCertStore,
    versions: Vec<&'static SupportedProtocolVersion>,
    protocols: Vec<Vec<u8>>,
    certificate: Option<TestCertificate>,
}

impl TlsSettings {
    /// Creates settings for a client that supports TLS 1.2 and 1.3.
    pub fn trusting(authority: &TestAuthority) -> TlsSettings {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
        TlsSettings {
            roots,
            versions: rustls::ALL_VERSIONS.to_vec(),
            protocols: Vec::new(),
            certificate: None,
        }
    }

    /// Restricts the client to TLS 1.2.
    #[must_use]
    pub fn tls12(self) -> TlsSettings {
        TlsSettings { versions: vec![&rustls::version::TLS12], ..self }
    }

    /// Offers these protocols (ALPN).
    #[must_use]
    pub fn offering(self, protocols: &[&str]) -> TlsSettings {
        TlsSettings {
            protocols: protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect(),
            ..self
        }
    }

    /// Presents this client certificate to servers.
    #[must_use]
    pub fn showing(self, certificate: TestCertificate) -> TlsSettings {
        TlsSettings { certificate: Some(certificate), ..self }
    }

    /// TLS configuration of clients. Clients with the same configuration share TLS sessions.
    pub fn client(self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder =
            builder.with_protocol_versions(&self.versions).unwrap().with_root_certificates(self.roots);
        let mut config = match self.certificate {
            None => builder.with_no_client_auth(),
            Some(TestCertificate { chain, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.protocols;
        Arc::new(config)
    }
}

/// Client connection after a TLS handshake.
pub struct TlsClient(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    /// Performs the handshake on this connection, with this server name.
    ///
    /// # Errors
    /// The server refuses the handshake, or the client does not trust the server.
    pub fn over(tcp: TcpStream, name: &str, config: &Arc<ClientConfig>) -> io::Result<TlsClient> {
        let connection = ClientConnection::new(config.clone(), name.to_owned().try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(TlsClient(stream))
    }

    /// Opens a connection and performs the handshake.
    ///
    /// # Errors
    /// The server refuses the handshake, or the client does not trust the server.
    pub fn connect(at: SocketAddr, name: &str, config: &Arc<ClientConfig>) -> io::Result<TlsClient> {
        TlsClient::over(super::client::try_connect(None, at)?, name, config)
    }

    /// Certificate of the server in DER.
    pub fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().unwrap()[0].to_vec()
    }

    /// Negotiated protocol (ALPN). Empty if none was negotiated.
    pub fn protocol(&self) -> String {
        String::from_utf8_lossy(self.0.conn.alpn_protocol().unwrap_or_default()).into_owned()
    }

    /// Whether the handshake resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.0.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// The TCP socket of the connection.
    pub fn tcp(&self) -> &TcpStream {
        &self.0.sock
    }

    /// Closes the sending direction of TLS and of TCP.
    pub fn shutdown(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.flush();
        let _ = self.0.sock.shutdown(std::net::Shutdown::Write);
    }
}

impl TestCertificate {
    /// SHA-256 hash of the public key (`SubjectPublicKeyInfo`), in base64. Browsers identify keys
    /// by it.
    pub fn key_hash(&self) -> String {
        let key = KeyPair::from_pem(&self.key).unwrap().subject_public_key_info();
        let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
        BASE64.encode(suite.common.hash_provider.hash(&key).as_ref())
    }

    /// The certificate in DER, as clients receive it.
    pub fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap().to_vec()
    }
}

impl Read for TlsClient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for TlsClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
