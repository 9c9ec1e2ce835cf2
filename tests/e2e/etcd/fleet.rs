//! Many nodes that read one prefix.

use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Need, TcpServer, binary, clock, wait_for};

use super::server::{Etcd, PREFIX};
use super::{server_of, state, with_server};

pub(super) const UNSHARE: Need = Need::Tool("unshare", "util-linux");

const NODES: usize = 4;

/// A host with its own name and address.
struct Node {
    lab: Loopback,
    name: String,
    balancer: BalancerProcess,
}

impl Node {
    fn start(lab: Loopback, name: String, etcd: &Etcd) -> Node {
        let mut command = Command::new("unshare");
        let script = "hostname \"$NODE\" && exec \"$0\" \"$@\"";
        command.args(["--uts", "--", "sh", "-c", script]).arg(binary().get_program());
        command.args(["--config", &etcd.address(), "--state-dir"]).arg(state(&lab));
        command.env("NODE", &name).env("IP", lab.ip(1).to_string());
        let balancer = BalancerProcess::start_with(&lab, &"", command);
        Node { lab, name, balancer }
    }

    /// Status under the node's key in etcd.
    fn status(&self, etcd: &Etcd) -> serde_json::Value {
        etcd.status_of(&self.name)
    }
}

/// Waits until all nodes have this status.
fn wait_for_all(what: &str, nodes: &[Node], is_so: impl Fn(&Node) -> bool) {
    wait_for(&format!("all nodes {what}"), || nodes.iter().all(&is_so).then_some(()));
}

pub(super) fn configuration_change_reaches_all_nodes_and_a_bad_one_none() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    let own = |end: char| format!("\"{}{end}", lab.ip(1));
    let with_server = |server| {
        let text = with_server(&lab, server).replace(&own(':'), "\"${IP}:");
        text.replace(&own('"'), "\"${IP}\"")
    };
    etcd.put("config.toml", &with_server(1));
    let nodes: Vec<Node> =
        (1..=NODES).map(|n| Node::start(Loopback::new(), format!("lb{n}"), &etcd)).collect();
    wait_for_all("to serve", &nodes, |node| server_of(&node.lab) == "a");
    wait_for_all("to follow", &nodes, |node| node.balancer.stat("/etcd/connected") == true);

    let begun = clock();
    etcd.put("config.toml", &with_server(2));
    wait_for_all("to have the change", &nodes, |node| server_of(&node.lab) == "b");
    println!("{NODES} nodes have a change {} ms after etcdctl has begun", begun.elapsed().as_millis());
    let good = etcd.revision("config.toml");
    wait_for_all("to say so", &nodes, |node| {
        let status = node.status(&etcd);
        status["node"] == node.name && status["accepted"] == true && status["in_force"] == good
    });

    etcd.put("config.toml", &format!("{}[stat]\nport = 1\n", with_server(1)));
    let bad = etcd.revision("config.toml");
    wait_for_all("to refuse it", &nodes, |node| node.status(&etcd)["revision"] == bad);
    for node in &nodes {
        let status = node.status(&etcd);
        assert!(status["accepted"] == false && status["in_force"] == good, "{status}");
        assert!(status["problems"][0].as_str().unwrap().contains("stat: unknown key"), "{status}");
        assert_eq!(server_of(&node.lab), "b", "{PREFIX}-status/{}", node.name);
    }
    etcd.put("config.toml", &with_server(1));
    wait_for_all("to have the next one", &nodes, |node| server_of(&node.lab) == "a");
}
