//! Servers from the endpoints of a Kubernetes Service.

mod annotations;
mod cluster;
mod credentials;
mod fake_api;
mod in_cluster;
mod real_api;
mod rollout;
mod workload;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, binary, connect, fetch, is_refused_with_reset, ping,
    run, tests, wait_for,
};

use crate::upgrade::Upgraded;

use self::annotations::{
    annotation_changed_during_an_api_outage_is_applied_later,
    forbidden_services_are_logged_once_and_their_servers_are_served,
    service_annotations_override_the_file_and_invalid_ones_change_nothing,
};
use self::cluster::{no_api_server, no_controllers};
use self::credentials::credential_plugin_runs_again_when_its_token_is_refused;
use self::fake_api::Condition::{Ready, Terminating, Unready};
use self::fake_api::{FakeApi, TOKEN, endpoint};
use self::in_cluster::a_pod_follows_by_its_service_account_and_reads_a_rotated_token;
use self::real_api::{
    a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection,
    an_api_server_that_crashes_and_comes_back_changes_nothing,
};
use self::rollout::{rollout_under_load_fails_no_connection, rollout_under_load_fails_no_request};
use self::workload::{
    a_deployment_is_rolled_out_and_scaled_and_no_connection_fails,
    a_deployment_is_rolled_out_and_scaled_and_no_request_fails,
};

tests!("kubernetes":
    the_endpoints_of_a_service_are_servers_and_changes_are_followed,
    terminating_pod_keeps_its_connections_and_gets_no_new_ones,
    lost_api_server_changes_nothing_and_is_logged_once,
    upgrade_without_api_server_keeps_the_endpoints,
    answers_that_never_end_are_cut,
    changes_that_an_api_server_has_forgotten_are_found_by_a_list,
    forbidden_list_of_slices_is_logged,
    forbidden_watch_of_slices_is_logged_once_and_lists_go_on,
    reload_adds_and_removes_watched_services,
    slices_without_the_port_and_local_servers_are_logged_and_excluded,
    service_annotations_override_the_file_and_invalid_ones_change_nothing,
    forbidden_services_are_logged_once_and_their_servers_are_served,
    annotation_changed_during_an_api_outage_is_applied_later,
    a_pod_follows_by_its_service_account_and_reads_a_rotated_token
        [Need::Namespaces],
    credential_plugin_runs_again_when_its_token_is_refused,
    rollout_under_load_fails_no_connection,
    rollout_under_load_fails_no_request,
    a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection
        [Need::Other(no_api_server), Need::Long, Need::ETCD, Need::ETCDCTL, Need::OPENSSL, Need::CURL, Need::Namespaces],
    an_api_server_that_crashes_and_comes_back_changes_nothing
        [Need::Other(no_api_server), Need::Long, Need::ETCD, Need::ETCDCTL, Need::OPENSSL, Need::CURL, Need::Namespaces],
    a_deployment_is_rolled_out_and_scaled_and_no_connection_fails
        [Need::Other(no_controllers), Need::Long, Need::ETCD, Need::ETCDCTL, Need::OPENSSL, Need::CURL, Need::Namespaces],
    a_deployment_is_rolled_out_and_scaled_and_no_request_fails
        [Need::Other(no_controllers), Need::Long, Need::ETCD, Need::ETCDCTL, Need::OPENSSL, Need::CURL, Need::Namespaces],
);

/// Servers of Service `shop/web`, and the tables of the backend.
fn setup(lab: &Loopback, api: &FakeApi) -> Setup {
    setup_with(lab, api, "")
}

fn setup_with(lab: &Loopback, api: &FakeApi, lines: &str) -> Setup {
    let path = api.kubeconfig(lab);
    Setup::new(lab).and(&format!(
        "[backends.pool.kubernetes]\nservice = \"shop/web\"\nport = \"http\"\nkubeconfig = \"{}\"\n{lines}\n\
         [dns]\nallow_local = true\n",
        path.display()
    ))
}

/// Names of the current servers.
fn servers(balancer: &BalancerProcess) -> BTreeSet<String> {
    balancer.stats()["backends"]["pool"]["servers"].as_object().unwrap().keys().cloned().collect()
}

fn wait_for_servers(balancer: &BalancerProcess, names: impl IntoIterator<Item = impl AsRef<str>>) {
    let expected: BTreeSet<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    wait_for(&format!("the servers to be {expected:?}"), || (servers(balancer) == expected).then_some(()));
}

fn the_endpoints_of_a_service_are_servers_and_changes_are_followed() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    // Three slices are two pages of a list.
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    api.apply("web-2", &[endpoint("web-b", lab.server(2), Ready)]);
    api.apply("web-3", &[endpoint("web-c", lab.server(3), Unready)]);
    let balancer = BalancerProcess::start(&lab, &setup_with(&lab, &api, "weight = 3"));
    assert_eq!(
        servers(&balancer),
        BTreeSet::from(["web-a".to_owned(), "web-b".to_owned()]),
        "from the start"
    );
    assert_eq!(balancer.stat("/backends/pool/servers/web-a/weight"), 3);
    assert_eq!(balancer.stat("/discovery/pool/connected"), true);
    assert_eq!(balancer.stat("/discovery/pool/source"), "kubernetes shop/web:http");
    let asked: BTreeSet<String> = (0..4).map(|_| fetch(lab.vip(), "/").unwrap().1).collect();
    assert_eq!(asked, BTreeSet::from(["a".to_owned(), "b".to_owned()]));

    api.apply("web-3", &[endpoint("web-c", lab.server(3), Ready)]);
    wait_for_servers(&balancer, ["web-a", "web-b", "web-c"]);
    balancer.wait_for_log(&format!("kubernetes shop/web:http: + web-c ({})", lab.server(3)));
    api.delete("web-1");
    wait_for_servers(&balancer, ["web-b", "web-c"]);
    let metrics = balancer.page("/metrics").1;
    for line in
        ["convey_discovery_connected{backend=\"pool\"} 1", "convey_discovery_endpoints{backend=\"pool\"} 2"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(api.lists(), 1, "changes come by the watch");
}

fn terminating_pod_keeps_its_connections_and_gets_no_new_ones() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let _servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();

    // A terminating endpoint serves while no other is ready, as with kube-proxy.
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Terminating)]);
    api.apply("web-2", &[endpoint("web-b", lab.server(2), Unready)]);
    ping(&mut connect(lab.vip())).unwrap();
    assert_eq!(balancer.given_to("web-a"), 2);

    api.apply("web-2", &[endpoint("web-b", lab.server(2), Ready)]);
    balancer.wait_for_stat("/backends/pool/servers/web-a/state", "drain");
    (0..4).for_each(|_| ping(&mut connect(lab.vip())).unwrap());
    assert_eq!((balancer.given_to("web-a"), balancer.given_to("web-b")), (2, 4));
    ping(&mut held).unwrap();
    api.apply("web-1", &[]);
    wait_for_servers(&balancer, ["web-b"]);
    ping(&mut held).unwrap();
}

fn lost_api_server_changes_nothing_and_is_logged_once() {
    let lab = Loopback::new();
    let mut api = FakeApi::start(&lab);
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    // A watch that begins later would not be cut.
    wait_for("the watch", || (api.watches() == 1).then_some(()));

    api.go_away();
    let line = balancer.wait_for_log("kubernetes shop/web:http cannot be watched: ");
    assert!(line.contains(" WARN ") && line.ends_with("it keeps 1 server until a watch succeeds"), "{line}");
    assert_eq!(balancer.stat("/discovery/pool/connected"), false);
    let failures = balancer.stat("/discovery/pool/failures").as_u64().unwrap();
    wait_for("another attempt", || {
        (balancer.stat("/discovery/pool/failures").as_u64().unwrap() > failures).then_some(())
    });
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    let status = run(balancer.command().arg("status"));
    assert!(
        status.stdout.contains("kubernetes shop/web:http cannot be watched, its servers stay unchanged: "),
        "{status:?}"
    );

    // convey detects changes during the outage once the API server is back.
    api.apply("web-1", &[endpoint("web-b", lab.server(2), Ready)]);
    api.come_back();
    balancer.wait_for_log("kubernetes shop/web:http is watched again: 1 server; + web-b");
    wait_for("the new server", || (fetch(lab.vip(), "/").ok()?.1 == "b").then_some(()));
    let log = balancer.log();
    assert_eq!(log.matches("cannot be watched").count(), 1, "told once: {log}");
    assert!(!log.contains("ERROR"), "{log}");
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
}

fn upgrade_without_api_server_keeps_the_endpoints() {
    let lab = Loopback::new();
    let mut api = FakeApi::start(&lab);
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let mut upgraded = Upgraded::start(&lab, &setup(&lab, &api));
    wait_for("the watch", || (api.watches() == 1).then_some(()));
    api.go_away();
    upgraded.first.wait_for_log("kubernetes shop/web:http cannot be watched: ");
    for _ in 0..2 {
        upgraded.upgrade();
        for _ in 0..4 {
            assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
        }
        assert_eq!(upgraded.first.page("/readyz").0, 200);
    }
    api.apply("web-1", &[endpoint("web-b", lab.server(2), Ready)]);
    api.come_back();
    wait_for("the new server", || (fetch(lab.vip(), "/").ok()?.1 == "b").then_some(()));
}

fn answers_that_never_end_are_cut() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let path = api.kubeconfig(&lab);
    drop(api);
    let kubeconfig = fs::read_to_string(&path).unwrap().replace("https://", "http://");
    fs::write(&path, kubeconfig.replace(&format!("token: {TOKEN}"), "")).unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let counts = sent.clone();
    let _api = TcpServer::start((lab.ip(90), 6443).into(), move |mut stream| {
        if stream.read(&mut [0; 4096])? == 0 {
            return Ok(());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")?;
        loop {
            stream.write_all(&[b' '; 1 << 16])?;
            counts.fetch_add(1 << 16, Ordering::Relaxed);
        }
    });
    let lines = format!(
        "[backends.pool.kubernetes]\nservice = \"shop/web\"\nport = \"http\"\nkubeconfig = \"{}\"\n",
        path.display()
    );
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).and(&lines));
    let line = balancer.wait_for_log("kubernetes shop/web:http cannot be watched: ");
    assert!(line.contains("the answer of the API server is longer than 32 MiB"), "{line}");
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 512 << 20, "{sent} bytes were read");
}

fn changes_that_an_api_server_has_forgotten_are_found_by_a_list() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    api.apply("web-2", &[endpoint("web-b", lab.server(2), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    wait_for("the watch", || (api.watches() == 1).then_some(()));
    api.replace_unseen("web-1", "web-3", &[endpoint("web-c", lab.server(3), Ready)]);
    wait_for_servers(&balancer, ["web-b", "web-c"]);
    // The next watch is answered with 410, and a list follows.
    wait_for("the third watch", || (api.watches() == 3).then_some(()));
    assert_eq!(api.lists(), 2);
    api.apply("web-1", &[endpoint("web-d", lab.server(4), Ready)]);
    wait_for_servers(&balancer, ["web-b", "web-c", "web-d"]);
    assert_eq!(api.lists(), 2, "the watch goes on");
    assert!(!balancer.log().contains("cannot be watched"), "that is usual: {}", balancer.log());
}

fn forbidden_list_of_slices_is_logged() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.refuse(true);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    let line = balancer.wait_for_log("cannot be watched: endpointslices.discovery.k8s.io is forbidden");
    assert!(line.ends_with("(403); it has no servers until a watch succeeds"), "{line}");
    let (status, why) = balancer.page("/readyz");
    assert_eq!(status, 503);
    assert!(why.contains("backend pool has no server: kubernetes shop/web:http has no endpoint"), "{why}");
    api.refuse(false);
    wait_for_servers(&balancer, ["web-a"]);
}

fn forbidden_watch_of_slices_is_logged_once_and_lists_go_on() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.refuse_watches(true);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, &api));
    balancer.wait_for_log("cannot be watched: endpointslices.discovery.k8s.io is forbidden");
    api.apply("web-1", &[endpoint("web-b", lab.server(2), Ready)]);
    wait_for_servers(&balancer, ["web-b"]);
    let lists = api.lists();
    wait_for("another list", || (api.lists() > lists).then_some(()));
    assert_eq!(balancer.log().matches("forbidden").count(), 1, "{}", balancer.log());
    api.refuse_watches(false);
    balancer.wait_for_log("kubernetes shop/web:http is watched again");
}

fn reload_adds_and_removes_watched_services() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let listed = Setup::new(&lab).server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &listed);
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "b");
    balancer.save(&setup(&lab, &api));
    balancer.wait_for_log("reload: backend pool: - pool/b");
    assert_eq!(servers(&balancer), BTreeSet::from(["web-a".to_owned()]), "with the reload");
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());

    balancer.save(&listed);
    wait_for("the old server", || (fetch(lab.vip(), "/").ok()?.1 == "b").then_some(()));
    let lists = api.lists();
    api.end_watches();
    balancer.save(&setup(&lab, &api));
    wait_for_servers(&balancer, ["web-a"]);
    assert_eq!(api.lists(), lists + 1, "nobody listed while no backend had the Service");
}

fn slices_without_the_port_and_local_servers_are_logged_and_excluded() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let other = setup(&lab, &api).to_string().replace("port = \"http\"", "port = \"grpc\"");
    let balancer = BalancerProcess::start(&lab, &other);
    balancer.wait_for_log(
        "kubernetes shop/web:grpc: EndpointSlice web-1 has no port grpc (its ports: http 8000)",
    );
    assert!(is_refused_with_reset(lab.vip()), "there is no server");

    balancer.save(&setup(&lab, &api).to_string().replace("allow_local = true", "allow_local = false"));
    let note = "is not used as a server: loopback and link-local addresses need dns.allow_local = true";
    balancer.wait_for_log(&format!("kubernetes shop/web:http: web-a ({}) {note}", lab.server(1).ip()));
    assert_eq!(servers(&balancer), BTreeSet::new());
    let checked =
        run(binary().current_dir(lab.directory()).args(["check", "--syntax", "--config", "config.toml"]));
    assert!(checked.stdout.contains("kubernetes shop/web:http"), "{checked:?}");
}
