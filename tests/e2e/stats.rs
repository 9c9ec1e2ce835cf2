//! Statistics of the balancer.

use std::fs;
use std::io::{ErrorKind, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, check_to_end, clock, connect, fetch,
    is_refused_with_reset, ping, run, send, tests, tool, wait_for,
};

tests!("stats":
    bytes_and_connections_add_up_to_what_was_sent,
    open_connections_are_shown_where_they_are,
    times_of_connects_and_sessions_are_measured_once_each,
    promtool_accepts_the_metrics [Need::PROMTOOL],
    metrics_and_statistics_agree,
    health_is_shown_with_its_reason_and_since_when,
    a_page_that_does_not_exist_names_those_that_do,
    readiness_follows_the_servers_of_each_frontend,
    the_last_reload_and_the_hash_of_what_runs_are_told,
    clients_that_wait_for_a_server_are_counted,
    a_page_that_takes_long_holds_no_other_up,
    sixty_who_scrape_make_health_wait_little_longer_than_one,
);

fn bytes_and_connections_add_up_to_what_was_sent() {
    let (lab, balancer, _servers) = two_echo_servers();
    let sizes = [1_u64, 1_000, 65_536, 1_000_003];
    for size in sizes {
        let mut stream = connect(lab.vip());
        send(&mut stream, size).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(check_to_end(&mut stream), size);
    }
    balancer.wait_for_stat("/current_connections", 0);
    let bytes: u64 = sizes.iter().sum();
    let stats = balancer.stats();
    assert_eq!(
        (&stats["total_connections"], &stats["total_bytes_rx"], &stats["total_bytes_tx"]),
        (&4.into(), &bytes.into(), &bytes.into())
    );
    for of in [&stats["frontends"]["web"], &stats["backends"]["pool"]] {
        assert_eq!((&of["total_connections"], &of["current_connections"]), (&4.into(), &0.into()), "{of:#}");
        assert_eq!((&of["bytes_rx"], &of["bytes_tx"]), (&bytes.into(), &bytes.into()), "{of:#}");
    }
    // Round robin: the first and third connection went to one, the second and fourth to the other.
    for (name, bytes) in [("a", sizes[0] + sizes[2]), ("b", sizes[1] + sizes[3])] {
        let server = &stats["backends"]["pool"]["servers"][name];
        assert_eq!(
            (&server["total_connections"], &server["bytes_rx"]),
            (&2.into(), &bytes.into()),
            "{server:#}"
        );
        assert_eq!(&server["bytes_tx"], bytes);
    }
    let ended = stats["frontends"]["web"]["ended"].as_object().unwrap();
    assert!(ended.values().all(|count| count == 0), "{ended:?}");
}

fn open_connections_are_shown_where_they_are() {
    let (lab, balancer, _servers) = two_echo_servers();
    let held: Vec<_> = (0..6).map(|_| connect(lab.vip())).collect();
    balancer.wait_for_stat("/backends/pool/current_connections", 6);
    let stats = balancer.stats();
    assert_eq!(stats["current_connections"], 6);
    assert_eq!(stats["frontends"]["web"]["current_connections"], 6);
    for name in ["a", "b"] {
        assert_eq!(stats["backends"]["pool"]["servers"][name]["current_connections"], 3);
    }
    drop(held);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    balancer.wait_for_stat("/current_connections", 0);
    assert_eq!(balancer.stat("/total_connections"), 6);
}

fn times_of_connects_and_sessions_are_measured_once_each() {
    let (lab, balancer, _servers) = two_echo_servers();
    let held = [(); 2].map(|()| connect(lab.vip()));
    drop([(); 3].map(|()| connect(lab.vip())));
    balancer.wait_for_stat("/backends/pool/session_seconds/count", 3);
    assert_eq!(balancer.stat("/backends/pool/connect_seconds/count"), 5);
    let sessions = balancer.stat("/backends/pool/session_seconds");
    let [mean, p99] = ["mean", "p99"].map(|of| sessions[of].as_f64().unwrap());
    assert!(mean > 0.0 && p99 > 0.0, "{sessions}");
    let metrics = balancer.page("/metrics").1;
    for line in [
        "convey_backend_connect_duration_seconds_bucket{backend=\"pool\",le=\"+Inf\"} 5",
        "convey_backend_session_duration_seconds_count{backend=\"pool\"} 3",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line:?} in\n{metrics}");
    }
    drop(held);
    balancer.wait_for_stat("/backends/pool/session_seconds/count", 5);
}

fn promtool_accepts_the_metrics() {
    let (lab, balancer, servers) = two_echo_servers();
    drop(connect(lab.vip()));
    drop(servers);
    assert!(is_refused_with_reset(lab.vip()));
    let (status, metrics) = balancer.page("/metrics");
    assert_eq!(status, 200);
    let file = lab.directory().join("metrics");
    fs::write(&file, &metrics).unwrap();
    // promtool reads standard input only.
    let script = format!("exec \"$0\" check metrics < {}", file.display());
    let output = run(Command::new("sh").arg("-c").arg(script).arg(tool("promtool").unwrap()));
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(0), "", ""), "{metrics}");
}

fn metrics_and_statistics_agree() {
    let (lab, balancer, _servers) = two_echo_servers();
    let _held = [(); 3].map(|()| {
        let mut stream = connect(lab.vip());
        ping(&mut stream).unwrap();
        stream
    });
    // A byte is counted once it has been sent; the backend's count is the last.
    balancer.wait_for_stat("/backends/pool/bytes_tx", 3);
    let metrics = balancer.page("/metrics").1;
    for line in [
        "convey_connections_total 3",
        "convey_frontend_connections_total{frontend=\"web\"} 3",
        "convey_frontend_open_connections{frontend=\"web\"} 3",
        "convey_backend_received_bytes_total{backend=\"pool\"} 3",
        "convey_server_sent_bytes_total{backend=\"pool\",server=\"a\"} 2",
        "convey_server_connections_total{backend=\"pool\",server=\"b\"} 1",
        "convey_server_up{backend=\"pool\",server=\"b\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line:?} in\n{metrics}");
    }
    assert_eq!(balancer.stat("/total_connections"), 3);
}

fn health_is_shown_with_its_reason_and_since_when() {
    let lab = Loopback::new();
    let _a = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).health("interval = 0.1").server("a", lab.server(1), "").server(
        "b",
        lab.server(2),
        "",
    );
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "connect succeeded");
    balancer.wait_for_health("b", false);
    let b = balancer.stat("/backends/pool/servers/b");
    assert!(
        b["health"]["reason"].as_str().unwrap().starts_with("connect failed: Connection refused"),
        "{b:#}"
    );
    assert_eq!((&b["up"], &b["health"]["up"], &b["eligible"]), (&false.into(), &false.into(), &false.into()));
    let started = balancer.stat("/started");
    // Both have the same format, so the order of the texts is the order of the times.
    assert!(b["health"]["since"].as_str() >= started.as_str(), "{b:#}, started {started}");
    assert_eq!(balancer.page("/healthz"), (200, "ok\n".to_owned()));
}

fn a_page_that_does_not_exist_names_those_that_do() {
    let (lab, _balancer, _servers) = two_echo_servers();
    let (status, text) = fetch(lab.stats(), "/status").unwrap();
    assert_eq!(status, 404);
    assert!(["/stats", "/metrics", "/healthz", "/readyz"].iter().all(|page| text.contains(page)), "{text}");
}

fn readiness_follows_the_servers_of_each_frontend() {
    let lab = Loopback::new();
    let a = TcpServer::echo(lab.server(1));
    let health = "kind = \"tcp\"\ninterval = \"50ms\"\nrise = 1\nfall = 1";
    let other = format!("{}:{}", lab.vip().ip(), lab.vip().port() + 1);
    let more = format!(
        "[frontends.other]\nlisten_addr = \"{other}\"\nbackend = \"other\"\n\
         [backends.other]\nhealth_check.kind = \"none\"\n[backends.other.servers.b]\naddr = \"{}\"\n",
        lab.server(2)
    );
    let setup = Setup::new(&lab).health(health).server("a", lab.server(1), "").and(&more);
    let balancer = BalancerProcess::start(&lab, &setup);
    let ready = || balancer.page("/readyz");
    wait_for("it to be ready", || (ready() == (200, "ready\n".to_owned())).then_some(()));
    drop(a);
    let why = "frontend web: no server of backend pool can be chosen (1 of 1 are down)\n";
    balancer.wait_for_stat("/backends/pool/servers/a/up", false);
    assert_eq!(ready(), (200, "ready\n".to_owned()), "the other frontend serves");
    let status = run(balancer.command().arg("status"));
    assert_eq!(status.code, Some(0), "{status:?}");
    assert!(status.stdout.contains(&format!("NOT SERVED: {why}")), "{status:?}");
    let metrics = balancer.page("/metrics").1;
    for line in ["backend=\"pool\"} 0", "backend=\"other\"} 1"] {
        let is_it =
            |found: &str| found.starts_with("convey_frontend_backend_ready{") && found.ends_with(line);
        assert!(metrics.lines().any(is_it), "no {line} in {metrics}");
    }
    assert_eq!(run(balancer.command().args(["backend", "maint", "other"])).code, Some(0));
    let all = format!(
        "frontend other: no server of backend other can be chosen (1 of 1 are in maintenance)\n{why}"
    );
    wait_for("no frontend to be ready", || (ready() == (503, all.clone())).then_some(()));
    assert_eq!(balancer.page("/healthz"), (200, "ok\n".to_owned()), "it is alive all the same");
    let _a = TcpServer::echo(lab.server(1));
    wait_for("it to be ready again", || (ready().0 == 200).then_some(()));
}

fn the_last_reload_and_the_hash_of_what_runs_are_told() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let config = || balancer.stat("/config");
    let metric = |line: &str| balancer.page("/metrics").1.lines().any(|found| found == line);
    let first = config();
    assert_eq!((&first["last_reload_successful"], &first["reloads"]), (&true.into(), &0.into()), "{first:#}");
    let hash = first["hash"].as_str().unwrap().to_owned();
    assert!(hash.len() == 16 && metric(&format!("convey_config_info{{hash=\"{hash}\"}} 1")), "{first:#}");

    balancer.save(&"mode = 3");
    balancer.wait_for_stat("/config/last_reload_successful", false);
    let failed = config();
    assert_eq!((&failed["hash"], &failed["reload_failures"]), (&first["hash"], &1.into()), "{failed:#}");
    assert_eq!(failed["loaded"], first["loaded"], "{failed:#}");
    assert!(failed["last_reload"].as_str() > first["last_reload"].as_str(), "{failed:#}");
    assert!(failed["errors"][1].as_str().unwrap().contains("config.toml:1:8: mode: found 3"), "{failed:#}");
    assert!(metric("convey_config_last_reload_successful 0"));

    balancer.save(&setup.clone().server("b", lab.server(2), ""));
    balancer.wait_for_stat("/config/last_reload_successful", true);
    let second = config();
    assert!(second["hash"] != first["hash"] && second["errors"] == serde_json::json!([]), "{second:#}");
    assert!(metric("convey_config_reloads_total{result=\"failure\"} 1"));
    balancer.save(&format!("# nothing that matters\n{setup}"));
    balancer.wait_for_stat("/config/hash", hash);
}

fn clients_that_wait_for_a_server_are_counted() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 3600").server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let waiting = [(); 3].map(|()| connect(lab.vip()));
    balancer.wait_for_stat("/backends/pool/waiting_connections", 3);
    let (_, metrics) = balancer.page("/metrics");
    assert!(metrics.contains("convey_backend_waiting_connections{backend=\"pool\"} 3\n"), "{metrics}");
    drop(waiting);
    drop(held);
    balancer.wait_for_stat("/backends/pool/waiting_connections", 0);
}

fn a_page_that_takes_long_holds_no_other_up() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &four_thousand_servers(&lab));
    let scraped = AtomicUsize::new(0);
    let mut healthy = 0;
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let (status, metrics) = balancer.page("/metrics");
                assert!(status == 200 && metrics.contains("server=\"s3999\"} 1"));
                scraped.fetch_add(1, Ordering::Relaxed);
            });
        }
        while scraped.load(Ordering::Relaxed) == 0 {
            assert_eq!(balancer.page("/healthz"), (200, "ok\n".to_owned()));
            healthy += 1;
        }
    });
    assert!(healthy > 10, "{healthy} were answered while a page was rendered");
    let overtaken = (0..5).filter(|_| health_overtakes_pages(&lab, &balancer)).count();
    assert!(overtaken >= 3, "{overtaken} of 5 times");
}

/// The median of the responses is at most 100 ms; on a machine that is slow with a single scraper,
/// it is at most twenty times the median then.
fn sixty_who_scrape_make_health_wait_little_longer_than_one() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &four_thousand_servers(&lab));
    let [one, sixty] = [1, 60].map(|scrapers| median_of_health(&lab, scrapers));
    assert_eq!(balancer.page("/healthz"), (200, "ok\n".to_owned()));
    eprintln!("/healthz with one scraper: {one:?}, with sixty: {sixty:?}");
    assert!(sixty <= (one * 20).max(Duration::from_millis(100)), "{one:?} with one, {sixty:?} with sixty");
}

/// Median response time of `/healthz` while so many scrapers request metrics again and again.
fn median_of_health(lab: &Loopback, scrapers: usize) -> Duration {
    let (scraped, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut took: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        for _ in 0..scrapers {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if fetch(lab.stats(), "/metrics").is_ok_and(|(status, _)| status == 200) {
                        scraped.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Each of them has got a response.
        wait_for("pages", || (scraped.load(Ordering::Relaxed) >= scrapers).then_some(()));
        // With sixty others on 64 connections, a request may be refused, or wait for a second.
        let mut asked = 0;
        while took.len() < 51 {
            let begin = clock();
            let answer = fetch(lab.stats(), "/healthz");
            asked += 1;
            took.extend(answer.is_ok_and(|(status, _)| status == 200).then(|| begin.elapsed()));
            assert!(asked <= 60, "{} of {asked} were answered", took.len());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    took.sort_unstable();
    took[took.len() / 2]
}

fn four_thousand_servers(lab: &Loopback) -> Setup {
    let addr = |n| format!("{}:{}", lab.server(1).ip(), 10_000 + n);
    (0..4_000).fold(Setup::new(lab), |setup, n| setup.server(&format!("s{n}"), addr(n), ""))
}

/// Whether a request for `/healthz` after some pages is answered before the first byte of them.
fn health_overtakes_pages(lab: &Loopback, balancer: &BalancerProcess) -> bool {
    let pages = [(); 4].map(|()| {
        let mut page = connect(lab.stats());
        page.write_all(b"GET /metrics HTTP/1.1\r\nHost: convey\r\n\r\n").unwrap();
        page
    });
    assert_eq!(balancer.page("/healthz"), (200, "ok\n".to_owned()));
    pages.iter().all(|page| {
        page.set_nonblocking(true).unwrap();
        page.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    })
}

fn two_echo_servers() -> (Loopback, BalancerProcess, [TcpServer; 2]) {
    let lab = Loopback::new();
    let servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    (lab, balancer, servers)
}
