//! `convey demo`.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, binary, run, tests, tool};
use rustix::process::Signal;

tests!("demo":
    the_demo_serves_by_weight_and_ends_on_ctrl_c [Need::CURL],
    the_demo_follows_the_file,
    a_busy_port_ends_the_demo_with_its_name,
    a_demo_is_not_upgraded,
);

fn the_demo_serves_by_weight_and_ends_on_ctrl_c() {
    let lab = Loopback::new();
    let mut demo = start(&lab);
    let try_it = demo.wait_for_log("curl -s ");
    assert!(try_it.contains(&format!("http://{}/", lab.vip())), "{try_it}");
    let url = format!("http://{}/?[1-12]", lab.vip());
    let curl = run(Command::new(tool("curl").unwrap()).args(["-sS", "-H", "Connection: close", &url]));
    assert_eq!(curl.code, Some(0), "{curl:?}");
    let of = |name: &str| {
        curl.stdout.lines().filter(|line| line.starts_with(&format!("hello from {name} "))).count()
    };
    assert_eq!((of("a"), of("b")), (8, 4), "{curl:?}");
    demo.wait_for_log("12 connections (0 open)");
    demo.signal(Signal::INT);
    assert_eq!(demo.wait(), 0);
    assert!(demo.log().contains("stopped: every connection had ended"));
}

fn the_demo_follows_the_file() {
    let lab = Loopback::new();
    let demo = start(&lab);
    demo.save(&setup(&lab).to_string().replace("weight = 2", "weight = 5"));
    demo.wait_for_log(&format!("reload: backend pool: weight of pool/a ({}) 2 -> 5", lab.server(1)));
}

fn a_busy_port_ends_the_demo_with_its_name() {
    let lab = Loopback::new();
    let file = lab.directory().join("config.toml");
    fs::write(&file, setup(&lab).to_string()).unwrap();
    let demo = |busy: SocketAddr| {
        let _busy = TcpListener::bind(busy).unwrap();
        let ran = run(binary().arg("demo").arg("--config").arg(&file));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(&busy.to_string()), "{ran:?}");
        assert!(ran.stderr.to_lowercase().contains("already in use"), "{ran:?}");
    };
    demo(lab.vip());
    demo(lab.server(2));
    demo(lab.stats());
}

fn a_demo_is_not_upgraded() {
    let lab = Loopback::new();
    let demo = start(&lab);
    let ran = run(demo.command().arg("upgrade"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("not upgraded: a demo cannot be upgraded: end it, and start it again"),
        "{ran:?}"
    );
    assert_eq!(demo.page("/healthz"), (200, "ok\n".to_owned()));
    assert!(!demo.log().contains("starting the new process"), "{}", demo.log());
}

fn start(lab: &Loopback) -> BalancerProcess {
    let mut command = binary();
    command.args(["demo", "--config", "config.toml"]);
    BalancerProcess::start_with(lab, &setup(lab), command)
}

fn setup(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "weight = 2").server("b", lab.server(2), "")
}
