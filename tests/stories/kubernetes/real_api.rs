//! A kube-apiserver and an etcd, with the rights of `packaging/kubernetes`. EndpointSlices refuse loopback addresses, so all of it is in a
//! namespace whose `lo` has others. Nobody runs pods: the story writes the slices that a controller would write.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use convey_testkit::{
    BalancerProcess, Loopback, Process, Setup, TcpServer, in_namespace, run, tool, wait_for,
};
use serde_json::{Value, json};

use super::fake_api::Condition::{Ready, Terminating};
use super::fake_api::endpoint;
use super::rollout::{Load, on_a_new_connection};
use super::wait_for_servers;

/// Where the API server and pods are: the last number of an address.
const NETWORK: [u8; 3] = [10, 99, 0];
const API: u8 = 100;
const PORT: u16 = 6443;
/// Who sets the cluster up, and the service account that `rbac.yaml` makes.
const ADMIN: &str = "token-of-the-admin";
const CONVEY: &str = "token-of-convey";

/// Whether the API server is missing: no distribution has a package of it.
pub(super) fn no_api_server() -> Option<String> {
    let why = || "kube-apiserver is not there; .ci/kube-apiserver is what builds it (`go build`)".to_owned();
    tool("kube-apiserver").is_none().then(why)
}

pub(super) fn a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection() {
    let name = "kubernetes::a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection";
    in_namespace(name, "", || {
        let lab = Loopback::new();
        let (_etcd, cluster) = Cluster::new(lab.directory());
        let _api = cluster.start();
        let mut pods: Vec<(u8, TcpServer)> = (1..=3).map(pod).collect();
        cluster.publish(&pods, None);
        let (balancer, load) = cluster.balance(&lab);
        wait_for_servers(&balancer, &["web-1", "web-2", "web-3"]);
        for n in 4..=6 {
            let old = n - 3;
            pods.push(pod(n));
            cluster.publish(&pods, None);
            balancer.wait_for_stat(&format!("/backends/pool/servers/web-{n}/state"), "ready");
            cluster.publish(&pods, Some(old));
            balancer.wait_for_stat(&format!("/backends/pool/servers/web-{old}/state"), "drain");
            balancer.wait_for_stat(&format!("/backends/pool/servers/web-{old}/current_connections"), 0);
            pods.retain(|(pod, _)| *pod != old);
            cluster.publish(&pods, None);
        }
        wait_for_servers(&balancer, &["web-4", "web-5", "web-6"]);
        all_is_answered(load);
        // Its rights are no more than it needs.
        let core = ["services", "secrets", "pods"]
            .map(|kind| cluster.status(CONVEY, &format!("/api/v1/namespaces/shop/{kind}")));
        assert_eq!(core, ["200", "403", "403"]);
        let slices = cluster.status(CONVEY, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
        assert_eq!(slices, "200");
        for file in ["namespaced-rbac.yaml", "config.yaml", "deployment.yaml", "daemonset.yaml"] {
            documents(file).iter().for_each(|object| cluster.create(object));
        }
    });
}

pub(super) fn an_api_server_that_crashes_and_comes_back_changes_nothing() {
    in_namespace("kubernetes::an_api_server_that_crashes_and_comes_back_changes_nothing", "", || {
        let lab = Loopback::new();
        let (_etcd, cluster) = Cluster::new(lab.directory());
        let mut api = cluster.start();
        let mut pods: Vec<(u8, TcpServer)> = (1..=2).map(pod).collect();
        cluster.publish(&pods, None);
        let (balancer, load) = cluster.balance(&lab);
        wait_for_servers(&balancer, &["web-1", "web-2"]);
        // SIGTERM waits for watches to end.
        api.kill();
        Load::wait_for_more(&load);
        let _api = cluster.start();
        pods.push(pod(3));
        cluster.publish(&pods, None);
        wait_for_servers(&balancer, &["web-1", "web-2", "web-3"]);
        all_is_answered(load);
        assert!(balancer.log().matches("cannot be watched").count() <= 1, "{}", balancer.log());
    });
}

fn all_is_answered(load: Vec<Load>) {
    Load::wait_for_more(&load);
    let (asked, failed) = Load::end(load);
    assert_eq!(failed, 0, "of {asked}");
}

fn pod(n: u8) -> (u8, TcpServer) {
    (n, TcpServer::named("pod", addr(n)))
}

fn at(n: u8) -> IpAddr {
    let [a, b, c] = NETWORK;
    IpAddr::from([a, b, c, n])
}

fn addr(n: u8) -> SocketAddr {
    SocketAddr::new(at(n), 8000)
}

fn etcd(directory: &Path) -> Process {
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(directory.join("etcd")).args([
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
    ]);
    quietly(&mut command, &directory.join("etcd.log"))
}

fn quietly(command: &mut Command, log: &Path) -> Process {
    let log = File::create(log).unwrap();
    Process::spawn(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log))
}

/// Where an object is created, which is YAML, or JSON in one line.
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
        _ => "api/v1",
    };
    format!("/{group}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

/// A file of `packaging/kubernetes`, an object each.
fn documents(file: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file);
    fs::read_to_string(path).unwrap().split("\n---\n").map(str::to_owned).collect()
}

fn service() -> String {
    let port = json!({ "name": "http", "port": 80, "targetPort": 8000 });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "ports": [port] },
    });
    service.to_string()
}

struct Cluster {
    directory: PathBuf,
}

impl Cluster {
    /// One with an etcd, and the addresses of pods.
    fn new(directory: &Path) -> (Process, Cluster) {
        for n in (1..=6).chain([API]) {
            let mut command = Command::new("ip");
            assert_eq!(
                run(command.args(["addr", "add", &format!("{}/32", at(n)), "dev", "lo"])).code,
                Some(0)
            );
        }
        let (etcd, directory) = (etcd(directory), directory.to_owned());
        let account = "system:serviceaccount:convey:convey";
        let tokens =
            format!("{ADMIN},admin,1,\"system:masters\"\n{CONVEY},{account},2,\"system:serviceaccounts\"\n");
        fs::write(directory.join("tokens"), tokens).unwrap();
        let key = directory.join("sa.key");
        assert_eq!(run(Command::new("openssl").args(["genrsa", "-out"]).arg(&key)).code, Some(0));
        (etcd, Cluster { directory })
    }

    /// A convey that goes by this cluster, and clients of it.
    fn balance(&self, lab: &Loopback) -> (BalancerProcess, Vec<Load>) {
        let lines = format!(
            "service = \"shop/web\"\nport = \"http\"\nkubeconfig = \"{}\"\n",
            self.kubeconfig().display()
        );
        let config = Setup::new(lab).and(&format!("[backends.pool.kubernetes]\n{lines}"));
        let balancer = BalancerProcess::start(lab, &config);
        (balancer, (0..2).map(|_| Load::start(on_a_new_connection, lab.vip())).collect())
    }

    /// Starts the API server with what the story and the files that are shipped need, and waits until it is ready.
    fn start(&self) -> Process {
        let (at, api) = (|file: &str| self.directory.join(file).display().to_string(), at(API));
        let key = at("sa.key");
        let mut command = Command::new("kube-apiserver");
        command.args([
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
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
    fn create(&self, object: &str) {
        let path = collection_of(object);
        let status = self.send("POST", &format!("{path}?fieldValidation=Strict"), object);
        assert!(matches!(&*status, "201" | "409"), "{status}: {object}");
    }

    /// Has two slices say that these pods are there.
    fn publish(&self, pods: &[(u8, TcpServer)], ends: Option<u8>) {
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
            let path = format!("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/{name}");
            let query = "?fieldManager=story&force=true";
            let status = self.send("PATCH", &format!("{path}{query}"), &slice.to_string());
            assert!(matches!(&*status, "200" | "201"), "{status}: {slice}");
        }
    }

    fn send(&self, method: &str, path: &str, object: &str) -> String {
        let kind = match method {
            "PATCH" => "application/apply-patch+yaml",
            _ => "application/yaml",
        };
        let body = self.directory.join("body");
        File::create(&body).unwrap().write_all(object.as_bytes()).unwrap();
        let body = format!("@{}", body.display());
        self.curl(
            ADMIN,
            path,
            &["-X", method, "-H", &format!("Content-Type: {kind}"), "--data-binary", &body],
        )
    }

    fn status(&self, token: &str, path: &str) -> String {
        self.curl(token, path, &[])
    }

    /// The status of the answer.
    fn curl(&self, token: &str, path: &str, more: &[&str]) -> String {
        let url = format!("https://{}:{PORT}{path}", at(API));
        let mut command = Command::new("curl");
        command.args([
            "-sk",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            &format!("Authorization: Bearer {token}"),
        ]);
        run(command.args(more).arg(url)).stdout
    }

    /// What `kubectl` would have in `~/.kube/config`.
    fn kubeconfig(&self) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters:\n- name: lab\n  cluster:\n    server: https://{}:{PORT}\n    \
             certificate-authority: certificates/apiserver.crt\nusers:\n- name: convey\n  user:\n    token: {CONVEY}\n\
             contexts:\n- name: lab\n  context:\n    cluster: lab\n    user: convey\n",
            at(API)
        );
        let path = self.directory.join("kubeconfig");
        fs::write(&path, text).unwrap();
        path
    }
}
