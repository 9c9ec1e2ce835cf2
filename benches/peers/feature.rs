//! Features of convey beside forwarding, to measure their cost.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use convey_lab::Role;
use convey_testkit::fetch;

use crate::site::{SERVERS, Site};

/// Something that a configuration switches on; metrics are always on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Feature {
    /// A line for each request, in a file
    AccessLog,
    /// 100 routes by host and path, none of which matches; mode http
    Routes,
    /// A limit of requests for each source, which none reaches; mode http
    Limits,
    /// Headers with variables in requests and responses; mode http
    Headers,
    /// A route by a regular expression, which every request takes; mode http
    RegexRoute,
    /// Rules for pages of other origins; mode http
    Cors,
    /// A route that splits requests between two backends; mode http
    Weighted,
    /// Somebody fetches /metrics each second
    Scraped,
}

/// Address of convey's metrics by default.
const STATS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7000));

/// Number of routes.
const ROUTES: usize = 100;

impl Feature {
    /// Name of convey with this feature in the table.
    pub(crate) fn peer_name(self) -> &'static str {
        match self {
            Feature::AccessLog => "convey, access log",
            Feature::Routes => "convey, routes",
            Feature::Limits => "convey, limits",
            Feature::Headers => "convey, headers",
            Feature::RegexRoute => "convey, regex route",
            Feature::Cors => "convey, CORS",
            Feature::Weighted => "convey, weighted",
            Feature::Scraped => "convey, scraped",
        }
    }

    /// Whether the feature is for HTTP requests only.
    pub(crate) fn is_of_http(self) -> bool {
        !matches!(self, Feature::AccessLog | Feature::Scraped)
    }

    /// Lines to add to the configuration. `@PORT@` is the port of servers.
    pub(crate) fn config(self, site: &Site) -> String {
        match self {
            Feature::AccessLog => format!("[access_log]\noutput = {:?}", site.path("access.log")),
            Feature::Routes => (1..=ROUTES).map(route).collect(),
            // The highest value allowed.
            Feature::Limits => "[frontends.web.limits]\nrequests_per_source = 1000000".to_owned(),
            Feature::Headers => HEADERS.to_owned(),
            Feature::RegexRoute => {
                "[[frontends.web.routes]]\npath_regex = '^/'\nbackend = \"pool\"".to_owned()
            }
            Feature::Cors => "[frontends.web.cors]\norigins = \"https://app.example.com\"".to_owned(),
            Feature::Weighted => format!("{WEIGHTED}addr = \"{}:@PORT@\"", SERVERS[1].address()),
            Feature::Scraped => String::new(),
        }
    }
}

/// Two headers in each direction, all but one with variables.
const HEADERS: &str = r#"
[frontends.web.headers]
request.set = { X-Real-IP = "{client_ip}", X-Request-ID = "{request_id}" }
response.set = { X-Request-ID = "{request_id}", X-Content-Type-Options = "nosniff" }
"#;

/// Route with two backends. The last line, the address of the second one's server, is missing.
const WEIGHTED: &str = r#"
[[frontends.web.routes]]
method = "GET"
backends = { pool = 9, second = 1 }

[backends.second.servers.s2]
"#;

/// Route for a path that no client requests; every other route also has a host.
fn route(n: usize) -> String {
    let host = if n.is_multiple_of(2) { String::new() } else { format!("host = \"h{n}.example.com\"\n") };
    format!("[[frontends.web.routes]]\n{host}path = \"/v{n}\"\nbackend = \"pool\"\n\n")
}

/// Runs `work` while convey's metrics are fetched each second.
///
/// # Errors
/// `work` fails, or a fetch of the metrics does.
pub(crate) fn while_scraped<T>(site: &Site, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (working, done) = mpsc::channel();
    thread::scope(|scope| {
        let scraper = scope.spawn(move || scrape(site, &done));
        let outcome = work();
        drop(working);
        scraper.join().expect("it does not panic")?;
        outcome
    })
}

/// Fetches metrics until the other end of the channel is gone.
fn scrape(site: &Site, done: &Receiver<()>) -> Result<()> {
    const EVERY: Duration = Duration::from_secs(1);
    loop {
        let (status, _) =
            site.lab.enter(Role::Balancer, || fetch(STATS, "/metrics"))?.context("its metrics")?;
        ensure!(status == 200, "its metrics: status {status}");
        if done.recv_timeout(EVERY) == Err(RecvTimeoutError::Disconnected) {
            return Ok(());
        }
    }
}
