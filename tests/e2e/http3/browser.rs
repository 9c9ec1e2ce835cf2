//! A page of several parts in a real browser.

use std::fs;
use std::io::Write;

use convey_testkit::{
    BalancerProcess, Browser, BrowserHttp3, Loopback, Need, TestAuthority, TestHttpServer, tests, wait_for,
};
use serde_json::{Value, json};

use super::site;

tests!("http3_browser":
    a_page_and_all_its_parts_come_over_one_connection [Need::CHROMIUM],
    browser_switches_from_tcp_to_http3_by_alt_svc [Need::CHROMIUM],
);

const PAGE: &str = r#"<!doctype html><title>A page</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/style.css">
<p>Text</p><img src="/picture.svg"><script src="/script.js"></script>"#;

/// Files of the page: path, type, content.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html", PAGE),
    ("/style.css", "text/css", "p { color: rgb(1, 2, 3) }"),
    ("/picture.svg", "image/svg+xml", PICTURE),
    ("/script.js", "text/javascript", "document.title = 'Script'"),
];

const PICTURE: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"></svg>"#;

/// Everything is there: the style, the script, the picture.
const IS_WHOLE: &str = "document.readyState === 'complete' && document.title === 'Script' \
    && getComputedStyle(document.querySelector('p')).color === 'rgb(1, 2, 3)' \
    && document.images[0].naturalWidth === 30";

/// Protocols of the page and its parts.
const PROTOCOLS: &str = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')] \
    .map((entry) => entry.nextHopProtocol)";

/// A server with the page. `no-store` makes the browser request it each time.
fn server(lab: &Loopback) -> TestHttpServer {
    TestHttpServer::start(lab.server(1), |request, stream| {
        let path = request.line.split(' ').nth(1);
        let file = FILES.into_iter().find(|(name, ..)| Some(*name) == path);
        let (status, kind, content) =
            file.map_or(("404 Not Found", "text/plain", ""), |(_, kind, content)| ("200 OK", kind, content));
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\nContent-Length: {}\r\n\r\n{content}",
            content.len()
        )
    })
}

/// convey with the page behind it, an access log, and a browser for the site.
fn setup(lab: &Loopback, http3: BrowserHttp3) -> (BalancerProcess, Browser) {
    let certificate = TestAuthority::new("The authority").issue(&["site.example"]);
    certificate.save(lab.directory(), "site");
    let log = format!(
        "[access_log]\noutput = \"{}\"\nformat = \"json\"\n",
        lab.directory().join("access.log").display()
    );
    let balancer = BalancerProcess::start(lab, &site(lab, "").and(&log));
    (balancer, Browser::visiting("site.example", lab.vip(), &certificate, http3))
}

fn address(lab: &Loopback) -> String {
    format!("https://site.example:{}/", lab.vip().port())
}

fn a_page_and_all_its_parts_come_over_one_connection() {
    let lab = Loopback::new();
    let _server = server(&lab);
    let (balancer, mut browser) = setup(&lab, BrowserHttp3::AtOnce);
    browser.open(&address(&lab));
    browser.wait_until(IS_WHOLE);
    assert_eq!(browser.evaluate(PROTOCOLS), json!(["h3", "h3", "h3", "h3"]));
    assert_eq!(browser.complaints(), [""; 0]);
    // The browser uploads over HTTP/3, too.
    let sent = "fetch('/', { method: 'POST', body: 'x'.repeat(200000) }).then((answer) => answer.status)";
    assert_eq!(browser.evaluate(sent), 200);
    // The access log has the same version, status and SNI for each request.
    let lines = wait_for("a line for each", || {
        let text = fs::read_to_string(lab.directory().join("access.log")).ok()?;
        let lines: Option<Vec<Value>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
        lines.filter(|lines| lines.len() > FILES.len())
    });
    for line in &lines {
        assert_eq!(
            (&line["http_version"], &line["status"], &line["sni"]),
            (&json!("3"), &json!(200), &json!("site.example"))
        );
    }
    balancer.wait_for_stat("/frontends/web/total_connections", 1);
}

fn browser_switches_from_tcp_to_http3_by_alt_svc() {
    let lab = Loopback::new();
    let _server = server(&lab);
    let (_balancer, mut browser) = setup(&lab, BrowserHttp3::Offered);
    browser.open(&address(&lab));
    browser.wait_until(IS_WHOLE);
    assert_eq!(browser.evaluate(PROTOCOLS)[0], "h2");
    // The browser uses TCP until it has tried HTTP/3.
    wait_for("a page over HTTP/3", || {
        browser.open(&address(&lab));
        browser.wait_until(IS_WHOLE);
        (browser.evaluate(PROTOCOLS)[0] == "h3").then_some(())
    });
}
