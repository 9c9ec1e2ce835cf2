//! An operator traces packets.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use convey_lab::Role;
use convey_model::Offload;
use convey_testkit::{Process, TcpServer, binary, connect, ping, run, wait_for, was_reset, whole_lines};
use serde_json::Value;
use socket2::SockRef;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        trace_shows_a_packet_before_and_after_forwarding_with_its_decision,
        packets_that_are_dropped_are_shown_with_the_reason[CURL],
        the_end_of_a_connection_is_shown,
    ];
    tests.extend(tests![when |case| case.offload == Offload::Tc =>
        traced_flow_leaves_the_kernel_and_goes_back_afterwards,
    ]);
    tests.extend(tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        a_file_of_packets_has_both_sides [TCPDUMP],
    ]);
    tests
}

/// Starts the balancer with a control socket of its own.
pub(crate) fn balance(network: &mut Network, config: &Config) {
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    command.arg("--socket").arg(socket(network));
    network.balance_by(command, config);
}

fn socket(network: &Network) -> PathBuf {
    network.path("control.sock")
}

/// A `convey trace --json` that runs.
pub(crate) struct Watcher {
    _process: Process,
    file: PathBuf,
}

impl Watcher {
    /// Starts it, and waits until it watches.
    pub(crate) fn start(network: &Network, name: &str, arguments: &[&str]) -> Watcher {
        let file = network.path(name);
        let out = File::create(&file).unwrap();
        let mut command = binary();
        command.arg("--socket").arg(socket(network)).args(["trace", "--json", "--rate", "100000"]);
        command.args(arguments).stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        let watcher = Watcher { _process: Process::spawn(&mut command), file };
        wait_for("the trace to begin", || (!watcher.events().is_empty()).then_some(()));
        watcher
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.file)
    }

    /// Waits for an event of a packet with these values.
    fn wait_for(&self, values: &[(&str, &str)]) -> Value {
        wait_for(&format!("a packet with {values:?}"), || {
            let is_it = |event: &Value| {
                event["event"] == "packet" && values.iter().all(|(field, value)| event[field] == *value)
            };
            self.events().into_iter().find(is_it)
        })
    }

    /// Waits for the end of this client's connection.
    fn wait_for_end(&self, client: &str) -> Value {
        wait_for(&format!("the end of {client}'s connection"), || {
            self.events().into_iter().find(|event| event["event"] == "ended" && event["client"] == client)
        })
    }

    fn packets(&self) -> usize {
        self.events().iter().filter(|event| event["event"] == "packet").count()
    }
}

fn events(file: &Path) -> Vec<Value> {
    whole_lines(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn echoing(case: Case) -> Network {
    let mut network = Network::new(case, 1, 1);
    balance(&mut network, &Config { health: UNCHECKED, ..Config::new(1) });
    network
}

fn client(network: &Network) -> TcpStream {
    network.inside(Role::Client(1), || connect(network.vip()))
}

fn trace_shows_a_packet_before_and_after_forwarding_with_its_decision(case: Case) {
    let network = echoing(case);
    let _server = network.server(1, TcpServer::echo);
    let watcher = Watcher::start(&network, "trace", &["--frontend", "web"]);
    let mut stream = client(&network);
    ping(&mut stream).unwrap();
    let from = stream.local_addr().unwrap().to_string();
    let syn = watcher.wait_for(&[("from", &from), ("flags", "S"), ("verdict", "forwarded")]);
    assert_eq!((&syn["role"], &syn["algorithm"]), (&"new_flow".into(), &"maglev".into()), "{syn}");
    assert_eq!(
        (&syn["frontend"], &syn["backend"], &syn["server"]),
        (&"web".into(), &"pool".into(), &"s1".into())
    );
    assert_eq!((&syn["client"], &syn["to"]), (&from.clone().into(), &network.vip().to_string().into()));
    let server = network.address(Role::Server(1)).to_string();
    assert_eq!(
        (&syn["out"]["to"], syn["out"]["cut"].as_bool()),
        (&server.clone().into(), Some(false)),
        "{syn}"
    );
    assert_eq!(syn["out"]["next_hop"].as_str().map(str::len), Some(17), "{syn}");
    assert!(syn["interface"].as_str().is_some_and(|name| !name.starts_with('#')), "{syn}");
    let data = watcher.wait_for(&[("from", &from), ("flags", "P."), ("role", "existing_flow")]);
    assert_eq!(data["out"]["to"], server);
    if case.is_passthrough() {
        let answer = watcher.wait_for(&[("from", &server), ("flags", "S."), ("verdict", "forwarded")]);
        assert_eq!((&answer["out"]["to"], &answer["role"]), (&from.into(), &"servers_answer".into()));
    }
}

fn the_end_of_a_connection_is_shown(case: Case) {
    let network = echoing(case);
    let _server = network.server(1, TcpServer::echo);
    let watcher = Watcher::start(&network, "trace", &[]);
    let early = Watcher::start(&network, "early", &["--drops"]);
    let mut closed = client(&network);
    ping(&mut closed).unwrap();
    let from = closed.local_addr().unwrap().to_string();
    drop(closed);
    let ended = watcher.wait_for_end(&from);
    assert_eq!((&ended["server"], &ended["reason"]), (&"s1".into(), &Value::Null), "{ended}");
    if case.is_passthrough() {
        // Bytes of a ping in each direction.
        assert_eq!((&ended["bytes_in"], &ended["bytes_out"]), (&1.into(), &1.into()), "{ended}");
    }
    let mut reset = client(&network);
    ping(&mut reset).unwrap();
    let from = reset.local_addr().unwrap().to_string();
    SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
    drop(reset);
    assert_eq!(early.wait_for_end(&from)["reason"], "client_reset");
    let ends = early.events().iter().filter(|event| event["event"] == "ended").count();
    assert_eq!(ends, 1, "the other one ended in order");
}

fn packets_that_are_dropped_are_shown_with_the_reason(case: Case) {
    let mut network = Network::new(case, 2, 1);
    let denied = network.address(Role::Client(2)).ip();
    let deny: &'static str = format!("access = {{ deny = [\"{denied}\"] }}").leak();
    balance(&mut network, &Config { health: UNCHECKED, frontend: deny, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let mut open = client(&network);
    ping(&mut open).unwrap();
    let drops = Watcher::start(&network, "drops", &["--drops"]);
    let one = Watcher::start(&network, "one", &["--drops", "access_denied"]);
    // The drop is silent: the client waits, and gives up.
    let mut silent = network.client(2, "timeout");
    silent.args(["1", "curl", "-s", &format!("http://{}/", network.vip())]);
    run(&mut silent);
    let dropped = one.wait_for(&[("verdict", "dropped"), ("reason", "access_denied"), ("frontend", "web")]);
    assert!(dropped["from"].as_str().unwrap().contains(&denied.to_string()), "{dropped}");
    drops.wait_for(&[("reason", "access_denied")]);
    ping(&mut open).unwrap();
    let tell = |command: &str| {
        let mut convey = binary();
        convey.arg("--socket").arg(socket(&network)).args(command.split(' '));
        assert_eq!(run(&mut convey).code, Some(0), "{command}");
    };
    tell("server drain pool/s1");
    wait_for("a client to be refused", || {
        let refused = network.inside(Role::Client(1), || TcpStream::connect(network.vip()));
        refused.map_or(Some(()), |mut stream| was_reset(&mut stream).then_some(()))
    });
    let refused = drops.wait_for(&[("verdict", "answered"), ("reason", "no_server"), ("answer", "reset")]);
    assert_eq!(refused["to"], network.vip().to_string());
    assert!(drops.events().iter().all(|event| event["verdict"] != "forwarded"));
    assert!(one.events().iter().all(|event| event["reason"] != "no_server"));
}

fn traced_flow_leaves_the_kernel_and_goes_back_afterwards(case: Case) {
    leaves_the_kernel_and_goes_back(&echoing(case));
}

/// The kernel forwards a connection's packets, then a trace starts, and afterwards the kernel
/// forwards them again.
pub(crate) fn leaves_the_kernel_and_goes_back(network: &Network) {
    let _server = network.server(1, TcpServer::echo);
    let forwarded = || network.stat("/packets/cache/forwarded").as_u64().unwrap();
    let kernel_forwards = |stream: &mut TcpStream| {
        wait_for("the kernel to forward", || {
            let before = forwarded();
            (0..20).for_each(|_| ping(stream).unwrap());
            (forwarded() >= before + 20).then_some(())
        });
    };
    let [mut watched, mut other] = [(); 2].map(|()| client(network));
    kernel_forwards(&mut watched);
    kernel_forwards(&mut other);
    let addr = watched.local_addr().unwrap();
    let pattern = addr.to_string();
    let watcher = Watcher::start(network, "trace", &["--client", &pattern]);
    wait_for("packets that are shown", || {
        ping(&mut watched).unwrap();
        (watcher.packets() > 0).then_some(())
    });
    let shown = watcher.packets();
    (0..50).for_each(|_| ping(&mut watched).unwrap());
    wait_for("all packets to be shown", || (watcher.packets() >= shown + 50).then_some(()));
    // The kernel goes on forwarding other connections.
    let before = watcher.packets();
    kernel_forwards(&mut other);
    let of_other = other.local_addr().unwrap().to_string();
    assert!(watcher.events().iter().all(|event| event["client"] != of_other), "{before}");
    drop(watcher);
    kernel_forwards(&mut watched);
    assert_eq!(network.stat("/packets/drops/no_flow"), 0);
}

fn a_file_of_packets_has_both_sides(case: Case) {
    let network = echoing(case);
    let _server = network.server(1, TcpServer::echo);
    let file = network.path("trace.pcapng");
    let watcher = Watcher::start(&network, "trace", &["--pcap", file.to_str().unwrap()]);
    let mut stream = client(&network);
    ping(&mut stream).unwrap();
    let from = stream.local_addr().unwrap();
    watcher.wait_for(&[("from", &from.to_string()), ("flags", "P.")]);
    drop(watcher);
    let mut tcpdump = std::process::Command::new("tcpdump");
    let ran = run(tcpdump.args(["-n", "-e", "-r"]).arg(&file).arg("tcp"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let has = |from: String, to: String| {
        ran.stdout.lines().any(|line| line.contains(&format!("{from} > {to}: Flags [S]")))
    };
    let dotted = |addr: std::net::SocketAddr| format!("{}.{}", addr.ip(), addr.port());
    let (vip, server) = (dotted(network.vip()), dotted(network.address(Role::Server(1))));
    assert!(has(dotted(from), vip), "as it came: {ran:?}");
    assert!(
        ran.stdout.lines().any(|line| line.contains(&format!("> {server}: Flags [S]"))),
        "as it went: {ran:?}"
    );
    assert_eq!(network.vip().port(), PORT);
}
