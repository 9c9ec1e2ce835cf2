//! Requests to test servers on this host.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

fn access(url: &str) -> ApiAccess {
    ApiAccess {
        url: url.parse().unwrap(),
        authorities: None,
        server_name: None,
        skip_verify: false,
        identity: None,
        credentials: Credentials::Fixed(HeaderValue::from_static("Bearer secret")),
        fields: HeaderMap::new(),
    }
}

/// Starts a server that answers each request with the request's head and the number of the
/// connection. With `closes`, the server closes each connection after one answer, without a header
/// that announces the close.
async fn serve(tls: Option<Arc<ServerConfig>>, closes: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let connections = AtomicUsize::new(0);
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let number = connections.fetch_add(1, Ordering::Relaxed) + 1;
            match tls.clone() {
                None => answer(stream, number, closes).await,
                Some(config) => match TlsAcceptor::from(config).accept(stream).await {
                    Ok(stream) => answer(stream, number, closes).await,
                    Err(_) => continue,
                },
            }
        }
    });
    port
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, connection: usize, closes: bool) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            let body = format!("{connection} {}", String::from_utf8_lossy(&head));
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(text.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            head.clear();
            if closes {
                return;
            }
        }
    }
}

async fn get(server: &mut ApiServer) -> Result<String, String> {
    let body = server.get("/api?watch=true").await?.into_body();
    Ok(String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

#[tokio::test]
async fn named_api_server_is_asked_by_address_with_its_name() {
    let port = serve(None, false).await;
    let mut server = ApiServer::new(access(&format!("http://localhost:{port}/base/"))).unwrap();
    let head = get(&mut server).await.unwrap();
    assert!(head.starts_with("1 GET /base/api?watch=true HTTP/1.1\r\n"), "{head}");
    for field in [&*format!("host: localhost:{port}\r\n"), "authorization: Bearer secret\r\n"] {
        assert!(head.contains(field), "{head}");
    }
    let tls = ApiServer::new(ApiAccess { skip_verify: true, ..access("https://user@localhost:6443/base") });
    let tls = tls.unwrap();
    assert_eq!(tls.fields[HOST], "localhost:6443");
    assert_eq!(tls.tls.unwrap().name, ServerName::try_from("localhost").unwrap());

    let by_ip = ApiServer::new(ApiAccess { skip_verify: true, ..access("https://[::1]") }).unwrap();
    assert_eq!((&*by_ip.host, by_ip.port, by_ip.fields[HOST].to_str().unwrap()), ("::1", 443, "[::1]"));
    assert!(matches!(by_ip.tls.unwrap().name, ServerName::IpAddress(_)));
}

#[tokio::test]
async fn connection_serves_requests_until_the_api_server_closes_it() {
    let port = serve(None, false).await;
    let mut server = ApiServer::new(access(&format!("http://127.0.0.1:{port}"))).unwrap();
    for _ in 0..3 {
        assert!(get(&mut server).await.unwrap().starts_with("1 GET /api"));
    }
    let unread = server.get("/api").await.unwrap();
    drop(unread);

    let port = serve(None, true).await;
    let mut server = ApiServer::new(access(&format!("http://127.0.0.1:{port}"))).unwrap();
    for number in 1..=3 {
        assert!(get(&mut server).await.unwrap().starts_with(&format!("{number} GET /api")));
        let closed = async || server.connection.as_ref().is_none_or(|open| open.sender.is_closed());
        while !closed().await {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn api_server_that_cannot_be_reached_is_named() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut server = ApiServer::new(access(&format!("http://{gone}"))).unwrap();
    assert_eq!(get(&mut server).await.unwrap_err(), format!("{gone}: Connection refused (os error 111)"));
    for url in ["10.0.0.1:6443", "ftp://10.0.0.1", "ftp://me:secret@10.0.0.1", "/path"] {
        let error = ApiServer::new(access(url)).err().unwrap();
        assert!(error.ends_with("is not an http or https URL") && !error.contains("secret"), "{error}");
    }
}

/// Certificate authority for tests.
struct Issuing(Issuer<'static, KeyPair>, String);

impl Issuing {
    fn new() -> Issuing {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Issuing(Issuer::new(params, key), pem)
    }

    /// Issues a certificate. Returns its chain and its key, both in PEM.
    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (Vec<u8>, Vec<u8>) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        (chain.into_bytes(), key.serialize_pem().into_bytes())
    }

    /// TLS configuration of a server that requires a client certificate.
    fn server(&self, name: &str) -> Arc<ServerConfig> {
        let (chain, key) = self.issue(name, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.1.as_bytes()).unwrap()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build();
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_client_cert_verifier(clients.unwrap());
        let chain = vec![CertificateDer::from_pem_slice(&chain).unwrap()];
        Arc::new(builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(&key).unwrap()).unwrap())
    }
}

#[tokio::test]
async fn tls_takes_the_authority_the_name_and_the_certificate_of_the_kubeconfig() {
    let authority = Issuing::new();
    let port = serve(Some(authority.server("api.example.org")), false).await;
    let (chain, key) = authority.issue("convey", ExtendedKeyUsagePurpose::ClientAuth);
    let shown = PemIdentity { chain, key };
    let whole = || ApiAccess {
        authorities: Some(authority.1.clone().into_bytes()),
        server_name: Some("api.example.org.".to_owned()),
        identity: Some(shown.clone()),
        ..access(&format!("https://127.0.0.1:{port}"))
    };
    let get = async |access| get(&mut ApiServer::new(access).unwrap()).await;
    assert!(get(whole()).await.unwrap().contains("authorization: Bearer secret"));
    let anybody = ApiAccess { skip_verify: true, authorities: None, server_name: None, ..whole() };
    assert!(get(anybody).await.unwrap().contains("GET /api"));

    let refused = get(ApiAccess { server_name: None, ..whole() }).await.unwrap_err();
    assert!(refused.starts_with(&format!("127.0.0.1:{port}: TLS: invalid peer certificate")), "{refused}");
    let other = Issuing::new().1.into_bytes();
    let refused = get(ApiAccess { authorities: Some(other), ..whole() }).await.unwrap_err();
    assert!(refused.contains("TLS: invalid peer certificate"), "{refused}");
    assert!(get(ApiAccess { identity: None, ..whole() }).await.is_err(), "the server wants a certificate");
    let broken = ApiServer::new(ApiAccess { authorities: Some(b"x".to_vec()), ..whole() }).err().unwrap();
    assert!(broken.starts_with("certificate authority of the cluster: "), "{broken}");
}
