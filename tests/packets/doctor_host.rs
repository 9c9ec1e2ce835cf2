//! More tests of `convey doctor` on the balancer: settings of the host, and servers that exist but
//! do not work.

use std::fs;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, binary, connect, run, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use crate::case::{Case, Family, PacketTest, tests};
use crate::doctor_balancer::{Patient, is_found};
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut all = tests![when Case::is_passthrough =>
        a_foreign_filter_of_tc_is_named [NGINX],
        snat_ports_that_the_host_may_use_are_named [NGINX],
        too_few_local_ports_are_named [NGINX],
        a_server_that_gives_no_answer_to_its_check_is_named [NGINX],
        a_name_that_nobody_knows_is_named [DNSMASQ, NGINX],
        a_server_that_is_off_is_named [NGINX],
        down_interface_is_reported_without_its_consequences [NGINX],
    ];
    // IPv6 has no ARP, and a worker's frontends have no flow cache.
    all.extend(tests![when |case| case.is_passthrough() && case.family == Family::V4 && case.is_cached() =>
        an_interface_that_answers_no_arp_is_named [ARPING, NGINX],
        a_kernel_that_takes_no_programs_is_named [NGINX],
        the_file_of_the_convey_that_runs_is_looked_at [NGINX],
        a_policy_that_drops_is_mended_for_all_servers_at_once [NFT, NGINX],
        a_convey_that_ran_out_of_descriptors_is_named,
    ]);
    all
}

/// Doctor ignores the file in the current folder.
fn the_file_of_the_convey_that_runs_is_looked_at(case: Case) {
    let mut patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    let elsewhere = patient.network.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("config.toml"), "this is no configuration").unwrap();
    let examine = |patient: &Patient, more: &[&str]| {
        run(patient.command().current_dir(&elsewhere).arg("doctor").args(more))
    };
    let file = patient.network.path("config.toml").canonicalize().unwrap();
    let ran = examine(&patient, &["--json"]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!((ran.code, &json["findings"]), (Some(0), &serde_json::json!([])), "{json:#}");
    assert_eq!(json["file"], file.to_str().unwrap(), "{json:#}");
    let ran = examine(&patient, &[]);
    let title = format!("configuration: {} (of the running convey)\n\nnothing found", file.display());
    assert!(ran.stdout.starts_with(&title), "{ran:?}");

    // `--config` overrides the file of the running convey, and without a running convey, doctor
    // reads the file in the folder.
    assert_eq!(examine(&patient, &["--config", "config.toml"]).code, Some(1));
    patient.convey = None;
    assert_eq!(examine(&patient, &[]).code, Some(1));
    fs::copy(&file, elsewhere.join("config.toml")).unwrap();
    let ran = examine(&patient, &[]);
    let title = "configuration: config.toml (no convey answers at the control socket)\n";
    assert!(ran.stdout.starts_with(title), "{ran:?}");
}

fn a_policy_that_drops_is_mended_for_all_servers_at_once(case: Case) {
    let others: String = [2, 3]
        .map(|n| {
            format!("[backends.pool.servers.s{n}]\naddr = \"{}:80\"\n", case.family.address(Role::Server(n)))
        })
        .concat();
    let patient = Patient::new(Network::new(case, 1, 3), "proxy", &others).started();
    let _servers = [1, 2, 3].map(|n| patient.network.nginx(n));
    patient.serves();
    let nft = |line: &str| patient.network.lab.run(Role::Balancer, "nft", &[line]).unwrap();
    nft("add table inet fw");
    nft("add chain inet fw input { type filter hook input priority 0; policy drop; }");
    nft("add rule inet fw input iif lo accept");
    nft("add rule inet fw input meta l4proto icmp accept");
    let finding = patient.is_mended("foreign-rule", Role::Balancer);
    // Answers of servers, and packets of clients.
    assert_eq!(finding["fix"].as_array().unwrap().len(), 2, "{finding:#}");
    patient.is_well();
    patient.serves();
}

/// Connections get only a part of all descriptors: accepting pauses long before the last one is
/// used.
fn a_convey_that_ran_out_of_descriptors_is_named(case: Case) {
    const CLIENTS: usize = 200;
    let mut patient = Patient::proxy(case);
    let _server = patient.network.server(1, TcpServer::echo);
    let mut command = patient.network.lab.command(Role::Balancer, "prlimit");
    command.arg("--nofile=300:300").arg(binary().get_program()).arg("--config");
    command.arg(patient.network.path("config.toml"));
    command.env("CONVEY_SOCKET", patient.network.path("control.sock")).env_remove("RUST_LOG");
    patient.convey = Some(convey_testkit::start(command, &patient.network.path("balancer")));
    let vip = patient.network.vip();
    let held =
        patient.network.inside(Role::Client(1), || (0..CLIENTS).map(|_| connect(vip)).collect::<Vec<_>>());
    wait_for("accepting to pause", || {
        let log = fs::read_to_string(patient.network.path("balancer")).unwrap_or_default();
        log.contains("cannot accept connections on").then_some(())
    });
    let status = run(patient.command().arg("status"));
    let line = "  web: paused accepting ";
    assert!(status.stdout.contains(line), "{status:?}");
    let mut finding = patient.has("descriptors");
    assert_eq!(finding["severity"], "error", "{finding:#}");
    assert!(finding["seen"].as_str().unwrap().starts_with("convey has paused accepting "), "{finding:#}");
    drop(held);
    wait_for("those who waited to be served", || {
        let ran = run(patient.command().args(["status", "--json"]));
        let status: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        (status["total_connections"] == CLIENTS && status["current_connections"] == 0).then_some(())
    });
    // In some places, such as a container, root may not raise the limit. Without its clients,
    // convey needs no more.
    let raise = finding["fix"].as_array_mut().unwrap().remove(0);
    assert!(raise.as_str().unwrap().starts_with("prlimit --pid "), "{raise}");
    patient.carry_out(&finding, Role::Balancer);
    patient.is_well();
}

/// The filter drops received packets.
fn a_foreign_filter_of_tc_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    let tc = |words: &[&str]| patient.network.lab.run(Role::Balancer, "tc", words).unwrap();
    // The qdisc may exist already.
    tc(&["qdisc", "replace", "dev", INTERFACE, "clsact"]);
    let program = ["bpf", "da", "bytecode", "1,6 0 0 2"];
    tc(&[&["filter", "add", "dev", INTERFACE, "ingress", "pref", "7"][..], &program].concat());
    patient.is_mended("tc-foreign", Role::Balancer);
    patient.is_well();
    patient.serves();
}

/// Similar to a container, whose settings only its host can change.
fn snat_ports_that_the_host_may_use_are_named(case: Case) {
    let mut patient = Patient::of(case);
    let _server = patient.network.nginx(1);
    let range = "net.ipv4.ip_local_port_range=1024 65535";
    patient.network.lab.run(Role::Balancer, "sysctl", &["-qw", range]).unwrap();
    let contained = || {
        let mut command = patient.network.lab.command(Role::Balancer, "unshare");
        let only_read =
            "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\"";
        command.args(["--mount", "sh", "-c", only_read, "sh"]).arg(binary().get_program());
        command.env("CONVEY_SOCKET", patient.network.path("control.sock"));
        command
    };
    let finding = is_found("snat-ports", patient.examine_by(contained()));
    patient.carry_out(&finding, Role::Balancer);
    let (ran, json) = patient.examine_by(contained());
    assert_eq!((ran.code, &json["findings"]), (Some(0), &serde_json::json!([])), "{json:#}");
    patient.start();
    patient.serves();
}

fn too_few_local_ports_are_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    let range = "net.ipv4.ip_local_port_range=50000 50063";
    patient.network.lab.run(Role::Balancer, "sysctl", &["-qw", range]).unwrap();
    patient.is_mended("local-ports", Role::Balancer);
    patient.is_well();
    patient.serves();
}

/// The port accepts connections, but its service is not HTTP.
fn a_server_that_gives_no_answer_to_its_check_is_named(case: Case) {
    let patient = Patient::proxy(case);
    patient.change("kind = \"tcp\"", "kind = \"http\"\npath = \"/\"");
    let patient = patient.started();
    let wrong = patient.network.server(1, TcpServer::echo);
    let finding = patient.has("server-reply");
    assert!(finding["on"].as_str().unwrap().starts_with("server pool/s1 ("), "{finding:#}");
    // No command mends a service.
    assert_eq!(finding["fix"], serde_json::json!([]), "{finding:#}");
    drop(wrong);
    let _server = patient.network.nginx(1);
    patient.is_well();
    patient.serves();
}

fn a_name_that_nobody_knows_is_named(case: Case) {
    let network = Network::new(case, 1, 1);
    let mut patient = Patient::new(network, "proxy", "[dns]\nnameservers = \"127.0.0.1:5353\"\n");
    let _server = patient.network.nginx(1);
    let own = patient.network.address(Role::Server(1));
    patient.change(&own.to_string(), "app.convey.test:80");
    let hosts = patient.network.path("hosts");
    fs::write(&hosts, "").unwrap();
    let dnsmasq = patient.name_server(&hosts);
    let finding = patient.has("name-unresolved");
    assert!(finding["seen"].as_str().unwrap().contains("app.convey.test"), "{finding:#}");
    fs::write(&hosts, format!("{} app.convey.test\n", own.ip())).unwrap();
    dnsmasq.signal(Signal::HUP);
    wait_for("the name to be known", || {
        let (_, json) = patient.examine();
        (json["findings"] == serde_json::json!([])).then_some(())
    });
    patient.start();
    patient.serves();
}

fn a_server_that_is_off_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let server = patient.network.nginx(1);
    let own = case.family.address(Role::Server(1));
    patient.ip(Role::Switch, "link set server1 down");
    patient.ip(Role::Balancer, &format!("neigh flush to {own}"));
    let finding = patient.has("server-unreachable");
    assert_eq!(finding["on"], format!("server pool/s1 ({own})"), "{finding:#}");
    patient.ip(Role::Switch, "link set server1 up");
    wait_for("the server to be found again", || {
        let (_, json) = patient.examine();
        (json["findings"] == serde_json::json!([])).then_some(())
    });
    patient.serves();
    drop(server);
}

fn down_interface_is_reported_without_its_consequences(case: Case) {
    for mut patient in [Patient::of(case), Patient::proxy(case)] {
        let _server = patient.network.nginx(1);
        patient.start();
        patient.serves();
        patient.convey = None;
        patient.ip(Role::Balancer, &format!("link set {INTERFACE} down"));
        let finding = patient.has("interface-down");
        assert_eq!(finding["fix"], serde_json::json!([format!("ip link set dev {INTERFACE} up")]));
        // This removes IPv6 addresses, too, which only their owner can restore.
        if case.family == Family::V4 {
            patient.carry_out(&finding, Role::Balancer);
            patient.is_well();
            patient.start();
            patient.serves();
        }
    }
}

fn an_interface_that_answers_no_arp_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    patient.serves();
    let setting = format!("net.ipv4.conf.{INTERFACE}.arp_ignore=8");
    patient.network.lab.run(Role::Balancer, "sysctl", &["-qw", &setting]).unwrap();
    let vip = patient.network.vip().ip();
    patient.ip(Role::Client(1), &format!("neigh flush to {vip}"));
    let found = patient.network.run(1, "arping", &["-c", "1", "-w", "1", "-I", INTERFACE, &vip.to_string()]);
    assert_ne!(found.code, Some(0), "nobody answers: {found:?}");
    patient.is_mended("arp-ignore", Role::Balancer);
    patient.is_well();
    patient.ip(Role::Client(1), &format!("neigh flush to {vip}"));
    patient.serves();
}

/// Without CAP_BPF, as in most containers, all packets go through workers.
fn a_kernel_that_takes_no_programs_is_named(case: Case) {
    let mut patient = Patient::of(case);
    patient.change("offload = \"tc\"", "offload = \"auto\"");
    let _server = patient.network.nginx(1);
    let mut command = patient.network.lab.command(Role::Balancer, "setpriv");
    command.args(["--inh-caps", "-bpf,-sys_admin", "--bounding-set", "-bpf,-sys_admin"]);
    command.arg(binary().get_program()).env("CONVEY_SOCKET", patient.network.path("control.sock"));
    command.arg("--config").arg(patient.network.path("config.toml")).env_remove("RUST_LOG");
    patient.convey = Some(convey_testkit::start(command, &patient.network.path("balancer")));
    patient.serves();
    let finding = patient.has("offload-missing");
    assert_eq!(finding["severity"], "warning", "{finding:#}");
    patient.convey = None;
    patient.start();
    patient.is_well();
    patient.serves();
}
