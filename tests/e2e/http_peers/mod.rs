//! Equal rules for nginx, HAProxy and convey: each request of `requests.txt` gets the expected
//! answer of each.

mod case;
mod peers;

use std::net::{IpAddr, SocketAddr};

use convey_testkit::{Loopback, Need, TestHttpServer, tests};

use case::{Case, PEERS};
use peers::Peers;

tests!("http_peers":
    nginx_haproxy_and_convey_answer_equal_rules_alike [Need::NGINX, Need::HAPROXY],
    answers_that_differ_have_a_reason,
);

/// Requests, with the answers of the peers.
const REQUESTS: &str = include_str!("requests.txt");

/// Addresses of a client in no network of the rules, and of a client of the office.
struct Clients {
    usual: IpAddr,
    office: IpAddr,
}

fn nginx_haproxy_and_convey_answer_equal_rules_alike() {
    let lab = Loopback::new();
    let _servers = [("site", 1), ("api", 2), ("v2", 3)].map(|(name, n)| server(name, lab.server(n)));
    let clients = Clients { usual: lab.ip(98), office: lab.ip(99) };
    let peers = Peers::start(&lab, &clients);
    let mut wrong = String::new();
    let cases = case::parse(REQUESTS);
    assert!(cases.len() >= 80, "{}", cases.len());
    for case in &cases {
        for (n, peer) in PEERS.into_iter().enumerate() {
            let (got, expected) = (peers.answer(n, case, &clients), &case.expected[n]);
            if got != *expected {
                wrong += &format!("{}\n  {peer}: {got}\n  expected: {expected}\n", case.name);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn answers_that_differ_have_a_reason() {
    for Case { name, expected: [nginx, haproxy, convey], reason, .. } in case::parse(REQUESTS) {
        let differ = nginx != haproxy || haproxy != convey;
        assert_eq!(differ, reason.is_some(), "{name}");
    }
}

/// Server that returns the request in headers of its response: `X-Seen` has the server's name,
/// method, target, host and length of the body, and `X-Seen-Field` each header.
fn server(name: &'static str, addr: SocketAddr) -> TestHttpServer {
    // nginx refuses a long head of a response.
    const SHORT: usize = 100;
    TestHttpServer::start(addr, move |request, stream| {
        let mut words = request.line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let host = request.field("host").unwrap_or("-");
        let mut head = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Powered-By: {name}\r\n");
        head += &format!("X-Seen: {name} {method} {target} {host} {}\r\n", request.body.len());
        if request.field("origin").is_some() {
            head += "Access-Control-Allow-Origin: *\r\n";
        }
        for field in request.fields.iter().filter(|field| field.len() < SHORT) {
            head += &format!("X-Seen-Field: {field}\r\n");
        }
        std::io::Write::write_all(stream, format!("{head}\r\n").as_bytes())
    })
}
