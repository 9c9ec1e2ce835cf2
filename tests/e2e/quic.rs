//! QUIC servers that are found by connection ids.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use convey_quic_cid::{QuicKey, Scheme, ServerId};
use convey_testkit::{BalancerProcess, Loopback, PATIENCE, Setup, TestAuthority, TlsSettings, tests};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, ServerConfig,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;

tests!("quic":
    a_client_that_changes_its_address_keeps_its_server,
);

const KEY: [u8; 16] = *b"what they share.";

fn a_client_that_changes_its_address_keeps_its_server() {
    let lab = Loopback::new();
    let key_file = lab.directory().join("quic-lb.key");
    fs::write(&key_file, KEY.map(|byte| format!("{byte:02x}")).concat()).unwrap();
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"").backend(&format!(
        "hash = \"quic_cid\"\n[backends.pool.quic_lb.3]\nkey_file = {:?}",
        key_file.display()
    ));
    let names = ["a", "b", "c"];
    let ids = ["0a01", "0a02", "0a03"];
    let setup = (1..).zip(names).fold(setup, |setup, (n, name)| {
        let line = format!("quic_server_id = \"{}\"", ids[usize::from(n) - 1]);
        setup.server(name, lab.server(n), &line)
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let authority = TestAuthority::new("The authority");
    authority.issue(&["site.example"]).save(lab.directory(), "site");
    let _servers = runtime.block_on(async {
        (1..)
            .zip(names)
            .map(|(n, name)| server(&lab, lab.server(n), name, ids[usize::from(n) - 1]))
            .collect::<Vec<_>>()
    });
    let balancer = BalancerProcess::start(&lab, &setup);
    runtime.block_on(async { timeout(PATIENCE, move_and_ask(&authority, lab.vip())).await }).unwrap();
    // A session for each address of each client.
    assert_eq!(balancer.stat("/frontends/web/total_connections"), CLIENTS * (1 + MOVES));
}

const CLIENTS: usize = 6;
const MOVES: usize = 4;

/// Clients whose addresses change while they are connected.
async fn move_and_ask(authority: &TestAuthority, to: SocketAddr) {
    for _ in 0..CLIENTS {
        let tls = TlsSettings::trusting(authority).offering(&["echo"]).client();
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        endpoint
            .set_default_client_config(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap())));
        let connection = endpoint.connect(to, "site.example").unwrap().await.unwrap();
        let server = fetch(&connection).await;
        for _ in 0..MOVES {
            endpoint.rebind(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
            assert_eq!(fetch(&connection).await, server);
        }
        connection.close(0u8.into(), b"");
    }
}

/// Name of the server that answers.
async fn fetch(connection: &Connection) -> String {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(b"who?").await.unwrap();
    send.finish().unwrap();
    String::from_utf8(receive.read_to_end(16).await.unwrap()).unwrap()
}

/// A server that returns its name on each stream, and issues connection ids with its server id.
fn server(lab: &Loopback, at: SocketAddr, name: &'static str, id: &str) -> Endpoint {
    let chain = CertificateDer::from_pem_file(lab.directory().join("site.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(lab.directory().join("site.key")).unwrap();
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
    tls.alpn_protocols = vec![b"echo".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let mut endpoint = EndpointConfig::default();
    let id: ServerId = id.parse().unwrap();
    endpoint.cid_generator(move || Box::new(Ids { scheme: scheme(&id), id }));
    let socket = UdpSocket::bind(at).unwrap();
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(endpoint, Some(config), socket, runtime).unwrap();
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            let Ok(connection) = incoming.await else { continue };
            tokio::spawn(async move {
                while let Ok((mut send, _)) = connection.accept_bi().await {
                    let _ = send.write_all(name.as_bytes()).await;
                    let _ = send.finish();
                }
            });
        }
    });
    endpoint
}

fn scheme(id: &ServerId) -> Scheme {
    Scheme::new(3, id.len(), NONCE, Some(QuicKey::new(KEY))).unwrap()
}

/// Rest of a cipher block.
const NONCE: usize = 14;

/// Connection ids that contain a server id.
struct Ids {
    scheme: Scheme,
    id: ServerId,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let nonce: [u8; NONCE] = std::array::from_fn(|_| fastrand::u8(..));
        ConnectionId::new(&self.scheme.encode(&self.id, &nonce).unwrap())
    }

    fn cid_len(&self) -> usize {
        1 + self.id.len() + NONCE
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
