//! Explains the choice of a server: algorithm, hash, position in the table. Pure.

use convey_balance::{Foreseen, Step};
use convey_model::{HashOn, Protocol, RouteAction, server_text};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Pick, Pool};

use super::question::AskedPlace;
use super::{ClientVerdict, Dependence, End, Steps, sni};

/// Result of the choice of a server.
pub(super) struct Choice {
    pub(super) pick: Pick,
    depends_on: Option<Dependence>,
    /// Whether the client gets the server of its previous connection, without a choice by the pool.
    pub(super) is_previous: bool,
}

impl Choice {
    /// Index of the chosen server. `None` if none is chosen, or if the choice cannot be predicted
    /// without the client's port.
    pub(super) fn server(&self) -> Option<usize> {
        match (self.pick, self.depends_on) {
            (_, Some(Dependence::Port)) | (Pick::Busy | Pick::Nobody, _) => None,
            (Pick::Server(index), _) => Some(index),
        }
    }

    pub(super) fn depends_on(&self) -> Option<Dependence> {
        self.depends_on
    }

    pub(super) fn verdict(&self) -> ClientVerdict {
        match self.server() {
            Some(_) => ClientVerdict::Server,
            None => ClientVerdict::OneOfThem,
        }
    }
}

/// Explains which server the frontend's pool chooses. If `again` is set, the client returns to the
/// server with this index, which it had before, and the algorithm is skipped.
pub(super) fn explain(place: &AskedPlace, again: Option<usize>, steps: &mut Steps) -> Choice {
    let pool = &place.frontend.pool;
    if let Some(index) = again {
        let (backend, name) = (&pool.config.name, &pool.servers[index].config.name);
        let why =
            "the last connection from this port was reset, so the next connection goes to the same server";
        steps.note("server", format!("{backend}/{name} again: {why}"));
        return Choice { pick: Pick::Server(index), depends_on: None, is_previous: true };
    }
    if let Some(files) = &pool.config.files {
        let fallback = files.fallback.as_ref().map(|page| files.root.join(page));
        let otherwise = fallback.map_or_else(|| "404".to_owned(), |page| page.display().to_string());
        let message = format!(
            "convey answers with a file in {}, or with {otherwise} if it does not exist",
            files.root.display()
        );
        steps.end("files", End::FILES, message);
        return Choice { pick: Pick::Nobody, depends_on: None, is_previous: false };
    }
    if let Some(choice) = by_cookie(place, steps) {
        return choice;
    }
    let of_request = place.head().and_then(|head| pool.hash_of(head, place.field_trust()));
    let (pick, foreseen) = pool.foresee(of_request, place.client_addr(), place.vip);
    let depends_on = match pick {
        Pick::Busy | Pick::Nobody => None,
        Pick::Server(_) if pool.eligible() < 2 => None,
        Pick::Server(_) if !pool.config.algorithm.hashes() => Some(Dependence::OtherConnections),
        Pick::Server(_) => {
            (place.depends_on_port() && place.client.port.is_none()).then_some(Dependence::Port)
        }
    };
    let choice = Choice { pick, depends_on, is_previous: false };
    steps.note("algorithm", algorithm(place));
    match choice.pick {
        Pick::Nobody => steps.refuse("server", Counter::NoServer.label(), "no server is available"),
        Pick::Busy => steps.end(
            "server",
            busy(place),
            format!("all available servers have reached their max_connections{}", eviction_note(place)),
        ),
        Pick::Server(_) if choice.server().is_none() => steps.note(
            "server",
            "one of the available servers; the choice depends on the client's port, which was not given",
        ),
        Pick::Server(index) => {
            note_steps(pool, &foreseen, steps);
            let name = &pool.servers[index].config.name;
            let moment = match choice.depends_on {
                Some(Dependence::OtherConnections) => "; connections that begin earlier may change this",
                Some(Dependence::Port) | None => "",
            };
            steps.note("server", format!("{}/{name}{moment}", pool.config.name));
        }
    }
    choice
}

/// Choice for a request whose affinity cookie names a server. Also notes what becomes of a request
/// without such a cookie.
fn by_cookie(place: &AskedPlace, steps: &mut Steps) -> Option<Choice> {
    let pool = &place.frontend.pool;
    let cookie = &pool.config.affinity.as_ref()?.cookie;
    let Some(index) = place.head().and_then(|head| pool.named_in(head)) else {
        steps.note(
            "affinity",
            format!("no cookie {cookie} names a server that serves; its response sets one"),
        );
        return None;
    };
    let server = &pool.servers[index];
    let (backend, name) = (&pool.config.name, &server.config.name);
    if !server.live.slots.has_room(server.config.settings.max_connections) {
        let message = format!(
            "the cookie {cookie} names {backend}/{name}, which is at its max_connections: another server gets the request, and the client keeps its cookie"
        );
        steps.note("affinity", message);
        return None;
    }
    steps.note("server", format!("{backend}/{name}: the cookie {cookie} names it"));
    Some(Choice { pick: Pick::Server(index), depends_on: None, is_previous: true })
}

/// Notes the route of the request in question. Without a request, notes the outcome for clients
/// without a route. In mode `http` each request has a route; in proxy mode a TLS connection may
/// have a route.
///
/// Returns `None` if the pool then chooses a server. Otherwise returns a choice without a server.
pub(super) fn by_route(place: &AskedPlace, steps: &mut Steps) -> Option<Choice> {
    let config = &place.frontend.config;
    let none = Choice { pick: Pick::Nobody, depends_on: None, is_previous: false };
    if let Some(asked) = &place.asked {
        note_route(asked.end, &asked.message, steps);
        return asked.end.map(|_| none);
    }
    if let Some(routes) = &place.frontend.sni {
        let (message, end) = sni::of_all(routes);
        note_route(end, &message, steps);
        return end.map(|_| none);
    }
    let http = config.http.as_ref()?;
    let default = place.frontend.http.as_ref().and_then(|http| http.default.as_deref());
    let pool = config.backend.is_some().then_some(&*place.frontend.pool);
    if let Some(what) = place.maintained(default, pool) {
        note_route(Some(End::MAINTENANCE), &format!("a request without a route: {what}"), steps);
        return Some(none);
    }
    let (rest, end) = match http.default_action(config.backend.as_deref()) {
        // With TLS, all requests arrive by https, so the redirect does not apply.
        Some(RouteAction::Redirect(to)) if to.is_to_https() && config.tls.is_some() => {
            ("a request without a route gets a 404".to_owned(), Some(End::NO_ROUTE))
        }
        Some(RouteAction::Backend(name)) => {
            (format!("a request without a route goes to backend {name}, as follows"), None)
        }
        Some(action) => (format!("a request without a route gets a {action}"), Some(End::REDIRECT)),
        None => ("a request without a route gets a 404".to_owned(), Some(End::NO_ROUTE)),
    };
    note_route(end, &format!("routes match the host and path of each request; {rest}"), steps);
    config.backend.is_none().then_some(none)
}

fn note_route(end: Option<End>, message: &str, steps: &mut Steps) {
    match end {
        Some(end) => steps.end("route", end, message),
        None => steps.note("route", message),
    }
}

/// Notes how a proxy connects to the chosen server.
pub(super) fn note_path(place: &AskedPlace, server: Option<usize>, steps: &mut Steps) {
    let Some(server) = server.map(|index| &place.frontend.pool.servers[index]) else { return };
    let at = server.config.addr_for(place.vip.port());
    let backend = &place.frontend.pool.config;
    let source = backend.source_to(at.ip()).map_or(String::new(), |source| format!(" from {source}"));
    let header = match backend.send_proxy {
        Some(_) => ", with a PROXY header that names the client",
        None => "",
    };
    let verb = match place.frontend.config.protocol {
        Protocol::Tcp => "convey connects to",
        Protocol::Udp => "convey sends to",
    };
    steps.note(
        "way",
        format!(
            "{verb} {}{source}{header}; if the server does not answer, convey tries another",
            server_text(at)
        ),
    );
}

fn algorithm(place: &AskedPlace) -> String {
    let config = &place.frontend.pool.config;
    let name = config.algorithm.name();
    if !config.algorithm.hashes() {
        return format!("{name}: the choice depends on the state of the servers, not on the client");
    }
    if let Some(field) = &config.hash_request {
        let value = place.head().and_then(|head| field.value(head, place.field_trust()));
        return match value {
            Some(value) => {
                format!("{name}: it hashes the request's {field}, {:?}", String::from_utf8_lossy(value))
            }
            None => format!("{name}: it hashes the request's {field}; without it, the client's address"),
        };
    }
    let what = match config.hash {
        HashOn::Source => "the client's address",
        HashOn::Tuple => "client address and port, VIP and port",
        HashOn::QuicCid => {
            "client address and port, VIP and port, if the connection id of the packet names no server"
        }
    };
    if place.depends_on_port() && place.client.port.is_none() {
        return format!("{name}: it hashes {what} (hash = \"{}\")", config.hash.name());
    }
    let hash = place.frontend.pool.hash(place.client_addr(), place.vip);
    format!("{name}: it hashes {what} (hash = \"{}\") to {hash:#018x}", config.hash.name())
}

/// Note that a new connection may evict another connection. Empty for proxies, which do not evict
/// connections.
pub(super) fn eviction_note(place: &AskedPlace) -> &'static str {
    match place.frontend.config.mode.forwards_packets() {
        true => "; if a connection is not established yet, convey evicts it",
        false => "",
    }
}

fn busy(place: &AskedPlace) -> End {
    let config = &place.frontend.config;
    match (config.mode.is_proxied(), config.protocol) {
        (true, Protocol::Tcp) => End { verdict: ClientVerdict::Waits, reason: Counter::QueueTimeout.label() },
        (true, Protocol::Udp) | (false, _) => {
            End { verdict: ClientVerdict::Refused, reason: Counter::DroppedFull.drop_label() }
        }
    }
}

fn note_steps(pool: &Pool, foreseen: &Foreseen, steps: &mut Steps) {
    let name = |index: usize| pool.servers[index].config.name.as_str();
    let open = |index: usize| pool.servers[index].live.slots.open();
    let full = |usable: bool| if usable { "" } else { ", which is full: convey tries another server" };
    for step in &foreseen.steps {
        let message = match *step {
            Step::Point { place, point, server, usable } => {
                format!(
                    "position {place:#018x} on the ring; the next point, {point:#018x}, belongs to {}{}",
                    name(server),
                    full(usable)
                )
            }
            Step::Slot { slot, of, server, usable } => {
                format!("slot {slot} of {of} belongs to {}{}", name(server), full(usable))
            }
            Step::Turn { turn, of, server, usable } => {
                format!("turn {} of {of} belongs to {}{}", turn + 1, name(server), full(usable))
            }
            Step::Drawn { pair: [a, b] } if a == b => {
                format!("{} was drawn, because no other server is available", name(a))
            }
            Step::Drawn { pair: [a, b] } => format!(
                "{} ({} connections) and {} ({}) were drawn; {} has less load for its weight, or was drawn first",
                name(a),
                open(a),
                name(b),
                open(b),
                name(a)
            ),
            Step::Least { server } => {
                format!("{} has the fewest connections for its weight: {}", name(server), open(server))
            }
            Step::FirstUsable { server: Some(server) } => {
                format!("{} is the first server that is not full", name(server))
            }
            Step::FirstUsable { server: None } => "all servers are full".to_owned(),
        };
        steps.note("table", message);
    }
}
