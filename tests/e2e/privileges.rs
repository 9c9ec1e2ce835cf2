//! Privileges that convey drops at its start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, binary, fetch, run, tests, wait_for,
};

tests!("privileges":
    a_process_keeps_what_it_needs_and_no_more [LANDLOCK],
    each_of_it_has_a_switch [LANDLOCK],
    root_becomes_the_user_that_the_file_names_and_serves_on_reloads [Need::Other(not_root)],
    root_keeps_what_its_modes_need_and_worker_threads_keep_nothing [Need::Other(not_root)],
    a_user_that_does_not_exist_is_an_error,
    check_reports_a_missing_user_and_unreadable_files [Need::Other(not_root)],
    check_finds_that_it_may_not_become_the_user [Need::Other(not_root), SETPRIV],
);

const LANDLOCK: Need = Need::Kernel(5, 13, "Landlock");

const SETPRIV: Need = Need::Tool("setpriv", "util-linux");

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

/// A line of `/proc/PID/status` of the balancer.
fn status(balancer: &BalancerProcess, name: &str) -> String {
    let status = fs::read_to_string(balancer.proc("status")).unwrap();
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

fn a_process_keeps_what_it_needs_and_no_more() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and("[privileges]\nlandlock = true\n");
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    assert_eq!((status(&balancer, "NoNewPrivs").as_str(), status(&balancer, "Seccomp").as_str()), ("1", "2"));
    let log = balancer.wait_for_log("privileges: ");
    assert!(log.contains("no new privileges, Landlock, seccomp"), "{log}");
    // The log thread may write in the log's folder, and nowhere else.
    let elsewhere = Loopback::new();
    balancer.save(
        &setup.clone().and(&format!("[log]\noutput = \"{}\"\n", elsewhere.directory().join("log").display())),
    );
    let log = balancer.wait_for_log("cannot log to");
    assert!(
        log.contains("Permission denied (os error 13); with Landlock, a reload can move the log only to"),
        "{log}"
    );
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
}

fn each_of_it_has_a_switch() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    for (lines, no_new, seccomp, message) in [
        ("no_new_privileges = false", "0", "0", None),
        ("seccomp = false", "1", "0", Some("no new privileges\n")),
        ("landlock = true", "1", "2", Some("no new privileges, Landlock, seccomp\n")),
    ] {
        let balancer = BalancerProcess::start(&lab, &setup.clone().and(&format!("[privileges]\n{lines}\n")));
        let found = (status(&balancer, "NoNewPrivs"), status(&balancer, "Seccomp"));
        assert_eq!((found.0.as_str(), found.1.as_str()), (no_new, seccomp), "{lines}");
        match message {
            Some(message) => wait_for(&format!("{message:?} with {lines}"), || {
                balancer.log().contains(message).then_some(())
            }),
            None => assert!(!balancer.log().contains("no new privileges"), "{lines}"),
        }
    }
}

fn root_keeps_what_its_modes_need_and_worker_threads_keep_nothing() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    let set = |name: &str| u64::from_str_radix(&status(&balancer, name), 16).unwrap();
    // CAP_DAC_OVERRIDE, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_RESOURCE.
    let kept = (1 << 1) | (1 << 10) | (1 << 12) | (1 << 24);
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(set(name) & !kept, 0, "{name}");
    }
    assert_ne!(set("CapEff") & (1 << 10), 0, "a reload may bind a port below 1024");
    let workers: Vec<String> = fs::read_dir(balancer.proc("task"))
        .unwrap()
        .map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap())
        .filter(|status| status.starts_with("Name:\tproxy-"))
        .collect();
    assert!(!workers.is_empty());
    for worker in workers {
        // CAP_SYS_RESOURCE, for its pipes, and nothing else.
        let effective = worker.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        assert_eq!(u64::from_str_radix(effective, 16).unwrap() & !(1 << 24), 0, "{worker}");
    }
    assert!(balancer.log().contains("privileges: CAP_"), "{}", balancer.log());

    drop(balancer);
    let all = setup.and("[privileges]\ndrop_capabilities = false\n");
    let balancer = BalancerProcess::start(&lab, &all);
    assert_eq!(status(&balancer, "CapEff"), own_status("CapEff"));
}

/// A line of `/proc/self/status` of this process.
fn own_status(name: &str) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

fn root_becomes_the_user_that_the_file_names_and_serves_on_reloads() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let user = "[privileges]\nuser = \"nobody\"\n";
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), "").and(user));
    assert_eq!(fetch(lab.vip(), "/").unwrap().1, "a");
    let threads = fs::read_dir(balancer.proc("task")).unwrap();
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        // CAP_NET_BIND_SERVICE, to bind ports; workers bind none.
        let kept = if status.starts_with("Name:\tproxy-") { 0 } else { 0x400 };
        let capabilities = format!("CapEff:\t{kept:016x}\n");
        assert!(status.contains(&capabilities) && !status.contains("Uid:\t0\t"), "{status}");
    }
    // A port below 1024, which the start did not bind.
    let low = (lab.ip(1), 80).into();
    let setup = Setup::new(&lab).listen(&[lab.vip(), low]).server("b", lab.server(2), "").and(user);
    balancer.save(&setup);
    wait_for("the new port", || (fetch(low, "/").ok()?.1 == "b").then_some(()));
}

fn a_user_that_does_not_exist_is_an_error() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and("[privileges]\nuser = \"who-is-this\"\n");
    let path = lab.directory().join("config.toml");
    fs::write(&path, setup.to_string()).unwrap();
    let ran = run(binary().arg("--config").arg(&path));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.starts_with("convey: there is no user who-is-this (privileges.user)"),
        "{}",
        ran.stderr
    );
}

fn check_reports_a_missing_user_and_unreadable_files() {
    let lab = Loopback::new();
    let path = lab.directory().join("config.toml");
    let save = |user: &str, mode| {
        let setup = Setup::new(&lab).server("a", lab.server(1), "");
        fs::write(&path, setup.and(&format!("[privileges]\nuser = {user:?}\n")).to_string()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    let check = || run(binary().arg("check").arg("--config").arg(&path));
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();

    save("who-is-this", 0o644);
    let checked = check();
    let message = "error: there is no user who-is-this (privileges.user)";
    assert!(checked.code == Some(1) && checked.stderr.contains(message), "{checked:?}");

    save("nobody", 0o600);
    let checked = check();
    let message = "error: convey cannot read its configuration as user nobody: ";
    assert!(checked.code == Some(1) && checked.stderr.contains(message), "{checked:?}");
    assert!(checked.stderr.contains("Permission denied"), "{checked:?}");
    // A start reports the same error.
    let started = run(binary().arg("--config").arg(&path));
    assert_eq!(started.code, Some(1), "{started:?}");

    save("nobody", 0o644);
    let checked = check();
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

fn check_finds_that_it_may_not_become_the_user() {
    let lab = Loopback::new();
    let path = lab.directory().join("config.toml");
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and("[privileges]\nuser = \"nobody\"\n");
    fs::write(&path, setup.to_string()).unwrap();
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
    let program = binary().get_program().to_owned();
    for command in [&["check"][..], &[]] {
        let mut without = Command::new("setpriv");
        without.args(["--bounding-set", "-setuid", "--inh-caps", "-setuid"]).arg(&program);
        let ran = run(without.args(command).arg("--config").arg(&path));
        let message =
            "cannot switch to the user nobody (privileges.user): cannot set the user ID (CAP_SETUID)";
        assert!(ran.code == Some(1) && ran.stderr.contains(message), "{ran:?}");
    }
}
