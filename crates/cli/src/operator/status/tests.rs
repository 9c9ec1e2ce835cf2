//! Screens of `convey status`.

use std::time::SystemTime;

use serde_json::json;

use super::sources::of_acme;
use super::*;
use crate::operator::testing::status;

fn screen(status: StatsReport, obstacles: &[String], now: SystemTime) -> String {
    StatusScreen { obstacles, filter: &StatusFilter::default(), now, width: None }.text(status).unwrap()
}

/// A frontend of mode http with 30 routes, and another frontend.
fn with_routes() -> StatsReport {
    let route = |n: u64| {
        json!({
            "name": format!("app{n}.example.com/"), "backend": format!("application-{n}"),
            "requests": {
                "total": 10 + n, "responses": { "2xx": 9, "5xx": 1 }, "local_5xx": 0, "local_replies": { "rate_limit": 2 },
            },
        })
    };
    let routes: Vec<_> = (0..30).map(route).collect();
    let server = json!({
        "requests": {
            "total": 10, "responses": { "2xx": 9, "5xx": 1 },
            "recent": {
                "seconds": 35.0, "total": 7, "responses": { "2xx": 7, "5xx": 0 },
                "p50": 0.001_5, "p90": 0.001_9, "p99": 0.002,
            },
        },
    });
    let backends = (0..30).map(|n| (format!("application-{n}"), json!({ "servers": { "a": server } })));
    let mut backends: serde_json::Map<_, _> = backends.collect();
    backends.insert("mail".into(), json!({ "servers": { "m": {} } }));
    let report = json!({
        "frontends": {
            "web": {
                "mode": "http", "protocol": "tcp", "listen_addr": ["10.0.0.9:80"], "routes": routes,
                "requests": {
                    "total": 320, "responses": { "2xx": 270, "4xx": 7, "5xx": 43 },
                    "local_replies": { "no_server": 13, "rate_limit": 7, "redirect": 5, "malformed": 0 },
                    "local_5xx": 13,
                    "recent": {
                        "seconds": 35.0, "total": 70, "responses": { "2xx": 30, "5xx": 30 },
                        "p50": 0.001, "p90": 0.008, "p99": 0.009_8,
                    },
                },
            },
            "smtp": { "mode": "proxy", "protocol": "tcp", "backend": "mail", "ended": { "no_server": 2 } },
        },
        "backends": backends,
        "overlays": [{ "backend": "mail", "server": "m", "state": "drain" }],
    });
    status(report)
}

#[test]
fn requests_show_their_errors_answers_and_times() {
    let screen = screen(with_routes(), &[], SystemTime::UNIX_EPOCH);
    let lines: Vec<Vec<&str>> = screen.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |line: &str| lines.contains(&line.split(' ').collect());
    assert!(has("HTTP REQ/S 5XX% P50 P90 P99 REQUESTS 2XX 3XX 4XX 5XX"), "{screen}");
    assert!(has("web 2 50% 1ms 8ms 9.8ms 320 270 0 7 43"), "{screen}");
    assert!(has("a 0.2 0% 1.5ms 1.9ms 2ms 10 9 0 0 1"), "{screen}");
    assert!(screen.contains("P50 to P99: the last 35 s;"), "{screen}");
    assert!(screen.contains("\n  web: 5xx: 30 of servers, 13 of convey itself\n"), "{screen}");
    let has_route = |n: usize| screen.contains(&format!("\n  app{n}.example.com/ > application-{n} "));
    assert!(!has_route(9) && (10..30).all(has_route), "the busiest 20: {screen}");
    assert!(screen.contains("\n  web: 10 more routes: convey status web\n"), "{screen}");
    assert!(screen.contains("\n  web: answered by convey itself: no_server 13, rate_limit 7\n"), "{screen}");
    assert!(
        screen.contains("\nended early: no_server 2\n") && !screen.contains("nothing dropped"),
        "{screen}"
    );
}

#[test]
fn route_is_shown_with_its_action() {
    let requests = json!({ "total": 1 });
    let report = json!({ "frontends": { "web": { "mode": "http", "requests": requests, "routes": [
        { "name": "a", "split": { "v1": 90, "v2": 10 }, "requests": requests },
        { "name": "b", "respond": 503, "requests": requests },
        { "name": "c", "redirect": "https", "requests": requests },
    ] } } });
    let screen = screen(status(report), &[], SystemTime::UNIX_EPOCH);
    for row in ["  a > v1 90, v2 10 ", "  b > respond 503 ", "  c > https "] {
        assert!(screen.lines().any(|line| line.starts_with(row)), "{row}: {screen}");
    }
    assert!(screen.contains("v1 v2 "), "backends of the frontend: {screen}");
}

#[test]
fn status_reports_nothing_dropped_only_without_failed_requests() {
    let of = |requests: serde_json::Value| {
        let report = json!({ "frontends": { "web": { "mode": "http", "requests": requests } } });
        screen(status(report), &[], SystemTime::UNIX_EPOCH)
    };
    assert!(
        of(json!({ "responses": { "2xx": 9 }, "local_replies": { "file": 3 } })).contains("nothing dropped")
    );
    for requests in [json!({ "responses": { "5xx": 1 } }), json!({ "local_replies": { "rate_limit": 1 } })] {
        assert!(!of(requests).contains("nothing dropped"));
    }
}

#[test]
fn screen_fits_the_terminal() {
    let at = |width| {
        let now = SystemTime::UNIX_EPOCH;
        let filter = StatusFilter::default();
        StatusScreen { obstacles: &[], filter: &filter, now, width }.text(with_routes()).unwrap()
    };
    for width in [80, 100, 200] {
        let screen = at(Some(width));
        assert!(screen.lines().all(|line| line.chars().count() <= width), "{screen}");
        assert!((0..30).all(|n| screen.contains(&format!("application-{n}"))), "{screen}");
    }
    assert!(at(None).lines().any(|line| line.chars().count() > 400), "a pipe has no width");
}

#[test]
fn names_leave_frontends_with_their_backends() {
    let of = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let filter = StatusFilter { names, ..StatusFilter::default() };
        let now = SystemTime::UNIX_EPOCH;
        StatusScreen { obstacles: &[], filter: &filter, now, width: None }.text(with_routes())
    };
    let web = of(&["web"]).unwrap();
    assert_eq!(web.matches("\nbackend application-").count(), 30, "{web}");
    assert!(!web.contains("smtp") && !web.contains("mail"), "{web}");
    assert!(web.contains("\n  app7.example.com/ > application-7 "), "its routes: {web}");
    assert!(web.contains("\n  app7.example.com/: answered by convey itself: rate_limit 2\n"), "{web}");
    let backend = of(&["application-3"]).unwrap();
    assert!(backend.contains("\nweb ") && backend.contains("\nbackend application-3:"), "{backend}");
    assert_eq!(backend.matches("\nbackend ").count(), 1, "{backend}");
    assert!(of(&["smtp"]).unwrap().contains("mail/m: drain"));
    assert_eq!(of(&["smtp", "nobody"]).unwrap_err().0, "no frontend or backend is named nobody");
}

#[test]
fn status_screen_lists_down_servers_with_reasons_and_runtime_overrides() {
    let server = |name: &str, up: bool, state: &str| {
        let completed = if name == "3" { 3 } else { 20 };
        json!({
            "addr": format!("10.0.0.{name}:80"), "effective_weight": 1.0, "state": state, "up": up,
            "eligible": up && state == "ready", "connect_failures": 2, "total_connections": 12,
            "health": { "up": up, "reason": "connect failed: refused", "since": "2026-01-01T00:00:00Z" },
            "path_mtu_suspicions": { "to_server": u64::from(name == "1"), "to_client": 0 },
            "handshakes": { "started": 40, "completed": completed, "syn_repeated": 70 },
        })
    };
    let report = json!({
        "version": "1.2.3", "uptime_seconds": 3_725, "news": "of another version",
        "config": { "hash": "abc", "loaded": "2026-01-01T00:00:00Z", "last_reload_successful": true },
        "frontends": { "web": {
            "mode": "proxy", "protocol": "tcp", "listen_addr": ["10.0.0.9:80"], "backend": "app",
            "drops": { "no_server": 3 }, "accept_backoffs": 12,
        } },
        "backends": { "app": {
            "algorithm": "round_robin", "servers_up": 2,
            "servers": {
                "1": server("1", true, "ready"), "2": server("2", false, "ready"), "3": server("3", true, "drain"),
            },
        } },
        "overlays": [{
            "backend": "app", "server": "3", "state": "drain", "since": "2026-01-01T00:01:00Z", "by": "root",
        }, {
            "backend": "app", "server": "9", "weight": 2, "since": "2026-01-01T00:01:00Z", "by": "root", "absent": true,
        }],
    });
    let status = status(report);
    let now = humantime::parse_rfc3339("2026-01-01T00:01:30Z").unwrap();
    let screen = screen(status, &[], now);
    let lines: Vec<Vec<&str>> = screen.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |line: &str| lines.contains(&line.split(' ').collect());
    assert!(has("convey 1.2.3, up 1h 2m"), "{screen}");
    assert!(has("ready: every frontend can serve"), "{screen}");
    assert!(has("web proxy tcp 10.0.0.9:80 app 0 0 0"), "{screen}");
    assert!(has("1 10.0.0.1:80 ready up 1m 30s 100 % 0 12 20"), "{screen}");
    assert!(has("2 10.0.0.2:80 ready down 1m 30s 0 % 0 12 20"), "{screen}");
    assert!(has("2: connect failed: refused") && has("dropped: no_server 3"), "{screen}");
    assert!(has("3: 3 of 40 handshakes completed, 70 SYNs repeated since the start"), "{screen}");
    assert_eq!(screen.matches("handshakes").count(), 1, "{screen}");
    assert!(has("1: large packets of 1 connection do not arrive at the server"), "{screen}");
    assert_eq!(screen.matches("large packets").count(), 1, "{screen}");
    assert!(has("web: paused accepting 12 times, for lack of descriptors or memory"), "{screen}");
    assert!(has("app/3: drain, for 30s, by root"), "{screen}");
    assert!(has("app/9: weight 2, for 30s, by root; no effect: this server does not exist now"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
}

#[test]
fn a_backend_with_files_says_where_these_are() {
    let report =
        json!({ "backends": { "site": { "algorithm": "round_robin", "files": "/srv/www", "servers": {} } } });
    let screen = screen(status(report), &[], SystemTime::UNIX_EPOCH);
    assert!(screen.contains("\nbackend site: files /srv/www\n") && !screen.contains("0 of 0"), "{screen}");
}

#[test]
fn backend_with_a_source_names_it() {
    let sources = json!(["10.0.0.9", "2001:db8::9"]);
    let report =
        json!({ "backends": { "app": { "algorithm": "maglev", "source": sources, "servers": {} } } });
    let screen = screen(status(report), &[], SystemTime::UNIX_EPOCH);
    assert!(screen.contains("\nbackend app: maglev, 0 of 0 up, source 10.0.0.9, 2001:db8::9\n"), "{screen}");
}

#[test]
fn server_that_currently_answers_no_client_is_named() {
    let server = json!({ "handshakes": { "started": 9_000, "completed": 8_990, "stalled": true } });
    let report = json!({ "backends": { "app": { "servers": { "a": server, "b": {} } } } });
    let screen = screen(status(report), &[], SystemTime::UNIX_EPOCH);
    assert!(screen.contains("\n  a: answers no client; check its VIP,"), "{screen}");
    assert_eq!(screen.matches("answers no client").count(), 1, "{screen}");
}

#[test]
fn refused_files_and_frontends_that_cannot_serve_come_first() {
    let report = json!({ "config": {
        "last_reload_successful": false, "last_reload": "2026-01-01T00:00:00Z", "errors": ["line 3: no"],
    } });
    let status = status(report);
    let now = humantime::parse_rfc3339("2026-01-01T00:00:05Z").unwrap();
    let screen = screen(status, &["web: no server".to_owned()], now);
    let told = ["the last reload was refused 5s ago:", "  line 3: no", "NOT READY: web: no server"];
    assert!(told.iter().all(|told| screen.lines().any(|line| line == *told)), "{screen}");
}

#[test]
fn certificate_order_errors_have_their_own_line() {
    let names = json!({ "orders": 3, "failures": 1, "names": {
        "bad.example": { "not_after": null, "next_order": "2026-01-01T00:00:00Z", "failures": 1, "error": "unauthorized" },
        "good.example": { "not_after": "2026-04-01T00:00:00Z", "next_order": "2026-03-01T00:00:00Z", "failures": 0, "error": null },
    } });
    let said = of_acme(&serde_json::from_value(names).unwrap(), None);
    assert!(said.ends_with("2026-03-01T00:00:00.000Z\n  bad.example: unauthorized\n"), "{said}");
}
