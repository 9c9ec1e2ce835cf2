//! An operator traces clients.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use convey_testkit::{
    BalancerProcess, Loopback, Process, Setup, TcpServer, TestHttpServer, UdpServer, connect, connect_from,
    fetch, ping, reset, run, tests, wait_for, whole_lines,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::alerts::half_broken;
use crate::http::{self, HTTP};
use crate::{http2, http3};

tests!("trace":
    trace_shows_a_connection_from_accept_to_end,
    trace_shows_refused_clients_with_reasons_and_applies_filters,
    a_server_that_refuses_is_shown_and_so_is_the_next_one,
    a_session_of_udp_is_shown,
    trace_ends_at_its_count_or_timeout_and_reports_omitted_events,
    invalid_trace_filters_are_refused_with_suggestions,
    traces_are_limited_to_four_at_once,
    trace_reader_that_stalls_does_not_slow_clients,
    an_upgrade_and_a_stop_end_a_trace_with_a_line,
    requests_are_shown_step_by_step_with_retries,
    requests_are_selected_by_head_route_and_status,
    local_replies_and_early_ends_of_requests_count_as_drops,
    requests_over_http3_are_shown_with_their_stream,
    websocket_that_its_client_resets_ends_in_phase_tunnel,
);

/// A running `convey trace`, and its output.
pub(crate) struct Watcher {
    process: Process,
    file: PathBuf,
}

impl Watcher {
    /// Starts it, and waits until it watches.
    pub(crate) fn start(balancer: &BalancerProcess, line: &str) -> Watcher {
        let folder = balancer.config();
        let file = folder.with_file_name(format!("trace-{}", next_number()));
        let out = File::create(&file).unwrap();
        let mut command = balancer.command();
        command.arg("trace").args(line.split_whitespace()).stdin(Stdio::null());
        command.stdout(out.try_clone().unwrap()).stderr(out);
        let watcher = Watcher { process: Process::spawn(&mut command), file };
        wait_for("the trace to begin", || {
            let text = watcher.text();
            (text.contains("live events") || text.contains("\"started\"")).then_some(())
        });
        watcher
    }

    pub(crate) fn text(&self) -> String {
        whole_lines(&self.file)
    }

    /// Waits for a line with all of these words. Returns the line.
    pub(crate) fn wait_for(&self, words: &[&str]) -> String {
        wait_for(&format!("a line with {words:?} in:\n{}", self.text()), || {
            let text = self.text();
            text.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }

    /// Waits until it has ended. Returns its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.process.wait().code()
    }
}

fn next_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

fn one(lab: &Loopback) -> (TcpServer, Setup) {
    (TcpServer::echo(lab.server(1)), Setup::new(lab).server("a", lab.server(1), ""))
}

fn trace_shows_a_connection_from_accept_to_end() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut before = connect(lab.vip());
    ping(&mut before).unwrap();
    let watcher = Watcher::start(&balancer, "--json");
    let mut client = connect(lab.vip());
    let addr = client.local_addr().unwrap().to_string();
    ping(&mut client).unwrap();
    drop((client, before));
    watcher.wait_for(&["\"ended\"", &addr]);
    let events: Vec<Value> = watcher.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |client: &str| {
        let of = events.iter().filter(|event| event["client"] == client);
        of.map(|event| event["event"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(&addr), ["accepted", "chosen", "connected", "ended"]);
    let ended = events.iter().find(|event| event["event"] == "ended" && event["client"] == *addr).unwrap();
    assert_eq!(
        (&ended["frontend"], &ended["backend"], &ended["server"]),
        (&"web".into(), &"pool".into(), &"a".into())
    );
    assert_eq!(ended["server_addr"], lab.server(1).to_string());
    assert!(ended["bytes_in"].as_u64() > Some(0) && ended["bytes_in"] == ended["bytes_out"], "{ended}");
    // For the connection from before the trace, only the end is seen, and its bytes were not
    // counted.
    let other = watcher.wait_for(&["\"ended\""]);
    assert!(other.contains("\"server\":\"a\""), "{other}");
    assert_eq!(events.iter().filter(|event| event["event"] == "chosen").count(), 1);
    assert_eq!(events[1]["vip"], lab.vip().to_string());
}

fn trace_shows_refused_clients_with_reasons_and_applies_filters() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let lists = format!("access = {{ deny = [\"{}\"] }}", lab.ip(66));
    let balancer = BalancerProcess::start(&lab, &setup.frontend(&lists));
    let drops = Watcher::start(&balancer, "--drops access_denied --frontend web");
    let all = Watcher::start(&balancer, &format!("--client {}/32", lab.ip(50)));
    let server = Watcher::start(&balancer, "--server pool/a");
    ping(&mut connect_from(lab.ip(50), lab.vip()).unwrap()).unwrap();
    // The connection is reset, perhaps before the call returns.
    let _ = connect_from(lab.ip(66), lab.vip()).and_then(|mut denied| denied.read(&mut [0; 8]));
    let line = drops.wait_for(&[&lab.ip(66).to_string(), "refused: access_denied"]);
    assert!(line.contains(" web "), "{line}");
    assert!(!drops.text().contains(&lab.ip(50).to_string()), "{}", drops.text());
    all.wait_for(&["accepted at"]);
    all.wait_for(&["ended: both sides closed", "bytes from the client"]);
    assert!(!all.text().contains(&lab.ip(66).to_string()), "{}", all.text());
    server.wait_for(&["server pool/a", "chosen by round_robin"]);
    server.wait_for(&["ended"]);
    assert!(!server.text().contains("accepted"), "it has no server yet: {}", server.text());
    // No server: the client is refused.
    let maint = run(balancer.command().args(["server", "maint", "pool/a"]));
    assert_eq!(maint.code, Some(0), "{maint:?}");
    let _ = connect_from(lab.ip(50), lab.vip()).and_then(|mut unserved| unserved.read(&mut [0; 8]));
    all.wait_for(&["refused: no_server"]);
}

fn a_server_that_refuses_is_shown_and_so_is_the_next_one() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup.server("gone", lab.server(2), ""));
    let watcher = Watcher::start(&balancer, "");
    wait_for("the server that is gone to be tried", || {
        ping(&mut connect(lab.vip())).unwrap();
        watcher.text().contains("cannot connect to pool/gone: Connection refused").then_some(())
    });
    watcher.wait_for(&["server pool/a", "attempt 2"]);
    watcher.wait_for(&["connected to pool/a"]);
}

fn a_session_of_udp_is_shown() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").frontend("protocol = \"udp\"");
    let balancer = BalancerProcess::start(&lab, &setup.timeouts("udp_idle = \"1s\""));
    let watcher = Watcher::start(&balancer, "");
    let client = std::net::UdpSocket::bind((lab.ip(50), 0)).unwrap();
    client.send_to(b"who?", lab.vip()).unwrap();
    watcher.wait_for(&[&client.local_addr().unwrap().to_string(), "session at", "with pool/a"]);
    watcher.wait_for(&["ended: idle, 4 bytes from the client, 4 to it"]);
}

fn trace_ends_at_its_count_or_timeout_and_reports_omitted_events() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut counted = Watcher::start(&balancer, "--count 2");
    let mut limited = Watcher::start(&balancer, "--rate 1 --timeout 3s");
    (0..5).for_each(|_| ping(&mut connect(lab.vip())).unwrap());
    assert_eq!((counted.ended(), limited.ended()), (Some(0), Some(0)));
    let text = counted.text();
    assert_eq!(text.lines().filter(|line| !line.starts_with("--")).count(), 2, "{text}");
    assert!(text.ends_with("-- end: reached --count\n"), "{text}");
    let text = limited.text();
    assert!(text.contains("events left out: more than --rate a second"), "{text}");
    assert!(text.ends_with("-- end: reached --timeout\n"), "{text}");
}

fn invalid_trace_filters_are_refused_with_suggestions() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    for (line, message) in [
        ("--frontend wep", "there is no frontend wep; did you mean `web`?"),
        ("--server pol/a", "did you mean `pool`?"),
        ("--server pool", "expected: BACKEND/SERVER; existing: pool/a"),
        ("--server pool/b", "backend pool has no server b; existing: pool/a"),
        (
            "--pcap none.pcap",
            "all frontends are in proxy mode, and convey captures frames only in packet modes",
        ),
        ("--drops no_sever", "did you mean `no_server`?"),
        ("--client here", "expected: IP[/LEN][:PORT]"),
        ("--status 6xx", "expected: a status or a class, such as 404 or 5xx"),
        ("--route nowhere", "there is no route nowhere"),
    ] {
        let ran = run(balancer.command().arg("trace").args(line.split(' ')));
        assert_eq!(ran.code, Some(1), "{line}: {ran:?}");
        assert!(ran.stderr.contains(message), "{line}: {ran:?}");
    }
    assert!(!std::path::Path::new("none.pcap").exists(), "what is refused leaves no file");
    // Only clients with the right to make changes see clients' addresses.
    let (status, why) = balancer.page("/v1/trace");
    assert_eq!(status, 403, "{why}");
}

fn traces_are_limited_to_four_at_once() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut all: Vec<_> = (0..4).map(|_| Watcher::start(&balancer, "")).collect();
    let refused = run(balancer.command().arg("trace"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("4 traces are running, which is the maximum"), "{refused:?}");
    let last = all.pop().unwrap();
    last.process.signal(Signal::INT);
    drop(last);
    wait_for("a place that is left", || {
        let ran = run(balancer.command().args(["trace", "--timeout", "1ms"]));
        (ran.code == Some(0)).then_some(())
    });
}

fn trace_reader_that_stalls_does_not_slow_clients() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let mut deaf = UnixStream::connect(balancer.control_socket()).unwrap();
    deaf.write_all(b"GET /v1/trace?rate=1000000 HTTP/1.1\r\nHost: convey\r\n\r\n").unwrap();
    let mut begin = [0; 9];
    deaf.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 ");
    for _ in 0..1_000 {
        assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    }
    assert_eq!(run(balancer.command().arg("status")).code, Some(0));
    balancer.wait_for_stat("/frontends/web/total_connections", 1_000);
    drop(deaf);
    let mut watcher = Watcher::start(&balancer, "--count 1");
    fetch(lab.vip(), "/").unwrap();
    assert_eq!(watcher.ended(), Some(0));
}

fn an_upgrade_and_a_stop_end_a_trace_with_a_line() {
    let lab = Loopback::new();
    let (_server, setup) = one(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut watcher = Watcher::start(&balancer, "");
    let upgraded = run(balancer.command().args(["upgrade", "--config"]).arg(balancer.config()));
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    assert_eq!(watcher.ended(), Some(0));
    assert!(
        watcher
            .text()
            .ends_with("-- end: convey was upgraded; run the command again to trace the new process\n")
    );
    let mut watcher = Watcher::start(&balancer, "");
    ping(&mut connect(lab.vip())).unwrap();
    watcher.wait_for(&["accepted at"]);
    balancer.signal(Signal::TERM);
    assert_eq!(watcher.ended(), Some(0), "{}", watcher.text());
    assert!(watcher.text().ends_with("-- end: convey is stopping\n"), "{}", watcher.text());
    fs::remove_file(watcher.file).unwrap();
}

fn requests_are_shown_step_by_step_with_retries() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).frontend(HTTP).health("kind = \"none\"");
    let setup = setup.server("a", lab.server(1), "").server("gone", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let watcher = Watcher::start(&balancer, "");
    let mut client = http::client::Client::new(lab.vip());
    // The servers take turns, so one of the first two requests is retried.
    for path in ["/1", "/2", "/3"] {
        assert_eq!(client.get("shop.example", path).status, 200);
    }
    for step in [
        ["GET shop.example/1 HTTP/1.1", ""],
        ["route default", ""],
        ["cannot connect to pool/gone: Connection refused", ""],
        ["retry: connect_failed", ""],
        ["server pool/a", "attempt 2"],
        ["connected to pool/a after", " ms"],
        ["reuses a connection to pool/a", ""],
        ["response 200 from pool/a", ""],
        ["request ended, status 200, 0 bytes from the client", "to it, after"],
    ] {
        watcher.wait_for(&step);
    }
    http2::block_on(async {
        let client = http2::client::Client::connect(lab.vip()).await;
        for _ in 0..2 {
            assert_eq!(client.get("http://shop.example/two").await.status, 200);
        }
    });
    watcher.wait_for(&["stream 1: GET shop.example/two HTTP/2"]);
    watcher.wait_for(&["stream 3: request ended, status 200"]);
    watcher.wait_for(&["stream ", ": retry: connect_failed"]);
}

fn requests_are_selected_by_head_route_and_status() {
    let lab = Loopback::new();
    let _server = half_broken(&lab);
    let routes = "mode = \"http\"\nroutes = [{ path = \"/api\", backend = \"pool\" }]";
    let setup = Setup::new(&lab).frontend(routes).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let watchers =
        ["--status 5xx", "--path /api --method get", "--host *.b.example", "--route */api --status 200"]
            .map(|line| Watcher::start(&balancer, line));
    let mut client = http::client::Client::new(lab.vip());
    // The server answers every second request with 500.
    for (host, path, status) in [
        ("a.example", "/one", 200),
        ("a.example", "/api/two", 500),
        ("www.b.example", "/api/three", 200),
        ("a.example", "/four", 500),
    ] {
        assert_eq!(client.get(host, path).status, status);
    }
    let [failed, api, host, served] = &watchers;
    failed.wait_for(&["[request_head] GET a.example/api/two HTTP/1.1"]);
    failed.wait_for(&["[route] route */api"]);
    failed.wait_for(&["[limits] access lists and limits allow it"]);
    failed.wait_for(&["[pick] server pool/a", "chosen by round_robin"]);
    failed.wait_for(&["[connect] ", "connection to pool/a"]);
    failed.wait_for(&["[response_head] response 500 from pool/a"]);
    failed.wait_for(&["GET a.example/four HTTP/1.1"]);
    wait_for("the end of the last request", || {
        (failed.text().matches("[end] request ended, status 500").count() == 2).then_some(())
    });
    for (watcher, shown, others) in [
        (failed, &["/api/two", "/four"][..], &["/one", "/api/three", "status 200", "accepted"][..]),
        (api, &["/api/two", "/api/three"], &["/one", "/four"]),
        (host, &["/api/three"], &["/one", "/api/two", "/four"]),
        (served, &["/api/three"], &["/one", "/api/two", "/four"]),
    ] {
        shown.iter().for_each(|path| drop(watcher.wait_for(&[&format!("{path} HTTP/1.1")])));
        let text = watcher.text();
        assert!(others.iter().all(|other| !text.contains(other)), "{text}");
    }
}

fn local_replies_and_early_ends_of_requests_count_as_drops() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let (all, drops) = (Watcher::start(&balancer, "--json"), Watcher::start(&balancer, "--drops"));
    let malformed = Watcher::start(&balancer, "--drops malformed");
    let mut client = http::client::Client::new(lab.vip());
    assert_eq!(client.get("a.example", "/served").status, 200);
    let maint = run(balancer.command().args(["server", "maint", "pool/a"]));
    assert_eq!(maint.code, Some(0), "{maint:?}");
    assert_eq!(client.get("a.example", "/unserved").status, 503);
    assert_eq!(client.send("GET / HTTP/1.1\r\n\r\n").status, 400);
    http2::block_on(async {
        let client = http2::client::Client::connect(lab.vip()).await;
        assert_eq!(client.get("http://a.example/").await.status, 503);
    });
    drops.wait_for(&[" local reply 503: no_server in phase pick"]);
    drops.wait_for(&["stream 1: local reply 503: no_server in phase pick"]);
    drops.wait_for(&["local reply 400: malformed (host) in phase request_head"]);
    assert!(!drops.text().contains("/served"), "{}", drops.text());
    malformed.wait_for(&["malformed (host)"]);
    assert!(!malformed.text().contains("no_server"), "{}", malformed.text());
    all.wait_for(&["\"step\":\"received\"", "\"target\":\"/unserved\"", "\"version\":\"1.1\""]);
    all.wait_for(&[
        "\"step\":\"local_reply\"",
        "\"status\":503",
        "\"reason\":\"no_server\"",
        "\"phase\":\"pick\"",
    ]);
}

fn requests_over_http3_are_shown_with_their_stream() {
    let lab = Loopback::new();
    let authority = http3::authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &http3::site(&lab, ""));
    let watcher = Watcher::start(&balancer, "");
    http2::block_on(async {
        let client = http3::client::Clients::trusting(&authority).connect(lab.vip()).await;
        for path in ["/one", "/two"] {
            assert_eq!(client.get(path).await.status, 200);
        }
    });
    // Streams of requests have the numbers 0, 4, 8.
    watcher.wait_for(&["stream 0: GET site.example/one HTTP/3"]);
    watcher.wait_for(&["stream 4: GET site.example/two HTTP/3"]);
    watcher.wait_for(&["stream 4: response 200 from pool/a"]);
    watcher.wait_for(&["stream 4: request ended, status 200"]);
}

fn websocket_that_its_client_resets_ends_in_phase_tunnel() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket";
        write!(stream, "HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n\r\n")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, stream)?;
        Err(std::io::ErrorKind::Other.into())
    });
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let watcher = Watcher::start(&balancer, "");
    let mut client = http::client::Client::new(lab.vip());
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket";
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let request = format!("GET /chat HTTP/1.1\r\nHost: a.example\r\n{upgrade}\r\n{key}\r\n\r\n");
    assert_eq!(client.send(&request).status, 101);
    client.0.write_all(b"ping").unwrap();
    client.0.read_exact(&mut [0; 4]).unwrap();
    reset(client.0);
    watcher.wait_for(&["response 101 from pool/a"]);
    watcher.wait_for(&["request ended early: client_reset in phase tunnel, status 101"]);
}
