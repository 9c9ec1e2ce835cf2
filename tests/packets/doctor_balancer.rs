//! `convey doctor` on the balancer: a healthy host, and labs with one fault each. Doctor names the
//! fault, the test runs the suggested commands, doctor finds nothing more, and a client is served.

mod patient;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::{Process, Ran, TcpServer, binary, connect, run, wait_for};
use rustix::process::Signal;
use serde_json::Value;

use crate::case::{Case, Family, PacketTest, tests};
use crate::l2::prepared;
use crate::network::{Network, PORT};

pub(crate) use self::patient::{Patient, is_found};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut all = tests![
        a_host_that_is_well_has_no_finding [NGINX],
        a_vip_that_no_interface_has_is_named [NGINX],
        a_vip_that_another_host_has_too_is_named [NGINX],
        a_server_whose_firewall_drops_is_named [IPTABLES, NGINX],
        a_server_whose_firewall_rejects_is_named [IPTABLES, NGINX],
        a_neighbour_with_the_wrong_ethernet_address_is_named [NGINX],
        a_foreign_xdp_program_is_named [NGINX],
    ];
    all.extend(tests![when Case::is_passthrough =>
        a_proxy_that_is_well_has_no_finding [NGINX],
        a_port_that_another_process_has_is_named [NGINX],
        a_server_on_another_port_is_named,
        a_hop_that_drops_large_packets_is_named [IPTABLES],
        a_foreign_rule_is_named [NFT, NGINX],
        a_full_table_is_named,
        too_few_descriptors_are_named [NGINX],
        records_that_are_believed_for_too_long_are_named [DNSMASQ, NGINX],
    ]);
    all.extend(tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        a_strict_rp_filter_that_drops_clients_is_named [NGINX, PING],
        without_privileges_it_says_what_it_did_not_look_at [NGINX],
        other_user_does_not_take_convey_for_another_process [NGINX],
    ]);
    all.extend(tests![when Case::is_dsr =>
        a_host_whose_servers_have_the_vip_has_no_finding [NGINX],
        a_service_that_has_the_vip_alone_has_no_finding,
    ]);
    all
}

fn a_host_that_is_well_has_no_finding(case: Case) {
    let patient = Patient::of(case);
    let _server = patient.network.nginx(1);
    patient.is_well();
    let patient = patient.started();
    patient.serves();
    patient.is_well();
}

fn a_proxy_that_is_well_has_no_finding(case: Case) {
    let patient = Patient::proxy(case);
    let _server = patient.network.nginx(1);
    patient.is_well();
    let patient = patient.started();
    patient.serves();
    patient.is_well();
}

fn a_host_whose_servers_have_the_vip_has_no_finding(case: Case) {
    let patient = Patient::new(prepared(case, 1), "dsr", "[backends.pool]\ndsr = \"l2\"\n");
    let _server = patient.network.nginx_on(1, (case.family.any(), PORT).into());
    patient.is_well();
    let patient = patient.started();
    patient.serves();
    patient.is_well();
}

/// Without a health check, convey never connects to the server's own address.
fn a_service_that_has_the_vip_alone_has_no_finding(case: Case) {
    let patient = Patient::new(prepared(case, 1), "dsr", "[backends.pool]\ndsr = \"l2\"\n");
    patient.change("kind = \"tcp\"", "kind = \"none\"");
    let vip = patient.network.vip();
    let patient = patient.started();
    let _server = patient.network.server(1, |_| TcpServer::named("s1", vip));
    patient.serves();
    patient.is_well();
}

/// Findings of a user who is not root, and may not connect to the control socket.
fn examine_as_nobody(patient: &Patient) -> (Ran, Value) {
    let mut command = patient.network.lab.command(Role::Balancer, "setpriv");
    // The capability gives access to this test's files.
    command.args(["--reuid", "65534", "--clear-groups", "--inh-caps", "-all,+dac_override"]);
    command.args(["--bounding-set", "-all,+dac_override", "--ambient-caps", "+dac_override"]);
    command.arg(binary().get_program()).args(["doctor", "--json", "--config"]);
    command.arg(patient.network.path("config.toml")).env("CONVEY_SOCKET", "");
    let ran = run(&mut command);
    let json = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    (ran, json)
}

fn other_user_does_not_take_convey_for_another_process(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    patient.serves();
    let (ran, json) = examine_as_nobody(&patient);
    assert_eq!((ran.code, &json["findings"]), (Some(0), &serde_json::json!([])), "{json:#}");
}

fn without_privileges_it_says_what_it_did_not_look_at(case: Case) {
    let patient = Patient::proxy(case);
    let _server = patient.network.nginx(1);
    let (ran, json) = examine_as_nobody(&patient);
    assert_eq!((ran.code, &json["findings"]), (Some(0), &serde_json::json!([])), "{json:#}");
    let unseen: BTreeSet<&str> =
        json["skipped"].as_array().unwrap().iter().filter_map(|one| one["check"].as_str()).collect();
    for check in ["vip-duplicate", "neighbour-stale", "path-mtu", "port-taken", "foreign-rule", "table-full"]
    {
        assert!(unseen.contains(check), "{check}: {json:#}");
    }
}

fn a_vip_that_no_interface_has_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    patient.ip(Role::Balancer, &format!("addr del {} dev {INTERFACE}", patient.vip()));
    patient.is_mended("vip-missing", Role::Balancer);
    patient.is_well();
    patient.serves();
}

fn a_vip_that_another_host_has_too_is_named(case: Case) {
    let network = Network::planned(case, &LabPlan::new(1, 1).standby());
    let patient = Patient::new(network, case.mode.name(), "").started();
    let _server = patient.network.nginx(1);
    let nodad = if case.family == Family::V6 { " nodad" } else { "" };
    patient.ip(Role::Standby, &format!("addr add {} dev {INTERFACE}{nodad}", patient.vip()));
    patient.is_mended("vip-duplicate", Role::Standby);
    patient.is_well();
    patient.serves();
}

/// A rule of the server's firewall, with this target.
fn is_walled_off(case: Case, target: &str, check: &str) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    let program = if case.family == Family::V4 { "iptables" } else { "ip6tables" };
    let rule = ["-A", "INPUT", "-p", "tcp", "--dport", "80", "-j", target];
    patient.network.lab.run(Role::Server(1), program, &rule).unwrap();
    let finding = patient.is_mended(check, Role::Server(1));
    assert!(finding["on"].as_str().unwrap().starts_with("server pool/s1 ("), "{finding:#}");
    patient.is_well();
    patient.serves();
}

fn a_server_whose_firewall_drops_is_named(case: Case) {
    is_walled_off(case, "DROP", "server-silent");
}

fn a_server_whose_firewall_rejects_is_named(case: Case) {
    is_walled_off(case, "REJECT", "server-rejected");
}

fn a_neighbour_with_the_wrong_ethernet_address_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    let server = case.family.address(Role::Server(1));
    patient.ip(
        Role::Balancer,
        &format!("neigh replace {server} lladdr 02:00:00:00:00:99 nud permanent dev {INTERFACE}"),
    );
    patient.is_mended("neighbour-stale", Role::Balancer);
    patient.is_well();
    patient.serves();
}

fn a_foreign_xdp_program_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.nginx(1);
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/bench.bpf.o");
    patient
        .ip(Role::Balancer, &format!("link set dev {INTERFACE} xdpgeneric obj {object} program bench_drop"));
    let finding = patient.is_mended("xdp-foreign", Role::Balancer);
    assert!(finding["seen"].as_str().unwrap().starts_with("the XDP program bench_drop (id "), "{finding:#}");
    patient.is_well();
    patient.serves();
}

fn a_port_that_another_process_has_is_named(case: Case) {
    let mut patient = Patient::proxy(case);
    let _server = patient.network.nginx(1);
    let vip = patient.network.vip();
    let script = format!(
        "use IO::Socket::IP; $| = 1; my $s = IO::Socket::IP->new(LocalHost => '{}', LocalPort => {PORT}, Listen => 5, \
         ReuseAddr => 1) or die; print 'bound'; sleep 600",
        vip.ip()
    );
    let mut squatter = patient.network.lab.command(Role::Balancer, "perl");
    let bound = patient.network.path("bound");
    let out = fs::File::create(&bound).unwrap();
    let mut squatter = Process::spawn(squatter.args(["-e", &script]).stdout(out).stderr(Stdio::null()));
    wait_for("the port to be taken", || (fs::read_to_string(&bound).unwrap() == "bound").then_some(()));
    let finding = patient.is_mended("port-taken", Role::Balancer);
    assert!(finding["seen"].as_str().unwrap().starts_with("perl (process "), "{finding:#}");
    squatter.wait();
    patient.is_well();
    patient.start();
    patient.serves();
}

fn a_server_on_another_port_is_named(case: Case) {
    let patient = Patient::of(case).started();
    let _server = patient.network.server(1, |addr| TcpServer::named("s1", SocketAddr::new(addr.ip(), 8080)));
    patient.is_mended("server-refused", Role::Balancer);
    patient.is_well();
    patient.serves();
}

/// The router takes 1,400 bytes, and sends no ICMP errors.
fn a_hop_that_drops_large_packets_is_named(case: Case) {
    const SIZE: usize = 100_000;
    let network = Network::planned(case, &LabPlan::new(1, 1).narrow(Role::Server(1)));
    let patient = Patient::new(network, "proxy", "").started();
    patient.network.narrow_in_silence(Role::Server(1));
    let _server = patient.network.server(1, TcpServer::echo);
    patient.takes_connections();
    let finding = patient.is_mended("path-mtu", Role::Balancer);
    assert!(
        finding["seen"].as_str().unwrap().starts_with("packets above 1400 bytes do not reach "),
        "{finding:#}"
    );
    assert_eq!(finding["severity"], "error");
    patient.is_well();
    let sent: Vec<u8> = (0..SIZE).map(|n| n as u8).collect();
    let received = patient.network.inside(Role::Client(1), || {
        let mut stream = connect(patient.network.vip());
        let mut writer = stream.try_clone().unwrap();
        let mut received = vec![0; SIZE];
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&sent).unwrap());
            stream.read_exact(&mut received).unwrap();
        });
        received
    });
    assert!(received == sent, "large segments come through");
}

fn a_foreign_rule_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    let nft = |line: &str| patient.network.lab.run(Role::Balancer, "nft", &[line]).unwrap();
    nft("add table inet fw");
    nft("add chain inet fw input { type filter hook input priority 0; policy accept; }");
    nft("add rule inet fw input ct state established,related accept");
    nft("add rule inet fw input tcp dport { 22, 80 } counter drop");
    patient.is_mended("foreign-rule", Role::Balancer);
    patient.is_well();
    patient.serves();

    // A policy of drop for packets that no rule accepts.
    nft("flush chain inet fw input");
    nft("add rule inet fw input ct state established,related accept");
    nft("add chain inet fw input { policy drop; }");
    nft("add rule inet fw input tcp dport 22 accept");
    nft("add rule inet fw input meta l4proto { icmp, icmpv6 } accept");
    patient.is_mended("foreign-rule", Role::Balancer);
    patient.is_well();
    patient.serves();
}

fn a_full_table_is_named(case: Case) {
    const FLOWS: usize = 40;
    let network = Network::new(case, 1, 1);
    let patient =
        Patient::new(network, "passthrough", &format!("workers = 1\nmax_flows = {FLOWS}\n")).started();
    let server = patient.network.server(1, TcpServer::echo);
    patient.takes_connections();
    let vip = patient.network.vip();
    let held: Vec<_> = patient.network.inside(Role::Client(1), || {
        let mut open = Vec::new();
        for _ in 0..FLOWS {
            let mut stream = connect(vip);
            stream.write_all(b"!").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            open.push(stream);
        }
        open
    });
    patient.is_mended("table-full", Role::Balancer);
    let mut more = patient.network.inside(Role::Client(1), || connect(vip));
    more.write_all(b"!").unwrap();
    more.read_exact(&mut [0]).unwrap();
    patient.is_well();
    drop((held, server));
}

fn too_few_descriptors_are_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    let process = patient.convey.as_ref().unwrap().id();
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    // At the moment of the count, a probe may have had a descriptor or not; the control socket
    // needs another.
    let limit = format!("--nofile={}:", open + 2);
    patient.network.lab.run(Role::Balancer, "prlimit", &["--pid", &process.to_string(), &limit]).unwrap();
    patient.is_mended("descriptors", Role::Balancer);
    patient.is_well();
    patient.serves();
}

/// The client's packets arrive on a link of its own, and the answers leave by the switch.
fn a_strict_rp_filter_that_drops_clients_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    let client = Role::Client(1);
    let namespace = patient.network.lab.namespace(client);
    patient.ip(Role::Balancer, &format!("link add side type veth peer name side netns {namespace}"));
    patient.ip(Role::Balancer, "addr add 10.78.0.1/24 dev side");
    patient.ip(client, "addr add 10.78.0.2/24 dev side");
    patient.ip(Role::Balancer, "link set side up");
    patient.ip(client, "link set side up");
    for (role, value) in [(Role::Balancer, 1), (client, 0)] {
        let settings = ["all", "side", INTERFACE].map(|name| {
            let value = if name == "side" { value } else { 0 };
            format!("net.ipv4.conf.{name}.rp_filter={value}")
        });
        patient.network.lab.run(role, "sysctl", &["-qw", &settings[0], &settings[1], &settings[2]]).unwrap();
    }
    // Otherwise, the balancer would answer no ARP request of the client.
    patient.network.lab.run(client, "sysctl", &["-qw", "net.ipv4.conf.all.arp_announce=2"]).unwrap();
    let (own, vip) = (client.address(), patient.network.vip().ip());
    patient.ip(client, &format!("route add {vip}/32 via 10.78.0.1 dev side src {own}"));
    let mut ping = patient.network.client(1, "ping");
    let ping = Process::spawn(ping.args(["-q", "-i", "0.05", &vip.to_string()]).stdout(Stdio::null()));
    patient.is_mended("rp-filter", Role::Balancer);
    patient.is_well();
    drop(ping);
    patient.serves();
}

/// The name has another address now, and the record in convey's cache is valid for five minutes.
fn records_that_are_believed_for_too_long_are_named(case: Case) {
    let mut patient =
        Patient::new(Network::new(case, 1, 2), "proxy", "[dns]\nnameservers = \"127.0.0.1:5353\"\n");
    let _servers = [1, 2].map(|number| patient.network.nginx(number));
    patient.change(&patient.network.address(Role::Server(1)).to_string(), "app.convey.test:80");
    let hosts = patient.network.path("hosts");
    let answer = |server| {
        fs::write(&hosts, format!("{} app.convey.test\n", case.family.address(Role::Server(server))))
    };
    answer(1).unwrap();
    let dnsmasq = patient.name_server(&hosts);
    patient.start();
    patient.serves();
    patient.is_well();

    answer(2).unwrap();
    dnsmasq.signal(Signal::HUP);
    wait_for("the name server to say so", || {
        let (_, json) = patient.examine();
        (json["findings"] != serde_json::json!([])).then_some(())
    });
    patient.is_mended("clock", Role::Balancer);
    wait_for("the other server to answer", || (patient.network.fetch(1).ok()? == "s2").then_some(()));
    patient.is_well();
}
