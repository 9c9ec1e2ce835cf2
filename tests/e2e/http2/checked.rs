//! Health checks of servers that get requests over HTTP/2.

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer};

use super::client::Client;
use super::server::EchoServer;
use super::{block_on, setup};

pub(super) fn http_check_speaks_http2_where_requests_do() {
    let lab = Loopback::new();
    let http2 = EchoServer::start(lab.server(1));
    let _http1 = TestHttpServer::named("b", lab.server(2));
    let setup = setup(&lab, "h2")
        .health("kind = \"http\"\npath = \"/check\"\ninterval = 0.1\nrise = 1\nfall = 1")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log(&format!("server pool/b ({}) is down: HTTP/2 failed", lab.server(2)));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        assert_eq!(client.get("http://site.example/").await.status, 200);
    });
    assert_eq!(balancer.stat("/backends/pool/servers/a/up"), true);
    assert!(http2.seen().iter().any(|seen| seen.uri().path() == "/check"));
}
