//! A Deployment whose pods and slices the controllers of a real cluster make. All pods run one
//! program, and become ready at once.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use convey_testkit::{Loopback, in_namespace};

use super::cluster::Cluster;
use super::real_api::all_is_answered;
use super::rollout::{
    Ask, Load, StartPod, a_connection_each, on_a_kept_connection, on_a_new_connection, on_kept_connections,
};
use super::wait_for_servers;
use crate::http::client::Client;

/// More than a slice has room for.
const MANY: usize = 110;

pub(super) fn a_deployment_is_rolled_out_and_scaled_and_no_connection_fails() {
    let name = "kubernetes::a_deployment_is_rolled_out_and_scaled_and_no_connection_fails";
    in_namespace(name, "", || {
        roll_out_and_scale("mode = \"proxy\"\n", a_connection_each, |kept, vip| {
            slowly(on_a_new_connection, kept, vip)
        })
    });
}

pub(super) fn a_deployment_is_rolled_out_and_scaled_and_no_request_fails() {
    let name = "kubernetes::a_deployment_is_rolled_out_and_scaled_and_no_request_fails";
    in_namespace(name, "", || {
        roll_out_and_scale("mode = \"http\"\n", on_kept_connections, |kept, vip| {
            slowly(on_a_kept_connection, kept, vip)
        })
    });
}

/// Leaves the cores to the cluster.
fn slowly(fetch: Ask, kept: &mut Option<Client>, vip: SocketAddr) -> u16 {
    thread::sleep(Duration::from_millis(2));
    fetch(kept, vip)
}

fn roll_out_and_scale(frontend: &str, start: StartPod, fetch: Ask) {
    let lab = Loopback::new();
    let cluster = Cluster::new(&lab);
    let _api = cluster.start();
    let _controllers = cluster.start_controllers();
    let _pods = start("pod", "0.0.0.0:8000".parse().unwrap());
    let few = cluster.roll_out("one", 3);
    let (balancer, load) = cluster.balance(&lab, frontend, fetch);
    wait_for_servers(&balancer, &few);
    for (release, replicas) in [("two", 3), ("two", MANY)] {
        let pods = cluster.roll_out(release, replicas);
        wait_for_servers(&balancer, &pods);
        assert_eq!(cluster.slices().len() > 1, replicas == MANY, "{replicas} pods");
        Load::wait_for_more(&load);
    }
    all_is_answered(load);
}
