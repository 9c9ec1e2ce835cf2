//! A kube-apiserver and an etcd, with the rights of `packaging/kubernetes`. No pods run: the test
//! writes the slices that a controller would write.

use convey_testkit::{Loopback, TcpServer, in_namespace};

use super::cluster::{CONVEY, Cluster, addr, documents};
use super::rollout::{Load, on_a_new_connection};
use super::wait_for_servers;

pub(super) fn a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection() {
    let name = "kubernetes::a_cluster_says_which_pods_serve_and_a_rollout_fails_no_connection";
    in_namespace(name, "", || {
        let lab = Loopback::new();
        let cluster = Cluster::new(&lab);
        let _api = cluster.start();
        let mut pods: Vec<(u8, TcpServer)> = (1..=3).map(pod).collect();
        cluster.publish(&pods, None);
        let (balancer, load) = cluster.balance(&lab, "", on_a_new_connection);
        wait_for_servers(&balancer, ["web-1", "web-2", "web-3"]);
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
        wait_for_servers(&balancer, ["web-4", "web-5", "web-6"]);
        all_is_answered(load);
        // The service account has only the necessary rights.
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
        let cluster = Cluster::new(&lab);
        let mut api = cluster.start();
        let mut pods: Vec<(u8, TcpServer)> = (1..=2).map(pod).collect();
        cluster.publish(&pods, None);
        let (balancer, load) = cluster.balance(&lab, "", on_a_new_connection);
        wait_for_servers(&balancer, ["web-1", "web-2"]);
        // SIGTERM waits for watches to end.
        api.kill();
        Load::wait_for_more(&load);
        let _api = cluster.start();
        pods.push(pod(3));
        cluster.publish(&pods, None);
        wait_for_servers(&balancer, ["web-1", "web-2", "web-3"]);
        all_is_answered(load);
        assert!(balancer.log().matches("cannot be watched").count() <= 1, "{}", balancer.log());
    });
}

pub(super) fn all_is_answered(load: Vec<Load>) {
    Load::wait_for_more(&load);
    let (asked, failed) = Load::end(load);
    assert_eq!(failed, 0, "of {asked}");
}

fn pod(n: u8) -> (u8, TcpServer) {
    (n, TcpServer::named("pod", addr(n)))
}
