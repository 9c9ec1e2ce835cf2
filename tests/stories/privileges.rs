//! What convey gives up at its start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use convey_testkit::{Balancer, Loopback, Need, Server, Setup, ask, binary, run, stories, wait_for};

stories!("privileges":
    a_process_keeps_what_it_needs_and_no_more [LANDLOCK],
    each_of_it_has_a_switch [LANDLOCK],
    root_becomes_the_user_that_the_file_names_and_serves_on_reloads [Need::Other(not_root)],
    a_user_that_does_not_exist_is_an_error,
);

const LANDLOCK: Need = Need::Kernel(5, 13, "Landlock");

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

/// What `/proc/PID/status` says of it.
fn status(balancer: &Balancer, name: &str) -> String {
    let status = fs::read_to_string(balancer.proc("status")).unwrap();
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

fn a_process_keeps_what_it_needs_and_no_more() {
    let lab = Loopback::new();
    let _server = Server::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and("[privileges]\nlandlock = true\n");
    let balancer = Balancer::start(&lab, &setup);
    assert_eq!(ask(lab.vip(), "/").unwrap().1, "a");
    assert_eq!((status(&balancer, "NoNewPrivs").as_str(), status(&balancer, "Seccomp").as_str()), ("1", "2"));
    let log = balancer.wait_for_log("privileges: ");
    assert!(log.contains("no new privileges, Landlock, seccomp"), "{log}");
    // Its thread for the log may write where the log is, and nowhere else.
    let elsewhere = Loopback::new();
    balancer.save(
        &setup.clone().and(&format!("[log]\noutput = \"{}\"\n", elsewhere.directory().join("log").display())),
    );
    let log = balancer.wait_for_log("cannot log to");
    assert!(log.contains("Permission denied (os error 13); Landlock lets convey log to"), "{log}");
    assert_eq!(ask(lab.vip(), "/").unwrap().1, "a");
}

fn each_of_it_has_a_switch() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    for (lines, no_new, seccomp, told) in [
        ("no_new_privileges = false", "0", "0", None),
        ("seccomp = false", "1", "0", Some("privileges: no new privileges\n")),
        ("landlock = true", "1", "2", Some("privileges: no new privileges, Landlock, seccomp\n")),
    ] {
        let balancer = Balancer::start(&lab, &setup.clone().and(&format!("[privileges]\n{lines}\n")));
        let found = (status(&balancer, "NoNewPrivs"), status(&balancer, "Seccomp"));
        assert_eq!((found.0.as_str(), found.1.as_str()), (no_new, seccomp), "{lines}");
        let log = balancer.log();
        assert!(told.map_or(!log.contains("privileges: "), |told| log.contains(told)), "{lines}: {log}");
    }
}

fn root_becomes_the_user_that_the_file_names_and_serves_on_reloads() {
    let lab = Loopback::new();
    let _servers = [Server::named("a", lab.server(1)), Server::named("b", lab.server(2))];
    let user = "[privileges]\nuser = \"nobody\"\n";
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
    let balancer = Balancer::start(&lab, &Setup::new(&lab).server("a", lab.server(1), "").and(user));
    assert_eq!(ask(lab.vip(), "/").unwrap().1, "a");
    let threads = fs::read_dir(balancer.proc("task")).unwrap();
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        // CAP_NET_BIND_SERVICE.
        assert!(status.contains("CapEff:\t0000000000000400\n") && !status.contains("Uid:\t0\t"), "{status}");
    }
    // A port below 1024, which the start did not bind.
    let low = (lab.ip(1), 80).into();
    let setup = Setup::new(&lab).listen(&[lab.vip(), low]).server("b", lab.server(2), "").and(user);
    balancer.save(&setup);
    wait_for("the new port", || (ask(low, "/").ok()?.1 == "b").then_some(()));
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
