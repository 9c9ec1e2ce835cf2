//! An operator watches the rates per second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, fetch, run, tests};
use rustix::process::Signal;

use super::operator::{command_output, run_command};
use super::pseudo_terminal::{PseudoTerminal, SCRIPT};

tests!("top":
    top_shows_server_rates_and_keys_sort_filter_and_quit [SCRIPT],
    top_survives_restart_and_upgrade_and_sigterm_restores_the_terminal [SCRIPT],
    top_without_a_terminal_needs_once_and_prints_text,
);

/// Clients that send one request after the other until this is dropped.
struct Clients<'scope>(&'scope AtomicBool);

impl Drop for Clients<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn two(lab: &Loopback) -> ([TcpServer; 2], Setup) {
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    (servers, Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), ""))
}

/// The row that begins with this name.
fn row<'a>(lines: &'a [String], name: &str) -> Option<Vec<&'a str>> {
    let row = lines.iter().find(|line| line.starts_with(name))?;
    Some(row[name.len()..].split_whitespace().collect())
}

/// Whether a row has a rate of new connections.
fn has_rate(lines: &[String], name: &str) -> bool {
    row(lines, name).is_some_and(|row| row.get(2).is_some_and(|rate| !["0", "-"].contains(rate)))
}

fn top_shows_server_rates_and_keys_sort_filter_and_quit() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, "server drain pool/b");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _clients = Clients(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fetch(lab.vip(), "/").unwrap();
            }
        });
        let mut top = PseudoTerminal::start(&lab, &balancer, "top", "top");
        top.wait_for("the rate of a", |lines| has_rate(lines, "  a ").then_some(()));
        let lines = top.wait_for("how long connects take", |lines| {
            let connects = row(lines, "backend pool ").and_then(|row| row.get(7).copied())?;
            connects.ends_with('s').then(|| lines.to_vec())
        });
        assert!(lines[0].starts_with("convey ") && lines[0].contains("  proxy  up "), "{lines:#?}");
        assert!(lines[0].contains("2 of 2 servers up"), "{lines:#?}");
        assert_eq!(row(&lines, "  b ").unwrap()[..3], ["drain", "0", "0"]);
        assert!(row(&lines, "backend pool ").is_some_and(|row| row[..2] == ["2/2", "up"]), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("server pool/b")), "the event: {lines:#?}");

        top.press("s");
        top.wait_for_text("sort: STATE");
        let is_first = |lines: &[String], first: &str, then: &str| {
            let place = |name: &str| lines.iter().position(|line| line.starts_with(name));
            (place(first)? < place(then)?).then_some(())
        };
        top.wait_for("who drains first", |lines| is_first(lines, "  b ", "  a "));
        top.press("r");
        top.wait_for("who drains last", |lines| is_first(lines, "  a ", "  b "));
        // The arrow to the left.
        top.press("\x1b[D");
        top.wait_for_text("sort: NAME  r reversed");
        // Ctrl-Z. No shell can stop the command here, so it continues at once.
        top.press("\x1a");
        top.wait_for_screens(2);
        top.press("/DRAIN\r");
        top.wait_for("only b", |lines| {
            (row(lines, "  a ").is_none() && row(lines, "  b ").is_some()).then_some(())
        });
        top.resize(40, 10);
        top.wait_for("fewer columns", |lines| {
            let titles = |line: &&String| line.split_whitespace().eq(["NAME", "STATE", "OPEN", "NEW/S"]);
            lines.iter().find(titles).map(|_| ())
        });
        top.press("q");
        let ended = top.ended();
        assert_eq!(ended.code, "0");
        ended.assert_terminal_is_restored();
    });
}

fn top_survives_restart_and_upgrade_and_sigterm_restores_the_terminal() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let top = PseudoTerminal::start(&lab, &balancer, "top", "top");
    top.wait_for_text("2 of 2 servers up");
    drop(balancer);
    top.wait_for_text("NO RESPONSE since ");
    assert!(row(&top.screen(), "  a ").is_some(), "what was known stays");
    let mut balancer = BalancerProcess::start(&lab, &setup);
    top.wait_for("an answer", |lines| (!lines[2].contains("NO RESPONSE")).then_some(()));
    let upgraded = run(balancer.command().args(["upgrade", "--config"]).arg(balancer.config()));
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    assert_eq!(fetch(lab.vip(), "/").unwrap().0, 200);
    top.wait_for("the count of the new process", |lines| {
        (row(lines, "frontend web ")?.len() > 2
            && lines.iter().any(|line| line.contains("continues as process")))
        .then_some(())
    });
    top.signal(Signal::TERM);
    let ended = top.ended();
    assert_eq!(ended.code, "143");
    ended.assert_terminal_is_restored();
    // Sends the signal to the process that serves now.
    balancer.signal(Signal::TERM);
    balancer.wait();
}

fn top_without_a_terminal_needs_once_and_prints_text() {
    let lab = Loopback::new();
    let (_servers, setup) = two(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let refused = run_command(&balancer, "top");
    assert_eq!(refused.code, Some(1));
    let told_why = "convey: top needs a terminal; `convey top --once` prints the screen as text\n";
    assert_eq!((&*refused.stderr, &*refused.stdout), (told_why, ""));
    let screen = command_output(&balancer, "top --once --sort new --filter pool/a");
    let lines: Vec<String> = screen.lines().map(str::to_owned).collect();
    assert_eq!(row(&lines, "  a ").unwrap()[..3], ["up", "0", "0"], "{screen}");
    assert!(
        row(&lines, "  b ").is_none() && !screen.contains('\x1b') && !screen.contains("q quit"),
        "{screen}"
    );
    let usage = run_command(&balancer, "top --interval 0");
    assert!(usage.code == Some(2) && usage.stderr.contains("whole seconds from 1 to 60"), "{usage:?}");
    drop(balancer);
    let nobody =
        run(convey_testkit::binary().args(["top", "--once"]).env("CONVEY_SOCKET", "/nowhere/convey.sock"));
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("cannot reach a running convey: /nowhere/convey.sock"), "{nobody:?}");
}
