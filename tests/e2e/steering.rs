//! An operator steers a running convey by commands.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, connect, fetch, ping, run, tests, wait_for,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::operator::{answering_servers, command_output, run_command, set};

tests!("steering":
    drained_server_keeps_its_connections_and_gets_no_new_ones,
    drain_wait_ends_with_the_last_connection_or_a_timeout,
    drain_wait_fails_if_the_server_is_ready_again_or_gone,
    a_backend_in_maintenance_serves_nobody_and_says_so,
    weight_override_applies_at_once_and_survives_reloads,
    a_reload_says_what_has_changed_or_why_the_file_was_refused,
    operator_actions_are_listed_as_events,
    token_permits_changes_at_the_statistics_address,
    override_for_a_removed_server_is_shown_as_without_effect,
    a_convey_that_is_stopped_is_told_to_give_no_answer,
    failed_output_is_an_error_but_a_closed_pipe_is_not,
    a_mistake_is_told_and_changes_nothing,
    without_a_convey_that_runs_the_commands_say_so,
);

fn two(lab: &Loopback) -> ([TcpServer; 2], Setup) {
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    (servers, Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), ""))
}

fn drained_server_keeps_its_connections_and_gets_no_new_ones() {
    let lab = Loopback::new();
    let _echo = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    assert!(command_output(&balancer, "server drain pool/a").ends_with("server pool/a: drain\n"));
    assert_eq!(command_output(&balancer, "server drain pool/a"), "server pool/a: drain already\n");
    balancer.wait_for_stat("/backends/pool/servers/a/eligible", false);
    ping(&mut held).unwrap();
    fetch(lab.vip(), "/").unwrap_err();
    assert_eq!(balancer.stat("/backends/pool/servers/a/state"), "drain");
    assert_eq!(balancer.stat("/backends/pool/servers/a/up"), true, "it is checked as before");
    let status = run_command(&balancer, "status");
    assert_eq!(status.code, Some(3), "no frontend can serve: {status:?}");
    assert!(
        status.stdout.contains("no server of backend pool can be chosen (1 of 1 are drained)")
            && status.stdout.contains("pool/a: drain, for "),
        "{status:?}"
    );
    assert_eq!(command_output(&balancer, "server ready pool/a"), "server pool/a: ready\n");
    ping(&mut connect(lab.vip())).unwrap();
    ping(&mut held).unwrap();
}

fn drain_wait_ends_with_the_last_connection_or_a_timeout() {
    let lab = Loopback::new();
    let _echo = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let mut held = [(); 2].map(|()| connect(lab.vip()));
    held.iter_mut().for_each(|held| ping(held).unwrap());
    let given_up = run_command(&balancer, "server drain pool/a --wait --timeout 300ms");
    assert_eq!(given_up.code, Some(1), "{given_up:?}");
    assert!(given_up.stderr.contains("server pool/a: 2 connections are left after 300ms"), "{given_up:?}");
    thread::scope(|scope| {
        let waits = scope.spawn(|| command_output(&balancer, "backend drain pool --wait"));
        ping(&mut held[0]).unwrap();
        drop(held);
        let command_output = waits.join().unwrap();
        assert!(command_output.ends_with("backend pool: no connection is left\n"), "{command_output}");
    });
}

/// The waiting command has to report it: an operator who stops the server next would cut its
/// clients.
fn drain_wait_fails_if_the_server_is_ready_again_or_gone() {
    let lab = Loopback::new();
    let _echo = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let other = Setup::new(&lab).server("other", lab.server(1), "");
    for (change, why) in [
        ("server ready pool/a", "server pool/a is ready again, so it gets new connections"),
        ("reload", "backend pool has no server a"),
    ] {
        let ended = thread::scope(|scope| {
            let waits = scope.spawn(|| run_command(&balancer, "server drain pool/a --wait"));
            balancer.wait_for_stat("/backends/pool/servers/a/state", "drain");
            if change == "reload" {
                balancer.save(&other);
            }
            command_output(&balancer, change);
            waits.join().unwrap()
        });
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
    ping(&mut held).unwrap();
    let wrong = run_command(&balancer, "reset pool/nobody");
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("backend pool has no server nobody"), "{wrong:?}");
}

fn a_backend_in_maintenance_serves_nobody_and_says_so() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
    command_output(&balancer, "backend maint pool");
    balancer.wait_for_log(
        "backend pool has no server left (taken out by operators: 2 of 2): its clients are refused",
    );
    assert_eq!(balancer.page("/readyz").0, 503);
    fetch(lab.vip(), "/").unwrap_err();
    // An override of one server takes precedence over an override of all.
    command_output(&balancer, "server ready pool/b");
    wait_for("b to serve alone", || (fetch(lab.vip(), "/").ok()?.1 == "b").then_some(()));
    assert_eq!(answering_servers(&lab), set(&["b"]));
    command_output(&balancer, "reset pool");
    wait_for("both to serve", || (answering_servers(&lab) == set(&["a", "b"])).then_some(()));
    assert_eq!(run_command(&balancer, "status").code, Some(0));
}

fn weight_override_applies_at_once_and_survives_reloads() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, "server weight pool/a 0");
    assert_eq!(answering_servers(&lab), set(&["b"]));
    balancer.save(&setup.server("c", lab.server(3), ""));
    balancer.wait_for_log("reload: ");
    balancer.wait_for_stat("/backends/pool/servers/a/weight", 0);
    let screen = command_output(&balancer, "status");
    assert!(screen.contains("Runtime overrides") && screen.contains("pool/a: weight 0, for "), "{screen}");
    assert_eq!(
        command_output(&balancer, "reset pool/a"),
        "server pool/a: 1 change undone, the file applies again\n"
    );
    assert_eq!(command_output(&balancer, "reset"), "everything: no change to undo, the file applies\n");
    wait_for("a to serve again", || answering_servers(&lab).contains("a").then_some(()));
    assert!(!command_output(&balancer, "status").contains("Runtime overrides"));
}

fn a_reload_says_what_has_changed_or_why_the_file_was_refused() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(command_output(&balancer, "reload"), "reloaded: no effective changes\n");
    balancer.save(&setup.to_string().replace("backend = \"pool\"", "backend = \"pol\""));
    let refused = run_command(&balancer, "reload");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("the running configuration stays"), "{refused:?}");
    assert!(refused.stderr.contains("did you mean `pool`?"), "{refused:?}");
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
    let status = run_command(&balancer, "status");
    assert!(status.stdout.contains("the last reload was refused"), "{status:?}");
}

fn operator_actions_are_listed_as_events() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, "server maint pool/a");
    command_output(&balancer, "reset");
    let events = command_output(&balancer, "status --events");
    let lines: Vec<&str> = events.lines().collect();
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{events}"));
    let said = at("server pool/a: maint (by ");
    // Name of the user, or the user id if there is no name.
    let who = lines[said].rsplit_once(" maint (by ").unwrap().1.strip_suffix(")").unwrap();
    assert!(
        said < at(&format!("server pool/a: runtime override cleared: state maint (by {who})")),
        "{events}"
    );
    command_output(&balancer, "server remove pool/a");
    command_output(&balancer, "reset");
    let events = command_output(&balancer, "status --events");
    assert!(
        events.contains(&format!("server pool/a: runtime override cleared: removal (by {who})")),
        "{events}"
    );
    let all: Value = serde_json::from_str(&command_output(&balancer, "status --events --json")).unwrap();
    assert!(all.as_array().unwrap().iter().any(|event| event["kind"] == "operator"), "{all}");
}

fn override_for_a_removed_server_is_shown_as_without_effect() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, "server drain pool/b");
    assert!(!command_output(&balancer, "status").contains("no such server"));
    balancer.save(&Setup::new(&lab).server("a", lab.server(1), ""));
    command_output(&balancer, "reload");
    let status = command_output(&balancer, "status");
    let line =
        status.lines().find(|line| line.contains("pool/b: drain")).unwrap_or_else(|| panic!("{status}"));
    assert!(line.ends_with("; no effect: this server does not exist now"), "{line}");
    assert_eq!(balancer.stat("/overlays/0/absent"), true);
}

fn a_convey_that_is_stopped_is_told_to_give_no_answer() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.signal(Signal::STOP);
    let ran = run_command(&balancer, "status");
    balancer.signal(Signal::CONT);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("no response within 5s: process "), "{ran:?}");
    assert!(ran.stderr.contains("is stopped or overloaded"), "{ran:?}");
    command_output(&balancer, "status");
}

fn failed_output_is_an_error_but_a_closed_pipe_is_not() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let config = balancer.config();
    let check = format!("check --syntax --config {}", config.display());
    for line in [
        "status",
        "status --json",
        "flows",
        "flows --json",
        "log-level",
        "reload",
        "server drain pool/a",
        "status --events",
        "explain 203.0.113.9:7 web",
        "top --once",
        &check,
        "generate man",
        "generate complete-bash",
        "--help",
        "status --help",
        "--version",
    ] {
        let into = |out: Stdio| {
            let mut command = balancer.command();
            command.args(line.split(' ')).stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
            let ran = command.spawn().unwrap().wait_with_output().unwrap();
            (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, why) = into(full.into());
        assert!(code == Some(1) && why.contains("No space left on device"), "{line}: {code:?} {why}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(into(writer.into()), (Some(0), String::new()), "{line}");
    }
}

/// Sends a request to the statistics address with a token. Returns the status.
fn send(lab: &Loopback, method: &str, path: &str, token: &str, body: &str) -> u16 {
    let mut stream = connect(lab.stats());
    let length = body.len();
    let host = lab.stats();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n");
    write!(stream, "{head}Authorization: Bearer {token}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

fn token_permits_changes_at_the_statistics_address() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let (token, drain) = (lab.directory().join("token"), "{\"state\": \"drain\"}");
    let change = |token: &str| send(&lab, "PATCH", "/v1/backends/pool/servers/a", token, drain);
    assert_eq!(change("correct-horse-battery"), 403, "there is no token");

    fs::write(&token, "correct-horse-battery\n").unwrap();
    let open = setup.to_string().replace("[stats]\n", "[stats]\ntoken_file = \"token\"\n");
    balancer.save(&open);
    balancer.wait_for_log("its mode is 0644, so all users can read it; `chmod 640` fixes it");
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    // The watcher may have seen the new mode before.
    command_output(&balancer, "reload");
    let line = balancer.wait_for_log("reload: stats.token_file none -> ");
    assert!(line.ends_with("token"), "{line}");
    assert_eq!(change("wrong-horse-battery"), 401);
    assert_eq!(change("correct-horse-battery"), 200);
    assert_eq!(answering_servers(&lab), set(&["b"]));
    let overlays = balancer.stat("/overlays/0");
    assert!(overlays["by"].as_str().unwrap().starts_with("token from 127."), "{overlays}");

    fs::write(&token, "another-horse-battery\n").unwrap();
    balancer.wait_for_log("reload: stats.token_file: token changed");
    assert_eq!((change("correct-horse-battery"), change("another-horse-battery")), (401, 200));
    fs::write(&token, "short").unwrap();
    balancer.wait_for_log("has 5 characters; allowed: 16 to 256");
    assert_eq!(change("another-horse-battery"), 200, "what runs stays");
    assert!(!balancer.log().contains("horse"), "the log keeps the secret");
}

fn a_mistake_is_told_and_changes_nothing() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    for (line, code, why) in [
        ("server drain pol/a", 1, "did you mean `pool`?"),
        ("server drain pool/x", 1, "no server of backend pool is called"),
        ("server drain pool", 2, "expected: BACKEND/SERVER"),
        ("server weight pool/a -1", 2, "-1"),
        ("server weight pool/a 70000", 2, "70000"),
        ("backend maint", 2, "BACKEND"),
        ("server drain pool/a --timeout 1s", 2, "--wait"),
        ("server drain pool/a --wait --timeout soon", 2, "soon"),
    ] {
        let ran = run_command(&balancer, line);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{line}: {ran:?}");
    }
    assert_eq!(balancer.stats().get("overlays"), None);
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
}

fn without_a_convey_that_runs_the_commands_say_so() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut elsewhere = balancer.command();
    elsewhere.env("CONVEY_SOCKET", lab.directory().join("none.sock"));
    let ran = run(elsewhere.arg("status"));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("none.sock: No such file") && ran.stderr.contains("is convey running?"),
        "{ran:?}"
    );
}
