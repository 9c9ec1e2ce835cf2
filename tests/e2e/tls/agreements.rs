//! Requests that do not match the handshake of their connection: another host, another version of
//! HTTP.

use std::fs;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TestAuthority, TestHttpServer, TlsClient, TlsSettings, tests,
};

use super::{authority, https};
use crate::curl::curl;
use crate::http::client::Client;

tests!("tls_agreements":
    host_of_another_certificate_is_misdirected [Need::CURL],
    client_speaks_the_version_of_http_that_it_has_agreed_on,
);

/// A frontend with certificates for `site.example` and, of its own, for `other.example`.
fn two_sites(lab: &Loopback, authority: &TestAuthority, lines: &str) -> Setup {
    let more = lab.directory().join("more");
    fs::create_dir_all(&more).unwrap();
    authority.issue(&["other.example"]).save(&more, "other");
    https(lab, &format!("certificate_dir = \"{}\"\n{lines}", more.display()))
}

fn host_of_another_certificate_is_misdirected() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &two_sites(&lab, &authority, ""));
    let config = TlsSettings::trusting(&authority).client();
    let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
    assert_eq!(client.get("site.example", "/").status, 200);
    let misdirected = client.get("Other.example:443", "/");
    assert_eq!(misdirected.status, 421);
    assert!(misdirected.body.contains("the TLS connection is for another host"), "{misdirected:?}");
    // The routes decide on a host without a certificate. The connection stays open.
    assert_eq!(client.get("third.example", "/").status, 200);
    let mut other = Client(TlsClient::connect(lab.vip(), "other.example", &config).unwrap());
    assert_eq!(other.get("other.example", "/").status, 200);

    let (vip, ca) = (lab.vip(), authority.save(lab.directory()).display().to_string());
    let resolve = format!("site.example:{}:{}", vip.port(), vip.ip());
    let url = format!("https://site.example:{}/", vip.port());
    let status = |host: &str| {
        let host = format!("Host: {host}");
        let options = ["--http2", "--cacert", &ca, "--resolve", &resolve, "-o", "/dev/null"];
        curl(&[&options[..], &["-w", "%{http_code} %{http_version}", "-H", &host, &url]].concat())
    };
    assert_eq!([status("other.example"), status("third.example")], ["421 2", "200 2"]);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/misdirected", 2);
    // A client without SNI may request any host.
    let by_address = format!("https://{vip}/");
    let output =
        curl(&["-k", "-H", "Host: other.example", "-o", "/dev/null", "-w", "%{http_code}", &by_address]);
    assert_eq!(output, "200");
    assert_eq!(server.seen().len(), 5);
}

fn client_speaks_the_version_of_http_that_it_has_agreed_on() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let connect = |protocols: &[&str]| -> Client<TlsClient> {
        let config = TlsSettings::trusting(&authority).offering(protocols).client();
        Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap())
    };
    let refused = connect(&["h2"]).get("site.example", "/");
    assert_eq!(refused.status, 505, "{refused:?}");
    assert!(refused.head.contains("Connection: close"), "{refused:?}");
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(connect(&["http/1.1"]).send(preface).status, 505);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 2);
    // Without an agreed protocol, the first bytes decide.
    assert_eq!(connect(&[]).get("site.example", "/").status, 200);
    assert_eq!(server.seen().len(), 1);
}
