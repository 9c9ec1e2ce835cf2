//! Mode http: what clients may send, and what convey answers beyond that.

use std::net::IpAddr;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TestHttpServer, connect_from, stories, wait_for,
};

use super::curl::curl;
use super::http::HTTP;
use super::http::client::{Client, Response};

stories!("http_limits":
    a_source_that_asks_too_fast_is_told_to_slow_down_on_any_connection,
    a_route_has_a_limit_of_its_own_which_holds_for_http2_too [Need::CURL],
);

/// The frontend with these lines more, in front of one server.
fn one(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend(&format!("{HTTP}\n{lines}")).server("a", lab.server(1), "")
}

fn client_from(source: IpAddr, lab: &Loopback) -> Client {
    Client(connect_from(source, lab.vip()).unwrap())
}

/// The version and the status that curl gets for a path by HTTP/2.
fn status_of(lab: &Loopback, path: &str, arguments: &[&str]) -> String {
    let url = format!("http://{}{path}", lab.vip());
    let usual = ["--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", &url];
    curl(&[&usual, arguments].concat())
}

fn a_source_that_asks_too_fast_is_told_to_slow_down_on_any_connection() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let limits = |rate| format!("limits = {{ requests_per_source = {rate}, request_burst = 4 }}");
    let trusted = format!("trusted_clients = \"{}\"\n{}", lab.ip(9), limits(1));
    let balancer = BalancerProcess::start(&lab, &one(&lab, &trusted));
    let statuses = |host: u8| {
        let mut clients = [(); 2].map(|()| client_from(lab.ip(host), &lab));
        let responses: Vec<Response> = (0..8).map(|n| clients[n % 2].get("a", "/")).collect();
        assert!(responses.iter().all(|response| {
            (response.status == 429) == response.head.contains("\r\nRetry-After: 1\r\n")
        }));
        responses.iter().filter(|response| response.status == 429).count()
    };
    // A second may pass meanwhile.
    let refused = statuses(5);
    assert!((3..=4).contains(&refused), "{refused}");
    assert!((3..=4).contains(&statuses(6)), "another source has as much");
    assert_eq!(statuses(9), 0, "it is trusted");
    let answered = balancer.stat("/frontends/web/requests/answered/rate_limit").as_u64().unwrap();
    assert_eq!(answered + server.seen().len() as u64, 24);
    // The connection goes on, and what was sent is known after a reload.
    let mut client = client_from(lab.ip(5), &lab);
    wait_for("a free request", || (client.get("a", "/").status == 200).then_some(()));
    balancer.save(&one(&lab, &limits(2)));
    balancer.wait_for_log("limits.requests_per_source 1 -> 2");
    assert!((0..4).any(|_| client.get("a", "/").status == 429));
}

fn a_route_has_a_limit_of_its_own_which_holds_for_http2_too() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let route = "limits.ipv4_prefix = 24\n[[frontends.web.routes]]\npath = \"/login\"\nbackend = \"pool\"\n\
        requests_per_source = 1\nrequest_burst = 2";
    let balancer = BalancerProcess::start(&lab, &one(&lab, route));
    let refused = |path: &str| {
        let answers: Vec<String> = (0..6).map(|_| status_of(&lab, path, &[])).collect();
        assert!(answers.iter().all(|answer| answer == "2 200" || answer == "2 429"), "{answers:?}");
        answers.iter().filter(|answer| *answer == "2 429").count()
    };
    assert_eq!(refused("/free"), 0);
    let refused = refused("/login");
    assert!((1..=4).contains(&refused), "{refused}");
    assert_eq!(balancer.stat("/frontends/web/requests/answered/rate_limit"), refused);
    let of_the_same_network = || client_from(lab.ip(7), &lab).get("a", "/login").status;
    assert!((0..4).any(|_| of_the_same_network() == 429));
}
