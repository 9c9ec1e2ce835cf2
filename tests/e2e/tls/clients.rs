//! Client certificates.

use std::io::Read;

use convey_testkit::{
    BalancerProcess, Loopback, TestAuthority, TestHttpServer, TlsClient, TlsSettings, tests,
};

use super::{authority, https};
use crate::http::client::Client;

tests!("tls_clients":
    a_client_without_the_right_certificate_is_refused,
    client_certificate_subject_is_passed_on_and_cannot_be_forged,
);

fn a_client_without_the_right_certificate_is_refused() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let ca = format!("client_ca = \"{}\"", lab.directory().join("authority.pem").display());
    let balancer = BalancerProcess::start(&lab, &https(&lab, &ca));
    let trusting = || TlsSettings::trusting(&authority);
    let known = trusting().showing(authority.issue_to_client("alice")).client();
    let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &known).unwrap());
    assert_eq!(client.get("site.example", "/").status, 200);
    assert_eq!(server.seen()[0].field("x-ssl-client-dn"), Some("CN=alice"));
    let stranger = TestAuthority::new("Another authority").issue_to_client("mallory");
    // A server's certificate is not valid for a client.
    let of_server = authority.issue(&["alice"]);
    for settings in [trusting(), trusting().showing(stranger), trusting().showing(of_server)] {
        let config = settings.client();
        // With TLS 1.3 the client gets the alert only after its own side of the handshake.
        let refused = TlsClient::connect(lab.vip(), "site.example", &config)
            .and_then(|mut client| client.read(&mut [0]).map(drop));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("received fatal alert"), "{refused}");
    }
    balancer.wait_for_stat("/frontends/web/ended/tls_handshake_failed", 3);
    assert_eq!(server.seen().len(), 1);
}

fn client_certificate_subject_is_passed_on_and_cannot_be_forged() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let ca = lab.directory().join("authority.pem").display().to_string();
    let lines = format!("client_ca = \"{ca}\"\nclient_certificate = \"optional\"");
    let _balancer = BalancerProcess::start(&lab, &https(&lab, &lines));
    let trusting = || TlsSettings::trusting(&authority);
    let pretends = "GET / HTTP/1.1\r\nHost: a\r\nX-SSL-Client-DN: CN=root\r\nx-ssl-client-dn: CN=root\r\nX_SSL_Client_DN: CN=root\r\n\r\n";
    for (settings, expected) in
        [(trusting(), None), (trusting().showing(authority.issue_to_client("alice")), Some("CN=alice"))]
    {
        let config = settings.client();
        let subjects = || {
            let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
            assert_eq!(client.send(pretends).status, 200);
            (client.0.is_resumed(), server.seen().pop().unwrap())
        };
        // The second connection resumes the session.
        for expects_resumed in [false, true] {
            let (is_resumed, seen) = subjects();
            assert_eq!((is_resumed, seen.field("x-ssl-client-dn")), (expects_resumed, expected));
            let message = seen
                .fields
                .iter()
                .filter(|field| field.to_ascii_lowercase().replace('_', "-").starts_with("x-ssl-client-dn"));
            assert_eq!(message.count(), usize::from(expected.is_some()));
        }
    }
}
