//! Status, top and their filters, while half of the requests fail.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, Setup, fetch, run, tests};

use crate::alerts::half_broken;
use crate::operator::{command_output, run_command};

tests!("requests_seen":
    status_shows_errors_by_origin_frontend_and_route,
    status_filters_select_a_part_of_the_screen,
    top_shows_routes_and_errors_of_servers,
);

/// A frontend with a route for `/api`, which allows one request.
fn site(lab: &Loopback) -> Setup {
    let route = "{ path = \"/api\", backend = \"pool\", requests_per_source = 1, request_burst = 1 }";
    let frontend = format!("mode = \"http\"\nroutes = [{route}]");
    Setup::new(lab).frontend(&frontend).health("kind = \"none\"").server("a", lab.server(1), "")
}

fn fetch_all(lab: &Loopback, paths: &[&str]) {
    paths.iter().for_each(|path| drop(fetch(lab.vip(), path).unwrap()));
}

fn status_shows_errors_by_origin_frontend_and_route() {
    let lab = Loopback::new();
    let _server = half_broken(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab));
    // The first request to the server succeeds, the second fails, and so on.
    fetch_all(&lab, &["/api", "/", "/", "/", "/", "/", "/", "/", "/api", "/api"]);
    let screen = command_output(&balancer, "status");
    let lines: Vec<Vec<&str>> = screen.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |name: &[&str], last: &[&str]| {
        let is_row = |line: &&Vec<&str>| line.starts_with(name) && line.ends_with(last);
        let found = lines.iter().find(is_row);
        found.unwrap_or_else(|| panic!("no row {name:?} {last:?} in\n{screen}")).clone()
    };
    let web = row(&["web"], &["10", "4", "0", "2", "4"]);
    assert_eq!(
        (web[2], web[3].ends_with('s')),
        ("40%", true),
        "share and percentiles of the present: {web:?}"
    );
    row(&["*/api", ">", "pool"], &["3", "1", "0", "2", "0"]);
    assert_eq!(row(&["default", ">", "pool"], &["7", "3", "0", "0", "4"])[4], "57%");
    assert_eq!(row(&["a"], &["8", "4", "0", "0", "4"])[2], "50%");
    assert!(screen.contains("\n  web: 5xx: 4 of servers, 0 of convey itself\n"), "{screen}");
    assert!(screen.contains("\n  web: answered by convey itself: rate_limit 2\n"), "{screen}");
    command_output(&balancer, "server maint pool/a --force");
    fetch_all(&lab, &["/"]);
    let screen = run_command(&balancer, "status").stdout;
    assert!(screen.contains("\n  web: 5xx: 4 of servers, 1 of convey itself\n"), "{screen}");
}

fn status_filters_select_a_part_of_the_screen() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &site(&lab).server("b", lab.server(2), ""));
    command_output(&balancer, "server drain pool/b");
    let has = |line: &str, texts: &[&str], others: &[&str]| {
        let screen = command_output(&balancer, &format!("status {line}"));
        assert!(texts.iter().all(|text| screen.contains(text)), "{line}: {screen}");
        assert!(!others.iter().any(|text| screen.contains(text)), "{line}: {screen}");
    };
    has("--state drain", &["\nweb ", "backend pool: round_robin, 2 of 2 up", "\nb  "], &["\na  "]);
    has("--server pool/a --frontend web", &["\nweb ", "\na  "], &["\nb  "]);
    has("--route */api", &["*/api > pool", "\na  ", "\nb  "], &["default > pool"]);
    has("--state down", &["\nnothing matches the filters\n"], &["backend pool"]);
    for (line, why) in [
        ("status --server c", "no server is named c"),
        ("status --route nowhere", "no route is named nowhere"),
        ("status --state broken", "[possible values: up, down, ejected, drain, maint]"),
        ("status --json --state up", "cannot be used with"),
    ] {
        let ran = run_command(&balancer, line);
        assert!(ran.code != Some(0) && ran.stderr.contains(why), "{line}: {ran:?}");
    }
}

fn top_shows_routes_and_errors_of_servers() {
    let lab = Loopback::new();
    let _server = half_broken(&lab);
    let balancer = BalancerProcess::start(&lab, &site(&lab));
    let is_over = AtomicBool::new(false);
    let text = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = fetch(lab.vip(), "/");
            }
        });
        let ran = run(balancer.command().env("COLUMNS", "120").args(["top", "--once"]));
        is_over.store(true, Ordering::Relaxed);
        ran.stdout
    });
    let line = |begin: &str| {
        let found = text.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin} in\n{text}"))
    };
    assert!(line("5XX OF SERVERS, DROPPED").ends_with("(since the start)"));
    assert!(line("server_5xx ").contains(" ("));
    assert!(text.lines().nth(1).is_some_and(|line| line.contains("5xx/s (")), "{text}");
    let cells: Vec<&str> = line("  route default ").split_whitespace().collect();
    assert!(!["0", "-"].contains(&cells[4]), "requests a second: {text}");
    line("  route */api ");
}
