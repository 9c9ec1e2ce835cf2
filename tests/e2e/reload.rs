//! Configuration changes while traffic flows.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Process, Setup, TcpServer, Wrk, binary, connect, fetch, ping,
    tests, wait_for,
};
use rustix::process::Signal;

tests!("reload":
    twenty_reloads_under_load_fail_no_request [Need::NGINX, Need::WRK],
    bad_file_changes_nothing_and_its_error_is_logged_with_the_place,
    a_frontend_whose_port_is_busy_refuses_the_whole_file,
    a_hang_up_signal_reads_the_file_again,
    signals_while_the_configuration_is_read_end_nothing,
    the_log_says_what_has_changed,
    new_frontend_listens_and_a_removed_one_keeps_its_connections,
    an_address_can_be_added_to_a_frontend_and_taken_away,
    a_frontend_can_be_given_another_backend,
    a_server_that_leaves_keeps_its_connections,
    settings_that_cannot_change_at_runtime_wait_for_a_restart,
    a_first_frontend_in_a_packet_mode_waits_for_a_restart,
);

fn twenty_reloads_under_load_fail_no_request() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| Nginx::start(&lab, name, lab.server(n)));
    let pool = |weights: &[(&str, u8, u64)]| {
        weights.iter().fold(Setup::new(&lab).health("interval = 0.2"), |setup, (name, n, weight)| {
            setup.server(name, lab.server(*n), &format!("weight = {weight}"))
        })
    };
    let two: &[_] = &[("a", 1, 1), ("b", 2, 1)];
    let added: &[_] = &[("a", 1, 1), ("b", 2, 1), ("c", 3, 1)];
    let reweighted: &[_] = &[("a", 1, 1), ("b", 2, 7), ("c", 3, 2)];
    let balancer = BalancerProcess::start(&lab, &pool(two));
    let load = Wrk::start(&lab, lab.vip(), 64);
    balancer_is_busy(&balancer, 100);
    for (n, weights) in [added, reweighted, two].into_iter().cycle().take(24).enumerate() {
        if n % 2 == 0 {
            balancer.save(&pool(weights))
        } else {
            balancer.save_in_place(&pool(weights))
        }
        let expected = weights.iter().map(|(name, _, weight)| ((*name).to_owned(), *weight)).collect();
        wait_for("the reload to take effect", || (runs(&balancer) == expected).then_some(()));
        let so_far = balancer.stat("/total_connections").as_u64().unwrap();
        balancer_is_busy(&balancer, so_far + 50);
    }
    balancer_is_busy(&balancer, 11_000);
    let summary = load.stop();
    assert_eq!(summary.failed, 0, "{}", summary.text);
    assert!(summary.requests >= 10_000, "{}", summary.text);
    assert!(!balancer.log().contains("not reloaded"));
}

fn bad_file_changes_nothing_and_its_error_is_logged_with_the_place() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let good = Setup::new(&lab).server("a", lab.server(1), "weight = 3");
    let balancer = BalancerProcess::start(&lab, &good);
    let good = good.to_string();
    let bad = [
        ("weight = 3", "weight = = 3", "weight = ".len(), ""),
        ("weight = 3", "weihgt = 3", 0, "did you mean `weight`?"),
        ("backend = \"pool\"", "backend = \"pol\"", "backend = ".len(), "did you mean `pool`?"),
    ];
    for (right, wrong, offset, hint) in bad {
        let text = good.replace(right, wrong);
        let (before, _) = text.split_once(wrong).unwrap();
        let place = format!("config.toml:{}:{}: ", before.lines().count() + 1, offset + 1);
        balancer.save(&text);
        let line = balancer.wait_for_log(&place);
        assert!(line.contains(" ERROR ") && line.contains(hint), "{line}");
        balancer.wait_for_log("config.toml not reloaded: the running configuration stays");
        assert_eq!(runs(&balancer), BTreeMap::from([("a".to_owned(), 3)]));
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    }
    balancer.save(&good.replace("weight = 3", "weight = 4"));
    wait_for("a good file to be taken again", || (runs(&balancer)["a"] == 4).then_some(()));
}

fn a_frontend_whose_port_is_busy_refuses_the_whole_file() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let busy = TcpListener::bind(lab.second_vip()).unwrap();
    let with_another =
        Setup::new(&lab).server("a", lab.server(1), "weight = 9").and(&second_frontend(&lab, "pool"));
    balancer.save(&with_another);
    let line = balancer.wait_for_log(&format!("cannot listen on {}", lab.second_vip()));
    assert!(line.contains("Address already in use"), "{line}");
    balancer.wait_for_log("not reloaded");
    assert_eq!(runs(&balancer)["a"], 1);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));

    drop(busy);
    // A process that another test starts has the listener, too, until it executes its program.
    wait_for("the file to be taken", || {
        balancer.signal(Signal::HUP);
        (runs(&balancer)["a"] == 9).then_some(())
    });
    assert_eq!(fetch(lab.second_vip(), "/").unwrap(), (200, "a".to_owned()));
}

fn a_hang_up_signal_reads_the_file_again() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    balancer.signal(Signal::HUP);
    balancer.wait_for_log("config.toml read again: no effective changes");
}

fn the_log_says_what_has_changed() {
    let lab = Loopback::new();
    let [a, b, c] = [1, 2, 3].map(|n| lab.server(n));
    let before = Setup::new(&lab).server("a", a, "weight = 10").server("b", b, "");
    let after = Setup::new(&lab).server("a", a, "weight = 50").server("c", c, "");
    let balancer = BalancerProcess::start(&lab, &before);
    balancer.save(&after);
    balancer.wait_for_log(&format!(
        "reload: backend pool: + pool/c ({c}), - pool/b ({b}), weight of pool/a ({a}) 10 -> 50"
    ));
}

fn new_frontend_listens_and_a_removed_one_keeps_its_connections() {
    let lab = Loopback::new();
    let _a = TcpServer::echo(lab.server(1));
    let one = Setup::new(&lab).server("a", lab.server(1), "");
    let two = one.clone().and(&second_frontend(&lab, "pool"));
    let balancer = BalancerProcess::start(&lab, &one);
    for _ in 0..2 {
        assert!(is_refused(&lab));
        balancer.save(&two);
        balancer.wait_for_stat("/frontends/second/backend", "pool");
        let mut through_second = connect(lab.second_vip());
        ping(&mut through_second).unwrap();

        balancer.save(&one);
        wait_for("the second frontend to be gone", || {
            balancer.stats()["frontends"].get("second").is_none().then_some(())
        });
        assert!(is_refused(&lab));
        ping(&mut through_second).unwrap();
        ping(&mut connect(lab.vip())).unwrap();
        drop(through_second);
        balancer.wait_for_stat("/current_connections", 0);
    }
}

fn an_address_can_be_added_to_a_frontend_and_taken_away() {
    let lab = Loopback::new();
    let _a = TcpServer::echo(lab.server(1));
    let one = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &one);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();

    balancer.save(&one.clone().listen(&[lab.vip(), lab.second_vip()]));
    balancer.wait_for_log(&format!("reload: frontend web: + {}", lab.second_vip()));
    ping(&mut connect(lab.second_vip())).unwrap();

    balancer.save(&one.clone().listen(&[lab.second_vip()]));
    balancer.wait_for_log(&format!("reload: frontend web: - {}", lab.vip()));
    assert_eq!(TcpStream::connect(lab.vip()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    ping(&mut connect(lab.second_vip())).unwrap();
    ping(&mut held).unwrap();
}

fn a_frontend_can_be_given_another_backend() {
    let lab = Loopback::new();
    let _a = TcpServer::echo(lab.server(1));
    let _b = TcpServer::named("b", lab.server(2));
    let other = format!("[backends.other.servers.b]\naddr = \"{}\"\n", lab.server(2));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&other).to_string();
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    balancer.save(&setup.replace("backend = \"pool\"", "backend = \"other\""));
    balancer.wait_for_log("reload: frontend web: backend pool -> other");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    ping(&mut held).unwrap();
}

fn a_server_that_leaves_keeps_its_connections() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    let a = Setup::new(&lab).server("a", lab.server(1), "");
    let b = Setup::new(&lab).server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &a);
    let mut on_a = connect(lab.vip());
    ping(&mut on_a).unwrap();
    balancer.save(&b);
    wait_for("b to be the only server", || runs(&balancer).contains_key("b").then_some(()));
    ping(&mut on_a).unwrap();
    ping(&mut connect(lab.vip())).unwrap();
    assert_eq!(balancer.given_to("b"), 1);
    drop(on_a);
    balancer.wait_for_stat("/current_connections", 0);
}

fn settings_that_cannot_change_at_runtime_wait_for_a_restart() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.save(&format!("mode = \"dsr\"\n{setup}"));
    balancer.wait_for_log("reload: frontend web: mode proxy -> dsr needs restart");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    let moved = format!("mode = \"dsr\"\n{setup}").replace("port = 7000", "port = 7001");
    balancer.save(&moved);
    let (ip, old, new) = (lab.stats().ip(), 7000, 7001);
    balancer.wait_for_log(&format!("reload: stats address {ip}:{old} -> {ip}:{new} needs restart"));
    assert_eq!(balancer.stat("/frontends/web/mode"), "proxy");
}

fn a_first_frontend_in_a_packet_mode_waits_for_a_restart() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let second = second_frontend(&lab, "pool");
    balancer.save(&format!("{setup}{second}mode = \"dsr\"\n"));
    balancer.wait_for_log(
        "frontend second: dsr mode needs a restart: no frontend was in a packet mode at the start",
    );
    balancer.wait_for_log("not reloaded: the running configuration stays");
    balancer.save(&format!("{setup}{second}mode = \"proxy\"\n"));
    balancer.wait_for_log("reload: frontend second: added (proxy, ");
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
}

/// Servers of the running pool, with their weights.
fn runs(balancer: &BalancerProcess) -> BTreeMap<String, u64> {
    let stats = balancer.stats();
    let servers = stats["backends"]["pool"]["servers"].as_object().unwrap();
    servers.iter().map(|(name, server)| (name.clone(), server["weight"].as_u64().unwrap())).collect()
}

/// Waits until so many connections have been served.
fn balancer_is_busy(balancer: &BalancerProcess, connections: u64) {
    wait_for(&format!("{connections} connections"), || {
        (balancer.stat("/total_connections").as_u64().unwrap() >= connections).then_some(())
    });
}

fn second_frontend(lab: &Loopback, backend: &str) -> String {
    format!("[frontends.second]\nlisten_addr = \"{}\"\nbackend = \"{backend}\"\n", lab.second_vip())
}

fn is_refused(lab: &Loopback) -> bool {
    TcpStream::connect(lab.second_vip()).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn signals_while_the_configuration_is_read_end_nothing() {
    let lab = Loopback::new();
    let silent = TcpListener::bind(lab.server(9)).unwrap();
    silent.set_nonblocking(true).unwrap();
    let mut command = binary();
    command.args(["--config", &format!("etcd://{}/lab", lab.server(9)), "--state-dir"]);
    let mut convey = Process::spawn(command.arg(lab.directory().join("state")));
    let _held = wait_for("convey to read", || silent.accept().ok());
    // Pending signals are delivered in the order of their numbers, so the last one comes last.
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::TERM] {
        convey.signal(signal);
    }
    assert_eq!(convey.wait().signal(), Some(Signal::TERM.as_raw()));
}
