//! A real cluster in a namespace: etcd, kube-apiserver and, for some tests, the controllers of
//! Deployments and EndpointSlices. EndpointSlices refuse loopback addresses, so the namespace's
//! `lo` has others.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use convey_testkit::{BalancerProcess, Loopback, Process, Setup, TcpServer, run, tool, wait_for};
use serde_json::{Value, json};

use super::fake_api::Condition::{Ready, Terminating};
use super::fake_api::endpoint;
use super::rollout::{Ask, Load};
use crate::etcd::Etcd;

/// Network of the API server and of pods, without the last number.
const NETWORK: [u8; 3] = [10, 99, 0];
const API: u8 = 100;
const PORT: u16 = 6443;
/// Network of a Deployment's pods, all of which answer.
const PODS: &str = "10.98.0.0/16";
/// Tokens of the administrator who sets the cluster up, and of the service account from
/// `rbac.yaml`.
const ADMIN: &str = "token-of-the-admin";
pub(super) const CONVEY: &str = "token-of-convey";

pub(super) struct Cluster {
    directory: PathBuf,
    etcd: Etcd,
}

/// Whether the API server is missing: no distribution has a package of it.
pub(super) fn no_api_server() -> Option<String> {
    missing(&["kube-apiserver"])
}

/// Whether the API server or its controllers are missing.
pub(super) fn no_controllers() -> Option<String> {
    missing(&["kube-apiserver", "kube-controller-manager", "kwok"])
}

impl Cluster {
    /// A cluster with an etcd, and the addresses of pods.
    pub(super) fn new(lab: &Loopback) -> Cluster {
        (1..=6).chain([API]).for_each(|n| ip(&["addr", "add", &format!("{}/32", at(n)), "dev", "lo"]));
        let (etcd, directory) = (Etcd::start(lab), lab.directory().to_owned());
        let account = "system:serviceaccount:convey:convey";
        let tokens =
            format!("{ADMIN},admin,1,\"system:masters\"\n{CONVEY},{account},2,\"system:serviceaccounts\"\n");
        fs::write(directory.join("tokens"), tokens).unwrap();
        let key = directory.join("sa.key");
        assert_eq!(run(Command::new("openssl").args(["genrsa", "-out"]).arg(&key)).code, Some(0));
        Cluster { directory, etcd }
    }

    /// A convey with servers from this cluster and these lines for its frontend, and clients that
    /// send requests with `fetch`.
    pub(super) fn balance(&self, lab: &Loopback, frontend: &str, fetch: Ask) -> (BalancerProcess, Vec<Load>) {
        let lines = format!(
            "service = \"shop/web\"\nport = \"http\"\nkubeconfig = \"{}\"\n",
            self.kubeconfig_of(CONVEY).display()
        );
        let config = Setup::new(lab).frontend(frontend).and(&format!("[backends.pool.kubernetes]\n{lines}"));
        let balancer = BalancerProcess::start(lab, &config);
        (balancer, (0..2).map(|_| Load::start(fetch, lab.vip())).collect())
    }

    /// Starts the API server with the objects of the test and of the shipped files, and waits until
    /// it is ready.
    pub(super) fn start(&self) -> Process {
        let (at, api) = (|file: &str| self.directory.join(file).display().to_string(), at(API));
        let key = at("sa.key");
        let mut command = Command::new("kube-apiserver");
        command.args([
            format!("--etcd-servers={}", self.etcd.url()),
            format!("--advertise-address={api}"),
            format!("--secure-port={PORT}"),
            format!("--cert-dir={}", at("certificates")),
            format!("--token-auth-file={}", at("tokens")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        let api = quietly(&mut command, &self.directory.join("apiserver.log"));
        wait_for("the API server", || (self.status(ADMIN, "/readyz") == "200").then_some(()));
        for name in ["convey", "shop"] {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            self.create(&object.to_string());
        }
        documents("rbac.yaml").iter().for_each(|object| self.create(object));
        self.create(&service());
        api
    }

    /// Creates an object, in YAML or JSON, if it is not there yet.
    pub(super) fn create(&self, object: &str) {
        let path = collection_of(object);
        let status = self.send("POST", &format!("{path}?fieldValidation=Strict"), object);
        assert!(matches!(&*status, "201" | "409"), "{status}: {object}");
    }

    /// Publishes these pods in two slices.
    pub(super) fn publish(&self, pods: &[(u8, TcpServer)], ends: Option<u8>) {
        let condition = |pod: u8| if ends == Some(pod) { Terminating } else { Ready };
        let all: Vec<Value> =
            pods.iter().map(|(n, _)| endpoint(&format!("web-{n}"), addr(*n), condition(*n))).collect();
        let (first, second) = all.split_at(all.len() / 2);
        for (name, endpoints) in [("web-1", first), ("web-2", second)] {
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" } },
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "http", "port": 8000, "protocol": "TCP" }],
            });
            self.apply(&format!("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/{name}"), &slice);
        }
    }

    /// Starts the controllers that make pods of a Deployment and their slices, and a kwok in place
    /// of kubelets: pods are ready at once.
    pub(super) fn start_controllers(&self) -> [Process; 2] {
        self.create(
            &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" } }).to_string(),
        );
        self.apply(
            "/api/v1/namespaces/shop/services/web",
            &json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
                "spec": { "selector": { "app": "web" } },
            }),
        );
        ip(&["route", "add", "local", PODS, "dev", "lo"]);
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig_of(ADMIN).display());
        let mut controllers = Command::new("kube-controller-manager");
        controllers.arg(&kubeconfig).args([
            "--controllers=deployment-controller,replicaset-controller,endpointslice-controller",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        ]);
        let mut kwok = Command::new("kwok");
        kwok.args([&kubeconfig, "--manage-all-nodes", &format!("--cidr={PODS}")]);
        let log = |name: &str| self.directory.join(name);
        [quietly(&mut controllers, &log("controllers.log")), quietly(&mut kwok, &log("kwok.log"))]
    }

    /// Rolls out so many pods of this release by a Deployment, and waits until there are no others.
    ///
    /// Returns their names.
    pub(super) fn roll_out(&self, release: &str, replicas: usize) -> BTreeSet<String> {
        self.apply("/apis/apps/v1/namespaces/shop/deployments/web", &deployment(release, replicas));
        wait_for(&format!("{replicas} pods of {release}"), || {
            let pods = self.get("/api/v1/namespaces/shop/pods");
            let pods = pods["items"].as_array()?;
            let is_all = pods.len() == replicas
                && pods.iter().all(|pod| pod["metadata"]["labels"]["release"] == release);
            let named = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
            let names: BTreeSet<String> = named.map(str::to_owned).collect();
            let ready: BTreeSet<String> = self.slices().iter().flat_map(ready).collect();
            (is_all && ready == names).then_some(names)
        })
    }

    /// The slices of the Service.
    pub(super) fn slices(&self) -> Vec<Value> {
        let list = self.get("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Creates an object, or applies these fields to it.
    fn apply(&self, path: &str, object: &Value) {
        let status =
            self.send("PATCH", &format!("{path}?fieldManager=convey-test&force=true"), &object.to_string());
        assert!(matches!(&*status, "200" | "201"), "{status}: {object}");
    }

    fn send(&self, method: &str, path: &str, object: &str) -> String {
        let kind = match method {
            "PATCH" => "application/apply-patch+yaml",
            _ => "application/yaml",
        };
        let body = self.directory.join("body");
        File::create(&body).unwrap().write_all(object.as_bytes()).unwrap();
        let body = format!("@{}", body.display());
        self.status_of(
            ADMIN,
            path,
            &["-X", method, "-H", &format!("Content-Type: {kind}"), "--data-binary", &body],
        )
    }

    pub(super) fn status(&self, token: &str, path: &str) -> String {
        self.status_of(token, path, &[])
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.curl(ADMIN, path, &[])).unwrap_or_default()
    }

    /// The status of the answer.
    fn status_of(&self, token: &str, path: &str, more: &[&str]) -> String {
        self.curl(token, path, &[&["-o", "/dev/null", "-w", "%{http_code}"], more].concat())
    }

    fn curl(&self, token: &str, path: &str, more: &[&str]) -> String {
        let url = format!("https://{}:{PORT}{path}", at(API));
        let mut command = Command::new("curl");
        command.args(["-sk", "-H", &format!("Authorization: Bearer {token}")]);
        run(command.args(more).arg(url)).stdout
    }

    /// A kubeconfig file, as in `~/.kube/config`.
    fn kubeconfig_of(&self, token: &str) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters:\n- name: lab\n  cluster:\n    server: https://{}:{PORT}\n    \
             certificate-authority: certificates/apiserver.crt\nusers:\n- name: convey\n  user:\n    token: {token}\n\
             contexts:\n- name: lab\n  context:\n    cluster: lab\n    user: convey\n",
            at(API)
        );
        let path = self.directory.join(format!("kubeconfig-of-{token}"));
        fs::write(&path, text).unwrap();
        path
    }
}

pub(super) fn addr(n: u8) -> SocketAddr {
    SocketAddr::new(at(n), 8000)
}

/// A file of `packaging/kubernetes`, an object each.
pub(super) fn documents(file: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file);
    fs::read_to_string(path).unwrap().split("\n---\n").map(str::to_owned).collect()
}

fn at(n: u8) -> IpAddr {
    let [a, b, c] = NETWORK;
    IpAddr::from([a, b, c, n])
}

fn missing(programs: &[&str]) -> Option<String> {
    let name = programs.iter().find(|name| tool(name).is_none())?;
    Some(format!("{name} is not there; .ci/build-kubernetes builds it, with Go"))
}

fn ip(arguments: &[&str]) {
    assert_eq!(run(Command::new("ip").args(arguments)).code, Some(0), "ip {arguments:?}");
}

fn quietly(command: &mut Command, log: &Path) -> Process {
    let log = File::create(log).unwrap();
    Process::spawn(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log))
}

/// Collection for a new object, which is YAML, or JSON in one line.
fn collection_of(object: &str) -> String {
    let json: Option<Value> = serde_json::from_str(object).ok();
    let of_yaml = |key: &str| {
        let mut values = object.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        values.next().unwrap_or_default().to_owned()
    };
    let (kind, namespace) = match &json {
        Some(json) => (json["kind"].as_str().unwrap().to_owned(), "shop".to_owned()),
        None => (of_yaml("kind"), of_yaml("  namespace")),
    };
    let group = match &*kind {
        "Namespace" => return "/api/v1/namespaces".to_owned(),
        "ClusterRole" | "ClusterRoleBinding" => {
            return format!("/apis/rbac.authorization.k8s.io/v1/{}s", kind.to_lowercase());
        }
        "Role" | "RoleBinding" => "apis/rbac.authorization.k8s.io/v1",
        "Deployment" | "DaemonSet" => "apis/apps/v1",
        "Node" => return "/api/v1/nodes".to_owned(),
        _ => "api/v1",
    };
    format!("/{group}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

fn service() -> String {
    let port = json!({ "name": "http", "port": 80, "targetPort": 8000 });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "ports": [port] },
    });
    service.to_string()
}

/// The pods of a slice that are ready.
fn ready(slice: &Value) -> impl Iterator<Item = String> {
    let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default().into_iter();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    ready.filter_map(|endpoint| Some(endpoint["targetRef"]["name"].as_str()?.to_owned()))
}

fn deployment(release: &str, replicas: usize) -> Value {
    let labels = json!({ "app": "web", "release": release });
    let container = json!({ "name": "web", "image": "web", "ports": [{ "containerPort": 8000 }] });
    // The pod names its node, because there is no scheduler.
    let pod = json!({ "nodeName": "node", "terminationGracePeriodSeconds": 1, "containers": [container] });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "rollingUpdate": { "maxSurge": "100%", "maxUnavailable": 0 } },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
}
