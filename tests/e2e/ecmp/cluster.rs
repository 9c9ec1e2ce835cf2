//! Four nodes behind a router, each with convey and BIRD.

use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;

use convey_lab::{ANNOUNCED_VIP, EcmpLab, EcmpRole, INTERFACE};
use convey_testkit::{Process, Ran, binary, run, wait_for};
use serde_json::Value;
use tempfile::TempDir;

use super::connections::{PORT, start_number_server};

/// Nodes of a cluster.
pub(super) const NODES: u8 = 4;

/// Servers that run. The configuration need not have all of them.
const SERVERS: u8 = 4;

/// A router, nodes, servers and a client.
pub(super) struct Cluster {
    nodes: Vec<Option<Process>>,
    _servers: Vec<Process>,
    pub(super) lab: EcmpLab,
    mode: &'static str,
    directory: TempDir,
}

impl Cluster {
    /// Starts all nodes with so many servers, and waits until the router sends clients to all of
    /// them.
    pub(super) fn start(mode: &'static str, servers: u8) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let lab = EcmpLab::new(NODES, SERVERS, directory.path()).unwrap();
        if mode == "dsr" {
            lab.answer_directly(PORT).unwrap();
        }
        let running = (1..=SERVERS).map(|number| start_number_server(&lab, number)).collect();
        let nodes = (1..=NODES).map(|_| None).collect();
        let mut cluster = Cluster { nodes, _servers: running, lab, mode, directory };
        cluster.save(servers);
        (1..=NODES).for_each(|node| cluster.revive(node));
        cluster.wait_for_nodes(&[1, 2, 3, 4]);
        cluster.wait_for_servers(servers);
        cluster
    }

    /// Starts a node, without waiting for it.
    pub(super) fn revive(&mut self, node: u8) {
        self.lab.power_on(node).unwrap();
        let mut command = self.lab.command(EcmpRole::Balancer(node), binary().get_program());
        command.arg(format!("--{}", self.mode)).arg("--config").arg(self.config());
        command.arg("--socket").arg(self.socket(node)).env_remove("RUST_LOG");
        let log = File::create(self.directory.path().join(format!("node{node}.log"))).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.nodes[usize::from(node) - 1] = Some(Process::spawn(&mut command));
    }

    /// Kills a node without notice, like a machine that loses its power.
    pub(super) fn kill(&mut self, node: u8) {
        self.lab.power_off(node).unwrap();
        self.nodes[usize::from(node) - 1] = None;
    }

    /// Upgrades a node, which passes its connections to a new process.
    pub(super) fn upgrade(&self, node: u8) {
        let ran = self.fetch(node, &["upgrade"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    /// Configures so many servers on all nodes, and waits until they are in use.
    pub(super) fn configure(&self, servers: u8) {
        self.save(servers);
        self.wait_for_servers(servers);
    }

    fn wait_for_servers(&self, servers: u8) {
        for node in 1..=NODES {
            wait_for(&format!("{servers} servers of node {node}"), || {
                let status: Value =
                    serde_json::from_str(&self.fetch(node, &["status", "--json"]).stdout).ok()?;
                let backend = &status["backends"]["web"];
                let all = backend["servers"].as_object()?.len();
                (backend["servers_up"] == servers && all == usize::from(servers)).then_some(())
            });
        }
    }

    /// Waits until the router sends clients to exactly these nodes.
    pub(super) fn wait_for_nodes(&self, nodes: &[u8]) {
        wait_for(&format!("nodes {nodes:?} to be announced"), || {
            (self.lab.next_hops().unwrap() == nodes).then_some(())
        });
    }

    /// Client ports of a node's flows.
    pub(super) fn ports_of_flows(&self, node: u8) -> Vec<u16> {
        let ran = self.fetch(node, &["flows", "--json", "--limit", "10000"]);
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
        let port = |flow: &Value| flow["client"].as_str()?.rsplit(':').next()?.parse().ok();
        answer["flows"].as_array().unwrap().iter().filter_map(port).collect()
    }

    /// Waits until no node has flows from these ports of the client.
    pub(super) fn wait_until_forgotten(&self, ports: Range<u16>) {
        for node in 1..=NODES {
            wait_for(&format!("node {node} to forget {ports:?}"), || {
                let known = self.ports_of_flows(node);
                (!known.iter().any(|port| ports.contains(port))).then_some(())
            });
        }
    }

    /// Configures resilient hashing on the router: buckets stay with their node as long as it
    /// exists.
    pub(super) fn spread_by_buckets(&self, nodes: &[u8]) {
        let router = self.lab.place(EcmpRole::Router);
        let hop = |node: &u8| {
            let address = EcmpRole::Balancer(*node).address();
            format!("nexthop replace id {node} via {address} dev {INTERFACE}")
        };
        let group: Vec<String> = nodes.iter().map(u8::to_string).collect();
        let group = format!("nexthop replace id 100 group {} type resilient buckets 128", group.join("/"));
        // This route is preferred to BIRD's.
        let route = format!("route replace {ANNOUNCED_VIP} metric 1 nhid 100");
        router.ip(nodes.iter().map(hop).chain([group, route])).unwrap();
    }

    fn fetch(&self, node: u8, words: &[&str]) -> Ran {
        let mut command = self.lab.command(EcmpRole::Balancer(node), binary().get_program());
        run(command.args(words).arg("--socket").arg(self.socket(node)))
    }

    fn save(&self, servers: u8) {
        let mut text = format!(
            "[announce]\nhold = 0.5\n[passthrough.timeouts]\nclosed = 0.2\n\
             [frontends.web]\nlisten_addr = \"{ANNOUNCED_VIP}:{PORT}\"\nbackend = \"web\"\n\
             [backends.web]\nalgorithm = \"maglev\"\nhash = \"tuple\"\n\
             [backends.web.health_check]\nkind = \"tcp\"\ninterval = 0.2\n"
        );
        for number in 1..=servers {
            let address = EcmpRole::Server(number).address();
            text += &format!("[backends.web.servers.s{number}]\naddr = \"{address}:{PORT}\"\n");
        }
        let new = self.directory.path().join("new.toml");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.config()).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.directory.path().join("config.toml")
    }

    fn socket(&self, node: u8) -> PathBuf {
        self.directory.path().join(format!("node{node}.sock"))
    }
}
