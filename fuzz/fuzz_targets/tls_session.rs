//! Attacks of a client on a TLS session: any bytes in place of its handshake, or changes to the
//! bytes of a real one, cut anywhere, while convey sends and closes in between.

#![no_main]

use std::sync::{Arc, LazyLock};

use convey_model::{CertificatePair, FrontendTls, TlsVersion};
use convey_tls::{OutgoingRecords, TlsAcceptor, TlsSession};
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

static ACCEPTOR: LazyLock<(TlsAcceptor, Arc<ClientConfig>)> = LazyLock::new(|| {
    let key = KeyPair::generate().unwrap();
    let chain = CertificateParams::new(vec!["site.example".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = builder.with_root_certificates(roots).with_no_client_auth();
    let settings = FrontendTls {
        acme: false,
        http3: false,
        early_data: false,
        certificates: vec![CertificatePair {
            chain_path: "site.pem".into(),
            key_path: "site.key".into(),
            chain: chain.into_bytes().into(),
            key: key.serialize_pem().into_bytes().into(),
        }],
        refuse_unknown_names: false,
        min_version: TlsVersion::V1_2,
        cipher_suites: Vec::new(),
        alpn: Vec::new(),
        client_ca: None,
        session_tickets: false,
        handshake_timeout: FrontendTls::HANDSHAKE_TIMEOUT,
        max_handshakes_per_source: FrontendTls::MAX_HANDSHAKES_PER_SOURCE,
    };
    (TlsAcceptor::new(&settings, None).unwrap(), Arc::new(client))
});

// Steps of the server's side, two bytes each, and after them the bytes of a client.
fuzz_target!(|input: &[u8]| {
    let Some((count, rest)) = input.split_first() else { return };
    let (steps, own) = rest.split_at((usize::from(*count) * 2).min(rest.len()));
    let (acceptor, config) = &*ACCEPTOR;
    let mut server = TlsSession::accept(acceptor).unwrap();
    let name = "site.example".try_into().unwrap();
    let mut client = TlsSession::connect(config.clone(), name).unwrap();
    let (mut to_server, mut to_client) = (OutgoingRecords::default(), OutgoingRecords::default());
    let mut pending = Vec::new();
    // The library, built with its own assertions, accepts no broken record after a close: an input
    // has only one of them.
    let (mut is_changed, mut is_closed) = (!own.is_empty(), false);
    if own.is_empty() {
        let _ = client.receive(&mut [], &mut to_server, |_| {});
        pending.extend_from_slice(to_server.bytes());
    } else {
        pending.extend_from_slice(own);
    }
    for step in steps.chunks_exact(2) {
        let amount = usize::from(step[1]);
        match step[0] % 6 {
            // The server receives some of the client's bytes.
            0 | 1 => {
                let take = if step[0] % 6 == 0 { pending.len() } else { amount.min(pending.len()) };
                let bytes: Vec<u8> = pending.drain(..take).collect();
                let mut incoming = [&vec![0; server.unfinished()][..], &bytes].concat();
                let _ = server.receive(&mut incoming, &mut to_client, |_| {});
                assert!(server.unfinished() <= TlsSession::MAX_UNFINISHED);
            }
            // The client gets all that the server has sent.
            2 => {
                let mut incoming = [&vec![0; client.unfinished()][..], to_client.bytes()].concat();
                to_client.clear();
                to_server.clear();
                let _ = client.receive(&mut incoming, &mut to_server, |_| {});
                pending.extend_from_slice(to_server.bytes());
            }
            // The client sends data, once the handshake is over.
            3 => {
                to_server.clear();
                let _ = client.send(&vec![7; amount], &mut to_server);
                pending.extend_from_slice(to_server.bytes());
            }
            // One bit is flipped on the way.
            4 if !is_closed => {
                is_changed = true;
                let len = pending.len().max(1);
                if let Some(byte) = pending.get_mut(amount % len) {
                    *byte ^= 1 << (step[0] / 6 % 8);
                }
            }
            // convey sends data, or closes.
            _ if amount == 0 && !is_changed => is_closed |= server.close(&mut to_client).is_ok(),
            _ => drop(server.send(&vec![8; amount * 100], &mut to_client)),
        }
    }
});
