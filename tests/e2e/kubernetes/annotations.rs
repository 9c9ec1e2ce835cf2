//! Annotations of a Service, which configure its servers.

use std::collections::BTreeSet;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, fetch, run, wait_for};

use super::fake_api::Condition::Ready;
use super::fake_api::{FakeApi, endpoint};
use super::{servers, setup, setup_with};

/// A Service with two servers that answer, and a weight of 7 in the file.
fn begun(lab: &Loopback, api: &FakeApi) -> ([TcpServer; 2], BalancerProcess) {
    let names = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready), endpoint("web-b", lab.server(2), Ready)]);
    (names, BalancerProcess::start(lab, &setup_with(lab, api, "weight = 7")))
}

fn weight(balancer: &BalancerProcess) -> u64 {
    balancer.stat("/backends/pool/servers/web-a/weight").as_u64().unwrap()
}

pub(super) fn service_annotations_override_the_file_and_invalid_ones_change_nothing() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.annotate(&[("convey.dev/weight", "3")]);
    let (_servers, balancer) = begun(&lab, &api);
    balancer.wait_for_stat("/backends/pool/servers/web-a/weight", 3);

    let all = [
        ("convey.dev/weight", "5"),
        ("convey.dev/max-connections", "20"),
        ("convey.dev/algorithm", "least_connections"),
        ("convey.dev/slow-start", "10s"),
        ("example.com/other", "1"),
    ];
    api.annotate(&all);
    balancer.wait_for_stat("/backends/pool/algorithm", "least_connections");
    assert_eq!(
        (weight(&balancer), balancer.stat("/backends/pool/servers/web-b/max_connections")),
        (5, 20.into())
    );
    balancer.wait_for_log(
        "the source sets weight 5, max_connections 20, algorithm least_connections, slow_start 10s",
    );

    api.annotate(&[("convey.dev/weight", "many"), ("convey.dev/algorithm", "maglev")]);
    let message = "annotation convey.dev/weight: found \"many\"; allowed: an integer from 0 to 65535";
    let line = balancer.wait_for_log(message);
    assert!(line.contains(" WARN ") && line.ends_with("; the previous annotations stay in effect"), "{line}");
    assert_eq!(
        (weight(&balancer), balancer.stat("/backends/pool/algorithm")),
        (5, "least_connections".into())
    );
    let status = run(balancer.command().arg("status")).stdout;
    assert!(status.contains(message), "{status}");
    assert_eq!(servers(&balancer), BTreeSet::from(["web-a".to_owned(), "web-b".to_owned()]));
    assert_eq!(fetch(lab.vip(), "/").unwrap().0, 200);

    api.annotate(&[]);
    balancer.wait_for_log("the settings of the file apply again");
    balancer.wait_for_stat("/backends/pool/algorithm", "round_robin");
    assert_eq!(weight(&balancer), 7);
    assert!(!run(balancer.command().arg("status")).stdout.contains("convey.dev"));
}

pub(super) fn forbidden_services_are_logged_once_and_their_servers_are_served() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.refuse_services(true);
    api.annotate(&[("convey.dev/weight", "3")]);
    let (_servers, balancer) = begun(&lab, &api);
    let message = "the annotations of the Service cannot be read, and the previous ones stay in effect: services is forbidden";
    balancer.wait_for_log(message);
    assert_eq!((weight(&balancer), balancer.stat("/discovery/pool/connected")), (7, true.into()));
    api.refuse_services(false);
    balancer.wait_for_stat("/backends/pool/servers/web-a/weight", 3);
    assert_eq!(balancer.log().matches(message).count(), 1, "{}", balancer.log());
}

pub(super) fn annotation_changed_during_an_api_outage_is_applied_later() {
    let lab = Loopback::new();
    let mut api = FakeApi::start(&lab);
    api.annotate(&[("convey.dev/max-connections", "9")]);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    let most = "/backends/pool/servers/web-a/max_connections";
    balancer.wait_for_stat(most, 9);
    wait_for("the watch", || (api.watches() == 1).then_some(()));
    api.go_away();
    balancer.wait_for_stat("/discovery/pool/connected", false);
    assert_eq!(balancer.stat(most), 9, "it stays");
    api.annotate(&[("convey.dev/max-connections", "8")]);
    api.come_back();
    wait_for("the new annotation", || (balancer.stat(most) == 8).then_some(()));
}
