//! Access log: one line for each connection and session, once it has ended.

mod cut_requests;
mod outputs;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};

use convey_model::{Protocol, ProxyVersion};
use convey_proxy_protocol::{Addresses, write};
use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, UdpClient, UdpServer, connect, is_refused_with_reset,
    ping, reset, tests, wait_for, was_reset, whole_lines,
};
use rustix::process::Signal;
use serde_json::Value;

use cut_requests::{
    downloads_that_are_cut_have_and_count_their_status,
    local_reply_whose_client_leaves_keeps_its_reason_in_the_log,
    request_cut_before_its_empty_body_has_ended_has_a_line, requests_cut_at_the_end_of_a_stop_have_lines,
    requests_of_killed_connections_have_lines,
};
use outputs::{
    a_log_that_nobody_reads_costs_lines_and_no_client, a_sample_is_one_line_in_so_many,
    access_log_follows_reloads_and_is_reopened_on_sigusr1, full_disk_loses_access_log_lines_but_no_clients,
};

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
