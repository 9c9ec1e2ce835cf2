//! An operator puts frontends, routes and backends of mode http into maintenance.

use std::io::Write;
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TestHttpServer, connect, fetch, fetch_from, run, tests, wait_for,
};
use http::Request;

use crate::curl::curl;
use crate::http::HTTP;
use crate::http::client::{Client, Response, read_head};
use crate::http2::block_on;
use crate::http2::client::Client as Http2Client;
use crate::http3::client::Clients;
use crate::http3::{authority, site};
use crate::operator::{command_output, run_command};
use crate::upgrade::Upgraded;

tests!("maintenance":
    maintenance_of_a_frontend_answers_every_request_with_its_page,
    running_request_finishes_after_maintenance_begins,
    route_or_backend_is_in_maintenance_without_the_others,
    split_route_sends_requests_to_the_backend_without_maintenance,
    allowed_network_is_served_during_maintenance,
    maintenance_page_reaches_clients_of_http2_and_http3 [Need::CURL],
    maintenance_survives_a_reload_and_an_upgrade,
    status_explain_trace_log_and_events_name_maintenance,
    wrong_maintenance_is_an_error_and_changes_nothing,
);

const ROUTES: &str = "[[frontends.web.routes]]\nname = \"shop\"\npath = \"/shop\"\nbackend = \"v1\"\n\
    [[frontends.web.routes]]\nname = \"split\"\npath = \"/split\"\nbackends = { v1 = 50, v2 = 50 }\n\
    [[frontends.web.routes]]\nname = \"old\"\npath = \"/old\"\nredirect = \"https\"\n";

fn setup(lab: &Loopback) -> Setup {
    let backend = |name: &str, n| {
        let addr = lab.server(n);
        format!(
            "[backends.{name}]\nhealth_check.kind = \"none\"\n[backends.{name}.servers.{name}]\naddr = \"{addr}\"\n"
        )
    };
    let backends = backend("v1", 1) + &backend("v2", 2);
    let lines = "headers.response.set = { Cache-Control = \"max-age=60\" }\n";
    Setup::new(lab)
        .frontend(&format!("{HTTP}\n{lines}{ROUTES}"))
        .server("site", lab.server(3), "")
        .and(&backends)
}

fn servers(lab: &Loopback) -> [TestHttpServer; 3] {
    [("v1", 1), ("v2", 2), ("site", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)))
}

/// Writes a page, and returns its path.
fn page(lab: &Loopback) -> String {
    let path = lab.directory().join("later.html");
    std::fs::write(&path, "<h1>Back at noon</h1>\n").unwrap();
    path.display().to_string()
}

fn is_page(response: &Response) -> bool {
    response.status == 503 && response.body == "<h1>Back at noon</h1>\n"
}

/// Sends requests until one gets this status.
fn wait_for_status(client: &mut Client, path: &str, status: u16) {
    wait_for("the change", || (client.get("a", path).status == status).then_some(()));
}

fn maintenance_of_a_frontend_answers_every_request_with_its_page() {
    let lab = Loopback::new();
    let servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let mut client = Client::new(lab.vip());
    assert_eq!(client.get("a", "/").status, 200);
    let on = format!("maintenance on web --page {} --retry-after 2m", page(&lab));
    assert_eq!(command_output(&balancer, &on), "frontend web: in maintenance, status 503\n");
    assert_eq!(command_output(&balancer, &on), "frontend web: already in maintenance, status 503\n");
    wait_for_status(&mut client, "/", 503);
    for path in ["/", "/shop", "/split", "/old"] {
        let response = client.get("a", path);
        assert!(is_page(&response), "{path}: {} {}", response.head, response.body);
        for field in ["Content-Type: text/html; charset=utf-8", "Retry-After: 120", "Cache-Control: no-store"]
        {
            assert_eq!(
                response.head.matches(&format!("\r\n{field}\r\n")).count(),
                1,
                "{field}: {}",
                response.head
            );
        }
    }
    let seen = || servers.iter().map(|server| server.seen().len()).sum::<usize>();
    let before = seen();
    let posted = client.send("POST /shop HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert!(is_page(&posted), "{}", posted.head);
    let mut client = Client::new(lab.vip());
    assert!(is_page(&client.get("a", "/")));
    assert_eq!(seen(), before, "no server gets a request");
    assert_eq!(balancer.page("/readyz").0, 200, "the address is not taken away");
    assert!(balancer.stat("/frontends/web/requests/local_replies/maintenance").as_u64() >= Some(7));
    assert_eq!(command_output(&balancer, "maintenance off web"), "frontend web: maintenance ended\n");
    assert_eq!(command_output(&balancer, "maintenance off web"), "frontend web: not in maintenance\n");
    wait_for_status(&mut client, "/", 200);
    // Without a page, clients get a line of text.
    command_output(&balancer, "maintenance on web --status 500 --text sorry");
    wait_for_status(&mut client, "/", 500);
    assert_eq!(client.get("a", "/").body, "sorry\n");
    command_output(&balancer, "maintenance on web");
    wait_for_status(&mut client, "/", 503);
    assert_eq!(client.get("a", "/").body, "503 Service Unavailable: maintenance\n");
    assert_eq!(command_output(&balancer, "reset"), "everything: 1 change undone, the file applies again\n");
    wait_for_status(&mut client, "/", 200);
}

fn running_request_finishes_after_maintenance_begins() {
    let lab = Loopback::new();
    let (go, gone) = std::sync::mpsc::channel();
    let gone = std::sync::Mutex::new(gone);
    let server = TestHttpServer::start(lab.server(3), move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhere")?;
        gone.lock().unwrap().recv().unwrap();
        stream.write_all(b" and")
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let mut running = connect(lab.vip());
    running.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_head(&mut running).unwrap().starts_with("HTTP/1.1 200 "));
    wait_for("the request", || (server.seen().len() == 1).then_some(()));
    command_output(&balancer, "maintenance on web");
    wait_for_status(&mut Client::new(lab.vip()), "/", 503);
    go.send(()).unwrap();
    let mut body = [0; 8];
    std::io::Read::read_exact(&mut running, &mut body).unwrap();
    assert_eq!(&body, b"here and");
    running.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_head(&mut running).unwrap().starts_with("HTTP/1.1 503 "), "the next one gets the page");
}

fn route_or_backend_is_in_maintenance_without_the_others() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let mut client = Client::new(lab.vip());
    let cases = [
        ("web/shop", [503, 200, 308]),
        ("web/default", [200, 503, 308]),
        ("web/old", [200, 200, 503]),
        ("--backend v1", [503, 200, 308]),
        ("--backend pool", [200, 503, 308]),
    ];
    for (object, expected) in cases {
        command_output(&balancer, &format!("maintenance on {object}"));
        wait_for(object, || {
            let statuses = ["/shop", "/", "/old"].map(|path| client.get("a", path).status);
            (statuses == expected).then_some(())
        });
        command_output(&balancer, &format!("maintenance off {object}"));
    }
    command_output(&balancer, "maintenance on --backend v1");
    wait_for_status(&mut client, "/shop", 503);
    assert_eq!(
        command_output(&balancer, "reset v1"),
        "backend v1: 1 change undone, the file applies again\n"
    );
    wait_for_status(&mut client, "/shop", 200);
}

fn split_route_sends_requests_to_the_backend_without_maintenance() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let mut client = Client::new(lab.vip());
    command_output(&balancer, "maintenance on --backend v1");
    wait_for_status(&mut client, "/shop", 503);
    for _ in 0..30 {
        assert!(client.get("a", "/split").body.starts_with("v2 "));
    }
    let explained = command_output(&balancer, "explain 127.0.0.9 web http://a/split");
    assert!(
        explained.contains("50.0 % to v1 (in maintenance), 50.0 % to v2; what follows is for backend v2"),
        "{explained}"
    );
    command_output(&balancer, "maintenance on --backend v2");
    wait_for_status(&mut client, "/split", 503);
}

fn allowed_network_is_served_during_maintenance() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab));
    let [allowed, other] = [lab.ip(77), lab.ip(78)];
    command_output(&balancer, &format!("maintenance on web --allow {allowed} --allow 2001:db8::/32"));
    wait_for("maintenance", || (fetch_from(other, lab.vip(), "/").ok()?.0 == 503).then_some(()));
    assert_eq!(fetch_from(allowed, lab.vip(), "/").unwrap().0, 200);
    command_output(&balancer, &format!("maintenance on --backend v1 --allow {allowed}"));
    wait_for("maintenance", || (fetch_from(other, lab.vip(), "/shop").ok()?.0 == 503).then_some(()));
    assert_eq!(fetch_from(allowed, lab.vip(), "/shop").unwrap().0, 200);
    let explained = run_command(&balancer, &format!("explain {other} web http://a/"));
    assert!(
        explained.stdout.contains("frontend web is in maintenance: convey answers with status 503 (overlay)"),
        "{explained:?}"
    );
    let explained = command_output(&balancer, &format!("explain {allowed} web http://a/"));
    assert!(!explained.contains("in maintenance"), "{explained}");
}

fn maintenance_page_reaches_clients_of_http2_and_http3() {
    let lab = Loopback::new();
    let clients = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &site(&lab, ""));
    command_output(&balancer, &format!("maintenance on web --page {}", page(&lab)));
    block_on(async {
        let clients = Clients::trusting(&clients);
        let client = clients.connect(lab.vip()).await;
        let answer = client.get("/").await;
        assert_eq!((answer.status, answer.text()), (503, "<h1>Back at noon</h1>\n"));
        assert_eq!(
            (&answer.fields["retry-after"], &answer.fields["cache-control"]),
            (&"300".parse().unwrap(), &"no-store".parse().unwrap())
        );
    });
    // curl speaks HTTP/2 over TLS, and shows what a browser would get.
    let url = format!("https://site.example:{}/", lab.vip().port());
    let resolve = format!("site.example:{}:{}", lab.vip().port(), lab.vip().ip());
    let shown = curl(&["-k", "--http2", "-i", "--resolve", &resolve, &url]);
    let shown = shown.replace("\r\n", "\n");
    assert!(shown.starts_with("HTTP/2 503"), "{shown}");
    for part in [
        "\nretry-after: 300\n",
        "\ncache-control: no-store\n",
        "\ncontent-type: text/html; charset=utf-8\n",
        "\n\n<h1>Back at noon</h1>\n",
    ] {
        assert!(shown.contains(part), "{part:?}: {shown}");
    }
}

fn maintenance_survives_a_reload_and_an_upgrade() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let mut upgraded = Upgraded::start(&lab, &setup(&lab));
    let ask_for = |upgraded: &Upgraded<'_>, line: &str| {
        let ran = run(upgraded.first.command().args(line.split(' ')));
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        ran.stdout
    };
    let big = lab.directory().join("big.html");
    std::fs::write(&big, "\u{1}".repeat(64 << 10)).unwrap();
    ask_for(&upgraded, &format!("maintenance on web/shop --page {}", big.display()));
    ask_for(&upgraded, "maintenance on --backend pool");
    ask_for(&upgraded, "reload");
    upgraded.upgrade();
    // The old process may close a connection after its response.
    let reached = |path: &str| fetch(lab.vip(), path).unwrap();
    let (status, body) = reached("/shop");
    assert_eq!((status, body.len()), (503, 64 << 10));
    assert_eq!(reached("/").0, 503);
    ask_for(&upgraded, "maintenance off web/shop");
    wait_for("the route to be served", || (reached("/shop").0 == 200).then_some(()));
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

fn status_explain_trace_log_and_events_name_maintenance() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let log = "[access_log]\noutput = \"stderr\"\nformat = \"{target} {status} {reason} {route}\"\n";
    let balancer = BalancerProcess::start(&lab, &setup(&lab).and(log));
    command_output(&balancer, "maintenance on web/shop --allow 192.0.2.0/24");
    let screen = command_output(&balancer, "status");
    assert!(screen.contains("\nMAINTENANCE: route web/shop since "), "{screen}");
    assert!(
        screen.contains("  route web/shop: maintenance, status 503, except for 192.0.2.0/24, for "),
        "{screen}"
    );
    let explained = run_command(&balancer, "explain 127.0.0.9 web http://a/shop");
    assert!(
        explained.stdout.contains(
            "takes route shop, and route shop is in maintenance: convey answers with status 503 (overlay)"
        ),
        "{explained:?}"
    );
    assert!(explained.stdout.contains("gets an answer from convey itself: maintenance"), "{explained:?}");
    let traced = thread::scope(|scope| {
        let trace = scope.spawn(|| run_command(&balancer, "trace --route shop --count 3 --timeout 10s"));
        wait_for("the trace", || {
            Client::new(lab.vip()).get("a", "/shop");
            trace.is_finished().then_some(())
        });
        trace.join().unwrap()
    });
    assert!(traced.stdout.contains("maintenance"), "{traced:?}");
    balancer.wait_for_log("/shop 503 maintenance shop");
    let events = command_output(&balancer, "status --events");
    assert!(
        events.contains("route web/shop: maintenance, status 503, except for 192.0.2.0/24 (by "),
        "{events}"
    );
    assert_eq!(balancer.stat("/overlays/0/maintenance/status"), 503);
    let metrics = balancer.page("/metrics").1;
    assert!(metrics.contains("reason=\"maintenance\""), "{metrics}");
    command_output(&balancer, "maintenance off web/shop");
    let screen = command_output(&balancer, "status");
    assert!(!screen.contains("MAINTENANCE"), "{screen}");
}

fn wrong_maintenance_is_an_error_and_changes_nothing() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let tcp = format!(
        "[frontends.tcp]\nlisten_addr = \"{}\"\nbackend = \"raw\"\n[backends.raw]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{}\"\n",
        lab.second_vip(),
        lab.server(4)
    );
    let balancer = BalancerProcess::start(&lab, &setup(&lab).and(&tcp));
    let long = lab.directory().join("long.html");
    std::fs::write(&long, "a".repeat((64 << 10) + 1)).unwrap();
    let long = format!("maintenance on web --page {}", long.display());
    for (line, code, why) in [
        ("maintenance on wbe", 1, "no frontend is called \"wbe\"; did you mean `web`?"),
        ("maintenance on web/shpo", 1, "no route of frontend web is called \"shpo\"; did you mean"),
        ("maintenance off web/shpo", 1, "no route of frontend web is called \"shpo\"; did you mean"),
        ("maintenance on --backend v3", 1, "no backend is called \"v3\""),
        ("maintenance on tcp", 1, "frontend tcp has mode proxy; this command is for mode http"),
        ("maintenance on --backend raw", 1, "`convey backend maint raw` takes its servers out"),
        (&long, 1, "found 65537 bytes, allowed: at most 65536"),
        ("maintenance on web --page later.php", 1, "the name has to end with .html, .json or .txt"),
        ("maintenance on web --status 200", 2, "200 is not in 400..600"),
        ("maintenance on web --allow 10.0.0.0/33", 2, "--allow"),
        ("maintenance on", 2, "<FRONTEND[/ROUTE]|--backend <BACKEND>>"),
        ("maintenance on web --backend v1", 2, "cannot be used with"),
    ] {
        let ran = run_command(&balancer, line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.stderr.contains(why), "{line}: {ran:?}");
    }
    assert_eq!(balancer.stats().get("overlays"), None);
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (response, _) = client.begin(Request::get("http://a/shop").body(()).unwrap(), true).await;
        assert_eq!(response.await.unwrap().status(), 200);
    });
}
