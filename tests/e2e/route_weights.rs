//! An operator changes the shares of a route's backends by commands.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, fetch, run, tests, wait_for};

use crate::http::HTTP;
use crate::http::client::Client;
use crate::http2::block_on;
use crate::http2::client::Client as Http2Client;
use crate::operator::{command_output, run_command};
use crate::upgrade::Upgraded;

tests!("route_weights":
    weight_moves_requests_at_once_and_lasts_until_reset,
    requests_run_on_while_weights_change_and_none_fails,
    weights_survive_an_upgrade,
    status_explain_events_and_check_show_the_weights,
    wrong_route_backend_or_weight_is_an_error_and_changes_nothing,
);

const SHARES: &str =
    "[[frontends.web.routes]]\nname = \"checkout\"\npath = \"/c\"\nbackends = { v1 = 100, v2 = 0 }\n";

fn setup(lab: &Loopback, routes: &str) -> Setup {
    let backend = |name: &str, n| {
        let addr = lab.server(n);
        format!(
            "[backends.{name}]\nhealth_check.kind = \"none\"\n[backends.{name}.servers.{name}]\naddr = \"{addr}\"\n"
        )
    };
    let backends = backend("v1", 1) + &backend("v2", 2);
    Setup::new(lab).frontend(&format!("{HTTP}\n{routes}")).server("site", lab.server(3), "").and(&backends)
}

fn servers(lab: &Loopback) -> [TestHttpServer; 2] {
    [("v1", 1), ("v2", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)))
}

/// Name of the server that answers the next request.
fn server(client: &mut Client) -> String {
    let response = client.get("a", "/c");
    assert_eq!(response.status, 200);
    response.body.split(' ').next().unwrap().to_owned()
}

/// Whether this server answers ten requests of one connection.
fn serves_alone(client: &mut Client, name: &str) -> bool {
    (0..10).all(|_| server(client) == name)
}

fn weight_moves_requests_at_once_and_lasts_until_reset() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, SHARES));
    let mut client = Client::new(lab.vip());
    assert!(serves_alone(&mut client, "v1"));
    let moved = "route weight web/checkout v1=0 v2=5";
    assert_eq!(command_output(&balancer, moved), "route web/checkout: weights v1=0, v2=5\n");
    assert_eq!(command_output(&balancer, moved), "route web/checkout: weights v1=0, v2=5 already\n");
    wait_for("v2 to serve", || (server(&mut client) == "v2").then_some(()));
    assert!(serves_alone(&mut client, "v2"), "on the connection that was open before");
    balancer.save(&setup(&lab, &SHARES.replace("v1 = 100", "v1 = 70")));
    command_output(&balancer, "reload");
    assert!(serves_alone(&mut client, "v2"), "the override takes precedence over the file");
    let undone = "route web/checkout: 1 change undone, the file applies again\n";
    assert_eq!(command_output(&balancer, "route reset web/checkout"), undone);
    wait_for("v1 to serve", || (server(&mut client) == "v1").then_some(()));
    let nothing = "route web/checkout: no change to undo, the file applies\n";
    assert_eq!(command_output(&balancer, "route reset web/checkout"), nothing);
    command_output(&balancer, moved);
    assert_eq!(command_output(&balancer, "reset"), "everything: 1 change undone, the file applies again\n");
    wait_for("v1 to serve again", || (server(&mut client) == "v1").then_some(()));
}

fn requests_run_on_while_weights_change_and_none_fails() {
    const CHANGES: usize = 60;
    let lab = Loopback::new();
    let servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, SHARES));
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::new(lab.vip());
                while !stop.load(Ordering::Relaxed) {
                    server(&mut client);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                block_on(async {
                    let client = Http2Client::connect(lab.vip()).await;
                    for _ in 0..50 {
                        assert_eq!(client.get("http://a/c").await.status, 200);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        for n in 0..CHANGES {
            let before = answered.load(Ordering::Relaxed);
            command_output(&balancer, &format!("route weight web/checkout v1={} v2={}", n % 2, (n + 1) % 2));
            wait_for("requests", || (answered.load(Ordering::Relaxed) > before + 5).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(servers.iter().all(|server| server.seen().len() > CHANGES));
    assert_eq!(balancer.stat("/frontends/web/requests/responses/5xx"), 0);
}

fn weights_survive_an_upgrade() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let mut upgraded = Upgraded::start(&lab, &setup(&lab, SHARES));
    let ask_for = |upgraded: &Upgraded<'_>, line: &str| {
        let ran = run(upgraded.first.command().args(line.split(' ')));
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        ran.stdout
    };
    ask_for(&upgraded, "route weight web/checkout v1=0 v2=5");
    upgraded.upgrade();
    // The old process may close a connection after its response.
    let reached = || fetch(lab.vip(), "/c").unwrap().1;
    assert!((0..10).all(|_| reached().starts_with("v2 ")));
    let screen = ask_for(&upgraded, "status");
    assert!(screen.contains("route web/checkout: weights v1=0, v2=5, for "), "{screen}");
    ask_for(&upgraded, "route reset web/checkout");
    wait_for("v1 to serve", || reached().starts_with("v1 ").then_some(()));
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

fn status_explain_events_and_check_show_the_weights() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, SHARES));
    command_output(&balancer, "route weight web/checkout v2=25");
    let explained = command_output(&balancer, "explain 127.0.0.9 web http://a/c");
    assert!(explained.contains("80.0 % to v1, 20.0 % to v2 (weight 25, overlay)"), "{explained}");
    let events = command_output(&balancer, "status --events");
    assert!(events.contains("route web/checkout: weights v2=25 (by "), "{events}");
    let screen = command_output(&balancer, "status --frontend web");
    assert!(screen.contains("  route web/checkout: weights v2=25, for "), "{screen}");
    assert_eq!(balancer.stat("/frontends/web/routes/0/split/v2"), 25);
    assert_eq!(balancer.stat("/overlays/0/weights/v2"), 25);
    let file = balancer.config().display().to_string();
    let checked = run_command(&balancer, &format!("check --syntax --config {file}"));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    // Without the route, the override has no effect, and status shows that.
    balancer.save(&setup(&lab, &SHARES.replace("checkout", "cart")));
    command_output(&balancer, "reload");
    let screen = command_output(&balancer, "status");
    assert!(screen.contains("no effect: there is no such route with these backends now"), "{screen}");
}

fn wrong_route_backend_or_weight_is_an_error_and_changes_nothing() {
    let lab = Loopback::new();
    let _servers = servers(&lab);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, SHARES));
    for (line, code, why) in [
        ("route weight wbe/checkout v2=5", 1, "no frontend is called \"wbe\"; did you mean `web`?"),
        ("route weight web/chekout v2=5", 1, "no route of frontend web is called \"chekout\"; did you mean"),
        ("route weight web/checkout v3=5", 1, "no backend of route web/checkout is called \"v3\""),
        ("route weight web/checkout v1=0", 1, "no backend would have a weight above 0"),
        ("route weight web/default pool=1", 1, "route web/default has a single backend, pool"),
        ("route reset web/chekout", 1, "no route of frontend web is called \"chekout\"; did you mean"),
        ("route weight web/checkout v2", 2, "expected: BACKEND=WEIGHT, such as v2=5"),
        ("route weight checkout v2=5", 2, "expected: FRONTEND/ROUTE, such as web/checkout"),
        ("route weight web/checkout", 2, "<BACKEND=WEIGHT>"),
    ] {
        let ran = run_command(&balancer, line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.stderr.contains(why), "{line}: {ran:?}");
    }
    assert_eq!(balancer.stats().get("overlays"), None);
}
