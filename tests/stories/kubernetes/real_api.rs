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
use rustix::process::Signal;
use serde_json::{Value, json};

use super::fake_api::Condition::{Ready, Terminating};
use super::fake_api::endpoint;
use super::rollout::Load;
use super::wait_for_servers;

/// Where the API server and pods are: the last number of an address.
const NETWORK: [u8; 3] = [10, 99, 0];
const API: u8 = 100;
const PORT: u16 = 6443;
/// Who sets the cluster up, and the service account that `rbac.yaml` makes.
const ADMIN: &str = "token-of-the-admin";
const CONVEY: &str = "token-of-convey";

/// What is missing of a cluster: no distribution has a package of kube-apiserver, and building it takes minutes.
pub(super) fn no_api_server() -> Option<String> {
    let missing = ["kube-apiserver", "etcd"].into_iter().find(|name| tool(name).is_none())?;
    let how = "kube-apiserver is built of k8s.io/kubernetes (`go build ./cmd/kube-apiserver`)";
    Some(format!("{missing} is not there; {how}"))
}

pub(super) fn a_cluster_says_which_pods_serve_and_its_end_changes_nothing() {
    let name = "kubernetes::a_cluster_says_which_pods_serve_and_its_end_changes_nothing";
    in_namespace(name, "", tell);
}

fn tell() {
    let lab = Loopback::new();
    (1..=6).chain([API]).for_each(|n| {
        drop(run(Command::new("ip").args(["addr", "add", &format!("{}/32", at(n)), "dev", "lo"])))
    });
    let etcd = etcd(lab.directory());
    let cluster = Cluster::new(lab.directory());
    let mut api = cluster.start();
    for object in documents("rbac.yaml").iter().chain(&namespace_and_service()) {
        cluster.create(object);
    }
    let mut pods: Vec<(u8, TcpServer)> = (1..=3).map(|n| (n, TcpServer::named("pod", addr(n)))).collect();
    cluster.publish(&pods, None);
    let kubeconfig = cluster.kubeconfig();
    let config = Setup::new(&lab).and(&format!(
        "[backends.pool.kubernetes]\nservice = \"shop/web\"\nport = \"http\"\nkubeconfig = \"{}\"\n",
        kubeconfig.display()
    ));
    let balancer = BalancerProcess::start(&lab, &config);
    wait_for_servers(&balancer, &["web-1", "web-2", "web-3"]);
    let vip = lab.vip();
    let load: Vec<Load> = (0..2).map(|_| Load::start(super::rollout::on_a_new_connection, vip)).collect();

    for n in 4..=6 {
        let old = n - 3;
        pods.push((n, TcpServer::named("pod", addr(n))));
        cluster.publish(&pods, None);
        balancer.wait_for_stat(&format!("/backends/pool/servers/web-{n}/state"), "ready");
        cluster.publish(&pods, Some(old));
        balancer.wait_for_stat(&format!("/backends/pool/servers/web-{old}/state"), "drain");
        balancer.wait_for_stat(&format!("/backends/pool/servers/web-{old}/current_connections"), 0);
        pods.retain(|(pod, _)| *pod != old);
        cluster.publish(&pods, None);
    }
    wait_for_servers(&balancer, &["web-4", "web-5", "web-6"]);

    api.signal(Signal::TERM);
    api.wait();
    balancer.wait_for_log("kubernetes shop/web:http cannot be watched: ");
    Load::wait_for_more(&load);
    let mut api = cluster.start();
    balancer.wait_for_log("kubernetes shop/web:http is watched again: 3 servers");
    pods.push((1, TcpServer::named("pod", addr(1))));
    cluster.publish(&pods, None);
    wait_for_servers(&balancer, &["web-1", "web-4", "web-5", "web-6"]);
    let (asked, failed) = Load::end(load);
    assert!(asked > 100, "{asked}");
    assert_eq!(failed, 0, "of {asked}");

    // Its rights are no more than it needs.
    let pods = cluster.status(CONVEY, "/api/v1/namespaces/shop/services");
    let slices = cluster.status(CONVEY, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
    assert_eq!((pods.as_str(), slices.as_str()), ("403", "200"));
    // An API server whose etcd is gone hangs.
    api.signal(Signal::TERM);
    api.wait();
    drop(etcd);
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

/// A file of `packaging/kubernetes`, an object each.
fn documents(file: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(file);
    fs::read_to_string(path).unwrap().split("\n---\n").map(str::to_owned).collect()
}

fn namespace_and_service() -> [String; 1] {
    let port = json!({ "name": "http", "port": 80, "targetPort": 8000 });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "ports": [port] },
    });
    [service.to_string()]
}

struct Cluster {
    directory: PathBuf,
}

impl Cluster {
    fn new(directory: &Path) -> Cluster {
        let directory = directory.to_owned();
        let account = "system:serviceaccount:convey:convey";
        let tokens =
            format!("{ADMIN},admin,1,\"system:masters\"\n{CONVEY},{account},2,\"system:serviceaccounts\"\n");
        fs::write(directory.join("tokens"), tokens).unwrap();
        let key = directory.join("sa.key");
        assert_eq!(run(Command::new("openssl").args(["genrsa", "-out"]).arg(&key)).code, Some(0));
        Cluster { directory }
    }

    /// Starts the API server, and waits until it is ready.
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
        // The namespaces of the story and of the files that are shipped.
        for name in ["convey", "shop"] {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            self.create(&object.to_string());
        }
        api
    }

    /// Creates an object, in YAML or JSON, if it is not there yet.
    fn create(&self, object: &str) {
        let path = match () {
            () if object.contains("kind: ServiceAccount\nmetadata") => {
                "/api/v1/namespaces/convey/serviceaccounts"
            }
            () if object.contains("kind: ClusterRoleBinding\n") => {
                "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
            }
            () if object.contains("kind: ClusterRole\n") => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            () if object.contains("\"kind\":\"Namespace\"") => "/api/v1/namespaces",
            () if object.contains("\"kind\":\"Service\"") => "/api/v1/namespaces/shop/services",
            () => panic!("where does this go? {object}"),
        };
        let status = self.send("POST", path, object);
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
