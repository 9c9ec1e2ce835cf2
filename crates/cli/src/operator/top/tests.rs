//! Screens after samples and keys, drawn into a buffer.

use std::time::{Duration, SystemTime};

use convey_model::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::fit::{cut, percent, short, time};
use super::rates::{Grade, TopRates, TopRow, rates};
use super::screen::line_of;
use super::*;
use crate::operator::testing;

const SECOND: u64 = 1_000_000_000;

/// Status with two frontends, one of which cannot serve. The backend `app` of mode proxy has two
/// servers, and `b` is down; `names` is a backend of a packet mode. All counters have `n` as a
/// factor.
fn status(n: u64) -> Value {
    let server = |up: bool, n: u64| {
        json!({
            "state": "ready", "up": up, "eligible": up, "effective_weight": 1.0, "total_connections": n * 100,
            "current_connections": n, "bytes_rx": n * 1_000, "bytes_tx": n * 125_000, "connect_failures": n,
        })
    };
    let mut dsr = server(true, n * 10);
    dsr["handshakes"] = json!({ "started": n * 40, "completed": n * 4, "syn_repeated": n * 10 });
    dsr["state"] = json!("drain");
    json!({
        "version": "1.2.3", "started": "2026-01-01T00:00:00.000Z", "uptime_seconds": 3_725 + n, "news": "of another version",
        "total_connections": n * 100, "current_connections": 7, "total_bytes_rx": n * 1_000, "total_bytes_tx": n * 125_000,
        "frontends": {
            "web": {
                "mode": "proxy", "backend": "app", "total_connections": n * 100, "drops": { "no_server": 0 },
                "ended": { "no_server": n * 3 }, "refused": { "access_denied": n },
            },
            "dns": {
                "mode": "dsr", "backend": "names", "not_ready": "no server", "refused": { "access_denied": n * 9 },
            },
        },
        "backends": {
            "app": {
                "total_connections": n * 100, "current_connections": 7,
                "servers": { "a": server(true, n), "b": server(false, 0) },
                "connect_seconds": { "count": n * 10, "buckets": { "0.00025": 0, "0.001": n * 5, "0.002": n * 10, "10": n * 10 } },
                "session_seconds": { "count": 0, "buckets": {} },
            },
            "names": { "servers": { "n1": dsr }, "total_connections": n * 1_000 },
        },
        "packets": { "drops": { "access_denied": n * 9, "malformed": 0 } },
    })
}

fn sample_of(status: Value, seconds: u64, events: &[(u64, &str)]) -> TopSample {
    TopSample {
        at: Timestamp(seconds * SECOND),
        clock: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        status: testing::status(status),
        events: testing::events(events),
    }
}

fn sample(n: u64, seconds: u64) -> TopSample {
    sample_of(status(n), seconds, &[(n, &format!("event {n}"))])
}

/// State after two samples, two seconds apart.
fn state() -> TopState {
    let mut state = TopState::new(TopColumn::Name, "");
    state.take(sample(1, 1));
    state.take(sample(5, 3));
    state
}

fn screen(state: &mut TopState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.area(), frame.buffer_mut(), state, false)).unwrap();
    let buffer = terminal.backend().buffer();
    (0..height).map(|y| line_of(buffer, y)).collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn type_in(state: &mut TopState, keys: &str) {
    keys.chars().for_each(|key| assert!(!state.press(TopKey::Char(key)), "{key}"));
}

fn names(state: &TopState) -> Vec<&str> {
    state.rows().iter().map(|row| &*row.name).collect()
}

fn row<'a>(rates: &'a TopRates, name: &str) -> &'a TopRow {
    let rows = |group: &'a rates::TopGroup| {
        let frontends =
            group.frontends.iter().flat_map(|frontend| [&frontend.row].into_iter().chain(&frontend.routes));
        frontends.chain([&group.backend]).chain(&group.servers)
    };
    rates.groups.iter().flat_map(rows).find(|row| row.name == name).unwrap()
}

#[test]
fn the_difference_of_two_answers_is_what_happens_a_second() {
    let rates = rates(Some(&sample(1, 1)), &sample(5, 3));
    let of = |name: &str, column| row(&rates, name).values.get(column);
    assert_eq!(rates.totals.get(TopColumn::New), Some(200.0));
    assert_eq!(rates.totals.get(TopColumn::Out), Some(250_000.0));
    assert_eq!((of("a", TopColumn::New), of("a", TopColumn::Open)), (Some(200.0), Some(5.0)));
    assert_eq!((of("a", TopColumn::In), of("a", TopColumn::Share)), (Some(2_000.0), Some(100.0)));
    assert_eq!((of("b", TopColumn::New), of("b", TopColumn::Share)), (Some(0.0), Some(0.0)));
    assert_eq!((row(&rates, "b").grade, row(&rates, "app").grade), (Grade::Bad, Grade::Odd));
    // Between the two samples, half of the connects took from 0.25 to 1 ms, the other half up to 2
    // ms.
    assert_eq!(of("app", TopColumn::Connect50), Some(0.001));
    let most = of("app", TopColumn::Connect99).unwrap();
    assert!((0.0019..0.002).contains(&most), "{most}");
    assert_eq!(of("app", TopColumn::Session99), None, "no session has ended");
    assert_eq!((of("n1", TopColumn::Started), of("n1", TopColumn::Completed)), (Some(80.0), Some(8.0)));
    assert_eq!(of("n1", TopColumn::Errors), Some(2.0 * 10.0 + 20.0), "failures and repeated SYNs");
    assert_eq!(of("web", TopColumn::Errors), Some(8.0));
    // In packet modes, the drops include the refusals, which count only once.
    let drops = [("access_denied".to_owned(), Some(20.0), 50), ("no_server".to_owned(), Some(6.0), 15)];
    assert_eq!(rates.drops, drops);
}

#[test]
fn the_first_answer_has_no_rates_and_says_so() {
    let mut state = TopState::new(TopColumn::New, "");
    state.take(sample(1, 1));
    let lines = screen(&mut state, 80, 24);
    assert_eq!(lines[1], "- new/s  7 open  in -B/s  out -B/s  dropped -/s");
    let a = lines.iter().find(|line| line.starts_with("  a ")).unwrap();
    assert_eq!(words(a), ["a", "up", "1", "-", "-", "-", "-", "-", "-"]);
}

/// A frontend of mode http with two backends, and one that only redirects. All counters have `n` as
/// a factor.
fn http_status(n: u64) -> Value {
    let requests = json!({ "total": n * 20, "responses": { "2xx": n * 10, "5xx": n * 10 } });
    let server = json!({
        "state": "ready", "up": true, "requests": requests,
        "response_seconds": { "count": n * 20, "buckets": { "0.001": 0, "0.002": n * 20 } },
    });
    let backend = json!({ "servers": { "a": server, "b": server }, "requests": requests });
    let seconds = json!({ "count": n * 20, "buckets": { "0.25": n * 20 } });
    let of_routes = [("/app", "app", 12), ("/api", "api", 12)].map(|(name, backend, errors)| {
        let requests = json!({ "total": n * 20, "responses": { "5xx": n * errors }, "local_replies": {} });
        json!({ "name": name, "backend": backend, "requests": requests, "request_seconds": seconds })
    });
    let answered = json!({ "no_server": n * 4, "rate_limit": n * 2, "redirect": n * 8, "file_not_found": n });
    json!({
        "started": "2026-01-01T00:00:00.000Z", "uptime_seconds": 60 + n,
        "frontends": {
            "web": {
                "mode": "http", "backend": "app", "routes": of_routes, "request_seconds": seconds,
                "requests": {
                    "total": n * 60, "responses": { "4xx": n * 3, "5xx": n * 24 }, "local_replies": answered,
                    "local_5xx": n * 4,
                },
            },
            "plain": { "mode": "http", "routes": [{ "redirect": "https" }], "requests": { "total": n } },
        },
        "backends": { "app": backend, "api": backend },
    })
}

fn http_samples() -> [TopSample; 2] {
    [(1, 1), (5, 3)].map(|(n, seconds)| sample_of(http_status(n), seconds, &[]))
}

#[test]
fn requests_show_their_errors_and_times() {
    let [before, now] = http_samples();
    let rates = rates(Some(&before), &now);
    let of = |name: &str, column| row(&rates, name).values.get(column);
    assert_eq!(
        (of("web", TopColumn::Requests), of("web", TopColumn::ServerErrors)),
        (Some(120.0), Some(48.0))
    );
    assert_eq!(of("web", TopColumn::Errors), Some(48.0 + 4.0), "5xx, and requests beyond a limit");
    assert_eq!((of("a", TopColumn::Requests), of("a", TopColumn::Errors)), (Some(40.0), Some(20.0)));
    assert_eq!((of("app", TopColumn::ServerErrors), of("app", TopColumn::Errors)), (Some(20.0), Some(40.0)));
    assert_eq!(
        (of("a", TopColumn::Response50), of("app", TopColumn::Response50)),
        (Some(0.001_5), Some(0.001_5))
    );
    assert!(of("web", TopColumn::Response99).unwrap() > 0.2);
    assert_eq!(rates.totals.get(TopColumn::Requests), Some(122.0));
    let drops = [("no_server".to_owned(), Some(8.0), 20), ("rate_limit".to_owned(), Some(4.0), 10)];
    assert_eq!(rates.drops, drops, "redirects and missing files are no refusals");
    assert_eq!(rates.server_errors, (Some(40.0), 100), "without convey's own");
    assert_eq!(
        (of("web", TopColumn::ClientErrors), of("/api", TopColumn::ServerErrors)),
        (Some(6.0), Some(24.0))
    );
    let mut state = TopState::new(TopColumn::Name, "");
    http_samples().into_iter().for_each(|sample| state.take(sample));
    let lines = screen(&mut state, 80, 24);
    assert_eq!(lines[1], "0 new/s  0 open  122 req/s  48 5xx/s (39%)  in 0B/s  out 0B/s  dropped 12/s");
    assert_eq!(
        words(&lines[3]),
        ["NAME", "STATE", "OPEN", "NEW/S", "REQ/S", "OUT/S", "RESP99", "5XX/S", "ERR/S"]
    );
    assert_eq!(lines[16], "5XX OF SERVERS, DROPPED, REFUSED, ENDED EARLY  a second (since the start)");
    assert_eq!(lines[17], "server_5xx 40 (100)  no_server 8 (20)  rate_limit 4 (10)");
}

#[test]
fn frontend_shows_its_busiest_routes_and_those_that_a_filter_finds() {
    let many = |n: u64| {
        let mut status = http_status(n);
        let routes = (0..30).map(
            |at| json!({ "name": format!("/r{at:02}"), "backend": "api", "requests": { "total": n * at } }),
        );
        status["frontends"]["web"]["routes"] = routes.collect();
        status
    };
    let mut state = TopState::new(TopColumn::Name, "");
    state.take(sample_of(many(1), 1, &[]));
    state.take(sample_of(many(2), 2, &[]));
    let routes = |state: &TopState| {
        let rows = state.rows().into_iter().filter(|row| row.kind == rates::RowKind::Route);
        rows.map(|row| row.name.clone()).collect::<Vec<_>>()
    };
    let shown = routes(&state);
    assert_eq!((shown.len(), &*shown[0], &*shown[9]), (10, "/r20", "/r29"));
    assert!(screen(&mut state, 80, 24).iter().any(|line| line.starts_with("  route /r20 ")));
    type_in(&mut state, "/r03");
    assert_eq!((routes(&state), names(&state)), (vec!["/r03".to_owned()], vec!["web", "/r03"]));
}

#[test]
fn frontend_of_several_backends_has_one_row() {
    let mut state = TopState::new(TopColumn::Name, "");
    http_samples().into_iter().for_each(|sample| state.take(sample));
    assert_eq!(names(&state), ["plain", "web", "/api", "/app", "api", "a", "b", "app", "a", "b"]);
    type_in(&mut state, "/app");
    assert_eq!(names(&state), ["web", "/app", "app", "a", "b"]);
}

#[test]
fn removed_frontend_makes_no_burst_of_drops() {
    let [mut before, now] = [(5, 1), (5, 3)].map(|(n, seconds)| (status(n), seconds));
    before.0["frontends"]["gone"] = json!({ "mode": "proxy", "ended": { "no_server": 1_000 } });
    let [before, now] = [before, now].map(|(status, seconds)| sample_of(status, seconds, &[]));
    let rates = rates(Some(&before), &now);
    assert_eq!(rates.drops.iter().map(|(_, rate, _)| *rate).collect::<Vec<_>>(), [Some(0.0); 2]);
}

#[test]
fn counters_that_begin_anew_are_no_rates_of_billions_nor_nothing() {
    // An upgrade: the process is as old as before.
    let mut upgraded = status(1);
    upgraded["uptime_seconds"] = json!(3_740);
    upgraded["started"] = json!("2026-01-01T00:00:00.007Z");
    let after_upgrade = rates(Some(&sample(5, 1)), &sample_of(upgraded, 3, &[]));
    assert_eq!(row(&after_upgrade, "a").values.get(TopColumn::New), Some(50.0));
    assert_eq!(row(&after_upgrade, "app").values.get(TopColumn::Connect50), Some(0.001));
    // A restart one second ago. Since then, the counters have exceeded their values before the
    // restart.
    let mut restarted = status(9);
    restarted["started"] = json!("2026-01-01T02:00:00.000Z");
    restarted["uptime_seconds"] = json!(1);
    let after_restart = rates(Some(&sample(5, 1)), &sample_of(restarted, 10, &[]));
    assert_eq!(row(&after_restart, "a").values.get(TopColumn::New), Some(900.0));
}

#[test]
fn events_are_replaced_after_a_restart_and_lost_contact_is_shown() {
    let mut state = state();
    assert_eq!(state.events(9).len(), 2);
    state.note_failure("/run/convey/control.sock: refused\u{1b}[2J");
    let lines = screen(&mut state, 80, 24);
    assert_eq!(lines[2], "NO RESPONSE since 00:00:03 UTC, retrying: /run/convey/control.sock: refused?[2J");
    assert!(lines.iter().any(|line| line.starts_with("  a ")), "what was known stays: {lines:#?}");
    let mut other = status(0);
    (other["uptime_seconds"], other["frontends"]["dns"]["not_ready"]) = (json!(1), Value::Null);
    state.take(sample_of(other, 9, &[(0, "started")]));
    assert_eq!(state.events(9).iter().map(|event| &*event.text).collect::<Vec<_>>(), ["started"]);
    assert_eq!(screen(&mut state, 80, 24)[2], "");
}

#[test]
fn a_terminal_of_80_by_24_shows_all_there_is() {
    let mut state = state();
    let lines = screen(&mut state, 80, 24);
    assert_eq!(lines[0], "convey 1.2.3  dsr proxy  up 1h 2m                2 of 3 servers up  00:00:03 UTC");
    assert_eq!(lines[1], "200 new/s  7 open  in 2kB/s  out 250kB/s  dropped 26/s");
    assert_eq!(
        lines[3..11],
        [
            "NAME                  STATE       OPEN  NEW/S   IN/S  OUT/S CONN99 DONE/S  ERR/S",
            "frontend web          ready          0    200      0      0      -      -      8",
            "backend app           1/2 up         7    200      0      0    2ms      -      2",
            "  a                   up             5    200     2k   250k      -      -      2",
            "  b                   down           0      0      0      0      -      -      0",
            "frontend dns          not ready      0      0      0      0      -      -      0",
            "backend names         1/1 up         0     2k      0      0      -      8     40",
            "  n1                  drain         50     2k    20k   2.5M      -      8     40",
        ]
    );
    assert_eq!(lines[16], "DROPPED, REFUSED, ENDED EARLY  a second (since the start)");
    assert_eq!(lines[17], "access_denied 20 (50)  no_server 6 (15)");
    assert_eq!(lines[19..22], ["EVENTS", "00:00:05 event 1", "00:00:05 event 5"]);
    assert_eq!(lines[23], "q quit  s sort: NAME  r reverse  / filter  p pause  ? help");
}

#[test]
fn obstacles_to_readiness_are_shown_above_the_table() {
    let mut one = status(1);
    one["not_ready"] = json!(["frontend dns: no server", "draining"]);
    let mut state = TopState::new(TopColumn::Name, "");
    state.take(sample_of(one, 1, &[]));
    for (width, height) in [(80, 24), (60, 8)] {
        let lines = screen(&mut state, width, height);
        assert_eq!(lines[2], "NOT READY: frontend dns: no server (and 1 more)");
        assert!(lines[3].starts_with("NAME"), "{lines:#?}");
    }
}

#[test]
fn small_terminal_shows_fewer_columns_and_a_large_one_all() {
    let mut state = state();
    let lines = screen(&mut state, 40, 10);
    assert_eq!(words(&lines[2]), ["NAME", "STATE", "OPEN", "NEW/S"]);
    assert_eq!(lines[3], "frontend web     ready          0    200");
    assert_eq!(lines[8], "dropped:  access_denied 20 (50)  +1 more");
    assert_eq!(lines[9], "q quit  s sort: NAME  r reverse  / filt…");
    let lines = screen(&mut state, 200, 60);
    let of_requests = ["REQ/S", "RESP50", "RESP90", "RESP99", "4XX/S", "5XX/S"];
    let titles = TopColumn::ALL.map(TopColumn::title);
    let titles = Vec::from_iter(titles.into_iter().filter(|title| !of_requests.contains(title)));
    assert_eq!(words(&lines[3]), titles);
    assert!(lines[3].ends_with("TOTAL") && lines[3].len() == 200, "{}", lines[3]);
}

#[test]
fn screen_draws_on_terminals_of_any_size() {
    let mut state = state();
    for width in [0, 1, 2, 5, 15, 20, 39, 300] {
        for height in [0, 1, 2, 3, 4, 7, 17, 18, 100] {
            for key in ['?', ' ', '/', 'x'] {
                screen(&mut state, width, height);
                state.press(TopKey::Char(key));
                state.press(TopKey::Page(1));
            }
            state.press(TopKey::Escape);
        }
        top_text(&mut state, width);
    }
}

#[test]
fn columns_and_the_order_change_by_keys() {
    let mut state = state();
    screen(&mut state, 80, 24);
    assert_eq!(names(&state), ["web", "app", "a", "b", "dns", "names", "n1"]);
    type_in(&mut state, "s");
    assert_eq!(state.sort, TopColumn::State);
    assert_eq!(names(&state), ["web", "app", "b", "a", "dns", "names", "n1"], "what is down comes first");
    state.press(TopKey::Column(1));
    state.press(TopKey::Column(1));
    assert_eq!(state.sort, TopColumn::New);
    assert_eq!(names(&state), ["dns", "names", "n1", "web", "app", "a", "b"], "the most first");
    type_in(&mut state, "r");
    assert_eq!(names(&state), ["web", "app", "b", "a", "dns", "names", "n1"]);
    assert_eq!(
        screen(&mut state, 80, 24)[23],
        "q quit  s sort: NEW/S  r reversed  / filter  p pause  ? help"
    );
    (0..3).for_each(|_| assert!(!state.press(TopKey::Column(-1))));
    assert_eq!(state.sort, TopColumn::Name);
    state.press(TopKey::Column(-1));
    assert_eq!(state.sort, TopColumn::Errors, "columns that are not on the screen are passed over");
}

#[test]
fn a_filter_leaves_what_has_it_in_a_name_or_a_state() {
    let mut state = state();
    type_in(&mut state, "/DoWnx");
    state.press(TopKey::Backspace);
    assert_eq!(names(&state), ["app", "b"]);
    assert_eq!(screen(&mut state, 80, 24)[23], "filter: DoWn_  Enter applies, Esc clears");
    state.press(TopKey::Enter);
    assert!(screen(&mut state, 80, 24)[23].contains("/ filter: DoWn "));
    assert!(!state.press(TopKey::Escape), "it takes the filter away");
    for (filter, left) in [("web", vec!["web", "app", "a", "b"]), ("app/a", vec!["app", "a"]), ("q?", vec![])]
    {
        type_in(&mut state, &format!("/{filter}"));
        assert_eq!(names(&state), left, "{filter}");
        let lines = screen(&mut state, 80, 24);
        assert_eq!(lines.contains(&format!("no match for \"{filter}\"")), left.is_empty());
        state.press(TopKey::Escape);
    }
    type_in(&mut state, &format!("/{}", "x".repeat(1_000)));
    assert_eq!(state.filter.len(), 64);
    state.press(TopKey::Escape);
    assert!(state.press(TopKey::Escape), "it quits");
}

#[test]
fn paused_screen_stays_and_rates_after_it_cover_one_interval() {
    let mut state = state();
    type_in(&mut state, "p");
    let before = screen(&mut state, 80, 24);
    assert!(before[0].starts_with("PAUSED  convey 1.2.3") && before[23].contains("p resume"), "{before:#?}");
    state.take(sample(50, 4));
    assert_eq!(screen(&mut state, 80, 24), before);
    type_in(&mut state, " ");
    state.take(sample(51, 5));
    let lines = screen(&mut state, 80, 24);
    assert!(lines[1].starts_with("100 new/s"), "{lines:#?}");
    assert!(lines.contains(&"00:00:05 event 50".to_owned()));
}

#[test]
fn rows_are_scrolled_and_the_last_one_stays_in_sight() {
    let mut many = status(1);
    let server = many["backends"]["app"]["servers"]["a"].clone();
    (0..50).for_each(|n| many["backends"]["app"]["servers"][format!("s{n:02}")] = server.clone());
    let mut state = TopState::new(TopColumn::Name, "");
    state.take(sample_of(many, 1, &[]));
    let first = |state: &mut TopState| words(&screen(state, 80, 24)[4]).join(" ");
    assert!(first(&mut state).starts_with("frontend web"));
    state.press(TopKey::Row(3));
    assert!(first(&mut state).starts_with("b down"));
    state.press(TopKey::Page(1));
    assert!(first(&mut state).starts_with("s11 "), "{}", first(&mut state));
    state.press(TopKey::End);
    state.press(TopKey::Row(1));
    assert!(screen(&mut state, 80, 24)[15].starts_with("  n1 "), "{:#?}", screen(&mut state, 80, 24));
    state.press(TopKey::Home);
    assert!(first(&mut state).starts_with("frontend web"));
    // A larger terminal has no empty rows below the last one.
    state.press(TopKey::End);
    assert!(screen(&mut state, 80, 60)[45].starts_with("  n1 "));
}

#[test]
fn help_explains_keys_and_columns_until_a_key() {
    let mut state = state();
    screen(&mut state, 80, 24);
    type_in(&mut state, "?");
    let lines = screen(&mut state, 80, 24);
    for told in ["q, Esc, Ctrl-C", "ERR/S", "99 of 100 connects"] {
        assert!(lines.iter().any(|line| line.contains(told)), "{told}: {lines:#?}");
    }
    assert!(!state.press(TopKey::Char('q')), "it ends the help");
    assert!(state.press(TopKey::Char('q')));
    type_in(&mut state, "?");
    assert!(state.press(TopKey::Interrupt));
}

#[test]
fn text_has_all_rows_and_neither_keys_nor_lines_of_nothing() {
    let mut state = state();
    let text = top_text(&mut state, 100);
    assert!(text.contains("\n  n1 ") && text.ends_with("00:00:05 event 5\n"), "{text}");
    assert!(!text.contains("q quit") && text.contains("\n\nDROPPED, "), "{text}");
}

#[test]
fn names_are_aligned_by_display_width_and_control_characters_replaced() {
    let mut odd = status(1);
    let servers = odd["backends"]["app"]["servers"].as_object_mut().unwrap();
    let server = servers.remove("a").unwrap();
    servers.insert("東京のサーバー一号機です".to_owned(), server.clone());
    servers.insert("x\u{1b}[31m\u{202e}y\n".to_owned(), server);
    let mut state = TopState::new(TopColumn::Name, "");
    state.take(sample_of(odd, 1, &[(0, "a\tb\u{7}")]));
    let lines = screen(&mut state, 80, 24);
    assert!(lines.iter().any(|line| line.starts_with("  東京のサーバー一号… up   ")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("  x?[31m?y?           up   ")), "{lines:#?}");
    assert!(lines.contains(&"00:00:05 a?b?".to_owned()), "{lines:#?}");
}

#[test]
fn texts_and_numbers_fit() {
    let numbers = [0.0, 0.04, 0.5, 7.0, 9.96, 12.34, 999.4, 999.6, 1_000.0, 12_345.0, 1.5e6, 2.5e9, 1.8e19];
    let texts = ["0", "0", "0.5", "7", "10", "12", "999", "1k", "1k", "12k", "1.5M", "2.5G", "18E"];
    assert_eq!(numbers.map(short), texts);
    assert_eq!(
        [0.000_25, 0.000_999_9, 0.001_2, 0.05, 0.999_9, 61.0].map(time),
        ["250us", "1ms", "1.2ms", "50ms", "1s", "61s"]
    );
    assert_eq!(
        [0.0, 0.000_1, 0.003, 0.02, 0.392, 1.2].map(percent),
        ["0%", "<0.1%", "0.3%", "2%", "39%", "100%"]
    );
    assert_eq!(["abc", "abcd", "日本"].map(|text| cut(text, 3)), ["abc", "ab…", "日…"]);
    assert_eq!((cut("abc", 0), cut("abc", 1)), (String::new(), "…".to_owned()));
}
