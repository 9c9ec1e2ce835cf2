//! Access log of requests that end before convey decides on them.

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, tests};
use rustix::process::Signal;
use serde_json::Value;

use super::hostile::{get, post, raw};
use super::{authority, with};
use crate::access_log::{log, path, wait_for_lines};
use crate::http2::block_on;

tests!("http3_undecided":
    request_cut_before_the_end_of_its_stream_has_a_line,
    requests_that_end_within_or_after_their_head_have_lines,
);

fn expect(line: &Value, fields: [(&str, &str); 5]) {
    for (field, value) in fields {
        assert_eq!(line[field], value, "{field}: {line}");
    }
}

fn request_cut_before_the_end_of_its_stream_has_a_line() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = with(&lab, "", "").timeouts("drain = 0.1").health("kind = \"none\"");
    let setup = setup.server("a", lab.server(1), "").and(&log(&lab, "format = 'json'"));
    let mut balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let (mut held, _reading) = connection.open_bi().await.unwrap();
        held.write_all(&get("/held")).await.unwrap();
        // convey has the first head once it responds to the second one.
        let (mut whole, mut response) = connection.open_bi().await.unwrap();
        whole.write_all(&get("/whole")).await.unwrap();
        whole.finish().unwrap();
        response.read_to_end(1_000).await.unwrap();
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
    });
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["target"].to_string());
    let cut = [
        ("target", "/held"),
        ("method", "GET"),
        ("termination", "cut"),
        ("reason", "cut"),
        ("phase", "request_head"),
    ];
    expect(&lines[0], cut);
}

fn requests_that_end_within_or_after_their_head_have_lines() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let setup = with(&lab, "[frontends.web.http]\nhead_timeout = 1", "").health("kind = \"none\"");
    let setup = setup.server("a", lab.server(1), "").and(&log(&lab, "format = 'json'"));
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let (mut cut, _reading) = connection.open_bi().await.unwrap();
        cut.write_all(&post(None)[..4]).await.unwrap();
        cut.reset(0x10c_u32.into()).unwrap();
        let (mut late, mut reset) = connection.open_bi().await.unwrap();
        late.write_all(&get("/late")).await.unwrap();
        assert!(reset.read_to_end(100).await.is_err());
    });
    let lines = wait_for_lines(&path(&lab), 2);
    assert!(lines[0]["target"].is_null(), "{}", lines[0]);
    let cut = [
        ("frontend", "web"),
        ("http_version", "3"),
        ("termination", "reset"),
        ("reason", "client_reset"),
        ("phase", "request_head"),
    ];
    expect(&lines[0], cut);
    let late = [
        ("target", "/late"),
        ("http_version", "3"),
        ("termination", "refused"),
        ("reason", "request_timeout"),
        ("phase", "request_head"),
    ];
    expect(&lines[1], late);
    balancer.wait_for_stat("/frontends/web/requests/early_ends/request_head", 2);
    assert_eq!(balancer.stat("/frontends/web/requests/total"), 2);
}
