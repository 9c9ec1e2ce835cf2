//! Credentials that a program of the kubeconfig writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use convey_testkit::{BalancerProcess, Loopback, wait_for};

use super::fake_api::Condition::Ready;
use super::fake_api::{FakeApi, TOKEN, endpoint};
use super::{setup, wait_for_servers};

const NEXT: &str = "the-next-token";

pub(super) fn credential_plugin_runs_again_when_its_token_is_refused() {
    let lab = Loopback::new();
    let api = FakeApi::start(&lab);
    let (plugin, token) = (lab.directory().join("plugin"), lab.directory().join("token"));
    fs::write(&plugin, "#!/bin/sh\necho \"{status: {token: $(cat \"${0%plugin}token\")}}\"\n").unwrap();
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
    fs::write(&token, TOKEN).unwrap();
    let config = format!("{}[privileges]\nlandlock = true\nseccomp = true\n", setup(&lab, &api));
    let path = api.kubeconfig(&lab);
    let kubeconfig = fs::read_to_string(&path).unwrap();
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin}";
    fs::write(&path, kubeconfig.replace(&format!("token: {TOKEN}"), exec)).unwrap();

    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let balancer = BalancerProcess::start(&lab, &config);
    wait_for_servers(&balancer, ["web-a"]);
    wait_for("the watch", || (api.watches() == 1).then_some(()));

    api.accept_only(NEXT);
    fs::write(&token, NEXT).unwrap();
    api.apply("web-2", &[endpoint("web-b", lab.server(2), Ready)]);
    api.end_watches_in_order();
    wait_for("a watch with the new token", || (api.watches() == 2).then_some(()));
    api.apply("web-3", &[endpoint("web-c", lab.server(3), Ready)]);
    wait_for_servers(&balancer, ["web-a", "web-b", "web-c"]);
}
