//! A small API server with one Service of one namespace and its EndpointSlices. It lists slices in
//! pages of two, and supports watches of both.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use convey_testkit::{Loopback, TcpServer, TestAuthority, TestCertificate};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// Token that is valid at first.
pub(super) const TOKEN: &str = "a-token-of-a-service-account";
/// Path of slices.
const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
/// Path of Services.
const SERVICES: &str = "/api/v1/namespaces/shop/services";
/// Slices of one answer of a list.
const PAGE: usize = 2;
/// Resource names of slices and Services, in requests and in answers.
const SLICES_AND_SERVICES: [&str; 2] = ["endpointslices.discovery.k8s.io", "services"];

/// The API server. Dropping it closes its listening socket and all watches.
pub(super) struct FakeApi {
    addr: SocketAddr,
    tls: Arc<ServerConfig>,
    cluster: Arc<Cluster>,
    server: Option<TcpServer>,
}

/// State that is kept while no API server runs.
#[derive(Default)]
struct Cluster {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    slices: BTreeMap<String, Value>,
    /// Version of the last change.
    version: u64,
    /// Changes: version, type and slice.
    events: Vec<(u64, &'static str, Value)>,
    /// Changes up to this version are no longer available.
    compacted: u64,
    lists: usize,
    watches: usize,
    /// Watches of an earlier life end.
    life: u64,
    /// Whether watches end in order, or as if the process had died.
    closes_in_order: bool,
    is_refusing: bool,
    is_refusing_watches: bool,
    is_refusing_services: bool,
    /// Accepted in place of [`TOKEN`].
    next_token: Option<&'static str>,
    /// Annotations of the Service; `None` without a Service.
    annotations: Option<Value>,
    /// Changes of the Service.
    service_version: u64,
}

impl FakeApi {
    /// An API server whose authority is in the lab's directory.
    pub(super) fn start(lab: &Loopback) -> FakeApi {
        let authority = TestAuthority::new("cluster");
        authority.save(lab.directory());
        FakeApi::start_with(lab, &authority.issue(&[&lab.ip(90).to_string()]))
    }

    /// An API server that shows this certificate.
    pub(super) fn start_with(lab: &Loopback, certificate: &TestCertificate) -> FakeApi {
        let addr = SocketAddr::new(lab.ip(90), 6443);
        let cluster = Arc::<Cluster>::default();
        let mut api = FakeApi { addr, tls: certificate.server(), cluster, server: None };
        api.come_back();
        api
    }

    /// Address of the API server.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves again, with the current slices.
    pub(super) fn come_back(&mut self) {
        let (cluster, tls) = (self.cluster.clone(), self.tls.clone());
        self.server = Some(TcpServer::start(self.addr, move |stream| {
            stream.set_nodelay(true)?;
            let session = ServerConnection::new(tls.clone()).unwrap();
            cluster.serve(StreamOwned::new(session, stream))
        }));
    }

    /// Stops the server: it answers no request, and cuts all watches.
    pub(super) fn go_away(&mut self) {
        self.server = None;
        self.end_watches();
    }

    /// Cuts all open watches.
    pub(super) fn end_watches(&self) {
        self.begin_life(false);
    }

    /// Ends the open watches as if their time was over: watchers continue with a new one.
    pub(super) fn end_watches_in_order(&self) {
        self.begin_life(true);
    }

    fn begin_life(&self, closes_in_order: bool) {
        let mut state = self.cluster.state();
        state.life += 1;
        state.closes_in_order = closes_in_order;
        self.cluster.changed.notify_all();
    }

    /// Accepts only this token from now on.
    pub(super) fn accept_only(&self, token: &'static str) {
        self.cluster.state().next_token = Some(token);
    }

    /// Replaces one slice by another. Watches end in order before they see the change, which is
    /// dropped from the history at once, as after a while at a real API server.
    pub(super) fn replace_unseen(&self, old: &str, name: &str, endpoints: &[Value]) {
        let mut state = self.cluster.state();
        state.slices.remove(old).unwrap();
        let slice = state.record("ADDED", slice(name, endpoints));
        state.slices.insert(name.to_owned(), slice);
        state.compacted = state.version;
        state.events.clear();
        state.life += 1;
        state.closes_in_order = true;
        self.cluster.changed.notify_all();
    }

    /// Sets whether lists and watches of slices are forbidden.
    pub(super) fn refuse(&self, is_refusing: bool) {
        self.cluster.state().is_refusing = is_refusing;
    }

    /// Sets whether watches are refused, while lists are answered.
    pub(super) fn refuse_watches(&self, is_refusing: bool) {
        self.cluster.state().is_refusing_watches = is_refusing;
    }

    /// Sets whether lists and watches of Services are forbidden.
    pub(super) fn refuse_services(&self, is_refusing: bool) {
        self.cluster.state().is_refusing_services = is_refusing;
    }

    /// Gives Service `web` these annotations.
    pub(super) fn annotate(&self, annotations: &[(&str, &str)]) {
        let mut state = self.cluster.state();
        let all = annotations.iter().map(|(name, text)| ((*name).to_owned(), json!(text)));
        state.annotations = Some(Value::Object(all.collect()));
        state.service_version += 1;
        self.cluster.changed.notify_all();
    }

    /// Number of lists so far.
    pub(super) fn lists(&self) -> usize {
        self.cluster.state().lists
    }

    /// Number of watches so far.
    pub(super) fn watches(&self) -> usize {
        self.cluster.state().watches
    }

    /// Makes or changes a slice of Service `web` with these endpoints.
    pub(super) fn apply(&self, name: &str, endpoints: &[Value]) {
        let mut state = self.cluster.state();
        let kind = if state.slices.contains_key(name) { "MODIFIED" } else { "ADDED" };
        let slice = state.record(kind, slice(name, endpoints));
        state.slices.insert(name.to_owned(), slice);
        self.cluster.changed.notify_all();
    }

    /// Deletes a slice.
    pub(super) fn delete(&self, name: &str) {
        let mut state = self.cluster.state();
        let slice = state.slices.remove(name).unwrap();
        state.record("DELETED", slice);
        self.cluster.changed.notify_all();
    }

    /// A kubeconfig file with the address and a token.
    pub(super) fn kubeconfig(&self, lab: &Loopback) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             clusters:\n- name: lab\n  cluster:\n    server: https://{}\n    certificate-authority: authority.pem\n\
             users:\n- name: convey\n  user:\n    token: {TOKEN}\n\
             contexts:\n- name: lab\n  context:\n    cluster: lab\n    user: convey\n",
            self.addr
        );
        let path = lab.directory().join("kubeconfig");
        fs::write(&path, text).unwrap();
        path
    }
}

impl State {
    /// Gives the slice the next version and remembers the change.
    fn record(&mut self, kind: &'static str, mut slice: Value) -> Value {
        self.version += 1;
        slice["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push((self.version, kind, slice.clone()));
        slice
    }

    fn service(&self) -> Option<Value> {
        let annotations = self.annotations.as_ref()?;
        let version = self.service_version.to_string();
        Some(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "resourceVersion": version, "annotations": annotations,
            },
        }))
    }
}

impl Cluster {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, stream: impl Read + Write) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        while let Some((target, token)) = read_head(&mut reader)? {
            let stream = reader.get_mut();
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let query: BTreeMap<&str, &str> =
                query.split('&').filter_map(|pair| pair.split_once('=')).collect();
            let is_watch = query.get("watch") == Some(&"true");
            let is_of_services = path == SERVICES;
            let (is_known, is_refused) = {
                let state = self.state();
                let refuses_slices = state.is_refusing || (state.is_refusing_watches && is_watch);
                let is_refused = if is_of_services { state.is_refusing_services } else { refuses_slices };
                (token == state.next_token.unwrap_or(TOKEN), is_refused)
            };
            if !is_known {
                respond(stream, "401 Unauthorized", &status(401, "Unauthorized", "Unauthorized"))?;
            } else if (path != PATH && !is_of_services) || is_refused {
                let what = SLICES_AND_SERVICES[usize::from(is_of_services)];
                let message = format!("{what} is forbidden: User \"convey\" cannot list them");
                respond(stream, "403 Forbidden", &status(403, "Forbidden", &message))?;
            } else if is_of_services {
                assert_eq!(query.get("fieldSelector"), Some(&"metadata.name%3Dweb"), "the one Service");
                if !is_watch {
                    respond(stream, "200 OK", &self.list_services())?;
                } else if !self.watch_service(stream, from(&query))? {
                    return Ok(());
                }
            } else if query.get("labelSelector") != Some(&"kubernetes.io%2Fservice-name%3Dweb") {
                respond(stream, "400 Bad Request", &status(400, "BadRequest", "no such selector"))?;
            } else if is_watch {
                if !self.watch(stream, from(&query))? {
                    return Ok(());
                }
            } else {
                let list = self.list(query.get("continue").copied());
                respond(stream, "200 OK", &list)?;
            }
        }
        Ok(())
    }

    fn list(&self, from: Option<&str>) -> Value {
        let mut state = self.state();
        state.lists += usize::from(from.is_none());
        let begin: usize = from.map_or(0, |from| from.parse().unwrap());
        let items: Vec<Value> = state.slices.values().skip(begin).take(PAGE).cloned().collect();
        let next = (begin + PAGE < state.slices.len()).then(|| (begin + PAGE).to_string());
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSliceList",
            "metadata": { "resourceVersion": state.version.to_string(), "continue": next.unwrap_or_default() },
            "items": items,
        })
    }

    fn list_services(&self) -> Value {
        let state = self.state();
        json!({
            "apiVersion": "v1",
            "kind": "ServiceList",
            "metadata": { "resourceVersion": state.service_version.to_string() },
            "items": state.service().into_iter().collect::<Vec<_>>(),
        })
    }

    /// Sends each change of the Service after this version. Returns whether the watch has ended in
    /// order, as [`Cluster::watch`].
    fn watch_service(&self, stream: &mut impl Write, mut told: u64) -> io::Result<bool> {
        begin_watch(stream)?;
        let mut state = self.state();
        let life = state.life;
        loop {
            if state.life != life {
                return end_watch(stream, state.closes_in_order);
            }
            if state.service_version != told {
                chunk(stream, &json!({ "type": "MODIFIED", "object": state.service() }))?;
                told = state.service_version;
            }
            state = self.changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
        }
    }

    /// Returns whether the watch has ended in order: then the connection carries another request.
    fn watch(&self, stream: &mut impl Write, mut from: u64) -> io::Result<bool> {
        begin_watch(stream)?;
        let mut state = self.state();
        state.watches += 1;
        let life = state.life;
        loop {
            if state.life != life {
                return end_watch(stream, state.closes_in_order);
            }
            if from < state.compacted {
                let gone = status(410, "Expired", "too old resource version");
                chunk(stream, &json!({ "type": "ERROR", "object": gone }))?;
                stream.write_all(b"0\r\n\r\n")?;
                return Ok(true);
            }
            for (_, kind, slice) in state.events.iter().filter(|(version, ..)| *version > from) {
                chunk(stream, &json!({ "type": kind, "object": slice }))?;
            }
            from = state.version;
            state = self.changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
        }
    }
}

/// Target of the next request, and its token.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut token = String::new();
    loop {
        let mut field = String::new();
        reader.read_line(&mut field)?;
        match field.trim().split_once(": ") {
            None => return Ok(Some((target, token))),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                token = value.trim_start_matches("Bearer ").to_owned();
            }
            Some(_) => {}
        }
    }
}

/// Begins a chunked response, as for all watches.
fn begin_watch(stream: &mut impl Write) -> io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// Ends the response, if the watch ends in order. Returns whether it does.
fn end_watch(stream: &mut impl Write, in_order: bool) -> io::Result<bool> {
    if in_order {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(in_order)
}

/// Version from which a watch begins.
fn from(query: &BTreeMap<&str, &str>) -> u64 {
    query.get("resourceVersion").unwrap().parse().unwrap()
}

fn slice(name: &str, endpoints: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "http", "port": 8000, "protocol": "TCP" }],
    })
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn respond(stream: &mut impl Write, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

fn chunk(stream: &mut impl Write, event: &Value) -> io::Result<()> {
    let line = format!("{event}\n");
    stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
}

/// An endpoint of Service `web`.
#[derive(Clone, Copy)]
pub(super) enum Condition {
    Ready,
    Unready,
    Terminating,
}

/// Endpoint of a pod, as the controller of a cluster writes it.
pub(super) fn endpoint(pod: &str, addr: SocketAddr, condition: Condition) -> Value {
    let (ready, serving, terminating) = match condition {
        Condition::Ready => (true, true, false),
        Condition::Unready => (false, false, false),
        Condition::Terminating => (false, true, true),
    };
    json!({
        "addresses": [addr.ip().to_string()],
        "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        "targetRef": { "kind": "Pod", "namespace": "shop", "name": pod },
        "zone": "eu-1a",
    })
}
