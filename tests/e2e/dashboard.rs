//! An operator uses the dashboard in a browser.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use convey_testkit::{BalancerProcess, Browser, Loopback, Need, Setup, TcpServer, fetch, run, tests};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::alerts::half_broken;

tests!("dashboard":
    dashboard_shows_frontends_and_down_servers_on_screens_and_phones [Need::CHROMIUM],
    dashboard_shows_a_lost_process_and_its_successor [Need::CHROMIUM],
    the_health_of_the_last_hour_and_reloads_are_told_later [Need::CHROMIUM],
    names_are_text_whatever_they_hold [Need::CHROMIUM],
    five_hundred_servers_are_a_few_rows_and_each_can_be_found [Need::CHROMIUM],
    everything_can_be_reached_with_the_keyboard [Need::CHROMIUM],
    rates_latencies_and_the_last_hour_follow_from_what_convey_counts [Need::CHROMIUM],
    dashboard_shows_requests_by_frontend_and_route [Need::CHROMIUM],
);

fn page_of(stats: SocketAddr) -> String {
    format!("http://{stats}/")
}

/// Opens the dashboard, and waits until it shows data.
fn look_at(lab: &Loopback) -> Browser {
    let mut browser = Browser::start();
    browser.resize(1280, 800);
    browser.open(&page_of(lab.stats()));
    browser.wait_for_text("#link", "live");
    browser
}

/// Two servers that answer, and one that is not running.
fn three(lab: &Loopback) -> ([TcpServer; 2], Setup) {
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let setup = Setup::new(lab).health("kind = \"tcp\"\ninterval = \"100ms\"");
    let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "");
    (servers, setup.server("c", lab.server(3), ""))
}

/// Checks that the browser reported no error, and requested pages from convey alone.
fn is_content(browser: &mut Browser, lab: &Loopback) {
    assert_eq!(browser.complaints(), [""; 0]);
    let home = page_of(lab.stats());
    let foreign = browser.requests().iter().find(|url| !url.starts_with(&home));
    assert_eq!(foreign, None, "asked of others");
}

/// Saves a screenshot if `CONVEY_SCREENSHOTS` names a directory.
fn picture(browser: &mut Browser, name: &str) {
    let png = browser.screenshot();
    assert!(png.starts_with(b"\x89PNG"));
    if let Some(directory) = std::env::var_os("CONVEY_SCREENSHOTS") {
        fs::write(Path::new(&directory).join(name), png).unwrap();
    }
}

/// Texts with a contrast below 4.5 to 1, the minimum of WCAG 2.2 for level AA.
const PALE: &str = "(() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = numbers(colour).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (; element; element = element.parentElement) {
            const back = getComputedStyle(element).backgroundColor;
            if ((numbers(back)[3] ?? 1) > 0.99) return back;
        }
        return 'rgb(255, 255, 255)';
    };
    const says = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.body.querySelectorAll('*')]
        .filter((element) => says(element) && element.getClientRects().length && element.tagName !== 'NOSCRIPT')
        .map((element) => {
            const both = [light(getComputedStyle(element).color), light(behind(element))];
            const ratio = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
            return [ratio, `${element.tagName} ${element.className} ${element.textContent}: ${ratio.toFixed(1)}`];
        })
        .filter(([ratio]) => ratio < 4.5).map(([, text]) => text).join('\\n');
})()";

fn dashboard_shows_frontends_and_down_servers_on_screens_and_phones() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("c", false);
    let mut browser = look_at(&lab);
    (0..20).for_each(|_| drop(fetch(lab.vip(), "/").unwrap()));
    assert_eq!(browser.text("#frontend-rows .name"), "web");
    browser.wait_for_text("#frontend-rows .addresses", &lab.vip().to_string());
    browser.wait_for_text("#backend-list .facts.trouble", "2 of 3 up");
    browser.wait_for_text(".servers tbody tr:nth-child(3) .badge", "down");
    browser.wait_for_text(".servers tbody tr:nth-child(3) .state", "connect failed: ");
    browser.wait_for_text(".servers tbody tr:nth-child(1) .share-cell", "50 %");
    browser.wait_for_text("#backend-list summary", "connect p50");
    browser.wait_for_text("#event-list", "server pool/c (");
    browser.wait_for_text("#access-title", "Read-only");
    let themes = [("light", 1280), ("dark", 1280), ("light", 375), ("dark", 375)];
    for (theme, width) in themes {
        browser.resize(width, 800);
        browser.prefer("prefers-color-scheme", theme);
        let sticks_out = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
        assert_eq!(browser.evaluate(sticks_out), false, "{width}");
        assert_eq!(browser.evaluate(PALE), "", "{theme}, {width}");
        picture(&mut browser, &format!("{theme}-{width}.png"));
    }
    browser.prefer("prefers-reduced-motion", "reduce");
    assert_eq!(browser.evaluate("document.getAnimations().length"), 0);
    is_content(&mut browser, &lab);
}

fn dashboard_shows_a_lost_process_and_its_successor() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let mut balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = look_at(&lab);
    is_content(&mut browser, &lab);
    balancer.signal(Signal::TERM);
    balancer.wait();
    browser.wait_for_text("#link", "no response from convey since ");
    browser.wait_for_text("#link", "next try in ");
    picture(&mut browser, "gone.png");
    drop(balancer);
    let _balancer = BalancerProcess::start(&lab, &setup);
    browser.click("#retry");
    browser.wait_for_text("#link", "live");
    browser.wait_for_text("#states", "A new process of convey answers");
    assert_eq!(browser.evaluate("document.getElementById('retry').hidden"), true);
}

fn the_health_of_the_last_hour_and_reloads_are_told_later() {
    let lab = Loopback::new();
    let ([a, _b], setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("a", true);
    drop(a);
    balancer.wait_for_health("a", false);
    let _a = TcpServer::named("a", lab.server(1));
    balancer.wait_for_health("a", true);
    balancer.save(&setup.server("d", lab.server(4), ""));
    balancer.wait_for_log("reload: ");
    let mut browser = look_at(&lab);
    let strip = "document.querySelector('.servers tbody tr .strip')";
    browser.wait_until(&format!("{strip}.getAttribute('aria-label').startsWith('last hour: down at ')"));
    browser.wait_until(&format!("{strip}.querySelectorAll('.down').length >= 1"));
    browser.wait_for_text("#reload-list", "reload: ");
    browser.wait_for_text("#config-state", "1 reload.");
    // Only events of one kind.
    browser.evaluate("document.getElementById('event-kind').value = 'reload'");
    browser.evaluate("document.getElementById('event-kind').dispatchEvent(new Event('change'))");
    browser.wait_until(
        "[...document.querySelectorAll('#event-list .kind')].every((kind) => kind.innerText === 'reload')",
    );
    is_content(&mut browser, &lab);
}

fn names_are_text_whatever_they_hold() {
    let lab = Loopback::new();
    let danger = "<img src=x onerror=document.title='taken'>";
    let setup = Setup::new(&lab).and(&format!(
        "[frontends.\"{danger}\"]\nlisten_addr = \"{}\"\nbackend = \"{danger}\"\n\
         [backends.\"{danger}\".servers.\"{danger}\"]\naddr = \"{}\"\n",
        lab.second_vip(),
        lab.server(1)
    ));
    let setup = setup.server("a", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_log("backend <img");
    let mut browser = look_at(&lab);
    for place in ["#frontend-rows", "#backend-list summary", ".servers tbody", "#event-list", "#states"] {
        browser.wait_for_text(place, danger);
    }
    assert_eq!(browser.evaluate("document.querySelectorAll('main img').length"), 0);
    assert_ne!(browser.evaluate("document.title"), "taken");
    is_content(&mut browser, &lab);
}

fn five_hundred_servers_are_a_few_rows_and_each_can_be_found() {
    let lab = Loopback::new();
    let mut setup = Setup::new(&lab);
    for n in 1..=500 {
        setup = setup.server(&format!("s{n}"), format!("{}:{}", lab.ip(9), 1000 + n), "");
    }
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = look_at(&lab);
    let rows = "document.querySelectorAll('.servers tbody tr').length";
    browser.wait_until(&format!("{rows} === 50"));
    assert_eq!(browser.text(".backend > button:last-child"), "Show more: 450 servers left");
    browser.click(".backend > button:last-child");
    browser.wait_until(&format!("{rows} === 100"));
    // A server in trouble comes first.
    assert_eq!(run(balancer.command().args(["server", "maint", "pool/s333"])).code, Some(0));
    browser.wait_for_text(".servers tbody tr:first-child .name", "s333");
    browser.click("#filter");
    browser.write("s444");
    browser.wait_until(&format!("{rows} === 1"));
    assert_eq!(browser.text(".servers tbody .name"), "s444");
    browser.write(" is nowhere");
    browser.wait_for_text("#no-backends", "No server matches the filter.");
    is_content(&mut browser, &lab);
}

fn everything_can_be_reached_with_the_keyboard() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = look_at(&lab);
    browser.wait_until("document.querySelector('.backend')");
    let mut reached = Vec::new();
    let name = "(() => {
        const element = document.activeElement;
        if (element === document.body) return '';
        if (!element.matches(':focus-visible')) return 'unseen';
        const { outlineStyle } = getComputedStyle(element);
        return `${element.id || element.className || element.tagName}${outlineStyle === 'none' ? ' without an outline' : ''}`;
    })()";
    // Tab goes once around: after the last element, focus is on the window itself, or on the first
    // element again.
    loop {
        browser.press("Tab");
        let focus = browser.evaluate(name).as_str().unwrap().to_owned();
        if focus.is_empty() || reached.contains(&focus) {
            break;
        }
        reached.push(focus);
    }
    assert_eq!(reached, ["skip", "access-title", "filter", "SUMMARY", "event-kind"]);
    // The first one leads past the head.
    browser.evaluate("document.querySelector('.skip').focus()");
    browser.press("Enter");
    browser.wait_until("document.activeElement.id === 'frontends'");
    // Foldable elements work with the keyboard.
    browser.evaluate("document.querySelector('.backend summary').focus()");
    browser.press("Enter");
    browser.wait_until("!document.querySelector('.backend').open");
    is_content(&mut browser, &lab);
}

fn rates_latencies_and_the_last_hour_follow_from_what_convey_counts() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut browser = look_at(&lab);
    let mut of = |file: &str, expression: &str| {
        browser.evaluate(&format!("import('/dashboard/{file}').then((file) => {expression})"))
    };
    // Two samples, ten seconds apart: 20 connections, of which 15 to one server, a hundred
    // connects, and the first refused requests.
    let history = "(() => {
        const history = new file.History();
        const status = (total, a, connects) => ({
            total_connections: total, frontends: { web: { requests: {
                total, responses: { '5xx': (total - 100) * 1.5 }, local_replies: { no_server: total - 100, redirect: total },
            } } }, backends: { app: {
                total_connections: total, servers: { a: {
                    total_connections: a, response_seconds: { count: connects, buckets: { 0.001: connects } },
                } },
                connect_seconds: { count: connects, buckets: { 0.001: connects / 2, 0.01: connects * 0.99, 0.1: connects } },
            } },
        });
        history.add(0, status(100, 5, 200));
        history.add(10_000, status(120, 20, 300));
        return history;
    })()";
    for (asked, expected) in [
        ("rate('total_connections')", json!(2)),
        ("rate('nothing')", Value::Null),
        ("lately('server', 'app', 'a')", json!(15)),
        ("quantile('connect', 'app', 0.5).toFixed(4)", json!("0.0010")),
        ("quantile('connect', 'app', 0.99).toFixed(4)", json!("0.0100")),
        ("quantile('connect', 'other', 0.5)", Value::Null),
        ("quantile('response', 'app', 0.5).toFixed(4)", json!("0.0005")),
        ("rate('frontend', 'web', '5xx')", json!(3)),
        ("rate('loss', 'requests refused', 'no_server')", json!(2)),
        ("rate('loss', 'requests refused', 'redirect')", Value::Null),
        ("rate('loss', 'responses of servers', '5xx')", json!(3)),
    ] {
        assert_eq!(of("history.js", &format!("{history}.{asked}")), expected, "{asked}");
    }
    // Half an hour ago it went down, for six minutes.
    let spans = |server: &str, known: &str| {
        format!(
            "(() => {{
                const [minute, now] = [60_000, 36_000_000];
                const event = (at, text) => ({{ at: new Date(at).toISOString(), kind: 'health', text }});
                const changes = file.changesOf([
                    event(now - 30 * minute, 'server app/a (10.0.0.1:80) is down: it said: x is up'),
                    event(now - 24 * minute, 'server app/a (10.0.0.1:80) is up: connect succeeded'),
                ]).get('app/a');
                const server = {{ ejected: null, health: {{ since: new Date(now - 6 * minute).toISOString() }}, ...{server}}};
                const {{ spans }} = file.lastHour(server, changes, {known}, now);
                return spans.map(({{ from, to, state }}) => `${{state}} ${{from.toFixed(1)}}-${{to.toFixed(1)}}`).join(' ');
            }})()"
        )
    };
    for (server, known, expected) in [
        ("{ up: true }", "0", "up 0.0-0.5 down 0.5-0.6 up 0.6-1.0"),
        ("{ up: true }", "now - 36 * minute", "unknown 0.0-0.4 up 0.4-0.5 down 0.5-0.6 up 0.6-1.0"),
        ("{ up: false }", "0", "up 0.0-0.5 down 0.5-0.6 up 0.6-0.9 down 0.9-1.0"),
    ] {
        assert_eq!(of("health.js", &spans(server, known)), expected, "{server} {known}");
    }
    for (asked, expected) in [
        ("short(999)", "999"),
        ("short(1250)", "1.25k"),
        ("short(999_999)", "1.00M"),
        ("bits(1e9)", "8.00 Gbit/s"),
        ("bits(3)", "24 bit/s"),
        ("perSecond(0.25)", "0.3"),
        ("percent(0.5)", "50 %"),
        ("percent(0.0031)", "0.3 %"),
        ("percent(null)", "–"),
        ("latency(0.00025)", "250 µs"),
        ("latency(0.0123)", "12 ms"),
        ("age(90_061_000)", "1d 1h"),
        ("age(-5)", "0s"),
    ] {
        assert_eq!(of("format.js", &format!("file.{asked}")), expected, "{asked}");
    }
}

fn dashboard_shows_requests_by_frontend_and_route() {
    let lab = Loopback::new();
    let _server = half_broken(&lab);
    let routes = "mode = \"http\"\nroutes = [{ path = \"/api\", backend = \"pool\" }]";
    let setup = Setup::new(&lab).frontend(routes).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    ["/api", "/", "/", "/", "/api"].iter().for_each(|path| drop(fetch(lab.vip(), path).unwrap()));
    let mut browser = look_at(&lab);
    let row = |n: u32| format!("#request-rows tr:nth-child({n})");
    for (n, name, share) in [(1, "web", "40 %"), (2, "*/api", "0 %"), (3, "default", "67 %")] {
        browser.wait_for_text(&format!("{} .name", row(n)), name);
        browser.wait_for_text(&format!("{} [data-label=\"5xx\"]", row(n)), share);
        browser.wait_for_text(&format!("{} [data-label=\"p99\"]", row(n)), "s");
    }
    browser.wait_for_text("#drop-rows", "responses of servers");
    browser.wait_for_text("#backend-list thead", "Requests/s");
    browser.wait_for_text(".servers tbody tr", "40 % 5xx now");
    for (theme, width) in [("light", 1280), ("dark", 375)] {
        browser.resize(width, 800);
        browser.prefer("prefers-color-scheme", theme);
        let sticks_out = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
        assert_eq!(browser.evaluate(sticks_out), false, "{width}");
        assert_eq!(browser.evaluate(PALE), "", "{theme}, {width}");
        picture(&mut browser, &format!("requests-{theme}-{width}.png"));
    }
    is_content(&mut browser, &lab);
}
