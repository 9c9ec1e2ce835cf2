//! Parameters of a trace request, checked against the names of a snapshot. Pure.

use std::sync::Arc;
use std::time::Duration;

use convey_api::TraceParameters;
use convey_config::{did_you_mean, listed};
use convey_control::RequestRefusal;
use convey_model::{DropReason, Target};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, Pool, Snapshot};
use convey_trace::{ClientPattern, DropPattern, RequestPattern, TraceFilter};

use super::super::{Failure, unknown};

/// Maximum number of servers that an error lists.
const MAX_NAMES: usize = 8;

/// Default limit of events per second.
const DEFAULT_RATE: u32 = 1_000;

/// Validated parameters of a trace request.
#[derive(Debug)]
pub(in super::super) struct WantedTrace {
    client: Option<ClientPattern>,
    frontend: Option<String>,
    server: Option<Target>,
    drops: Option<DropPattern>,
    requests: RequestPattern,
    sample: u32,
    pub(super) rate: u32,
    pub(super) count: Option<u64>,
    pub(super) timeout: Option<Duration>,
    pub(super) frames: bool,
}

impl WantedTrace {
    /// Requests to show.
    pub(super) fn requests(&self) -> &RequestPattern {
        &self.requests
    }

    /// Validates the parameters.
    ///
    /// # Errors
    /// A parameter is invalid, or a name does not exist.
    pub(super) fn new(query: TraceParameters, snapshot: &Snapshot) -> Result<WantedTrace, Failure> {
        let requests = RequestPattern {
            method: query.method.map(|method| method.to_ascii_uppercase()),
            host: query.host.map(|host| host.to_ascii_lowercase()),
            path: query.path,
            route: query.route,
            status: query.status.map(|status| status.parse()).transpose().map_err(Failure::Bad)?,
        };
        let wanted = WantedTrace {
            requests,
            client: query.client.map(|client| client.parse()).transpose().map_err(Failure::Bad)?,
            frontend: query.frontend,
            server: query.server.map(|server| target(&server, snapshot)).transpose()?,
            drops: query.drops.map(|reason| drop_pattern(&reason)).transpose()?,
            sample: positive("sample", query.sample.map(u64::from))?.map_or(1, |n| n as u32),
            rate: positive("rate", query.rate.map(u64::from))?.map_or(DEFAULT_RATE, |n| n as u32),
            count: positive("count", query.count)?,
            timeout: query.timeout.map(|time| duration(&time)).transpose()?,
            frames: query.frames,
        };
        wanted.check_names(snapshot)?;
        wanted.check_frames(snapshot)?;
        Ok(wanted)
    }

    /// Builds the filter, with the numbers that the names have in this snapshot.
    pub(super) fn filter(&self, snapshot: &Snapshot) -> TraceFilter {
        let frontends = self.frontend.as_ref().map(|name| {
            let named = snapshot.frontends.iter().filter(|frontend| frontend.config.name == *name);
            named.map(|frontend| frontend.live.id).collect()
        });
        let servers = self.server.as_ref().map(|target| {
            let all = snapshot.pools.iter().flat_map(|pool| {
                pool.servers.iter().map(|server| (&pool.config.name, &server.config.name, server.live.id))
            });
            all.filter(|(backend, server, _)| target.includes(backend, server)).map(|(.., id)| id).collect()
        });
        let WantedTrace { client, drops, sample, .. } = *self;
        TraceFilter { client, frontends, servers, drops, requests: self.requests.clone(), sample }
    }

    /// Refuses `frames` if only frontends in proxied modes match, because these have no packets.
    fn check_frames(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        let is_wanted = |frontend: &&Arc<Frontend>| {
            let config = &frontend.config;
            self.frontend.as_ref().is_none_or(|name| config.name == *name)
                && self.server.as_ref().is_none_or(|target| config.uses(&target.backend))
        };
        let forwards_packets = |frontend: &Arc<Frontend>| frontend.config.mode.forwards_packets();
        if !self.frames || snapshot.frontends.iter().filter(is_wanted).any(forwards_packets) {
            return Ok(());
        }
        let of = match (&self.frontend, &self.server) {
            (Some(name), _) => format!("frontend {name} is"),
            (None, Some(target)) => format!("the frontends of backend {} are", target.backend),
            (None, None) => "all frontends are".to_owned(),
        };
        let why = format!(
            "frames (--pcap): {of} in proxy mode, and convey captures frames only in packet modes; use tcpdump"
        );
        Err(Failure::Bad(why))
    }

    fn check_names(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        let filter = self.filter(snapshot);
        let none = |ids: &Option<Vec<u32>>| ids.as_ref().is_some_and(Vec::is_empty);
        if let (Some(name), true) = (&self.frontend, none(&filter.frontends)) {
            let names = snapshot.frontends.iter().map(|frontend| &frontend.config.name);
            return Err(unknown("frontend", name, names));
        }
        if let Some(name) = &self.requests.route {
            let frontends = snapshot.frontends.iter().filter_map(|frontend| frontend.http.as_ref());
            let routes = frontends.flat_map(|http| http.routes()).map(|route| route.name.to_string());
            let routes: Vec<String> = routes.collect();
            if !routes.contains(name) {
                return Err(unknown("route", name, routes.iter()));
            }
        }
        let Some(target) = self.server.as_ref().filter(|_| none(&filter.servers)) else { return Ok(()) };
        let pool = snapshot.pools.iter().find(|pool| pool.config.name == target.backend);
        match (pool, &target.server) {
            (Some(pool), server) => {
                let server = server.as_deref().unwrap_or_default();
                let names = pool.servers.iter().map(|server| server.config.name.as_str());
                let meant = did_you_mean(server, names);
                let why =
                    format!("backend {} has no server {server}{meant}; {}", target.backend, servers_of(pool));
                Err(Failure::Refused(RequestRefusal::Unknown(why)))
            }
            (None, _) => {
                let names = snapshot.pools.iter().map(|pool| &pool.config.name);
                Err(unknown("backend", &target.backend, names))
            }
        }
    }
}

fn target(text: &str, snapshot: &Snapshot) -> Result<Target, Failure> {
    match text.split_once('/') {
        Some((backend, server)) if !backend.is_empty() && !server.is_empty() => {
            Ok(Target::server(backend, server))
        }
        _ => {
            let backend = snapshot.pools.iter().find(|pool| pool.config.name == text.trim_end_matches('/'));
            let which = backend
                .map_or_else(|| ", such as web/a".to_owned(), |pool| format!("; {}", servers_of(pool)));
            Err(Failure::Bad(format!("server: found {text:?}, expected: BACKEND/SERVER{which}")))
        }
    }
}

/// Lists the servers of a backend by name, for an error message.
fn servers_of(pool: &Pool) -> String {
    if pool.servers.is_empty() {
        return format!("backend {} has no servers", pool.config.name);
    }
    let names = pool.servers.iter().map(|server| format!("{}/{}", pool.config.name, server.config.name));
    format!("existing: {}", listed(names, MAX_NAMES))
}

/// Parses the value `any`, or the label of a drop reason.
fn drop_pattern(text: &str) -> Result<DropPattern, Failure> {
    if text == "any" {
        return Ok(DropPattern::Any);
    }
    let of_packets = DropReason::ALL.map(DropReason::label);
    let of_proxy =
        Counter::ENDS.iter().chain(&Counter::DROPS).chain(&Counter::REFUSALS).chain(&Counter::ANSWERS);
    let all: Vec<&'static str> = of_packets.into_iter().chain(of_proxy.map(|(_, label)| *label)).collect();
    let found = all.iter().find(|label| **label == text);
    found.map(|label| DropPattern::Reason(label)).ok_or_else(|| {
        let meant = did_you_mean(text, all.iter().copied());
        let some = if meant.is_empty() {
            format!("; known reasons: {}", listed(all.iter(), MAX_NAMES))
        } else {
            meant
        };
        Failure::Bad(format!("drops: unknown reason {text:?}{some}"))
    })
}

fn positive(name: &str, number: Option<u64>) -> Result<Option<u64>, Failure> {
    match number {
        Some(0) => Err(Failure::Bad(format!("{name}: found 0, expected: 1 or more"))),
        number => Ok(number),
    }
}

fn duration(text: &str) -> Result<Duration, Failure> {
    humantime::parse_duration(text)
        .map_err(|wrong| Failure::Bad(format!("timeout: {wrong}, expected: a time, such as 30s")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_snapshot::fixture;

    fn snapshot() -> Snapshot {
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]);
        let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
        fixture::snapshot(vec![frontend], vec![pool])
    }

    fn refusal(query: TraceParameters) -> String {
        match WantedTrace::new(query, &snapshot()) {
            Err(Failure::Bad(why)) => why,
            Err(Failure::Refused(why)) => format!("{why:?}"),
            _ => String::new(),
        }
    }

    #[test]
    fn names_become_numbers() {
        let named = |text: &str| Some(text.to_owned());
        let query =
            TraceParameters { frontend: named("web"), server: named("app/a"), ..TraceParameters::default() };
        let snapshot = snapshot();
        let filter = WantedTrace::new(query, &snapshot).ok().unwrap().filter(&snapshot);
        assert_eq!(filter.frontends, Some(vec![snapshot.frontends[0].live.id]));
        assert_eq!(filter.servers, Some(vec![snapshot.pools[0].servers[0].live.id]));
    }

    #[test]
    fn invalid_filters_are_refused_with_a_reason() {
        let named = |text: &str| Some(text.to_owned());
        let none = TraceParameters::default;
        for (query, told) in [
            (TraceParameters { frontend: named("wep"), ..none() }, "did you mean `web`?"),
            (
                TraceParameters { server: named("app/aa"), ..none() },
                "backend app has no server aa; existing: app/a",
            ),
            (TraceParameters { server: named("app"), ..none() }, "expected: BACKEND/SERVER; existing: app/a"),
            (TraceParameters { frames: true, ..none() }, "all frontends are in proxy mode"),
            (
                TraceParameters { frames: true, frontend: named("web"), ..none() },
                "frontend web is in proxy mode",
            ),
            (
                TraceParameters { frames: true, server: named("app/a"), ..none() },
                "the frontends of backend app are in proxy",
            ),
            (TraceParameters { server: named("ap/a"), ..none() }, "did you mean `app`?"),
            (TraceParameters { server: named("app/"), ..none() }, "expected: BACKEND/SERVER"),
            (TraceParameters { drops: named("acces_denied"), ..none() }, "did you mean `access_denied`?"),
            (TraceParameters { client: named("somebody"), ..none() }, "expected: IP[/LEN][:PORT]"),
            (TraceParameters { timeout: named("soon"), ..none() }, "expected: a time"),
            (TraceParameters { rate: Some(0), ..none() }, "rate: found 0"),
        ] {
            let why = refusal(query);
            assert!(why.contains(told), "{why:?} does not say {told:?}");
        }
    }
}
