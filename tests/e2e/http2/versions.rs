//! Clients and servers of both HTTP versions.

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer};
use http::{HeaderValue, Request};

use super::super::curl::curl;
use super::client::Client;
use super::server::EchoServer;
use super::{block_on, setup};

pub(super) fn clients_and_servers_of_both_versions_meet_in_all_ways() {
    let lab = Loopback::new();
    let (_old, _new) = (TestHttpServer::named("old", lab.server(1)), EchoServer::start(lab.server(2)));
    for (protocol, is_new) in [("h1", [false; 2]), ("h2", [true; 2]), ("auto", [false, true])] {
        for (client_is_new, server_is_new) in [false, true].into_iter().zip(is_new) {
            let lab_server = lab.server(if server_is_new { 2 } else { 1 });
            let setup = setup(&lab, protocol).health("kind = \"none\"").server("a", lab_server, "");
            let _balancer = BalancerProcess::start(&lab, &setup);
            for (framing, body) in [("length", "Hello, server."), ("chunked", "Hello, server."), ("none", "")]
            {
                let body_seen = match client_is_new {
                    true => over_http2(&lab, framing, body),
                    false => over_http1(&lab, framing, body),
                };
                let expected = match server_is_new {
                    true => body.to_owned(),
                    false => {
                        format!("old {} /x {}", if body.is_empty() { "GET" } else { "POST" }, body.len())
                    }
                };
                assert_eq!(body_seen, expected, "{protocol}, client of HTTP/2: {client_is_new}, {framing}");
            }
        }
    }
}

/// Response that a client of HTTP/2 gets for this body.
fn over_http2(lab: &Loopback, framing: &str, body: &str) -> String {
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        match framing {
            "none" => client.get("http://a.example/x").await.body,
            _ => {
                let mut request = Request::post("http://a.example/x");
                if framing == "length" {
                    request = request.header("content-length", body.len());
                }
                client.post(request.body(()).unwrap(), body, None).await.body
            }
        }
    })
}

/// Response that curl gets over HTTP/1.1 for this body.
fn over_http1(lab: &Loopback, framing: &str, body: &str) -> String {
    let url = format!("http://{}/x", lab.vip());
    match framing {
        "none" => curl(&["--http1.1", &url]),
        "length" => curl(&["--http1.1", "--data-binary", body, &url]),
        _ => curl(&["--http1.1", "--data-binary", body, "-H", "Transfer-Encoding: chunked", &url]),
    }
}

pub(super) fn local_replies_work_in_both_http_versions() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(
        &lab,
        &setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), ""),
    );
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let answer = client.get("http://a.example/").await;
        assert_eq!((answer.status, &answer.fields["server"]), (503, &HeaderValue::from_static("convey")));
        assert_eq!(answer.body, "503 Service Unavailable: no server could be reached\n");
        // A request that HTTP/1.1 cannot express reaches no server.
        let answer = client.get("http://a.example/a/../b").await;
        assert_eq!(answer.status, 400, "{answer:?}");
    });
    balancer.wait_for_stat("/frontends/web/requests/local_replies/connect_failed", 1);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/malformed", 1);
}
