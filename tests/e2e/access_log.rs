//! Access log: one line for each connection and session, once it has ended.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use convey_model::{Protocol, ProxyVersion};
use convey_proxy_protocol::{Addresses, write};
use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, TestHttpServer, TlsClient, TlsSettings, UdpClient,
    UdpServer, Wrk, binary, connect, fetch, is_refused_with_reset, ping, reset, run, tests, wait_for,
    was_reset, whole_lines,
};
use http::Request;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;

use crate::http::HTTP;
use crate::{http2, http3};

tests!("access_log":
    connection_line_has_server_bytes_and_times,
    each_way_to_end_has_its_words,
    requests_of_killed_connections_have_lines,
    downloads_that_are_cut_have_and_count_their_status,
    requests_cut_at_the_end_of_a_stop_have_lines,
    request_cut_before_its_empty_body_has_ended_has_a_line,
    local_reply_whose_client_leaves_keeps_its_reason_in_the_log,
    a_second_server_is_a_retry,
    client_behind_a_proxy_is_logged_but_not_its_payload,
    a_udp_session_has_a_line_once_it_is_silent_or_cut,
    access_log_follows_reloads_and_is_reopened_on_sigusr1,
    a_sample_is_one_line_in_so_many,
    full_disk_loses_access_log_lines_but_no_clients,
    a_log_that_nobody_reads_costs_lines_and_no_client [Need::WRK],
);

pub(crate) fn path(lab: &Loopback) -> PathBuf {
    lab.directory().join("access.log")
}

pub(crate) fn log(lab: &Loopback, lines: &str) -> String {
    format!("[access_log]\noutput = {:?}\n{lines}\n", path(lab))
}

fn setup(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "").and(&log(lab, "format = 'json'"))
}

/// Waits for so many lines, and checks that no other line follows.
pub(crate) fn wait_for_lines(path: &Path, count: usize) -> Vec<Value> {
    let lines = wait_for(&format!("{count} lines"), || {
        let text = whole_lines(path);
        (text.lines().count() >= count).then_some(text)
    });
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn connection_line_has_server_bytes_and_times() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &setup(&lab));
    let mut stream = connect(lab.vip());
    let client = stream.local_addr().unwrap().to_string();
    (0..7).for_each(|_| ping(&mut stream).unwrap());
    stream.shutdown(Shutdown::Write).unwrap();
    wait_for("the end", || (stream.read(&mut [0]).unwrap() == 0).then_some(()));
    let line = &wait_for_lines(&path(&lab), 1)[0];
    for (field, value) in [
        ("mode", "proxy"),
        ("protocol", "tcp"),
        ("client_addr", &client),
        ("frontend", "web"),
        ("listen_addr", &lab.vip().to_string()),
        ("backend", "pool"),
        ("server", "pool/a"),
        ("server_addr", &lab.server(1).to_string()),
        ("termination", "closed"),
    ] {
        assert_eq!(line[field], value, "{field}: {line}");
    }
    assert_eq!((&line["bytes_rx"], &line["bytes_tx"], &line["retries"]), (&7.into(), &7.into(), &0.into()));
    assert!(line["reason"].is_null() && line["proxy_addr"].is_null(), "{line}");
    let time = |field: &str| line[field].as_f64().unwrap();
    assert!(time("connect_ms") > 0.0 && time("queue_ms") > 0.0, "{line}");
    assert!(time("queue_ms") + time("connect_ms") < time("total_ms"), "{line}");
    assert!(line["start_time"].as_str().unwrap() <= line["time"].as_str().unwrap(), "{line}");
}

fn each_way_to_end_has_its_words() {
    let lab = Loopback::new();
    // The first byte selects the server's behaviour.
    let server = TcpServer::start(lab.server(1), |mut stream| {
        let mut asked = [0];
        while stream.read(&mut asked)? > 0 {
            match asked[0] {
                b'c' => return Ok(()),
                b'r' => {
                    reset(stream);
                    return Ok(());
                }
                _ => stream.write_all(&asked)?,
            }
        }
        Ok(())
    });
    let setup = setup(&lab).frontend("max_connections_per_client = 1").timeouts("drain = 0\nidle = 0.5");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut lines = Lines { path: path(&lab), seen: 0 };
    let begin = || {
        let mut stream = connect(lab.vip());
        ping(&mut stream).unwrap();
        stream
    };
    let until_over = |stream: &mut TcpStream| while stream.read(&mut [0]).is_ok_and(|n| n > 0) {};

    let stream = begin();
    stream.shutdown(Shutdown::Write).unwrap();
    lines.expect("closed", None, Some("pool/a"));
    for (word, termination, reason) in [(b"c", "closed", None), (b"r", "reset", Some("server_reset"))] {
        let mut stream = begin();
        stream.write_all(word).unwrap();
        until_over(&mut stream);
        drop(stream);
        lines.expect(termination, reason, Some("pool/a"));
    }
    reset(begin());
    lines.expect("reset", Some("client_reset"), Some("pool/a"));
    let mut stream = begin();
    assert!(is_refused_with_reset(lab.vip()));
    lines.expect("refused", Some("client_limit"), None);
    until_over(&mut stream);
    let idle = lines.expect("timeout", Some("idle_timeout"), Some("pool/a"));
    assert!(idle["total_ms"].as_f64() >= Some(500.0), "{idle}");
    stream = begin();
    balancer.save(&setup.clone().timeouts("drain = 0"));
    balancer.wait_for_log("idle 0.5s -> ");
    drop(server);
    stream.shutdown(Shutdown::Write).unwrap();
    lines.expect("closed", None, Some("pool/a"));
    assert!(is_refused_with_reset(lab.vip()));
    let failed = lines.expect("refused", Some("connect_failed"), Some("pool/a"));
    assert!(failed["queue_ms"].is_number() && failed["connect_ms"].is_null(), "{failed}");
    balancer.save(&setup.timeouts("drain = 0").health("interval = 0.1"));
    balancer.wait_for_health("a", false);
    assert!(is_refused_with_reset(lab.vip()));
    lines.expect("refused", Some("no_server"), None);
    let _server = TcpServer::echo(lab.server(1));
    balancer.wait_for_health("a", true);
    stream = begin();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("1 connections were cut");
    let cut = lines.expect("cut", Some("cut"), Some("pool/a"));
    assert_eq!((&cut["bytes_rx"], &cut["bytes_tx"]), (&1.into(), &1.into()), "{cut}");
    drop(stream);
}

/// Reader of a log file, line by line.
struct Lines {
    path: PathBuf,
    seen: usize,
}

impl Lines {
    /// Returns the next line, and checks its termination, reason and server.
    fn expect(&mut self, termination: &str, reason: Option<&str>, server: Option<&str>) -> Value {
        self.seen += 1;
        let line = wait_for_lines(&self.path, self.seen).pop().unwrap();
        let output = ["termination", "reason", "server"].map(|field| line[field].as_str());
        assert_eq!(output, [Some(termination), reason, server], "{line}");
        assert_eq!(line["backend"], "pool");
        line
    }
}

/// Waits until the server has received something on each of this number of connections.
fn wait_until_asked(accepted: &Mutex<Vec<TcpStream>>, count: usize) {
    wait_for("requests at the server", || (accepted.lock().unwrap().len() == count).then_some(()));
    for stream in accepted.lock().unwrap().iter_mut() {
        stream.read_exact(&mut [0; 4]).unwrap();
    }
}

/// Checks the line of a request whose server never responded.
fn expect_cut(line: &Value, version: &str, reason: &str) {
    expect_cut_in("response_head", line, version, reason);
    assert!(line["status"].is_null(), "{line}");
}

/// Checks the line of a request that was cut in this phase.
fn expect_cut_in(phase: &str, line: &Value, version: &str, reason: &str) {
    for (field, value) in [
        ("http_version", version),
        ("method", "GET"),
        ("server", "pool/a"),
        ("termination", "cut"),
        ("reason", reason),
        ("phase", phase),
    ] {
        assert_eq!(line[field], value, "{field}: {line}");
    }
}

/// Sends a request on each of two new connections: over HTTP/1.1, and over HTTP/2. Returns the
/// connections.
fn request_over_both_versions(lab: &Loopback) -> [TcpStream; 2] {
    let http2 = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*http2::frames::frame(4, 0, 0, &[])].concat();
    let http2 = [http2, http2::frames::frame(1, 5, 1, b"\x82\x86\x84\x41\x01a")].concat();
    [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &http2].map(|request| {
        let mut client = connect(lab.vip());
        client.write_all(request).unwrap();
        client
    })
}

/// Kills all connections with `convey flows kill`.
fn kill_all(balancer: &BalancerProcess) {
    let flows = run(balancer.command().args(["flows", "--json"])).stdout;
    let flows: Value = serde_json::from_str(&flows).unwrap();
    for flow in flows["flows"].as_array().unwrap() {
        let killed = run(balancer.command().args(["flows", "kill", flow["id"].as_str().unwrap()]));
        assert_eq!(killed.code, Some(0), "{killed:?}");
    }
}

fn requests_of_killed_connections_have_lines() {
    let lab = Loopback::new();
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let _held = request_over_both_versions(&lab);
    wait_until_asked(&accepted, 2);
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    expect_cut(&lines[0], "1.1", "killed");
    expect_cut(&lines[1], "2", "killed");
    balancer.wait_for_stat("/frontends/web/requests/early_ends/response_head", 2);
}

fn downloads_that_are_cut_have_and_count_their_status() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")?;
        // Waits until convey closes the connection.
        stream.read(&mut [0]).map(drop)
    });
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut clients = request_over_both_versions(&lab);
    for client in &mut clients {
        let (mut received, mut byte) = (Vec::new(), [0]);
        while !received.ends_with(b"part") {
            client.read_exact(&mut byte).unwrap();
            received.push(byte[0]);
        }
    }
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    for (line, version) in lines.iter().zip(["1.1", "2"]) {
        expect_cut_in("bodies", line, version, "killed");
        assert_eq!(line["status"], 200, "{line}");
    }
    balancer.wait_for_stat("/frontends/web/requests/early_ends/bodies", 2);
    let metrics = balancer.page("/metrics").1;
    for labels in [
        r#"frontend_http_responses_total{frontend="web",code="2xx"} 2"#,
        r#"route_http_responses_total{frontend="web",route="default",code="2xx"} 2"#,
        r#"server_http_responses_total{backend="pool",server="a",code="2xx"} 2"#,
    ] {
        assert!(metrics.contains(&format!("\nconvey_{labels}\n")), "no {labels} in {metrics}");
    }
}

fn requests_cut_at_the_end_of_a_stop_have_lines() {
    let lab = Loopback::new();
    let authority = http3::authority(&lab);
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let setup = http3::site(&lab, "").health("kind = \"none\"").timeouts("drain = 0.1");
    let mut balancer = BalancerProcess::start(&lab, &setup.and(&log(&lab, "format = 'json'")));
    let settings = TlsSettings::trusting(&authority).client();
    let mut http1 = TlsClient::connect(lab.vip(), "site.example", &settings).unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n").unwrap();
    http2::block_on(async {
        let client = http3::client::Clients::trusting(&authority).connect(lab.vip()).await;
        let request = Request::get(http3::client::uri("/")).body(()).unwrap();
        let mut call = client.begin(request).await.unwrap();
        call.finish().await.unwrap();
        while accepted.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        wait_until_asked(&accepted, 2);
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
    });
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    expect_cut(&lines[0], "1.1", "cut");
    expect_cut(&lines[1], "3", "cut");
}

/// The head announces an empty body, and the stream continues.
fn request_cut_before_its_empty_body_has_ended_has_a_line() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab).frontend(HTTP).health("kind = \"none\""));
    let mut client = connect(lab.vip());
    let head = b"\x82\x86\x84\x41\x01a";
    let held = http2::frames::frame(1, 4, 1, &[&head[..], b"\x0f\x0d\x010"].concat());
    let whole = http2::frames::frame(1, 5, 3, head);
    let settings = http2::frames::frame(4, 0, 0, &[]);
    client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*settings, &held, &whole].concat()).unwrap();
    // convey has the first head once it responds to the second one.
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", 1);
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["termination"].to_string());
    for (field, value) in
        [("method", "GET"), ("termination", "cut"), ("reason", "killed"), ("phase", "request_head")]
    {
        assert_eq!(lines[1][field], value, "{field}: {}", lines[1]);
    }
    balancer.wait_for_stat("/frontends/web/requests/early_ends/request_head", 1);
}

/// The client has no window for the body of the 502, and then resets its stream.
fn local_reply_whose_client_leaves_keeps_its_reason_in_the_log() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |stream| {
        reset(stream);
        Ok(())
    });
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    let no_window = http2::frames::frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let request = http2::frames::frame(1, 5, 1, b"\x82\x86\x84\x41\x01a");
    client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*no_window, &request].concat()).unwrap();
    balancer.wait_for_stat("/frontends/web/requests/local_replies/server_reset", 1);
    client.write_all(&http2::frames::frame(3, 0, 1, &[0, 0, 0, 8])).unwrap();
    let line = &wait_for_lines(&path(&lab), 1)[0];
    for (field, value) in [("termination", "refused"), ("reason", "server_reset"), ("answered_by", "convey")]
    {
        assert_eq!(line[field], value, "{field}: {line}");
    }
    assert_eq!(line["status"], 502, "{line}");
}

fn a_second_server_is_a_retry() {
    let lab = Loopback::new();
    let setup = setup(&lab).server("b", lab.server(2), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    assert!(is_refused_with_reset(lab.vip()));
    let line = &wait_for_lines(&path(&lab), 1)[0];
    assert_eq!((&line["retries"], &line["bytes_tx"]), (&1.into(), &0.into()), "{line}");
    assert!(["pool/a", "pool/b"].contains(&line["server"].as_str().unwrap()), "{line}");
}

fn client_behind_a_proxy_is_logged_but_not_its_payload() {
    let lab = Loopback::new();
    let (_tcp, _udp) = (TcpServer::echo(lab.server(1)), UdpServer::named("a", lab.server(1)));
    let trust = "accept_proxy = true\ntrusted_proxies = [\"127.0.0.0/8\"]";
    let udp = format!(
        "[frontends.dns]\nlisten_addr = \"{}\"\nprotocol = \"udp\"\nbackend = \"pool\"\n{trust}\n",
        lab.vip()
    );
    let setup = Setup::new(&lab).server("a", lab.server(1), "").frontend(trust).timeouts("udp_idle = 0.2");
    let format = "format = '{client_addr} by {proxy_addr} {frontend} {termination} {reason}'";
    let _balancer = BalancerProcess::start(&lab, &setup.and(&udp).and(&log(&lab, format)));
    let [source, destination] = ["198.51.100.7:7", "198.51.100.8:53"].map(|addr| addr.parse().unwrap());
    // A name of its own that would be a second line.
    let forged = b"\n192.0.2.1:1 by - web closed -\n";
    let tlvs = [&[2, 0, forged.len() as u8], &forged[..]].concat();
    let header = |transport| {
        let mut bytes = Vec::new();
        write(ProxyVersion::V2, Some(Addresses { source, destination, transport }), &tlvs, &mut bytes);
        [&bytes[..], forged].concat()
    };
    let lines = |n: usize| {
        let text =
            wait_for("lines", || Some(whole_lines(&path(&lab))).filter(|text| text.lines().count() >= n));
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };

    let mut stream = connect(lab.vip());
    stream.write_all(&header(Protocol::Tcp)).unwrap();
    stream.read_exact(&mut [0; 31]).unwrap();
    let proxy = stream.local_addr().unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(lines(1), [format!("{source} by {proxy} web closed -")]);

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(lab.vip()).unwrap();
    socket.send(&header(Protocol::Udp)).unwrap();
    let proxy = socket.local_addr().unwrap();
    assert_eq!(lines(2)[1], format!("{source} by {proxy} dns expired -"));

    let mut stream = connect(lab.vip());
    stream.write_all(forged).unwrap();
    assert!(was_reset(&mut stream));
    let [.., line] = &lines(3)[..] else { unreachable!() };
    assert!(line.ends_with(" by - web refused proxy_header_invalid"), "{line}");
    assert_eq!(lines(3).len(), 3);
}

fn a_udp_session_has_a_line_once_it_is_silent_or_cut() {
    let lab = Loopback::new();
    let _server = UdpServer::named("a", lab.server(1));
    let balancer =
        BalancerProcess::start(&lab, &setup(&lab).frontend("protocol = 'udp'").timeouts("udp_idle = 0.2"));
    let client = UdpClient::of(lab.vip());
    assert_eq!(client.fetch(), "a");
    let line = &wait_for_lines(&path(&lab), 1)[0];
    assert_eq!((&line["termination"], &line["reason"]), (&"expired".into(), &Value::Null), "{line}");
    assert_eq!((&line["protocol"], &line["server"]), (&"udp".into(), &"pool/a".into()), "{line}");
    assert_eq!(line["bytes_tx"], 1, "{line}");
    assert!(line["bytes_rx"].as_u64() > Some(0) && line["total_ms"].as_f64() >= Some(200.0), "{line}");
    balancer.save(&setup(&lab).frontend("protocol = 'udp'").timeouts("udp_idle = 60\ndrain = 0"));
    balancer.wait_for_log("udp_idle 0.2s -> ");
    assert_eq!(client.fetch(), "a");
    balancer.signal(Signal::TERM);
    let line = &wait_for_lines(&path(&lab), 2)[1];
    assert_eq!((&line["termination"], &line["reason"]), (&"cut".into(), &"cut".into()), "{line}");
}

fn access_log_follows_reloads_and_is_reopened_on_sigusr1() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &without);
    fetch(lab.vip(), "/").unwrap();
    balancer.save(&without.clone().and("[access_log]\noutput = '/nowhere/access.log'"));
    let why = "cannot log to /nowhere/access.log (access_log.output): No such file or directory";
    balancer.wait_for_log(why);
    let check = run(binary().args(["check", "--config"]).arg(balancer.config()));
    assert!(check.stderr.contains(why) && check.code != Some(0), "{}", check.stderr);
    balancer.save(&without.clone().and(&log(&lab, "format = 'one {server}'")));
    balancer.wait_for_log("access_log.output none -> ");
    fetch(lab.vip(), "/").unwrap();
    wait_for("a line", || (whole_lines(&path(&lab)) == "one pool/a\n").then_some(()));
    balancer.save(&without.clone().and(&log(&lab, "format = 'two {termination}'")));
    balancer.wait_for_log("access_log.format one {server} -> two {termination}");
    let old = lab.directory().join("access.log.1");
    fs::rename(path(&lab), &old).unwrap();
    balancer.signal(Signal::USR1);
    balancer.wait_for_log("access log file reopened");
    fetch(lab.vip(), "/").unwrap();
    wait_for("a line in the new file", || (whole_lines(&path(&lab)) == "two closed\n").then_some(()));
    assert_eq!(whole_lines(&old), "one pool/a\n");
    balancer.save(&without);
    balancer.wait_for_log(" -> none");
    fetch(lab.vip(), "/").unwrap();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopped");
    assert_eq!(whole_lines(&path(&lab)), "two closed\n");
}

fn a_sample_is_one_line_in_so_many() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut balancer = BalancerProcess::start(&lab, &setup.and(&log(&lab, "sample = 4")));
    (0..400).for_each(|_| drop(fetch(lab.vip(), "/").unwrap()));
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
    let lines = fs::read_to_string(path(&lab)).unwrap().lines().count();
    // About a hundred; off by seven standard deviations at most.
    assert!((40..160).contains(&lines), "{lines}");
}

fn full_disk_loses_access_log_lines_but_no_clients() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let full = without.clone().and("[access_log]\noutput = '/dev/full'\n");
    let balancer = BalancerProcess::start(&lab, &full);
    (0..9).for_each(|_| assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned())));
    balancer.wait_for_stat("/access_log_lines_dropped", 9);
    balancer.wait_for_log("cannot write the access log: No space left on device");
    balancer.save(&without.and(&log(&lab, "format = '{server}'")));
    balancer.wait_for_log("access_log.output /dev/full -> ");
    // The writer thread may apply the change a little later.
    let lines = || fs::read_to_string(path(&lab)).unwrap_or_default().matches("pool/a\n").count();
    wait_for("a line", || {
        fetch(lab.vip(), "/").unwrap();
        (lines() > 0).then_some(())
    });
    let (lost, before) = (balancer.stat("/access_log_lines_dropped"), lines());
    (0..9).for_each(|_| drop(fetch(lab.vip(), "/").unwrap()));
    wait_for("nine more", || (lines() >= before + 9).then_some(()));
    assert_eq!(balancer.stat("/access_log_lines_dropped"), lost);
}

fn a_log_that_nobody_reads_costs_lines_and_no_client() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let fifo = lab.directory().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Opened for both, so that opening does not wait for a writer.
    let reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).unwrap();
    let without = Setup::new(&lab).server("a", lab.server(1), "");
    let to_fifo = format!("[access_log]\noutput = {fifo:?}\nformat = 'json'\n");
    let balancer = BalancerProcess::start(&lab, &without.clone().and(&to_fifo));
    let load = Wrk::start(&lab, lab.vip(), 8);
    let lost = || balancer.stat("/access_log_lines_dropped").as_u64().unwrap();
    // A queue of 16,384 lines fills first, quarter by quarter.
    for quarter in 1..=4 {
        wait_for("connections, or lines to be lost", || {
            let total = balancer.stat("/total_connections").as_u64()?;
            (lost() > 0 || total > quarter * 4_096).then_some(())
        });
    }
    let before = wait_for("lines to be lost", || Some(lost()).filter(|lost| *lost > 0));
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    let reading = thread::spawn(move || {
        let mut lines = BufReader::new(&reader).lines().map_while(Result::ok);
        (lines.by_ref().take(1_000).all(|line| serde_json::from_str::<Value>(&line).is_ok()), reader)
    });
    let (is_whole, reader) = reading.join().unwrap();
    assert!(is_whole, "each line is whole");
    wait_for("lines to be lost again", || Some(lost()).filter(|lost| *lost > before));

    // A stalled reader does not block the log.
    balancer.save(&without.and(&log(&lab, "format = '{server}'")));
    wait_for("a line", || fs::read_to_string(path(&lab)).ok()?.starts_with("pool/a\n").then_some(()));
    let summary = load.stop();
    assert_eq!(summary.failed, 0, "{}", summary.text);
    let (_, metrics) = balancer.page("/metrics");
    assert!(metrics.contains("\nconvey_access_log_lines_dropped_total "), "{metrics}");
    drop(reader);
}
