//! Mode http: limits for the requests of all clients together.

use std::thread;
use std::time::Instant;

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, connect_from, run, tests};

use super::http::HTTP;
use super::http::client::{Client, Response};

tests!("total_limits":
    frontend_admits_its_burst_from_all_clients_together,
    count_of_a_frontend_stays_across_a_reload,
    route_and_backend_have_limits_of_their_own,
);

fn client(lab: &Loopback, host: u8) -> Client {
    Client(connect_from(lab.ip(host), lab.vip()).unwrap())
}

/// Numbers of responses 200 and others of clients that send this many requests each at once, and
/// requests that the rate of one a second may have added meanwhile.
fn statuses(lab: &Loopback, clients: u8, requests: usize) -> (usize, usize, usize) {
    let began = Instant::now();
    let served: usize = thread::scope(|scope| {
        let one = |host| {
            scope.spawn(move || {
                let mut client = client(lab, host);
                (0..requests).filter(|_| client.get("a", "/").status == 200).count()
            })
        };
        let all: Vec<_> = (0..clients).map(|n| one(10 + n)).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    (served, usize::from(clients) * requests - served, began.elapsed().as_secs() as usize + 1)
}

fn frontend_admits_its_burst_from_all_clients_together() {
    for burst in [10, 2_000] {
        let lab = Loopback::new();
        let server = TestHttpServer::named("a", lab.server(1));
        // Trusted clients have no limits of sources, but count here.
        let limits = format!(
            "{HTTP}\nlimits = {{ requests_per_second = 1, requests_per_second_burst = {burst} }}\n\
             trusted_clients = \"127.0.0.0/8\""
        );
        let setup = Setup::new(&lab).frontend(&limits).server("a", lab.server(1), "");
        let balancer = BalancerProcess::start(&lab, &setup);
        let few = (burst / 16).max(1);
        let (served, refused, seconds) = statuses(&lab, 8, few);
        assert_eq!((served, refused), (few * 8, 0));
        let (more, refused, later) = statuses(&lab, 8, burst / 8 + 2);
        let total = served + more;
        assert!((burst..=burst + seconds + later).contains(&total), "{burst}: {total}");
        balancer.wait_for_stat("/frontends/web/requests/local_replies/total_rate_limit", refused);
        assert_eq!(server.seen().len(), total);
    }
}

fn count_of_a_frontend_stays_across_a_reload() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = |rate: u32| {
        let limits =
            format!("{HTTP}\nlimits = {{ requests_per_second = 1, requests_per_second_burst = {rate} }}");
        Setup::new(&lab).frontend(&limits).server("a", lab.server(1), "")
    };
    let balancer = BalancerProcess::start(&lab, &setup(100));
    let began = Instant::now();
    let (first, _, _) = statuses(&lab, 2, 60);
    balancer.save(&setup(150));
    balancer.wait_for_log("limits.requests_per_second_burst 100 -> 150");
    let (second, _, _) = statuses(&lab, 2, 60);
    balancer.save(&setup(20));
    balancer.wait_for_log("limits.requests_per_second_burst 150 -> 20");
    let (third, _, _) = statuses(&lab, 2, 10);
    let added = began.elapsed().as_secs() as usize + 1;
    assert!((100..=100 + added).contains(&first), "{first}");
    assert!((50..=50 + added).contains(&second), "{second}");
    assert_eq!(third, 0);
}

fn route_and_backend_have_limits_of_their_own() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let routes = format!(
        "{HTTP}\nlimits = {{ requests_per_second = 1, requests_per_second_burst = 8 }}\n\
         [[frontends.web.routes]]\npath = \"/login\"\nbackend = \"pool\"\nrequests_per_second = 1\n\
         requests_per_second_burst = 2"
    );
    let backend = "requests_per_second = 1\nrequests_per_second_burst = 4";
    let setup = Setup::new(&lab).frontend(&routes).backend(backend).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let began = Instant::now();
    let mut client = client(&lab, 5);
    let count = |responses: &[Response], status| responses.iter().filter(|one| one.status == status).count();
    let login: Vec<Response> = (0..6).map(|_| client.get("a", "/login")).collect();
    let others: Vec<Response> = (0..6).map(|_| client.get("a", "/")).collect();
    let added = began.elapsed().as_secs() as usize + 1;
    assert!((2..=2 + added).contains(&count(&login, 200)), "{login:?}");
    assert_eq!(count(&login, 200) + count(&login, 429), 6, "{login:?}");
    // The requests that the route refused count neither at the frontend nor at the backend.
    let served = count(&login, 200) + count(&others, 200);
    assert!((4..=4 + added).contains(&served), "{others:?}");
    assert_eq!(count(&others, 200) + count(&others, 503), 6, "{others:?}");
    let refused = login.iter().chain(&others).filter(|one| one.status != 200);
    assert!(refused.clone().all(|one| one.head.contains("\r\nRetry-After: 1\r\n")), "{login:?}");
    balancer.wait_for_stat("/frontends/web/requests/local_replies/total_rate_limit", count(&login, 429));
    balancer.wait_for_stat("/frontends/web/requests/local_replies/backend_rate_limit", count(&others, 503));
    let url = "http://a/login";
    let explained = run(balancer.command().args(["explain", "198.51.100.7", "web", url]));
    assert!(explained.stdout.contains("(limit of route */login)"), "{}", explained.stdout);
}
