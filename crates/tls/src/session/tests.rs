use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::*;
use convey_model::{CertificatePair, FrontendTls, TlsVersion};

/// Both sides of a connection.
struct Pair {
    client: TlsSession,
    server: TlsSession,
}

fn pem(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn settings((chain, key): &(String, String)) -> FrontendTls {
    FrontendTls {
        acme: false,
        certificates: vec![CertificatePair {
            chain_path: "site.pem".into(),
            key_path: "site.key".into(),
            chain: chain.as_bytes().into(),
            key: key.clone().into_bytes().into(),
        }],
        refuse_unknown_names: false,
        min_version: TlsVersion::V1_2,
        cipher_suites: Vec::new(),
        alpn: vec!["h2".to_owned(), "http/1.1".to_owned()],
        client_ca: None,
        session_tickets: true,
        handshake_timeout: FrontendTls::HANDSHAKE_TIMEOUT,
        max_handshakes_per_source: FrontendTls::MAX_HANDSHAKES_PER_SOURCE,
        http3: false,
        early_data: false,
    }
}

fn client(chain: &str, version: &'static rustls::SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Passes bytes to one side, in pieces of this size. Returns the reply, the plaintext, and the
/// final state.
fn give(to: &mut TlsSession, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>, Received), Error> {
    let (mut out, mut said, mut all) = (OutgoingRecords::default(), Vec::new(), Received::default());
    for piece in bytes.chunks(piece) {
        let mut incoming = [&vec![0; to.unfinished()][..], piece].concat();
        let received = to.receive(&mut incoming, &mut out, |bytes| said.extend_from_slice(bytes))?;
        all = Received {
            is_open: all.is_open | received.is_open,
            is_closed: all.is_closed | received.is_closed,
        };
    }
    Ok((out.bytes().to_vec(), said, all))
}

impl Pair {
    fn new(version: &'static rustls::SupportedProtocolVersion) -> Pair {
        let files = pem("site.example");
        let acceptor = TlsAcceptor::new(&settings(&files), None).unwrap();
        let name = "site.example".try_into().unwrap();
        let client = TlsSession::connect(client(&files.0, version), name).unwrap();
        Pair { client, server: TlsSession::accept(&acceptor).unwrap() }
    }

    /// Performs the handshake, in pieces of this size.
    fn shake_hands(&mut self, piece: usize) {
        let mut out = OutgoingRecords::default();
        self.client.receive(&mut [], &mut out, |_| {}).unwrap();
        let (mut to_server, mut are_open) = (out.bytes().to_vec(), [false; 2]);
        while !to_server.is_empty() {
            let (to_client, _, server) = give(&mut self.server, &to_server, piece).unwrap();
            let (next, _, client) = give(&mut self.client, &to_client, piece).unwrap();
            to_server = next;
            are_open = [are_open[0] | server.is_open, are_open[1] | client.is_open];
        }
        assert_eq!(are_open, [true; 2]);
    }
}

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[test]
fn handshake_and_data_work_at_any_read_boundary() {
    for version in VERSIONS {
        for piece in [1, 7, 1_000, usize::MAX] {
            let mut pair = Pair::new(version);
            pair.shake_hands(piece);
            let facts = pair.server.facts();
            assert_eq!((&*facts.server_name, &*facts.protocol), ("site.example", "http/1.1"));
            assert!(facts.version == "TLSv1.2" || facts.version == "TLSv1.3", "{facts:?}");
            assert!(facts.client_subject.is_empty() && !facts.is_resumed);
            assert_eq!(pair.client.facts().cipher_suite, facts.cipher_suite);
            for size in [0, 1, MAX_RECORD, 3 * MAX_RECORD + 5] {
                let said: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
                let mut out = OutgoingRecords::default();
                pair.client.send(&said, &mut out).unwrap();
                let (answer, heard, _) = give(&mut pair.server, out.bytes(), piece).unwrap();
                assert!(heard == said && answer.is_empty(), "{size} bytes in pieces of {piece}");
            }
            let mut out = OutgoingRecords::default();
            pair.client.close(&mut out).unwrap();
            let (_, _, received) = give(&mut pair.server, out.bytes(), piece).unwrap();
            assert!(received.is_closed);
            out.clear();
            pair.server.send(b"still", &mut out).unwrap();
            assert_eq!(give(&mut pair.client, out.bytes(), piece).unwrap().1, b"still");
        }
    }
}

#[test]
fn a_side_sends_while_a_record_of_the_other_is_half_there() {
    for version in VERSIONS {
        let mut pair = Pair::new(version);
        pair.shake_hands(usize::MAX);
        let mut out = OutgoingRecords::default();
        pair.client.send(&[7; 1_000], &mut out).unwrap();
        let record = out.bytes().to_vec();
        let (first, rest) = record.split_at(500);
        give(&mut pair.server, first, usize::MAX).unwrap();
        assert_eq!(pair.server.unfinished(), 500);
        out.clear();
        pair.server.send(b"meanwhile", &mut out).unwrap();
        assert_eq!(give(&mut pair.client, out.bytes(), 3).unwrap().1, b"meanwhile");
        assert_eq!(give(&mut pair.server, rest, usize::MAX).unwrap().1, [7; 1_000]);
        assert_eq!(pair.server.unfinished(), 0);
    }
}

#[test]
fn protocol_violation_gets_an_alert_and_ends_the_session() {
    let mut out = OutgoingRecords::default();
    for said in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"uuu\x01", b"\0", b"\x16\x09\x09\0\x01\0", b"\x17\x03\x03\xff\xff"]
    {
        let mut pair = Pair::new(&rustls::version::TLS13);
        out.clear();
        assert!(pair.server.receive(&mut said.to_vec(), &mut out, |_| {}).is_err(), "{said:?}");
        assert_eq!(
            (&out.bytes()[..5], out.bytes().len()),
            (&[21, 3, 3, 0, 2][..], 7),
            "one alert for {said:?}"
        );
        assert!(pair.server.receive(&mut [], &mut out, |_| {}).is_err() && pair.server.unfinished() == 0);
    }

    let mut pair = Pair::new(&rustls::version::TLS13);
    pair.shake_hands(usize::MAX);
    out.clear();
    pair.client.send(b"hello", &mut out).unwrap();
    let mut changed = out.bytes().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    assert!(give(&mut pair.server, &changed, usize::MAX).is_err());
    assert!(pair.server.send(b"more", &mut out).is_err() && pair.server.close(&mut out).is_err());
}

#[test]
fn a_message_that_never_ends_is_given_up() {
    let mut pair = Pair::new(&rustls::version::TLS13);
    // A ClientHello of 16 MiB, in records of 16 KiB.
    let mut bytes = Vec::new();
    for n in 0..20 {
        bytes.extend_from_slice(&[22, 3, 1, 64, 0]);
        let begins: &[u8] = if n == 0 { &[1, 0, 255, 255] } else { &[] };
        bytes.extend_from_slice(begins);
        bytes.extend(std::iter::repeat_n(0, MAX_RECORD - begins.len()));
    }
    assert!(give(&mut pair.server, &bytes, 5_000).is_err());
    assert_eq!(pair.server.unfinished(), 0);
}

#[test]
fn garbage_of_any_kind_ends_a_session_and_nothing_else() {
    let mut pair = Pair::new(&rustls::version::TLS13);
    let mut out = OutgoingRecords::default();
    pair.client.receive(&mut [], &mut out, |_| {}).unwrap();
    let hello = out.bytes().to_vec();
    for at in 0..hello.len() {
        for bit in [0, 3, 7] {
            let mut changed = hello.clone();
            changed[at] ^= 1 << bit;
            let mut server = Pair::new(&rustls::version::TLS13).server;
            let _ = give(&mut server, &changed, 40);
            let _ = server.send(b"x", &mut out);
        }
        if at % 16 == 0 {
            let mut server = Pair::new(&rustls::version::TLS13).server;
            let _ = give(&mut server, &hello[at..], usize::MAX);
        }
    }
}

/// Performs a handshake with this protocol while convey orders a certificate. Returns the outcome,
/// and whether the client got the certificate of the challenge.
fn shake_hands_while_an_order_runs(protocol: &str, name: &str, piece: usize) -> (String, bool) {
    let (own, of_order) = (pem("site.example"), pem("site.example"));
    let der = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap().to_vec();
    let challenges = Arc::new(AcmeChallenges::default());
    let acceptor = TlsAcceptor::new(&settings(&own), None).unwrap().with_challenges(challenges.clone());
    let key = KeyPair::from_pem(&of_order.1).unwrap().serialize_der();
    let proof =
        crate::AcmeProof::Certificate { name: "site.example".to_owned(), chain: der(&of_order.0), key };
    challenges.show(vec![proof]).unwrap();
    let mut config = (*client(&own.0, &rustls::version::TLS13)).clone();
    let mut roots = RootCertStore::empty();
    for pair in [&own, &of_order] {
        roots.add(CertificateDer::from_pem_slice(pair.0.as_bytes()).unwrap()).unwrap();
    }
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::new(ring::default_provider()),
    );
    config.dangerous().set_certificate_verifier(verifier.build().unwrap());
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let client = TlsSession::connect(Arc::new(config), name.to_owned().try_into().unwrap()).unwrap();
    let mut pair = Pair { client, server: TlsSession::accept(&acceptor).unwrap() };
    pair.shake_hands(piece);
    let shown = pair.client.state().peer_certificates().unwrap()[0].to_vec();
    (pair.server.facts().protocol, shown == der(&of_order.0))
}

#[test]
fn challenge_certificate_is_shown_for_acme_tls_only() {
    for piece in [1, 100, usize::MAX] {
        let shake_hands = |protocol| shake_hands_while_an_order_runs(protocol, "site.example", piece);
        assert_eq!(shake_hands("acme-tls/1"), ("acme-tls/1".to_owned(), true));
        assert_eq!(shake_hands("http/1.1"), ("http/1.1".to_owned(), false));
        assert_eq!(shake_hands("http/1.0"), ("http/1.0".to_owned(), false));
    }
}
