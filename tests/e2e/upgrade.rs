//! Upgrades: another process replaces the running one, and no client notices.

mod processes;
mod stops;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Process, Setup, SlowReader, TcpServer, UdpClient, UdpServer, binary,
    check_to_end, connect, connect_from, fetch, ping, run, send, tests, wait_for, was_reset,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use self::processes::{ROLE, receive_message, send_message};
pub(crate) use self::processes::{Upgraded, another_version, replace_by_one_that_waits};
use self::stops::{
    a_process_that_stops_lets_the_next_one_have_its_statistics, new_process_serves_even_if_the_old_one_dies,
    old_process_drains_connections_when_it_is_stopped, old_process_ends_at_once_if_interrupted_twice,
    stop_after_the_new_process_may_serve_ends_both,
};

tests!("upgrade":
    ten_upgrades_under_load_fail_no_request_and_end_no_connection,
    a_download_of_a_gibibyte_lives_through_ten_upgrades [Need::Long],
    runtime_overrides_survive_an_upgrade,
    a_udp_session_keeps_its_server_and_its_port_through_upgrades,
    a_signal_upgrades_and_what_was_known_of_servers_goes_along,
    a_new_version_that_cannot_start_leaves_the_old_one_serving,
    upgrade_in_progress_tolerates_stop_reload_and_another_upgrade,
    stop_after_the_new_process_may_serve_ends_both,
    a_new_version_that_hangs_is_given_up [Need::Long],
    versions_that_do_not_understand_each_other_refuse_with_a_reason,
    client_denied_after_an_upgrade_is_reset_by_the_old_process,
    new_process_serves_even_if_the_old_one_dies,
    old_process_drains_connections_when_it_is_stopped,
    old_process_ends_at_once_if_interrupted_twice,
    an_upgrade_takes_up_what_only_a_restart_could,
    control_socket_selects_the_process_to_upgrade,
    upgrade_of_a_file_reaches_its_process_and_no_other,
    a_process_that_stops_lets_the_next_one_have_its_statistics,
);

fn ten_upgrades_under_load_fail_no_request_and_end_no_connection() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let _echo = TcpServer::echo(lab.server(2));
    let other = format!(
        "[frontends.echo]\nlisten_addr = \"{}\"\nbackend = \"echo\"\n[backends.echo]\nhealth_check.kind = \"none\"\n\
         [backends.echo.servers.a]\naddr = \"{}\"\n",
        lab.second_vip(),
        lab.server(2)
    );
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&other);
    let mut upgraded = Upgraded::start(&lab, &setup);
    let mut held = connect(lab.second_vip());
    ping(&mut held).unwrap();
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let failed = thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| fetch_until(&stop, lab.vip(), &asked))).collect();
        for _ in 0..10 {
            let before = asked.load(Ordering::Relaxed);
            upgraded.replace_program();
            upgraded.upgrade();
            ping(&mut held).unwrap();
            wait_for("requests after the upgrade", || {
                (asked.load(Ordering::Relaxed) > before + 20).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failed.is_empty(), "{} of {asked:?} requests failed: {failed:?}", failed.len());
    assert_eq!(upgraded.processes.len(), 10);
    // The first process still has a connection; the processes after it have had none for long.
    upgraded.wait_for_the_last();
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(upgraded.first.wait(), 0);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    assert_eq!(upgraded.first.page("/healthz"), (200, "ok\n".to_owned()));
}

fn a_download_of_a_gibibyte_lives_through_ten_upgrades() {
    const GIB: u64 = 1 << 30;
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        stream.read_exact(&mut [0])?;
        send(&mut stream, GIB)?;
        stream.shutdown(Shutdown::Write)
    });
    let mut upgraded = Upgraded::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let mut client = connect(lab.vip());
    client.write_all(b"!").unwrap();
    let mut read = SlowReader::new(client);
    thread::scope(|scope| {
        let download = scope.spawn(|| check_to_end(&mut read));
        for _ in 0..10 {
            upgraded.replace_program();
            upgraded.upgrade();
            assert!(!download.is_finished(), "it was over too soon to tell");
        }
        assert_eq!(download.join().unwrap(), GIB);
    });
    drop(read);
    assert_eq!(upgraded.first.wait(), 0);
}

fn runtime_overrides_survive_an_upgrade() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let ask_for = |upgraded: &Upgraded<'_>, line: &str| {
        let ran = run(upgraded.first.command().args(line.split(' ')));
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        ran.stdout
    };
    ask_for(&upgraded, "server drain pool/a");
    let _added = TcpServer::named("c", lab.server(3));
    ask_for(&upgraded, &format!("server add pool/c {}", lab.server(3)));
    ask_for(&upgraded, "server remove pool/b");
    ask_for(&upgraded, "log-level debug");
    for _ in 0..2 {
        upgraded.upgrade();
        let serving = upgraded.processes.last().unwrap().as_raw_nonzero();
        assert_eq!(fs::read_to_string(format!("/proc/{serving}/comm")).unwrap(), "convey\n");
        for _ in 0..4 {
            assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "c".to_owned()));
        }
        let screen = ask_for(&upgraded, "status");
        for output in
            ["pool/a: drain, for ", "pool/b: removed, for ", "pool/c: added at ", "log level debug, "]
        {
            assert!(screen.contains(output), "{output}: {screen}");
        }
        assert_eq!(ask_for(&upgraded, "log-level"), "debug\n");
    }
    let events = ask_for(&upgraded, "status --events");
    assert!(
        events.contains("server pool/a: drain (by ") && events.contains(" continues as process "),
        "{events}"
    );
    assert_eq!(ask_for(&upgraded, "server ready pool/a"), "server pool/a: ready\n");
    wait_for("a to serve again", || (fetch(lab.vip(), "/").ok()?.1 == "a").then_some(()));
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

fn a_udp_session_keeps_its_server_and_its_port_through_upgrades() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| UdpServer::named(name, lab.server(n)));
    let servers = |setup: Setup| {
        ["a", "b", "c"].iter().zip(1..).fold(setup, |setup, (name, n)| setup.server(name, lab.server(n), ""))
    };
    let setup = servers(Setup::new(&lab).frontend("protocol = \"udp\""));
    let mut upgraded = Upgraded::start(&lab, &setup);
    let clients = [(); 5].map(|()| UdpClient::of(lab.vip()));
    let servers = clients.each_ref().map(UdpClient::fetch);
    for _ in 0..3 {
        upgraded.upgrade();
        // The old process ends at once: it keeps no session.
        for _ in 0..3 {
            assert_eq!(clients.each_ref().map(UdpClient::fetch), servers, "in turn they would get others");
        }
        assert_eq!(upgraded.first.stat("/frontends/web/total_connections"), 5, "the ones that went along");
    }
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

fn a_signal_upgrades_and_what_was_known_of_servers_goes_along() {
    let lab = Loopback::new();
    let _up = TcpServer::named("up", lab.server(1));
    let health = "kind = \"tcp\"\ninterval = 3600\nfall = 1\nrise = 2";
    let setup =
        Setup::new(&lab).health(health).server("up", lab.server(1), "").server("down", lab.server(2), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    upgraded.first.wait_for_health("down", false);
    // The server is back; one check confirms it. A process without this state would put it back
    // after one check.
    let _back = TcpServer::named("down", lab.server(2));
    upgraded.first.signal(Signal::USR2);
    upgraded.wait_for_process();
    assert_eq!(upgraded.first.wait(), 0);
    assert_eq!(upgraded.first.stat("/backends/pool/servers/down/up"), false);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "up".to_owned()));
}

fn a_new_version_that_cannot_start_leaves_the_old_one_serving() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let serves = || assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    let refused = |upgraded: &Upgraded, why: &str| {
        let ran = upgraded.fetch();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr.contains("not upgraded: ") && ran.stderr.contains(why),
            "{why:?} is not in {ran:?}"
        );
        upgraded.first.wait_for_log("this process continues");
        serves();
    };
    upgraded.replace_program_by("exit 3");
    refused(&upgraded, "ended before it was ready (exit status: 3)");
    fs::remove_file(&upgraded.program).unwrap();
    refused(&upgraded, "No such file or directory");
    upgraded.replace_program();
    fs::write(upgraded.first.config(), "nonsense = 1").unwrap();
    refused(&upgraded, "nonsense");
    // Another process has an additional address that the new version is to listen on.
    let taken = std::net::TcpListener::bind(lab.second_vip()).unwrap();
    upgraded.first.save(&setup.clone().listen(&[lab.vip(), lab.second_vip()]));
    upgraded.first.wait_for_log("not reloaded: the running configuration stays");
    refused(&upgraded, &format!("cannot listen on {}", lab.second_vip()));
    drop(taken);
    upgraded.upgrade();
    serves();
    assert_eq!(upgraded.first.wait(), 0);
}

fn upgrade_in_progress_tolerates_stop_reload_and_another_upgrade() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let started = lab.directory().join("started");
    upgraded
        .replace_program_by(&format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 100", started.display()));
    let new = thread::scope(|scope| {
        let first = scope.spawn(|| upgraded.fetch());
        let new = wait_for("the new process", || fs::read_to_string(&started).ok());
        let second = upgraded.fetch();
        assert!(second.code == Some(1) && second.stderr.contains("under way already"), "{second:?}");
        for change in ["server drain pool/a", "log-level debug", "reset", "reload"] {
            let ran = run(upgraded.first.command().args(change.split(' ')));
            assert!(ran.code == Some(1) && ran.stderr.contains("an upgrade is under way"), "{ran:?}");
        }
        upgraded.first.save(&setup.clone().timeouts("idle = 77"));
        upgraded.first.signal(Signal::TERM);
        upgraded.first.wait_for_log("stopping: 1 open connections have 30s to finish");
        upgraded.first.wait_for_log("reload: ");
        // The upgrade is over, so commands change this process again.
        let ran = run(upgraded.first.command().args(["server", "drain", "pool/a"]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let first = first.join().unwrap();
        assert!(first.code == Some(1) && first.stderr.contains("this process is stopping"), "{first:?}");
        Pid::from_raw(new.trim_end().parse().unwrap()).unwrap()
    });
    wait_for("the new process to be gone", || test_kill_process(new).err());
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(upgraded.first.wait(), 0);
}

fn client_denied_after_an_upgrade_is_reset_by_the_old_process() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let [mut denied, mut let_in] = [66, 50].map(|host| connect_from(lab.ip(host), lab.vip()).unwrap());
    assert!([&mut denied, &mut let_in].map(ping).iter().all(Result::is_ok));
    upgraded.upgrade();
    upgraded.first.wait_for_log("stopping: 2 open connections continue until they end");
    // Addresses on which it did not listen before no longer concern it.
    let deny = format!("[frontends.web.access]\ndeny = \"{}\"\n", lab.ip(66));
    upgraded.first.save(&setup.listen(&[lab.vip(), lab.second_vip()]).and(&deny));
    assert!(was_reset(&mut denied));
    ping(&mut let_in).unwrap();
    wait_for("the new process to listen on what is new", || {
        ping(&mut connect_from(lab.ip(50), lab.second_vip()).ok()?).ok()
    });
    drop(let_in);
    assert_eq!(upgraded.first.wait(), 0);
    let served = (0..20).map(|_| connect_from(lab.ip(50), lab.second_vip()));
    assert!(served.into_iter().all(|client| ping(&mut client.unwrap()).is_ok()));
}

fn a_new_version_that_hangs_is_given_up() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let mut upgraded = Upgraded::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    upgraded.replace_program_by("exec sleep 100");
    let ran = upgraded.fetch();
    assert!(ran.code == Some(1) && ran.stderr.contains("was not ready in time, and was stopped"), "{ran:?}");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
}

fn versions_that_do_not_understand_each_other_refuse_with_a_reason() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    let mut upgraded = Upgraded::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let this = std::env::current_exe().unwrap();
    upgraded.replace_program_by(&format!("exec env {ROLE}=1 {}", this.display()));
    let ran = upgraded.fetch();
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("supports 98, 99: they have none in common; restart convey instead"),
        "{ran:?}"
    );
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));

    // And with reversed roles: this version is the new one.
    let (ours, theirs) = pair();
    let mut command = binary();
    command.env("CONVEY_UPGRADE", "1").stdin(Stdio::from(theirs)).args(["--config", "none.toml"]);
    let mut new = Process::spawn(&mut command);
    drop(command);
    send_message(&ours, r#"{"Hello":{"formats":[98,99],"program":"9.0.0"}}"#);
    let output = receive_message(&ours);
    assert!(
        output.starts_with("{\"Refused\":") && output.contains("supports 98, 99: they have none in common"),
        "{output}"
    );
    assert_eq!(new.wait().code(), Some(1));
}

fn an_upgrade_takes_up_what_only_a_restart_could() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut upgraded = Upgraded::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let moved = setup.to_string().replace("port = 7000", "port = 7001");
    upgraded.first.save(&moved);
    upgraded.first.wait_for_log("needs restart");
    // The file has other addresses now, so it does not identify the running process.
    upgraded.first.signal(Signal::USR2);
    upgraded.wait_for_process();
    let stats = SocketAddr::new(lab.stats().ip(), 7001);
    assert_eq!(fetch(stats, "/healthz").unwrap(), (200, "ok\n".to_owned()));
    // The first process still has a connection, but the way back is free.
    upgraded.first.save(&setup);
    kill_process(upgraded.processes[0], Signal::USR2).unwrap();
    upgraded.wait_for_process();
    assert_eq!(fetch(lab.stats(), "/healthz").unwrap(), (200, "ok\n".to_owned()));
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(upgraded.first.wait(), 0);
}

fn control_socket_selects_the_process_to_upgrade() {
    let (lab, other) = (Loopback::new(), Loopback::new());
    let setup = |lab: &Loopback| Setup::new(lab).server("a", lab.server(1), "");
    let other = BalancerProcess::start(&other, &setup(&other));
    let mut upgraded = Upgraded::start(&lab, &setup(&lab));
    let ran = run(upgraded.first.command().arg("upgrade"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    upgraded.wait_for_process();
    // Afterwards, another process answers at the socket than the one that made it.
    let mut command = other.command();
    let ran = run(command.args(["upgrade", "--socket"]).arg(upgraded.first.control_socket()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    upgraded.wait_for_process();
    assert!(!other.log().contains("upgraded"), "{}", other.log());

    let nobody = lab.directory().join("nobody.sock");
    let ran = run(binary().arg("upgrade").arg("--socket").arg(&nobody));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&nobody.display().to_string()), "{ran:?}");
}

fn upgrade_of_a_file_reaches_its_process_and_no_other() {
    let (lab, other, nobody) = (Loopback::new(), Loopback::new(), Loopback::new());
    let setup = |lab: &Loopback| Setup::new(lab).server("a", lab.server(1), "");
    let other = BalancerProcess::start(&other, &setup(&other));
    let mut upgraded = Upgraded::start(&lab, &setup(&lab));
    let upgrade = |file: &Path| run(binary().arg("upgrade").arg("--config").arg(file));
    // The statistics address has changed in the file.
    upgraded.first.save(&setup(&nobody));
    let ran = upgrade(&upgraded.first.config());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    upgraded.wait_for_process();

    let unused = nobody.directory().join("unused.toml");
    fs::write(&unused, setup(&Loopback::new()).to_string()).unwrap();
    let ran = upgrade(&unused);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&format!("no convey runs with {}", unused.display())), "{ran:?}");
    assert!(!other.log().contains("upgraded"), "{}", other.log());
}

/// Sends requests again and again. Returns the failures.
fn fetch_until(stop: &AtomicBool, addr: SocketAddr, asked: &AtomicU64) -> Vec<String> {
    let mut failed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match fetch(addr, "/") {
            Ok((200, _)) => {}
            other => failed.push(format!("{other:?}")),
        }
        asked.fetch_add(1, Ordering::Relaxed);
    }
    failed
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}
