//! A small API server: it knows one Service of one namespace and its EndpointSlices, lists slices in pages of two, and has both watched.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use convey_testkit::{Loopback, TcpServer};
use serde_json::{Value, json};

/// Who may ask.
const TOKEN: &str = "a-token-of-a-service-account";
/// Where slices are.
const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
/// Where Services are.
const SERVICES: &str = "/api/v1/namespaces/shop/services";
/// Slices of one answer of a list.
const PAGE: usize = 2;
/// What slices and Services are called by those who ask, and in answers.
const SLICES_AND_SERVICES: [&str; 2] = ["endpointslices.discovery.k8s.io", "services"];

/// The API server. Dropping it closes its listening socket and all watches.
pub(super) struct FakeApi {
    addr: SocketAddr,
    cluster: Arc<Cluster>,
    server: Option<TcpServer>,
}

/// What is kept while no API server runs.
#[derive(Default)]
struct Cluster {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    slices: BTreeMap<String, Value>,
    /// Of the last change.
    version: u64,
    /// Each change with its version: its type and the slice.
    events: Vec<(u64, &'static str, Value)>,
    /// Changes up to this one are forgotten.
    compacted: u64,
    lists: usize,
    watches: usize,
    /// Watches of an earlier life end.
    life: u64,
    /// Whether they do so in order, or as if the process was gone.
    ends_in_order: bool,
    is_refusing: bool,
    is_refusing_watches: bool,
    is_refusing_services: bool,
    /// The annotations of the Service; `None`: there is no Service.
    annotations: Option<Value>,
    /// Changes of the Service.
    service_version: u64,
}

impl FakeApi {
    pub(super) fn start(lab: &Loopback) -> FakeApi {
        let addr = SocketAddr::new(lab.ip(90), 6443);
        let cluster = Arc::<Cluster>::default();
        let mut api = FakeApi { addr, cluster, server: None };
        api.come_back();
        api
    }

    /// Serves again, with the slices that there are.
    pub(super) fn come_back(&mut self) {
        let cluster = self.cluster.clone();
        self.server = Some(TcpServer::start(self.addr, move |stream| cluster.serve(stream)));
    }

    /// Is gone: nobody is answered, and all watches are cut.
    pub(super) fn go_away(&mut self) {
        self.server = None;
        self.end_watches();
    }

    /// Cuts the watches that there are.
    pub(super) fn end_watches(&self) {
        let mut state = self.cluster.state();
        state.life += 1;
        state.ends_in_order = false;
        self.cluster.changed.notify_all();
    }

    /// Has one slice in the place of another. Watches end in order before they see that, and the change is forgotten at once, as after
    /// a while at an API server.
    pub(super) fn replace_unseen(&self, old: &str, name: &str, endpoints: &[Value]) {
        let mut state = self.cluster.state();
        state.slices.remove(old).unwrap();
        let slice = state.record("ADDED", slice(name, endpoints));
        state.slices.insert(name.to_owned(), slice);
        state.compacted = state.version;
        state.events.clear();
        state.life += 1;
        state.ends_in_order = true;
        self.cluster.changed.notify_all();
    }

    /// Nobody may list or watch slices, or they may again.
    pub(super) fn refuse(&self, is_refusing: bool) {
        self.cluster.state().is_refusing = is_refusing;
    }

    /// The same of watches alone.
    pub(super) fn refuse_watches(&self, is_refusing: bool) {
        self.cluster.state().is_refusing_watches = is_refusing;
    }

    /// Nobody may list or watch Services, or they may again.
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

    /// How many lists were begun.
    pub(super) fn lists(&self) -> usize {
        self.cluster.state().lists
    }

    /// How many watches were begun.
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

    /// A file that says where it is and who may ask.
    pub(super) fn kubeconfig(&self, lab: &Loopback) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             clusters:\n- name: lab\n  cluster:\n    server: http://{}\n\
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

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut is_allowed = false;
            loop {
                let mut field = String::new();
                reader.read_line(&mut field)?;
                if field.trim().is_empty() {
                    break;
                }
                is_allowed |= field.trim().eq_ignore_ascii_case(&format!("authorization: Bearer {TOKEN}"));
            }
            let target = line.split(' ').nth(1).unwrap_or_default();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let query: BTreeMap<&str, &str> =
                query.split('&').filter_map(|pair| pair.split_once('=')).collect();
            let is_watch = query.get("watch") == Some(&"true");
            let is_of_services = path == SERVICES;
            let is_refused = {
                let state = self.state();
                let refuses_slices = state.is_refusing || (state.is_refusing_watches && is_watch);
                if is_of_services { state.is_refusing_services } else { refuses_slices }
            };
            if !is_allowed || (path != PATH && !is_of_services) || is_refused {
                let what = SLICES_AND_SERVICES[usize::from(is_of_services)];
                let message = format!("{what} is forbidden: User \"convey\" cannot list them");
                respond(&mut stream, "403 Forbidden", &status(403, "Forbidden", &message))?;
            } else if is_of_services {
                assert_eq!(query.get("fieldSelector"), Some(&"metadata.name%3Dweb"), "the one Service");
                if !is_watch {
                    respond(&mut stream, "200 OK", &self.list_services())?;
                } else if !self.watch_service(&mut stream, from(&query))? {
                    return Ok(());
                }
            } else if query.get("labelSelector") != Some(&"kubernetes.io%2Fservice-name%3Dweb") {
                respond(&mut stream, "400 Bad Request", &status(400, "BadRequest", "no such selector"))?;
            } else if is_watch {
                if !self.watch(&mut stream, from(&query))? {
                    return Ok(());
                }
            } else {
                let list = self.list(query.get("continue").copied());
                respond(&mut stream, "200 OK", &list)?;
            }
        }
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

    /// Tells of each change of the Service after this one. Returns whether it has ended in order, as [`Cluster::watch`].
    fn watch_service(&self, stream: &mut TcpStream, mut told: u64) -> io::Result<bool> {
        begin_watch(stream)?;
        let mut state = self.state();
        let life = state.life;
        loop {
            if state.life != life {
                return end_watch(stream, state.ends_in_order);
            }
            if state.service_version != told {
                chunk(stream, &json!({ "type": "MODIFIED", "object": state.service() }))?;
                told = state.service_version;
            }
            state = self.changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
        }
    }

    /// Returns whether it has ended in order: then the connection has another request.
    fn watch(&self, stream: &mut TcpStream, mut from: u64) -> io::Result<bool> {
        begin_watch(stream)?;
        let mut state = self.state();
        state.watches += 1;
        let life = state.life;
        loop {
            if state.life != life {
                return end_watch(stream, state.ends_in_order);
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

/// Whatever is watched comes in chunks.
fn begin_watch(stream: &mut TcpStream) -> io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// Says that there is no more, if it ends in order. Returns whether it does.
fn end_watch(stream: &mut TcpStream, in_order: bool) -> io::Result<bool> {
    if in_order {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(in_order)
}

/// Where a watch begins.
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

fn respond(stream: &mut TcpStream, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

fn chunk(stream: &mut TcpStream, event: &Value) -> io::Result<()> {
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

/// The endpoint of a pod, as the controller of a cluster writes it.
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
