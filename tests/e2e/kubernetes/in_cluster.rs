//! convey in a pod: it has the service account that the kubelet mounts, and no kubeconfig.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Setup, TestAuthority, binary, wait_for};

use super::fake_api::Condition::Ready;
use super::fake_api::{FakeApi, TOKEN, endpoint};
use super::wait_for_servers;

/// The token after [`TOKEN`].
const ROTATED: &str = "the-token-that-the-kubelet-has-put-in-its-place";

pub(super) fn a_pod_follows_by_its_service_account_and_reads_a_rotated_token() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("cluster");
    let api = FakeApi::start_with(&lab, &authority.issue(&[&lab.ip(90).to_string()]));
    let account = ServiceAccount::mount(&lab, &authority);
    api.apply("web-1", &[endpoint("web-a", lab.server(1), Ready)]);
    let text = "[backends.pool.kubernetes]\nservice = \"shop/web\"\nport = \"http\"\n\
                [dns]\nallow_local = true\n[privileges]\nlandlock = true\n";
    let balancer = BalancerProcess::start_with(&lab, &Setup::new(&lab).and(text), account.convey(api.addr()));
    wait_for_servers(&balancer, ["web-a"]);
    wait_for("the watch", || (api.watches() == 1).then_some(()));

    account.rotate(ROTATED);
    api.accept_only(ROTATED);
    // An open watch goes on. The next one uses the old token for up to a minute, and is refused.
    api.apply("web-2", &[endpoint("web-b", lab.server(2), Ready)]);
    wait_for_servers(&balancer, ["web-a", "web-b"]);
    api.end_watches_in_order();
    wait_for("a watch with the new token", || (api.watches() == 2).then_some(()));
    api.apply("web-3", &[endpoint("web-c", lab.server(3), Ready)]);
    wait_for_servers(&balancer, ["web-a", "web-b", "web-c"]);
    api.annotate(&[("convey.dev/weight", "3")]);
    balancer.wait_for_stat("/backends/pool/servers/web-a/weight", 3);
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
}

/// Files of a service account, which a kubelet replaces all at once: each is a link into the folder
/// that `..data` points to.
struct ServiceAccount {
    folder: PathBuf,
    authority: String,
}

impl ServiceAccount {
    fn mount(lab: &Loopback, authority: &TestAuthority) -> ServiceAccount {
        let folder = lab.directory().join("serviceaccount");
        fs::create_dir(&folder).unwrap();
        for file in ["token", "ca.crt", "namespace"] {
            symlink(format!("..data/{file}"), folder.join(file)).unwrap();
        }
        let account = ServiceAccount { folder, authority: authority.pem().to_owned() };
        account.rotate(TOKEN);
        account
    }

    fn rotate(&self, token: &str) {
        let name = format!("..{token}");
        let version = self.folder.join(&name);
        fs::create_dir(&version).unwrap();
        let files = [("token", token), ("ca.crt", &self.authority), ("namespace", "shop")];
        files.iter().for_each(|(file, text)| fs::write(version.join(file), text).unwrap());
        let next = self.folder.join("..data_tmp");
        symlink(name, &next).unwrap();
        fs::rename(next, self.folder.join("..data")).unwrap();
    }

    /// A convey that sees the files where a pod does, unlike any other process.
    fn convey(&self, api: SocketAddr) -> Command {
        let script = "mount -t tmpfs none /var/run && mkdir -p \"$MOUNT\" && mount --bind \"$ACCOUNT\" \"$MOUNT\" \
                      && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", script]).arg(binary().get_program());
        command.env("MOUNT", "/var/run/secrets/kubernetes.io/serviceaccount").env("ACCOUNT", &self.folder);
        command.env("KUBERNETES_SERVICE_HOST", api.ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", api.port().to_string());
        command
    }
}
