//! No configuration file: an address to listen on and a list of servers.

use std::fs;

use convey_testkit::{BalancerProcess, Loopback, Ran, TcpServer, binary, fetch, run, tests, wait_for};

tests!("list":
    a_list_of_servers_is_all_it_takes,
    saved_server_list_is_loaded_and_a_bad_one_is_refused,
    failed_server_of_a_list_costs_no_request_until_it_returns,
    check_tells_what_a_list_runs_or_what_is_wrong_with_it,
    a_list_beside_a_file_is_a_usage_error,
);

fn a_list_of_servers_is_all_it_takes() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let list = format!("# two servers\n\n{}\n  {}  # the second\n", lab.server(1), lab.server(2));
    let balancer = BalancerProcess::start_with_list(&lab, &list);
    let answers = [(); 4].map(|()| fetch(lab.vip(), "/").unwrap().1);
    assert_eq!(answers, ["a", "b", "a", "b"]);
    let line = balancer.wait_for_log("in proxy mode");
    assert!(
        line.ends_with(&format!("frontend listen on {} in proxy mode -> backend servers", lab.vip())),
        "{line}"
    );
    assert_eq!(balancer.stat(&format!("/backends/servers/servers/{}/total_connections", lab.server(1))), 2);
}

fn saved_server_list_is_loaded_and_a_bad_one_is_refused() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let balancer = BalancerProcess::start_with_list(&lab, &format!("{}\n", lab.server(1)));
    balancer.save(&format!("{}\n{}\n", lab.server(2), lab.server(2).ip()));
    let line = balancer.wait_for_log("hosts.txt:2:1: the port is missing, found ");
    assert!(line.contains(" ERROR ") && line.contains("allowed: IP:port of one server"), "{line}");
    balancer.wait_for_log("hosts.txt not reloaded: the running configuration stays");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));

    balancer.save_in_place(&format!("{}\n", lab.server(2)));
    balancer.wait_for_log(&format!(
        "reload: backend servers: + servers/{}, - servers/{}",
        lab.server(2),
        lab.server(1)
    ));
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
}

fn failed_server_of_a_list_costs_no_request_until_it_returns() {
    let lab = Loopback::new();
    let a = TcpServer::named("a", lab.server(1));
    let _b = TcpServer::named("b", lab.server(2));
    let balancer = BalancerProcess::start_with_list(&lab, &format!("{}\n{}\n", lab.server(1), lab.server(2)));
    let state = format!("/backends/servers/servers/{}/up", lab.server(1));
    balancer.wait_for_stat(
        &format!("/backends/servers/servers/{}/health/reason", lab.server(1)),
        "connect succeeded",
    );
    drop(a);
    for _ in 0..8 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    }
    balancer.wait_for_stat(&state, false);
    let _a = TcpServer::named("a", lab.server(1));
    balancer.wait_for_stat(&state, true);
    wait_for("a to serve again", || (fetch(lab.vip(), "/").unwrap().1 == "a").then_some(()));
}

fn check_tells_what_a_list_runs_or_what_is_wrong_with_it() {
    let lab = Loopback::new();
    let good = check(&lab, &format!("{}\n", lab.server(1)));
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""));
    let (vip, server) = (lab.vip(), lab.server(1));
    for line in [
        format!("frontend listen  proxy tcp  {vip}  -> backend servers"),
        "backend servers (round_robin; tcp check every 2s, timeout 1s, rise 2, fall 3; on_down keep)"
            .to_owned(),
        format!("  server {server}  {server}  weight 1"),
    ] {
        assert!(good.stdout.lines().any(|found| found == line), "no {line:?} in\n{}", good.stdout);
    }
    let bad = check(&lab, "10.0.0.1\n10.0.0.2:0\n");
    assert_eq!(bad.code, Some(1));
    assert!(bad.stderr.contains("hosts.txt:1:1: the port is missing, found \"10.0.0.1\"; "), "{bad:?}");
    assert!(bad.stderr.contains("hosts.txt:2:1: a port is 1 to 65535, found \"10.0.0.2:0\"; "), "{bad:?}");
}

fn a_list_beside_a_file_is_a_usage_error() {
    let ran = run(binary().args(["--config", "x.toml", "--listen", "7777", "--servers", "hosts.txt"]));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("'--config <PATH|URL>' cannot be used with"), "{ran:?}");
    let ran = run(binary().args(["--listen", "7777"]));
    assert!(ran.code == Some(2) && ran.stderr.contains("--servers <PATH>"), "{ran:?}");
}

fn check(lab: &Loopback, list: &str) -> Ran {
    let file = lab.directory().join("hosts.txt");
    fs::write(&file, list).unwrap();
    let (listen, stats) = (lab.vip().to_string(), lab.stats().to_string());
    run(binary().args(["check", "--listen", &listen, "--stats", &stats, "--servers"]).arg(file))
}
