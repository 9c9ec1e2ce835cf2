//! Long-lived connections: clients move, files are reloaded, processes are upgraded or stop.

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, SeenRequest, Setup, TestHttpServer, run, start, tests};
use http::Request;
use rustix::process::Signal;

use super::client::{Clients, read, uri};
use super::forger::Forger;
use super::hostile::{get, raw};
use super::{authority, site, with};
use crate::http2::block_on;
use crate::upgrade::Upgraded;

tests!("http3_lives_on":
    a_client_that_moves_goes_on_from_where_it_is,
    moved_client_keeps_the_identity_of_its_handshake_and_no_trust,
    client_that_migrates_to_a_denied_address_is_closed,
    copied_packet_from_a_denied_address_ends_no_connection,
    a_reload_cuts_no_connection_and_new_ones_get_the_new_certificate,
    http3_is_switched_on_and_off_by_a_reload,
    a_request_goes_on_through_upgrades_in_the_process_that_has_it,
    a_convey_that_stops_lets_requests_end_and_takes_no_more,
    a_farewell_names_the_first_request_that_is_not_taken,
    restart_serves_tcp_at_once_and_http3_after_the_old_drain,
);

/// A server that answers `/slow` only after a message on the channel, and all else at once.
fn slow_server(lab: &Loopback) -> (TestHttpServer, Sender<()>) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let server = TestHttpServer::start(lab.server(1), move |request, stream| {
        use std::io::Write;
        if request.line.contains("/slow") {
            let _ = released.lock().unwrap().recv();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
    });
    (server, release)
}

/// Waits for a condition, while the test's own connections go on.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn a_client_that_moves_goes_on_from_where_it_is() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (_server, release) = slow_server(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        // Enough connections for all workers to have some.
        let mut all = Vec::new();
        for _ in 0..16 {
            all.push(clients.connect(lab.vip()).await);
        }
        let mut slow = all[0].begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
        slow.finish().await.unwrap();
        for _ in 0..12 {
            let addr = clients.move_on();
            for client in &all {
                assert_eq!(client.get("/").await.text(), "done", "from {addr}");
            }
        }
        release.send(()).unwrap();
        assert_eq!(read(&mut slow).await.unwrap().text(), "done");
    });
    balancer.wait_for_stat("/frontends/web/total_connections", 16);
}

/// The address of a packet proves nothing: servers, limits and the log keep the address of the
/// handshake.
fn moved_client_keeps_the_identity_of_its_handshake_and_no_trust() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let server = TestHttpServer::named("a", lab.server(1));
    let trusted = "trusted_proxies = [\"127.0.0.77\", \"127.0.0.78\"]";
    let balancer = BalancerProcess::start(&lab, &with(&lab, trusted, "").server("a", lab.server(1), ""));
    let seen = || {
        let of = |seen: &SeenRequest| seen.field("x-forwarded-for").unwrap().to_owned();
        server.seen().iter().map(of).collect::<Vec<_>>()
    };
    block_on(async {
        let from_afar = || Request::get(uri("/")).header("x-forwarded-for", "192.0.2.6");
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        clients.move_to(Ipv4Addr::new(127, 0, 0, 77));
        assert_eq!(client.fetch(from_afar(), b"", None).await.status, 200);
        let flows = run(balancer.command().arg("flows")).stdout;
        assert!(!flows.contains("127.0.0.77"), "{flows}");
        let proxies = Clients::trusting(&authority);
        proxies.move_to(Ipv4Addr::new(127, 0, 0, 78));
        let proxy = proxies.connect(lab.vip()).await;
        assert_eq!(proxy.fetch(from_afar(), b"", None).await.status, 200);
        proxies.move_on();
        // Waits until the client has proved its new address.
        while seen().last().unwrap() != "127.0.0.78" {
            assert_eq!(proxy.fetch(from_afar(), b"", None).await.status, 200);
        }
    });
    let mut seen = seen();
    seen.dedup();
    assert_eq!(seen, ["127.0.0.1", "192.0.2.6, 127.0.0.78", "127.0.0.78"]);
}

fn client_that_migrates_to_a_denied_address_is_closed() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup =
        with(&lab, "[frontends.web.access]\nallow = [\"127.0.0.1\"]", "").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        assert_eq!(client.get("/").await.status, 200);
        clients.move_to(Ipv4Addr::new(127, 0, 0, 77));
        // Waits until the client has proved its new address.
        while let Ok(mut call) = client.begin(Request::get(uri("/")).body(()).unwrap()).await {
            let _ = call.finish().await;
            if read(&mut call).await.is_err() {
                break;
            }
        }
        let error = clients.try_connect(lab.vip()).await.err().unwrap();
        assert!(error.to_string().contains("refused"), "{error}");
    });
    balancer.wait_for_stat("/frontends/web/ended/access_denied", 1);
    balancer.wait_for_stat("/frontends/web/refused/access_denied", 1);
}

fn copied_packet_from_a_denied_address_ends_no_connection() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let lines = "trusted_proxies = [\"127.0.0.1\"]\naccess.allow = [\"127.0.0.1\", \"192.0.2.6\"]";
    let balancer = BalancerProcess::start(&lab, &with(&lab, lines, "").server("a", lab.server(1), ""));
    block_on(async {
        let forger = Forger::before(lab.vip()).await;
        let clients = Clients::trusting(&authority);
        let client = clients.connect(forger.addr()).await;
        let mut calls = Vec::new();
        for n in 0..2 {
            let request = Request::get(uri("/slow")).header("x-forwarded-for", "192.0.2.6");
            let mut call = client.begin(request.body(()).unwrap()).await.unwrap();
            call.finish().await.unwrap();
            calls.push(call);
            until(|| server.seen().len() > n).await;
            forger.copy_from(Some((lab.ip(77), 0).into()));
        }
        // convey checks the address, and counts bytes, each second.
        let counted = || balancer.stat("/frontends/web/bytes_rx").as_u64().unwrap();
        let before = counted();
        until(|| counted() > before).await;
        assert!(forger.bytes().1 > 0);
        forger.copy_from(None);
        for mut call in calls {
            release.send(()).unwrap();
            assert_eq!(read(&mut call).await.unwrap().text(), "done");
        }
    });
    assert!(server.seen().iter().all(|seen| seen.field("x-forwarded-for") == Some("192.0.2.6, 127.0.0.1")));
    assert_eq!(balancer.stat("/frontends/web/ended/access_denied"), 0);
}

fn a_reload_cuts_no_connection_and_new_ones_get_the_new_certificate() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (_server, release) = slow_server(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let first = clients.connect(lab.vip()).await;
        let mut slow = first.begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
        slow.finish().await.unwrap();
        let other = authority.issue(&["site.example"]);
        other.save(lab.directory(), "site");
        balancer.signal(Signal::HUP);
        let before = first.certificate();
        loop {
            let fresh = Clients::trusting(&authority);
            let client = fresh.connect(lab.vip()).await;
            assert_eq!(client.get("/").await.status, 200);
            if client.certificate() != before {
                break;
            }
        }
        assert_eq!(first.get("/").await.status, 200);
        release.send(()).unwrap();
        assert_eq!(read(&mut slow).await.unwrap().text(), "done");
    });
}

fn http3_is_switched_on_and_off_by_a_reload() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let off = |lab: &Loopback| {
        let at = lab.directory().display();
        let tls = format!(
            "mode = \"http\"\n[frontends.web.tls]\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\""
        );
        Setup::new(lab).frontend(&tls).server("a", lab.server(1), "")
    };
    let balancer = BalancerProcess::start(&lab, &off(&lab));
    block_on(async {
        let clients = Clients::trusting(&authority);
        for n in 0..2 {
            balancer.save(&site(&lab, ""));
            until(|| balancer.log().matches("tls.http3 false -> true").count() > n).await;
            let client = loop {
                if let Ok(client) = clients.try_connect(lab.vip()).await {
                    break client;
                }
            };
            assert_eq!(client.get("/").await.status, 200);
            let mut slow = client.begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
            slow.finish().await.unwrap();
            until(|| server.seen().len() > n * 2 + 1).await;
            balancer.save(&off(&lab));
            until(|| balancer.log().matches("tls.http3 true -> false").count() > n).await;
            loop {
                if clients.try_connect(lab.vip()).await.is_err() {
                    break;
                }
            }
            // Open requests continue.
            release.send(()).unwrap();
            assert_eq!(read(&mut slow).await.unwrap().text(), "done");
            drop(client);
        }
    });
}

fn a_request_goes_on_through_upgrades_in_the_process_that_has_it() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let mut upgraded = Upgraded::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        // Enough connections for all workers to have some.
        let mut all = Vec::new();
        for _ in 0..8 {
            let client = clients.connect(lab.vip()).await;
            let mut slow = client.begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
            slow.finish().await.unwrap();
            all.push((client, slow));
        }
        until(|| server.seen().len() == 8).await;
        for _ in 0..2 {
            upgraded.replace_program();
            upgraded.upgrade();
            // Each process between the first and the last ends as soon as its client has left.
            let client = clients.connect(lab.vip()).await;
            assert_eq!(client.get("/").await.status, 200);
            client.connection.close(0x100_u32.into(), b"");
        }
        until(|| upgraded.still_running() == 1).await;
        clients.move_on();
        (0..all.len()).for_each(|_| release.send(()).unwrap());
        for (client, mut slow) in all {
            assert_eq!(read(&mut slow).await.unwrap().text(), "done");
            drop(client);
        }
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
    });
    assert_eq!(upgraded.first.wait(), 0);
}

fn a_convey_that_stops_lets_requests_end_and_takes_no_more() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let mut balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let mut slow = client.begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
        slow.finish().await.unwrap();
        until(|| server.seen().len() == 1).await;
        balancer.signal(Signal::TERM);
        loop {
            if clients.try_connect(lab.vip()).await.is_err() {
                break;
            }
        }
        release.send(()).unwrap();
        assert_eq!(read(&mut slow).await.unwrap().text(), "done");
    });
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: every connection had ended"), "{}", balancer.log());
}

/// Clients may repeat the request in GOAWAY and later ones elsewhere, so convey must not serve them
/// as well.
fn a_farewell_names_the_first_request_that_is_not_taken() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let setup = with(&lab, "[frontends.web.http]\nmax_requests = 2", "").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let (_endpoint, connection) = raw(&authority, &lab).await;
        let mut control = connection.accept_uni().await.unwrap();
        let mut streams = Vec::new();
        for n in 0..2 {
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(&get("/slow")).await.unwrap();
            send.finish().unwrap();
            streams.push(receive);
            until(|| server.seen().len() > n).await;
        }
        // The first GOAWAY has the greatest stream id. Streams 0 and 4 are served: 8 is the first
        // refused one.
        const FIRST: [u8; 10] = [7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc];
        let mut output = Vec::new();
        while !output.ends_with(&[7, 1, 8]) {
            let chunk = control.read_chunk(1_000, true).await.unwrap().unwrap();
            output.extend_from_slice(&chunk.bytes);
        }
        assert!(output.ends_with(&[&FIRST[..], &[7, 1, 8]].concat()), "{output:x?}");
        for _ in 0..3 {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            let _ = send.write_all(&get("/late")).await;
            let _ = send.finish();
            let error = receive.read_to_end(1_000).await.unwrap_err();
            // H3_REQUEST_REJECTED.
            assert!(format!("{error:?}").contains("267"), "{error:?}");
        }
        for mut receive in streams {
            release.send(()).unwrap();
            drop(receive.read_chunk(1_000, true).await.unwrap());
        }
    });
    assert!(server.seen().iter().all(|seen| !seen.line.contains("late")), "{:?}", server.seen());
}

fn restart_serves_tcp_at_once_and_http3_after_the_old_drain() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (server, release) = slow_server(&lab);
    let setup = site(&lab, "");
    let mut old = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let mut slow = client.begin(Request::get(uri("/slow")).body(()).unwrap()).await.unwrap();
        slow.finish().await.unwrap();
        until(|| server.seen().len() == 1).await;
        old.signal(Signal::TERM);
        // convey accepts no more connections while it drains.
        until(|| std::net::TcpStream::connect(lab.vip()).is_err()).await;
        let checked = run(old.command().args(["check", "--config"]).arg(old.config()));
        assert!(!checked.stderr.contains("cannot listen on"), "{checked:?}");
        let mut command = old.command();
        command.arg("--config").arg(old.config()).current_dir(lab.directory());
        let log = lab.directory().join("new.log");
        let mut new = start(command, &log);
        let output = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text);
        assert!(output("HTTP/3 is not yet served at"));
        assert!(std::net::TcpStream::connect(lab.vip()).is_ok());
        release.send(()).unwrap();
        assert_eq!(read(&mut slow).await.unwrap().text(), "done");
        drop((slow, client));
        until(|| output("HTTP/3 is served at")).await;
        assert_eq!(clients.connect(lab.vip()).await.get("/").await.status, 200);
        new.signal(Signal::TERM);
        assert!(new.wait().success());
    });
    assert_eq!(old.wait(), 0);
}
