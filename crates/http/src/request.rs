//! Request that passes through the services of a stack: its head, and the additions of the
//! services.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_access_log::LoggedTls;
use convey_http_core::{
    CorsRules, FieldFault, FieldRules, FieldTrust, NamedClient, RequestFacts, RequestHead, TraceParent,
    UrlScheme,
};
use convey_model::Timestamp;
use convey_proxy::{ClientStream, RequestCharge};
use convey_snapshot::stats::Counter;
use convey_snapshot::{Frontend, HttpRoute, Pool, Server, WorkerArc, WorkerFrontend, WorkerRoute};
use tokio::time::Instant;

use crate::client_address;
use crate::hooks::{ExchangeHook, Hooks};
use crate::local_reply::{LocalReply, LocalReplyReason};
use crate::open_request::OpenRequest;
use crate::record::version_of;
use crate::variables;

/// A request whose head has arrived. Its body, if there is one, has not been read yet.
#[derive(Debug)]
pub struct HttpRequest {
    // Boxed, because the request moves through all services.
    parts: Box<RequestParts>,
}

#[derive(Debug)]
struct RequestParts {
    head: Arc<RequestHead>,
    peer: SocketAddr,
    is_peer_trusted: bool,
    scheme: UrlScheme,
    tls: Option<Arc<LoggedTls>>,
    /// Client that trusted proxies name.
    named: NamedClient,
    frontend: Arc<WorkerFrontend>,
    /// Time at which the head was complete.
    came: Timestamp,
    /// Time of the first byte of the head.
    first_byte: Instant,
    /// Index of the worker in shared counters.
    core: usize,
    route: Option<Arc<WorkerRoute>>,
    /// Position of the backend among those of the route.
    backend: usize,
    added: FieldRules,
    /// Trace that a service has started for this request.
    begun: Option<TraceParent>,
    /// Id of the server that a service has chosen.
    chosen: Option<u32>,
    hooks: Hooks,
    /// Id of the request; `None`: no header and no redirect has it.
    request_id: Option<Arc<str>>,
    listen: Option<SocketAddr>,
    /// HTTP version; empty if the head contains it.
    version: &'static str,
    /// Rules of the route with the values of variables; `None`: the rules have no variables.
    expanded: Option<Box<ExpandedRules>>,
}

/// Rules of a route for one request.
#[derive(Debug)]
struct ExpandedRules {
    request: FieldRules,
    response: FieldRules,
}

/// Bytes of a request beside its head.
#[cfg(test)]
pub(crate) const REQUEST_SIZE: usize = size_of::<RequestParts>();

/// Decision on a request.
#[derive(Debug)]
pub enum Decision {
    /// Forward the request to a server of its route's backend.
    Forward(HttpRequest),
    /// Send a local reply to the request.
    Answer {
        /// The reply.
        reply: LocalReply,
        /// The request, whose hooks see the reply.
        request: HttpRequest,
    },
}

impl HttpRequest {
    /// Returns a request of this client to its frontend, in the frontend's current state. Its head
    /// was complete at `came`; `version` is empty if the head contains the HTTP version.
    pub(crate) fn new(
        head: Arc<RequestHead>,
        client: &ClientStream,
        frontend: Arc<WorkerFrontend>,
        (came, version): (Instant, &'static str),
    ) -> HttpRequest {
        let is_peer_trusted = client.is_trusted_proxy(&frontend);
        let named = client_address::named(&head, &frontend, is_peer_trusted);
        let added = client_address::protected(&head, &frontend, is_peer_trusted);
        let request_id = variables::request_id(&head, &frontend, is_peer_trusted);
        let parts = RequestParts {
            scheme: frontend.config.field_trust(is_peer_trusted).scheme(&head, client.tls().is_some()),
            head,
            tls: client.tls().cloned(),
            peer: client.client(),
            is_peer_trusted,
            named,
            request_id,
            listen: client.local(),
            version,
            expanded: None,
            frontend,
            came: client.timestamp(came),
            first_byte: came,
            core: client.core(),
            route: None,
            backend: 0,
            added,
            begun: None,
            chosen: None,
            hooks: Hooks::default(),
        };
        HttpRequest { parts: Box::new(parts) }
    }

    /// Head of the request, as the client sent it.
    pub fn head(&self) -> &RequestHead {
        &self.parts.head
    }

    /// Head of the request, for owners beside the request.
    pub(crate) fn shared_head(&self) -> &Arc<RequestHead> {
        &self.parts.head
    }

    /// Address and port of the client: behind trusted proxies the address that they name, otherwise
    /// the peer.
    pub fn client(&self) -> SocketAddr {
        self.named().unwrap_or(self.parts.peer)
    }

    /// Address and port of the other end of the connection, from its PROXY header if there is one.
    pub fn peer(&self) -> SocketAddr {
        self.parts.peer
    }

    /// Whether the client uses HTTPS: to convey, or to a trusted proxy that claims so in
    /// `X-Forwarded-Proto`.
    pub fn is_https(&self) -> bool {
        self.parts.scheme == UrlScheme::Https
    }

    /// Server name of the client's TLS handshake (SNI), if there is one.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.parts.tls.as_ref().map(|tls| &*tls.server_name).filter(|name| !name.is_empty())
    }

    /// Route of the request, by its scheme, its head and its client.
    pub(crate) fn route_in_frontend(&self) -> Option<&Arc<WorkerRoute>> {
        let RequestParts { frontend, scheme, head, .. } = &*self.parts;
        frontend.route(&RequestFacts::new(head, self.field_trust(), *scheme, self.client()))
    }

    /// What is known about the request.
    pub(crate) fn facts(&self) -> RequestFacts<'_> {
        let RequestParts { frontend, scheme, head, listen, tls, request_id, version, .. } = &*self.parts;
        RequestFacts {
            listen: *listen,
            frontend: &frontend.config.name,
            route: self.route().map_or("", |route| &route.name),
            http_version: version_of(version, Some(head)),
            request_id: request_id.as_deref().unwrap_or_default(),
            trace_id: self.trace().map(|trace| trace.id()),
            tls: tls.as_deref().map(variables::tls_facts),
            ..RequestFacts::new(head, self.field_trust(), *scheme, self.client())
        }
    }

    /// Limit for the request's body, in bytes: that of its route, or of the frontend.
    pub(crate) fn max_body(&self) -> Option<u64> {
        let of_route = self.route().and_then(|route| route.limits.body);
        of_route.or(self.parts.frontend.config.http_limits().body)
    }

    /// Id of the request, if a header or a redirect has it.
    pub(crate) fn request_id(&self) -> Option<&Arc<str>> {
        self.parts.request_id.as_ref()
    }

    /// Whether the peer is a trusted proxy, so that servers get its `X-Forwarded-*`, `Forwarded`
    /// and `X-SSL-Client-DN`.
    pub fn is_peer_trusted(&self) -> bool {
        self.parts.is_peer_trusted
    }

    /// Trust in the headers of the request that describe its client.
    pub(crate) fn field_trust(&self) -> FieldTrust<'_> {
        self.parts.frontend.config.field_trust(self.parts.is_peer_trusted)
    }

    /// Client that trusted proxies name, if there is one.
    pub(crate) fn named(&self) -> Option<SocketAddr> {
        self.parts.named.address()
    }

    /// Whether the peer is a proxy that names the clients of its requests, and names none for this
    /// one: the request is the proxy's own, such as a health check.
    pub(crate) fn is_of_proxy(&self) -> bool {
        let config = &self.parts.frontend.config;
        self.parts.named == NamedClient::Missing && config.is_http_proxy(self.parts.peer.ip())
    }

    /// Counts the request against the share of the client that trusted proxies name, until its
    /// response has been sent.
    ///
    /// # Errors
    /// The client has reached its share.
    pub(crate) fn charge(&self, client: &ClientStream) -> Result<RequestCharge, LocalReply> {
        client.charge(self.named().map(|named| named.ip())).ok_or_else(|| {
            client.count(Counter::DroppedClientLimit, 1);
            LocalReplyReason::QueueTimeout.into()
        })
    }

    /// Frontend of the request.
    pub fn frontend(&self) -> &Frontend {
        &self.parts.frontend
    }

    /// Route of the request, once [`find_route`](crate::stack::find_route) has found it.
    pub fn route(&self) -> Option<&HttpRoute> {
        self.parts.route.as_ref().map(|route| &***route)
    }

    /// Servers of the route's backend; empty before [`find_route`](crate::stack::find_route) has
    /// found the route.
    pub fn servers(&self) -> &[Arc<Server>] {
        self.way().map_or(&[], |(_, pool)| &pool.servers)
    }

    /// Prefers this server to the choice of the backend's algorithm. convey passes over a server
    /// that is down, or at its limit.
    pub fn choose(&mut self, server: &Server) {
        self.parts.chosen = Some(server.live.id);
    }

    /// Attaches a hook, which follows the request from here on to its end.
    pub fn follow(&mut self, hook: impl ExchangeHook) {
        self.parts.hooks.attach(Box::new(hook));
    }

    pub(crate) fn take_hooks(&mut self) -> Hooks {
        std::mem::take(&mut self.parts.hooks)
    }

    pub(crate) fn chosen(&self) -> Option<u32> {
        self.parts.chosen
    }

    /// Trace of the request.
    pub fn trace(&self) -> Option<TraceParent> {
        self.parts.begun.or_else(|| TraceParent::of(&self.parts.head))
    }

    /// Trace that a service has begun for this request.
    pub(crate) fn begun_trace(&self) -> Option<TraceParent> {
        self.parts.begun
    }

    /// Starts a trace with this request, and sends it to the server in `traceparent`.
    pub fn begin_trace(&mut self, trace: TraceParent) {
        // Name and value are valid, so this cannot fail.
        let _ = self.set_field(TraceParent::FIELD, &trace.to_string());
        self.parts.begun = Some(trace);
    }

    /// Sets a field of the request for the server, in place of the client's fields with this name.
    ///
    /// # Errors
    /// The name or the value is invalid, or convey itself sets the field.
    pub fn set_field(&mut self, name: &str, value: &str) -> Result<(), FieldFault> {
        self.parts.added.set(name, value)
    }

    /// Time at which the head was complete.
    pub(crate) fn came(&self) -> Timestamp {
        self.parts.came
    }

    /// Sets the time of the first byte of the head.
    pub(crate) fn begins_at(&mut self, first_byte: Instant) {
        self.parts.first_byte = first_byte;
    }

    /// Time of the first byte of the head.
    pub(crate) fn first_byte(&self) -> Instant {
        self.parts.first_byte
    }

    /// Time at which a request with this time limit has to be over. An upgrade, such as to
    /// WebSocket, has none: it lasts as long as both sides want.
    pub(crate) fn deadline(&self, limit: Option<Duration>) -> Option<Instant> {
        let limit = limit.filter(|_| self.parts.head.upgrade().is_none())?;
        self.parts.first_byte.checked_add(limit)
    }

    /// Sets the route, and chooses its backend.
    pub(crate) fn takes(&mut self, route: Arc<WorkerRoute>) {
        self.parts.backend = route.choose_pool(self.client().ip(), |most| fastrand::u64(..most));
        self.parts.route = Some(route);
    }

    /// Route of the request, and its backend; `None` without a route to a backend.
    pub(crate) fn way(&self) -> Option<(&Arc<WorkerRoute>, &WorkerArc<Pool>)> {
        let route = self.parts.route.as_ref()?;
        Some((route, route.pool(self.parts.backend)?))
    }

    /// Index of the worker in shared counters.
    pub(crate) fn core(&self) -> usize {
        self.parts.core
    }

    /// Changes to the request's fields on the way to the server: the rules of its route, and then
    /// the additions of services.
    pub(crate) fn changes<'a>(&'a self, of_route: &'a HttpRoute) -> Cow<'a, FieldRules> {
        let of_route = self.parts.expanded.as_ref().map_or(&of_route.request, |rules| &rules.request);
        match self.parts.added.is_empty() {
            true => Cow::Borrowed(of_route),
            false => Cow::Owned(of_route.then(&self.parts.added)),
        }
    }

    /// Changes to the fields of a server's response.
    pub(crate) fn response_changes<'a>(&'a self, of_route: &'a HttpRoute) -> &'a FieldRules {
        self.parts.expanded.as_ref().map_or(&of_route.response, |rules| &rules.response)
    }

    /// Replaces the variables in the rules of the route by their values. Call it when all services
    /// have seen the request.
    pub(crate) fn expand_rules(&mut self) {
        let is_changed = |route: &&Arc<WorkerRoute>| route.has_dynamic_rules || route.cors.is_some();
        let Some(route) = self.parts.route.as_ref().filter(is_changed) else { return };
        let facts = self.facts();
        let request = route.request.expanded(&facts);
        let response =
            response_rules(&route.response, route.cors.as_deref(), facts.head, || facts).into_owned();
        self.parts.expanded = Some(Box::new(ExpandedRules { request, response }));
    }
}

/// Rules for the fields of a local reply to this request. Returns `None` if the frontend is not in
/// mode `http`.
pub(crate) fn local_reply_fields<'a>(
    open: &OpenRequest<'_>,
    frontend: &'a Frontend,
) -> Option<Cow<'a, FieldRules>> {
    let (client, http) = (open.client(), frontend.http.as_ref()?);
    let Some(head) = open.head() else {
        return Some(Cow::Borrowed(http.response_to(None).0));
    };
    let is_peer_trusted = client.is_trusted_proxy(frontend);
    let named = client_address::named(head, frontend, is_peer_trusted);
    let client_addr = named.address().unwrap_or_else(|| client.client());
    let trust = frontend.config.field_trust(is_peer_trusted);
    let scheme = trust.scheme(head, client.tls().is_some());
    let facts = RequestFacts::new(head, trust, scheme, client_addr);
    let (rules, cors) = http.response_to(Some(&facts));
    // The response to a preflight request has its own fields.
    let cors = cors.filter(|_| !CorsRules::is_preflight(head));
    let all_facts = || RequestFacts {
        listen: client.local(),
        frontend: &frontend.config.name,
        route: open.record.route_name(),
        http_version: open.record.version(head),
        request_id: open.record.request_id(),
        trace_id: open.record.trace(head).map(|trace| trace.id()),
        tls: client.tls().map(|tls| variables::tls_facts(tls)),
        ..facts
    };
    Some(response_rules(rules, cors, head, all_facts))
}

/// Rules for the response to a request: `rules` with the values of variables, after those for pages
/// of other origins.
fn response_rules<'a, 'f>(
    rules: &'a FieldRules,
    cors: Option<&CorsRules>,
    head: &RequestHead,
    facts: impl FnOnce() -> RequestFacts<'f>,
) -> Cow<'a, FieldRules> {
    let rules = match rules.depend_on_request() {
        true => Cow::Owned(rules.expanded(&facts())),
        false => Cow::Borrowed(rules),
    };
    match cors {
        Some(cors) => Cow::Owned(cors.response(head, &rules)),
        None => rules,
    }
}
