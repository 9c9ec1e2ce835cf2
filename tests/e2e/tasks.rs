//! Tasks (threads): a process that can start no more goes on, and a start without them fails with
//! an error message.

use std::fs;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TcpServer, binary, copy_program, run, tests};

use crate::http::client::Client;

tests!("tasks":
    files_are_served_where_no_more_tasks_can_be_made [Need::PRLIMIT, SETPRIV, Need::Other(not_root)],
    check_and_start_name_the_tasks_that_are_missing [Need::PRLIMIT, SETPRIV, Need::Other(not_root)],
);

const SETPRIV: Need = Need::Tool("setpriv", "util-linux");

/// An otherwise unused user, so that only the test's tasks count.
const USER: &str = "41041";

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can become another user".to_owned())
}

fn files_are_served_where_no_more_tasks_can_be_made() {
    let lab = Loopback::new();
    let www = lab.directory().join("www");
    fs::create_dir(&www).unwrap();
    fs::write(www.join("a"), "whole").unwrap();
    let setup = format!(
        "[frontends.web]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n\
         [backends.pool]\nfiles = \"{}\"\n[stats]\nlisten_addr = \"{}\"\nport = {}\n[privileges]\nuser = \"nobody\"\n",
        lab.vip(),
        www.display(),
        lab.stats().ip(),
        lab.stats().port()
    );
    let balancer = BalancerProcess::start(&lab, &setup);
    let status = fs::read_to_string(balancer.proc("status")).unwrap();
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let mut limit = std::process::Command::new("setpriv");
    limit.args(["--reuid", &value("Uid:"), "--regid", &value("Gid:"), "--clear-groups"]);
    let limited = run(limit.args(["prlimit", "--pid", &value("Pid:"), "--nproc=1:1"]));
    assert_eq!(limited.code, Some(0), "{limited:?}");
    let mut client = Client::new(lab.vip());
    // The kernel has no cached entry for names that were never looked up: it has to wait for the
    // disk.
    for n in 0..20 {
        assert_eq!(client.get("a", &format!("/missing-{n}")).status, 404);
    }
    assert_eq!(client.get("a", "/a").body, "whole");
}

fn check_and_start_name_the_tasks_that_are_missing() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let file = lab.directory().join("config.toml");
    fs::write(&file, setup.to_string()).unwrap();
    fs::set_permissions(lab.directory(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = lab.directory().join("convey");
    copy_program(binary().get_program(), &program);
    for command in [&["check"][..], &[]] {
        let mut limited = std::process::Command::new("prlimit");
        limited.args(["--nproc=2", "setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]);
        limited.arg(&program).args(command).arg("--config").arg(&file);
        let ran = run(limited.env("CONVEY_SOCKET", "").env_remove("RUST_LOG"));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let output = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!output.contains("panicked"), "{output}");
        if command == ["check"] {
            assert!(
                output.contains("tasks (threads), but the limit here is 2 (RLIMIT_NPROC is 2)"),
                "{output}"
            );
        }
    }
}
