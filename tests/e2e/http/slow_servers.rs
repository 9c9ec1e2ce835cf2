//! Slow and failing servers.

use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, wait_for};

use super::client::Client;
use super::{HTTP, three};

/// A server that answers with this status after a while.
fn answering(addr: SocketAddr, status: u16, after: Duration) -> TestHttpServer {
    TestHttpServer::start(addr, move |_, stream| {
        thread::sleep(after);
        write!(stream, "HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n")
    })
}

pub(super) fn ewma_gives_slow_servers_few_requests_and_failing_ones_fewer() {
    let lab = Loopback::new();
    let ms = Duration::from_millis(1);
    let [fast, fast_too, slow, failing] =
        [(200, 2), (200, 2), (200, 52), (500, 0)].map(|(status, after)| (status, after * ms));
    let of = |n, (status, after)| answering(lab.server(n), status, after);
    let servers = [of(1, fast), of(2, fast_too), of(3, slow), of(4, failing)];
    let setup = three(&lab).server("d", lab.server(4), "").backend("algorithm = \"ewma\"");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let vip = lab.vip();
            thread::spawn(move || {
                let mut client = Client::new(vip);
                (0..150).for_each(|n| drop(client.get("a", &format!("/{n}"))));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let got = servers.each_ref().map(|server| server.seen().len());
    let fair = 1_200 / 4;
    assert_eq!(got.iter().sum::<usize>(), 1_200);
    assert!(got[0] > fair && got[1] > fair, "{got:?}");
    assert!((1..fair * 3 / 4).contains(&got[2]), "{got:?}");
    assert!(got[3] < fair / 2, "{got:?}");
}

pub(super) fn statuses_of_5xx_eject_a_server_and_those_of_4xx_never() {
    for (status, is_ejected) in [(503, true), (404, false), (403, false)] {
        let lab = Loopback::new();
        let _servers =
            [answering(lab.server(1), status, Duration::ZERO), answering(lab.server(2), 200, Duration::ZERO)];
        let setup = Setup::new(&lab)
            .frontend(HTTP)
            .backend("outlier_detection = { consecutive_failures = 3 }")
            .server("bad", lab.server(1), "")
            .server("good", lab.server(2), "");
        let balancer = BalancerProcess::start(&lab, &setup);
        let mut client = Client::new(lab.vip());
        let mut fetch = || client.get("a", "/").status;
        if is_ejected {
            wait_for("the server to be ejected", || {
                fetch();
                balancer.stat("/backends/pool/servers/bad/ejected").is_object().then_some(())
            });
            assert_eq!([(); 10].map(|()| fetch()), [200; 10]);
            let why = balancer.stat("/backends/pool/servers/bad/ejected/reason");
            assert!(why.as_str().unwrap().contains("the server answered with status 503"), "{why}");
        } else {
            let asked: Vec<u16> = (0..40).map(|_| fetch()).collect();
            assert_eq!(asked.iter().filter(|got| **got == status).count(), 20, "{asked:?}");
        }
    }
}
