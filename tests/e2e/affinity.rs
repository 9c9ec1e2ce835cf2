//! Affinity: a user stays with a server, by a cookie or a header of the requests.

use std::collections::{BTreeMap, BTreeSet};

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TestHttpServer, tests};

use super::curl::curl;

tests!("affinity":
    requests_with_one_cookie_meet_one_server_wherever_they_come_from [Need::CURL],
);

fn requests_with_one_cookie_meet_one_server_wherever_they_come_from() {
    let lab = Loopback::new();
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let mut servers: BTreeMap<&str, TestHttpServer> =
        names.iter().map(|(name, n)| (*name, TestHttpServer::named(name, lab.server(*n)))).collect();
    let setup = Setup::new(&lab).frontend("mode = \"http\"").health("interval = 0.2\nfall = 1");
    let setup = setup.backend("algorithm = \"maglev\"\nhash = \"cookie:session\"");
    let setup = names.iter().fold(setup, |setup, (name, n)| setup.server(name, lab.server(*n), ""));
    let balancer = BalancerProcess::start(&lab, &setup);
    // Each request has a connection of its own; users use both HTTP versions.
    let meets = |user: usize| {
        let cookie = format!("Cookie: theme=dark; session=user-{user}");
        let met: BTreeSet<String> = ["--http1.1", "--http2-prior-knowledge", "--http1.1"]
            .iter()
            .map(|version| curl(&[version, "-H", &cookie, &format!("http://{}/", lab.vip())]))
            .map(|body| body.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(met.len(), 1, "user {user} met {met:?}");
        met.into_iter().next().unwrap()
    };
    let before: Vec<String> = (0..30).map(meets).collect();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3, "the users spread: {before:?}");
    servers.remove("b");
    balancer.wait_for_health("b", false);
    for (user, server) in before.iter().enumerate() {
        let now = meets(user);
        assert!(&now == server || server == "b", "user {user} was moved from {server} to {now}");
    }
    let _b = TestHttpServer::named("b", lab.server(2));
    balancer.wait_for_health("b", true);
    assert_eq!((0..30).map(meets).collect::<Vec<_>>(), before);
}
