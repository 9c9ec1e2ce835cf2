//! TLS between convey and servers.

use std::io::{Read, Write};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Setup, TestAuthority, connect, tests, wait_for,
};

use crate::curl::curl;
use crate::http::client::Client;

tests!("tls_servers":
    servers_are_asked_within_tls_in_both_versions_of_http [Need::NGINX, Need::CURL],
    bytes_of_any_protocol_go_to_servers_within_tls [Need::NGINX],
    a_server_that_is_not_who_it_should_be_gets_no_request [Need::NGINX],
    servers_learn_who_convey_is_by_its_certificate [Need::NGINX],
    checks_shake_hands_as_clients_connections_do [Need::NGINX],
    a_server_chooses_the_version_of_http_and_may_choose_anew [Need::NGINX, Need::CURL],
);

/// A backend with these lines in its table `tls`, in front of the server `a`.
fn to_tls(lab: &Loopback, mode: &str, lines: &str) -> Setup {
    let ca = lab.directory().join("authority.pem").display().to_string();
    let tls = format!("[backends.pool.tls]\nca = \"{ca}\"\n{lines}");
    Setup::new(lab).frontend(&format!("mode = \"{mode}\"")).backend(&tls).server("a", lab.server(1), "")
}

/// nginx with a certificate for these names, which supports HTTP/2 if `options` enable it.
fn nginx(lab: &Loopback, authority: &TestAuthority, names: &[&str], options: &str, lines: &str) -> Nginx {
    authority.issue(names).save(lab.directory(), "server");
    authority.save(lab.directory());
    let at = lab.directory().display();
    let lines = format!("ssl_certificate {at}/server.pem; ssl_certificate_key {at}/server.key;\n{lines}");
    Nginx::start_tls(lab, "a", lab.server(1), options, &lines)
}

fn get(lab: &Loopback, path: &str) -> (u16, String) {
    let response = Client::new(lab.vip()).get("client.example", path);
    (response.status, response.body)
}

fn servers_are_asked_within_tls_in_both_versions_of_http() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let _nginx = nginx(&lab, &authority, &["app.example"], " http2", "");
    let name = "server_name = \"app.example\"";
    let setup = |protocol: &str| {
        let setup = to_tls(&lab, "http", name);
        let tls = format!(
            "protocol = \"{protocol}\"\n[backends.pool.tls]\nca = \"{}/authority.pem\"\n{name}",
            lab.directory().display()
        );
        setup.backend(&tls)
    };
    let balancer = BalancerProcess::start(&lab, &setup("auto"));
    assert_eq!(get(&lab, "/tls"), (200, "a HTTP/2.0 app.example ".to_owned()));
    let url = format!("http://{}/tls", lab.vip());
    for (protocol, seen) in [("h2", "HTTP/2.0"), ("h1", "HTTP/1.1")] {
        balancer.save(&setup(protocol));
        balancer.wait_for_log(&format!("-> {protocol}"));
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            assert_eq!(curl(&[version, &url]), format!("a {seen} app.example "), "{protocol} {version}");
        }
    }
    // Connections are reused as without TLS.
    let before = balancer.given_to("a");
    let mut client = Client::new(lab.vip());
    (0..5).for_each(|_| assert_eq!(client.get("a", "/tls").status, 200));
    assert_eq!(balancer.given_to("a"), before + 5, "requests");
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/connect_failed"), 0);
}

fn bytes_of_any_protocol_go_to_servers_within_tls() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let nginx = nginx(&lab, &authority, &["app.example"], "", "");
    std::fs::write(nginx.file("large"), vec![b'x'; 3_000_000]).unwrap();
    let _balancer = BalancerProcess::start(&lab, &to_tls(&lab, "proxy", "server_name = \"app.example\""));
    for (path, size) in [("/tls", 23), ("/large", 3_000_000)] {
        let mut client = connect(lab.vip());
        write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        assert_eq!(answer.len() - body, size, "{path}");
    }
}

fn a_server_that_is_not_who_it_should_be_gets_no_request() {
    let lab = Loopback::new();
    let (authority, other) = (TestAuthority::new("The authority"), TestAuthority::new("Another"));
    let _nginx = nginx(&lab, &authority, &["app.example"], "", "");
    let refused = || {
        let (status, body) = get(&lab, "/tls");
        assert_eq!((status, &*body), (503, "503 Service Unavailable: no server could be reached\n"));
    };
    let balancer = BalancerProcess::start(&lab, &to_tls(&lab, "http", "server_name = \"other.example\""));
    refused();
    // Without a name, the certificate has to be valid for the address.
    balancer.save(&to_tls(&lab, "http", ""));
    balancer.wait_for_log("tls.server_name other.example -> the server's");
    refused();
    let stranger = lab.directory().join("stranger.pem");
    std::fs::write(&stranger, other.pem()).unwrap();
    let named = "server_name = \"app.example\"";
    let trusting = |ca: &str, more: &str| {
        let tls = format!("[backends.pool.tls]\n{ca}\n{named}\n{more}");
        Setup::new(&lab).frontend("mode = \"http\"").backend(&tls).server("a", lab.server(1), "")
    };
    balancer.save(&trusting(&format!("ca = \"{}\"", stranger.display()), ""));
    balancer.wait_for_log("stranger.pem");
    refused();
    balancer.save(&trusting("", "skip_verify = true"));
    balancer.wait_for_log("tls.skip_verify false -> true");
    assert_eq!(get(&lab, "/tls").0, 200);
    balancer.save(&to_tls(&lab, "http", named));
    balancer.wait_for_log("tls.skip_verify true -> false");
    assert_eq!(get(&lab, "/tls").0, 200);
    // Connections with other settings are not reused.
    balancer.save(&to_tls(&lab, "http", "server_name = \"other.example\""));
    balancer.wait_for_log("tls.server_name app.example -> other.example");
    refused();
    assert!(balancer.stat("/backends/pool/servers/a/connect_failures").as_u64() >= Some(3));
}

fn servers_learn_who_convey_is_by_its_certificate() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let ca = lab.directory().join("authority.pem").display().to_string();
    let asks = format!("ssl_verify_client on; ssl_client_certificate {ca};");
    let _nginx = nginx(&lab, &authority, &["app.example"], "", &asks);
    authority.issue_to_client("the balancer").save(lab.directory(), "client");
    let at = lab.directory().display();
    let named = "server_name = \"app.example\"";
    let shown = format!("{named}\ncertificate = \"{at}/client.pem\"\nkey = \"{at}/client.key\"");
    let balancer = BalancerProcess::start(&lab, &to_tls(&lab, "http", named));
    assert_eq!(get(&lab, "/tls").0, 400, "nginx wants a certificate");
    balancer.save(&to_tls(&lab, "http", &shown));
    balancer.wait_for_log("client.pem");
    let renewed = wait_for("a new connection", || {
        let (status, body) = get(&lab, "/tls");
        (status == 200).then_some(body)
    });
    assert_eq!(renewed, "a HTTP/1.1 app.example CN=the balancer");
}

fn checks_shake_hands_as_clients_connections_do() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let _nginx = nginx(&lab, &authority, &["app.example"], "", "");
    let checked = |kind: &str, name: &str| {
        let health = format!("kind = \"{kind}\"\ninterval = 0.1\ntimeout = 0.1\nrise = 1\nfall = 1");
        to_tls(&lab, "http", &format!("server_name = \"{name}\"")).health(&health)
    };
    let balancer = BalancerProcess::start(&lab, &checked("tcp", "app.example"));
    let says = |reason: &str| balancer.wait_for_stat("/backends/pool/servers/a/health/reason", reason);
    says("TLS handshake succeeded");
    balancer.save(&checked("http", "other.example"));
    balancer.wait_for_health("a", false);
    balancer.save(&checked("tcp", "other.example"));
    balancer.wait_for_log("certificate not valid for name");
    balancer.save(&checked("http", "app.example"));
    balancer.wait_for_health("a", true);
    says("HTTPS status 200");
}

fn a_server_chooses_the_version_of_http_and_may_choose_anew() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let mut first = nginx(&lab, &authority, &["app.example"], " http2", "");
    let tls = format!(
        "protocol = \"auto\"\n[backends.pool.tls]\nca = \"{}/authority.pem\"\nserver_name = \"app.example\"",
        lab.directory().display()
    );
    let setup = Setup::new(&lab).frontend("mode = \"http\"").backend(&tls).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let url = format!("http://{}/tls", lab.vip());
    let fetch = |version: &str| curl(&[version, &url]);
    assert_eq!(fetch("--http1.1"), "a HTTP/2.0 app.example ");
    first.kill();
    drop(first);
    let _second = nginx(&lab, &authority, &["app.example"], "", "");
    let seen = |expected: &str| {
        wait_for(expected, || {
            let output = ["--http1.1", "--http2-prior-knowledge"].map(fetch);
            output.iter().all(|output| output == expected).then_some(())
        });
    };
    seen("a HTTP/1.1 app.example ");
}
