//! etcd is down, and clients do not notice.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, TcpServer, fetch, run, wait_for};

use super::server::Etcd;
use super::{start, state, wait_for_server, with_server};

pub(super) fn etcd_outage_changes_nothing_and_later_changes_arrive() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let mut etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    let balancer = start(&lab, &etcd);
    balancer.wait_for_stat("/etcd/connected", true);
    let kept = files_below(&state(&lab));
    assert!(!kept.is_empty());

    let is_over = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut served = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
                served += 1;
            }
            served
        });
        etcd.kill();
        balancer.wait_for_stat("/etcd/connected", false);
        let since = balancer.stat("/etcd/since");
        // More than one attempt has failed by then.
        wait_for("etcd to be gone for a while", || is_older_than_5_seconds(&balancer).then_some(()));
        assert_eq!(balancer.stat("/etcd/since"), since, "an attempt that fails is no news");
        let status = run(balancer.command().arg("status")).stdout;
        let line = format!("etcd cannot be reached (since {}, ", since.as_str().unwrap());
        assert!(status.contains(&line), "{status}");
        assert_eq!(balancer.log().matches("cannot watch etcd").count(), 1, "{}", balancer.log());
        assert_eq!(balancer.stat("/config/reload_failures"), 0);
        assert_eq!(files_below(&state(&lab)), kept, "the last good revision stays as it is");
        is_over.store(true, Ordering::Relaxed);
        clients.join().unwrap()
    });
    assert!(served > 0);

    etcd.come_back();
    balancer.wait_for_stat("/etcd/connected", true);
    balancer.wait_for_log("watching etcd");
    assert!(!run(balancer.command().arg("status")).stdout.contains("cannot be reached"));
    etcd.put("config.toml", &with_server(&lab, 2));
    wait_for_server(&lab, "b");
}

fn is_older_than_5_seconds(balancer: &BalancerProcess) -> bool {
    let status = run(balancer.command().arg("status")).stdout;
    let line = status.lines().find(|line| line.contains("cannot be reached")).unwrap_or_default();
    (5..60).any(|seconds| line.contains(&format!(", {seconds}s ago")))
}

/// All files, each with its inode and its contents.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = path.symlink_metadata().unwrap();
        if found.is_dir() {
            files.extend(files_below(&path));
        } else {
            let content = if found.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            files.insert(path, (found.ino(), content));
        }
    }
    files
}
