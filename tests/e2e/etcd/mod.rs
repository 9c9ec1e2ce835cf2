//! A configuration for many nodes, in a real etcd.

mod fleet;
mod outage;
mod server;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, TestAuthority, binary, binary_of_upgrade,
    copy_program, fetch, run, tests, wait_for,
};
use rustix::process::{Pid, Signal, kill_process};

use self::fleet::{UNSHARE, configuration_change_reaches_all_nodes_and_a_bad_one_none};
use self::outage::etcd_outage_changes_nothing_and_later_changes_arrive;
pub(crate) use self::server::Etcd;
use self::server::PREFIX;
use crate::upgrade::replace_by_one_that_waits;

tests!("etcd":
    a_change_is_in_force_and_a_bad_one_changes_nothing [Need::ETCD, Need::ETCDCTL],
    configuration_change_reaches_all_nodes_and_a_bad_one_none
        [Need::ETCD, Need::ETCDCTL, UNSHARE, Need::Other(not_root)],
    etcd_outage_changes_nothing_and_later_changes_arrive [Need::ETCD, Need::ETCDCTL],
    files_that_change_together_are_one_revision [Need::ETCD, Need::ETCDCTL, Need::CURL],
    without_etcd_nothing_happens_and_a_start_has_the_last_good_revision [Need::ETCD, Need::ETCDCTL],
    a_start_with_a_bad_revision_has_the_last_good_one [Need::ETCD, Need::ETCDCTL],
    failed_start_is_followed_by_one_with_the_last_good_revision [Need::ETCD, Need::ETCDCTL],
    an_upgrade_goes_on_following [Need::ETCD, Need::ETCDCTL],
    revision_that_comes_during_a_failed_upgrade_is_in_force_after_it [Need::ETCD, Need::ETCDCTL],
    a_member_that_hangs_is_passed_over_by_a_user_too [Need::ETCD, Need::ETCDCTL],
    etcd_may_want_tls_and_a_user [Need::ETCD, Need::ETCDCTL],
    a_node_is_followed_while_changes_come_and_tokens_expire [Need::ETCD, Need::ETCDCTL, Need::OPENSSL],
    a_confined_user_follows [Need::ETCD, Need::ETCDCTL, Need::Other(not_root)],
    a_revision_is_checked_before_anything_starts [Need::ETCD, Need::ETCDCTL],
    unreachable_etcd_is_reported_at_the_start,
);

fn not_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "takes root".to_owned())
}

/// A proxy with this server for its clients.
fn with_server(lab: &Loopback, server: u8) -> String {
    Setup::new(lab).server("one", lab.server(server), "").to_string()
}

fn state(lab: &Loopback) -> PathBuf {
    lab.directory().join("state")
}

fn command(etcd: &str, state: &Path) -> Command {
    let mut command = binary();
    command.args(["--config", etcd, "--state-dir"]).arg(state);
    command
}

fn start(lab: &Loopback, etcd: &Etcd) -> BalancerProcess {
    BalancerProcess::start_with(lab, &"", command(&etcd.address(), &state(lab)))
}

/// The server that a client gets.
fn server_of(lab: &Loopback) -> String {
    fetch(lab.vip(), "/").map(|(_, name)| name).unwrap_or_default()
}

fn wait_for_server(lab: &Loopback, name: &str) {
    wait_for(&format!("clients to get {name}"), || (server_of(lab) == name).then_some(()));
}

fn wait_for_status(etcd: &Etcd, is_accepted: bool) -> serde_json::Value {
    wait_for("the node to say what it thinks of the revision", || {
        let status = etcd.status();
        (status["accepted"] == is_accepted).then_some(status)
    })
}

fn a_change_is_in_force_and_a_bad_one_changes_nothing() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    let put = |server| etcd.put("config.toml", &with_server(&lab, server));
    put(1);
    let balancer = start(&lab, &etcd);
    wait_for_server(&lab, "a");
    balancer.wait_for_stat("/etcd/connected", true);
    let before = wait_for_status(&etcd, true);

    put(2);
    wait_for_server(&lab, "b");
    let after = wait_for("the node to say so", || {
        Some(etcd.status()).filter(|status| status["in_force"] != before["in_force"])
    });
    assert!(after["accepted"] == true && after["in_force"] == after["revision"], "{after}");

    etcd.put("config.toml", &format!("{}[stat]\nport = 1\n", with_server(&lab, 1)));
    let line = balancer.wait_for_log("is refused, so convey keeps its configuration");
    assert!(line.contains("stat: unknown key"), "{line}");
    let refused = wait_for_status(&etcd, false);
    assert_eq!(refused["in_force"], after["in_force"]);
    let problem = refused["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("config.toml:") && problem.contains("did you mean `stats`"), "{refused}");
    assert_eq!(
        (server_of(&lab), balancer.stat("/etcd/refused_revision")),
        ("b".to_owned(), refused["revision"].clone())
    );
    let status = run(balancer.command().arg("status")).stdout;
    assert!(
        status.contains("is refused:") && status.contains(&format!("of etcd://{}", &etcd.address()[7..])),
        "{status}"
    );

    // convey retries the same files in a new revision: the cause of the refusal may have been
    // outside of them.
    etcd.put("config.toml", &format!("{}[stat]\nport = 1\n", with_server(&lab, 1)));
    wait_for("the new revision to be refused", || {
        (etcd.status()["revision"].as_i64() > refused["revision"].as_i64()).then_some(())
    });
    assert!(!balancer.log().contains("no effective changes"), "{}", balancer.log());
    // Changes of other keys make no revision, and writing the same files again makes one.
    let is_named = |text: &str| {
        let ran = run(etcd.control().args(["put", "/other", "--", "x"]));
        assert!(ran.code == Some(0), "{ran:?}");
        etcd.put("config.toml", text);
        let revision = etcd.revision("config.toml");
        wait_for("the node to name the newest revision", || {
            let status = etcd.status();
            (status["in_force"] == revision && status["accepted"] == true).then_some(())
        });
    };
    is_named(&with_server(&lab, 2));
    is_named(&with_server(&lab, 2));

    etcd.delete("config.toml");
    wait_for("a configuration that is gone to be refused", || {
        etcd.status().to_string().contains("there is no key").then_some(())
    });
    put(1);
    wait_for_server(&lab, "a");
    wait_for_status(&etcd, true);
}

fn files_that_change_together_are_one_revision() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    let whole = with_server(&lab, 1);
    let (main, pool) = whole.split_at(whole.find("[backends").unwrap());
    let main = format!("include = \"pools/*.toml\"\n{main}");
    etcd.put_all(&[("config.toml", &main), ("pools/one.toml", pool)]);
    let balancer = start(&lab, &etcd);
    wait_for_server(&lab, "a");
    // Either change alone would be refused: a name twice, a name that is nowhere.
    let (main, pool) =
        (main.replace("\"pool\"", "\"other\""), pool.replace("backends.pool", "backends.other"));
    let pool = pool.replace(&lab.server(1).to_string(), &lab.server(2).to_string());
    etcd.put_all(&[("config.toml", &main), ("pools/one.toml", &pool)]);
    wait_for_server(&lab, "b");
    assert_eq!(balancer.stat("/config/reload_failures"), 0);
}

fn without_etcd_nothing_happens_and_a_start_has_the_last_good_revision() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let mut etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    let mut balancer = start(&lab, &etcd);
    wait_for_server(&lab, "a");
    balancer.wait_for_stat("/etcd/connected", true);
    etcd.kill();
    balancer.wait_for_stat("/etcd/connected", false);
    assert_eq!(server_of(&lab), "a");
    let readiness = balancer.page("/readyz");
    assert_eq!(readiness.0, 200, "{readiness:?}");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);

    let balancer = start(&lab, &etcd);
    balancer.wait_for_log("the saved revision");
    wait_for_server(&lab, "a");
    etcd.come_back();
    balancer.wait_for_stat("/etcd/connected", true);
    etcd.put("config.toml", &with_server(&lab, 2));
    wait_for_server(&lab, "b");
}

/// etcd, and a convey that has accepted a configuration with server `a` from it.
fn in_force(lab: &Loopback) -> (Etcd, BalancerProcess) {
    let etcd = Etcd::start(lab);
    etcd.put("config.toml", &with_server(lab, 1));
    let balancer = start(lab, &etcd);
    wait_for_status(&etcd, true);
    (etcd, balancer)
}

fn stop(mut balancer: BalancerProcess) {
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
}

fn a_start_with_a_bad_revision_has_the_last_good_one() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let (etcd, balancer) = in_force(&lab);
    stop(balancer);
    etcd.put("config.toml", "nonsense");
    let balancer = start(&lab, &etcd);
    let line = balancer.wait_for_log("is refused,");
    assert!(line.contains("so convey uses revision"), "{line}");
    wait_for_server(&lab, "a");
    wait_for_status(&etcd, false);
    etcd.put("config.toml", &with_server(&lab, 2));
    wait_for_server(&lab, "b");
}

fn failed_start_is_followed_by_one_with_the_last_good_revision() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let (etcd, balancer) = in_force(&lab);
    let taken = TcpListener::bind(lab.server(9)).unwrap();
    let more = format!(
        "[frontends.more]\nmode = \"proxy\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n",
        lab.server(9)
    );
    etcd.put("config.toml", &format!("{}{more}", with_server(&lab, 2)));
    wait_for_status(&etcd, false);
    assert_eq!(server_of(&lab), "a");
    stop(balancer);

    // A reload may refuse a configuration that a restart accepts, so convey tries it once.
    let failed = run(&mut command(&etcd.address(), &state(&lab)));
    assert!(failed.code == Some(1) && failed.stderr.contains("in use"), "{failed:?}");
    let balancer = start(&lab, &etcd);
    balancer.wait_for_log(" failed, so convey uses revision ");
    wait_for_server(&lab, "a");
    drop(taken);
    etcd.put("config.toml", &format!("{}{more}", with_server(&lab, 2)));
    wait_for_server(&lab, "b");
}

fn an_upgrade_goes_on_following() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    let mut balancer = start(&lab, &etcd);
    wait_for_server(&lab, "a");
    balancer.signal(Signal::USR2);
    balancer.wait_for_log("serves from now on");
    etcd.put("config.toml", &with_server(&lab, 2));
    wait_for_server(&lab, "b");
    // The previous process no longer watches etcd.
    let reloads = balancer.log().matches("reload requested by revision").count();
    assert_eq!(reloads, 1, "{}", balancer.log());
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
}

fn revision_that_comes_during_a_failed_upgrade_is_in_force_after_it() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    let program = lab.directory().join("convey");
    copy_program(binary_of_upgrade(0), &program);
    let mut command = Command::new(&program);
    command.args(["--config", &etcd.address(), "--state-dir"]).arg(state(&lab));
    let balancer = BalancerProcess::start_with(&lab, &"", command);
    wait_for_server(&lab, "a");
    let offered = replace_by_one_that_waits(&lab, &program);
    balancer.signal(Signal::USR2);
    let new = wait_for("the new process to have the state", || {
        Pid::from_raw(fs::read_to_string(&offered).ok()?.strip_suffix('\n')?.parse().ok()?)
    });
    etcd.put("config.toml", &with_server(&lab, 2));
    balancer.wait_for_log("is postponed until the current upgrade of convey has ended");
    assert_eq!(server_of(&lab), "a");
    kill_process(new, Signal::KILL).unwrap();
    wait_for_server(&lab, "b");
    wait_for_status(&etcd, true);
}

fn etcd_may_want_tls_and_a_user() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let authority = TestAuthority::new("The authority of etcd");
    authority.issue(&[&lab.ip(5).to_string()]).save(lab.directory(), "own");
    let files =
        [authority.save(lab.directory()), lab.directory().join("own.pem"), lab.directory().join("own.key")];
    let etcd = Etcd::start_with(&lab, Some(files));
    etcd.put("config.toml", &with_server(&lab, 1));
    want_a_user(&etcd);
    let refused = run(command(&etcd.address_of("edge"), &state(&lab)).env("CONVEY_ETCD_PASSWORD", "wrong"));
    assert!(refused.code == Some(1) && refused.stderr.contains("authentication failed"), "{refused:?}");
    let mut command = command(&etcd.address_of("edge"), &state(&lab));
    command.env("CONVEY_ETCD_PASSWORD", "secret");
    let balancer = BalancerProcess::start_with(&lab, &"", command);
    wait_for_server(&lab, "a");
    // The user may read the configuration, and nothing else.
    balancer.wait_for_log(&format!("{PREFIX}-status/"));
    put_as_root(&etcd, &with_server(&lab, 2));
    wait_for_server(&lab, "b");
    assert!(!balancer.log().contains("secret"));
}

/// Enables authentication in etcd. User `edge` may read the configuration, and nothing else.
fn want_a_user(etcd: &Etcd) {
    for line in [
        "user add root:root",
        "user add edge:secret",
        "role add reader",
        "role grant-permission reader read --prefix=true /convey/edge/",
        "user grant-role root root",
        "user grant-role edge reader",
        "auth enable",
    ] {
        let ran = run(etcd.control().args(line.split(' ')));
        assert!(ran.code == Some(0), "{line}: {ran:?}");
    }
}

fn put_as_root(etcd: &Etcd, text: &str) {
    put_file_as_root(etcd, "config.toml", text);
}

fn put_file_as_root(etcd: &Etcd, file: &str, text: &str) {
    let ran = run(etcd.as_root().args(["put", &format!("{PREFIX}/{file}"), "--", text]));
    assert!(ran.code == Some(0), "{ran:?}");
}

fn a_member_that_hangs_is_passed_over_by_a_user_too() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    want_a_user(&etcd);
    // The kernel accepts connections for this listener, which never answers.
    let hung = TcpListener::bind(lab.server(9)).unwrap();
    let members = format!("://{},", hung.local_addr().unwrap());
    let address = etcd.address().replacen("://", &members, 1).replacen("://", "://edge@", 1);
    let command = || {
        let mut command = command(&address, &state(&lab));
        command.env("CONVEY_ETCD_PASSWORD", "secret");
        command
    };
    let checked = run(command().args(["check", "--syntax"]));
    assert!(checked.code == Some(0), "{checked:?}");
    let balancer = BalancerProcess::start_with(&lab, &"", command());
    wait_for_server(&lab, "a");
    balancer.wait_for_stat("/etcd/connected", true);
    put_as_root(&etcd, &with_server(&lab, 2));
    wait_for_server(&lab, "b");
    assert!(!balancer.log().contains("cannot watch etcd"), "{}", balancer.log());
}

fn a_node_is_followed_while_changes_come_and_tokens_expire() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let etcd = Etcd::start_with_tokens_of(&lab, 5);
    etcd.put("config.toml", &with_server(&lab, 1));
    want_a_user(&etcd);
    for role in ["readwrite --prefix=true /convey/edge-status/", "readwrite --prefix=true /convey/edge/"] {
        let ran = run(etcd.as_root().args(format!("role grant-permission reader {role}").split(' ')));
        assert!(ran.code == Some(0), "{ran:?}");
    }
    let mut command = command(&etcd.address_of("edge"), &state(&lab));
    command.env("CONVEY_ETCD_PASSWORD", "secret");
    let balancer = BalancerProcess::start_with(&lab, &"", command);
    wait_for_server(&lab, "a");
    // Longer than the node's lease without renewal, and than a token's lifetime.
    let mut lease_left = i64::MAX;
    for n in 0..6 {
        put_file_as_root(&etcd, "note", &n.to_string());
        std::thread::sleep(Duration::from_secs(3));
        lease_left = etcd.status_lease_left();
    }
    assert!(lease_left > 45, "{lease_left} s are left");
    let log = balancer.log();
    assert!(!log.contains("cannot watch etcd") && !log.contains("cannot write the status"), "{log}");
}

fn a_confined_user_follows() {
    let lab = Loopback::new();
    let _servers = [TcpServer::named("a", lab.server(1)), TcpServer::named("b", lab.server(2))];
    let etcd = Etcd::start(&lab);
    let privileges = "[privileges]\nuser = \"nobody\"\nlandlock = true\n";
    etcd.put("config.toml", &format!("{privileges}{}", with_server(&lab, 1)));
    run(Command::new("chmod").arg("a+rx").arg(lab.directory()));
    let checked = run(command(&etcd.address(), &state(&lab)).arg("check"));
    assert!(checked.code == Some(0), "{checked:?}");
    let balancer = start(&lab, &etcd);
    wait_for_server(&lab, "a");
    etcd.put("config.toml", &format!("{privileges}{}", with_server(&lab, 2)));
    wait_for_server(&lab, "b");
    assert_eq!(balancer.stat("/etcd/connected"), true);
}

fn a_revision_is_checked_before_anything_starts() {
    let lab = Loopback::new();
    let etcd = Etcd::start(&lab);
    etcd.put("config.toml", &with_server(&lab, 1));
    let good = run(command(&etcd.address(), &state(&lab)).args(["check", "--syntax"]));
    let home = format!("{}/config.toml is valid", etcd.address());
    assert!(good.code == Some(0) && good.stdout.contains(&home), "{good:?}");
    etcd.put("config.toml", &format!("include = \"more.toml\"\n{}", with_server(&lab, 1)));
    let missing = run(command(&etcd.address(), &state(&lab)).args(["check", "--syntax"]));
    let named = format!("cannot read {}/more.toml", etcd.address());
    assert!(missing.code == Some(1) && missing.stderr.contains(&named), "{missing:?}");
    etcd.put("config.toml", "[frontends.web]\nlisten_adr = \"1\"\n");
    let bad = run(command(&etcd.address(), &state(&lab)).arg("check"));
    assert!(bad.code == Some(1) && bad.stderr.contains("error: config.toml:2:1: frontends.web"), "{bad:?}");
    assert!(!state(&lab).exists(), "looking changes nothing");
}

fn unreachable_etcd_is_reported_at_the_start() {
    let lab = Loopback::new();
    let nobody = format!("etcd://{}{PREFIX}", lab.server(9));
    let ran = run(&mut command(&nobody, &state(&lab)));
    let output = ran.stderr;
    assert!(
        ran.code == Some(1)
            && output.contains("cannot read etcd://")
            && output.contains("Connection refused"),
        "{output}"
    );
    let checked = run(command(&nobody, &state(&lab)).arg("check")).stderr;
    assert!(checked.contains("Connection refused") && !checked.contains("of before"), "{checked}");
    let ran = run(binary().args(["--config", "etcd://10.0.0.1:2379"]));
    assert!(ran.stderr.contains("expected an address such as etcd://HOST:2379/PREFIX"), "{ran:?}");
}
