//! A server of direct server return with one fault: `convey doctor --server` on the server names
//! it, and the printed commands fix it.
//!
//! The client is behind a router, so that answers leave by a gateway.

use std::net::{IpAddr, SocketAddr, TcpListener};

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::{Nginx, Ran, binary, run, wait_for};
use serde_json::Value;

use crate::case::{Case, Family, PacketTest, tests};
use crate::network::{Network, PORT};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when Case::is_dsr =>
        doctor_finds_nothing_on_a_healthy_server [NGINX],
        balancer_accepts_rules_that_leave_out_the_vip [NGINX],
        doctor_names_a_gateway_that_is_nobody_s_address [NGINX],
        doctor_names_a_gateway_that_is_no_router [NGINX],
        doctor_names_nat_that_is_missing_or_of_another_port_or_interface [NGINX],
        doctor_names_a_vip_that_is_not_there_or_on_the_link [NGINX],
        doctor_names_a_service_on_another_address_or_none [NGINX],
        doctor_names_a_firewall_that_drops [NFT, NGINX],
        doctor_names_a_firewall_that_rejects [NFT, NGINX],
        doctor_names_a_link_that_takes_only_short_packets [NGINX],
    ];
    // IPv6 has no such settings.
    tests.extend(tests![when |case| case.is_dsr() && case.family == Family::V4 =>
        doctor_names_arp_that_is_not_silenced [NGINX],
        doctor_names_a_strict_reverse_path [NGINX],
        doctor_names_rules_of_iptables [IPTABLES, NFT, NGINX],
    ]);
    tests
}

/// Checks of the balancer's doctor.
const FORWARD: &str = "dsr-forward-leg";
const RETURN: &str = "dsr-return-leg";

const SERVER: Role = Role::Server(1);

/// Address of the client, outside of the server's networks.
const CLIENT: &str = "10.78.0.9";
const CLIENT_V6: &str = "fd78::9";

/// A balancer, a server and a client behind a router.
struct Clinic {
    network: Network,
    l2: bool,
    nginx: Option<Nginx>,
}

fn doctor_finds_nothing_on_a_healthy_server(case: Case) {
    for l2 in [false, true] {
        let clinic = Clinic::open(case, l2);
        clinic.is_healthy();
        clinic.close();
        let text = clinic.doctor(&[]);
        assert_eq!((text.code, text.stdout.as_str()), (Some(0), "nothing found: all checks passed\n"));
        // Clients on the link are answered without a router.
        clinic.ip(SERVER, &["route", "del", "default"]);
        let text = clinic.doctor(&[]);
        let unseen = "nothing found\nskipped [client-route]: needs a default route for IPv";
        assert!(text.code == Some(0) && text.stdout.starts_with(unseen), "{text:?}");
    }
}

/// Such rules leave the address of the server in answers to the VIP.
fn balancer_accepts_rules_that_leave_out_the_vip(case: Case) {
    let clinic = Clinic::open(case, false);
    let balancers = format!("{} {}", case.family.address(Role::Balancer), clinic.network.vip().ip());
    clinic.script("down", &[]);
    clinic.script("up", &[("BALANCERS", &balancers)]);
    clinic.is_served();
    let handshakes =
        |name: &str| clinic.network.stat(&format!("/backends/pool/servers/s1/handshakes/{name}")).as_u64();
    wait_for("the handshake to be counted", || {
        (handshakes("completed") > Some(0) && handshakes("consecutive_incomplete") == Some(0)).then_some(())
    });
    clinic.assert_balancer_finds(None);
    clinic.close();
}

fn doctor_names_a_gateway_that_is_nobody_s_address(case: Case) {
    for l2 in [false, true] {
        let clinic = Clinic::open(case, l2);
        let unused_address = clinic.of_family("10.77.0.250", "fd77::250");
        clinic.ip(SERVER, &["route", "replace", "default", "via", unused_address, "dev", INTERFACE]);
        clinic.is_mended_after("gateway", None);
        clinic.close();
    }
}

fn doctor_names_a_gateway_that_is_no_router(case: Case) {
    let clinic = Clinic::open(case, false);
    let other = case.family.address(Role::Server(2)).to_string();
    clinic.ip(SERVER, &["route", "replace", "default", "via", &other, "dev", INTERFACE]);
    clinic.is_mended_after("gateway", None);
    let balancer = case.family.address(Role::Balancer).to_string();
    clinic.ip(SERVER, &["route", "replace", "default", "via", &balancer, "dev", INTERFACE]);
    let seen = clinic.is_mended_after("gateway", None);
    assert!(seen.contains("is the balancer"), "{seen}");
    clinic.close();
}

fn doctor_names_nat_that_is_missing_or_of_another_port_or_interface(case: Case) {
    let clinic = Clinic::open(case, false);
    clinic.script("down", &[]);
    clinic.is_mended_after("nat-missing", Some(RETURN));

    clinic.script("up", &[("PORTS", "81")]);
    let seen = clinic.is_mended_after("nat-wrong-port", Some(RETURN));
    assert!(seen.contains("answers from port 81 (tcp and udp) get"), "{seen}");

    clinic.ip(SERVER, &["link", "add", "eth1", "type", "veth", "peer", "name", "peer1"]);
    clinic.script("down", &[]);
    clinic.script("up", &[("INTERFACE", "eth1")]);
    clinic.is_mended_after("nat-wrong-interface", Some(RETURN));
    clinic.close();
}

fn doctor_names_a_vip_that_is_not_there_or_on_the_link(case: Case) {
    let clinic = Clinic::open(case, true);
    clinic.ip(SERVER, &["addr", "del", &clinic.vip_with_length(), "dev", "lo"]);
    let seen = clinic.is_mended_after("vip-not-on-lo", Some(FORWARD));
    assert!(seen.contains("no interface has the VIP"), "{seen}");

    clinic.ip(SERVER, &["addr", "del", &clinic.vip_with_length(), "dev", "lo"]);
    let nodad: &[&str] = if case.family == Family::V6 { &["nodad"] } else { &[] };
    clinic.ip(SERVER, &[&["addr", "add", &clinic.vip_with_length(), "dev", INTERFACE], nodad].concat());
    let findings = clinic.findings();
    assert_eq!(checks(&findings), ["vip-not-on-lo"], "{findings}");
    clinic.assert_balancer_finds(Some(FORWARD));
    clinic.fix(&findings);
    clinic.is_healthy();
    clinic.close();
}

fn doctor_names_arp_that_is_not_silenced(case: Case) {
    let clinic = Clinic::open(case, true);
    for setting in ["net.ipv4.conf.all.arp_ignore=0", "net.ipv4.conf.all.arp_announce=0"] {
        clinic.network.lab.run(SERVER, "sysctl", &["-w", setting]).unwrap();
        let findings = clinic.findings();
        assert_eq!(checks(&findings), ["arp-not-silenced"], "{findings}");
        clinic.assert_balancer_finds(setting.contains("arp_ignore").then_some(FORWARD));
        clinic.fix(&findings);
        clinic.is_healthy();
    }
    clinic.close();
}

fn doctor_names_a_strict_reverse_path(case: Case) {
    let clinic = Clinic::open(case, true);
    clinic.second_link();
    clinic.network.lab.run(SERVER, "sysctl", &["-w", "net.ipv4.conf.eth0.rp_filter=1"]).unwrap();
    clinic.is_mended_after("rp-filter", None);
    clinic.close();
}

fn doctor_names_a_service_on_another_address_or_none(case: Case) {
    for l2 in [false, true] {
        let mut clinic = Clinic::open(case, l2);
        clinic.nginx = None;
        let elsewhere: IpAddr = clinic.of_family("127.0.0.1", "::1").parse().unwrap();
        let listener = clinic.network.inside(SERVER, || TcpListener::bind((elsewhere, PORT)).unwrap());
        let findings = clinic.findings();
        assert_eq!(checks(&findings), ["service-address"], "{findings}");
        clinic.assert_balancer_finds(Some(FORWARD));
        let seen = findings[0]["seen"].as_str().unwrap().to_owned();
        let process = format!("(process {}) listens only on", std::process::id());
        assert!(seen.contains(&process), "{seen}");
        drop(listener);
        let findings = clinic.findings();
        assert_eq!(checks(&findings), ["service-address"], "{findings}");
        clinic.assert_balancer_finds(Some(FORWARD));
        assert!(
            findings[0]["seen"].as_str().unwrap().starts_with("no process listens on port 80"),
            "{findings}"
        );
        clinic.start_service();
        clinic.is_healthy();
        clinic.close();
    }
}

fn doctor_names_a_firewall_that_drops(case: Case) {
    for l2 in [false, true] {
        let clinic = Clinic::open(case, l2);
        // The balancer is let in, as its health checks are: clients are not.
        clinic.firewall("ct state established accept", "drop");
        clinic.is_mended_after("firewall-drops", Some(FORWARD));
        clinic.close();
    }
}

fn doctor_names_a_firewall_that_rejects(case: Case) {
    for l2 in [false, true] {
        let clinic = Clinic::open(case, l2);
        clinic.firewall("tcp dport 80 reject", "accept");
        clinic.is_mended_after("firewall-rejects", Some(FORWARD));
        clinic.close();
    }
}

fn doctor_names_rules_of_iptables(case: Case) {
    let clinic = Clinic::open(case, false);
    for (target, check) in [("DROP", "firewall-drops"), ("REJECT", "firewall-rejects")] {
        let rule = [
            "-A",
            "INPUT",
            "-p",
            "tcp",
            "--dport",
            "80",
            "-m",
            "comment",
            "--comment",
            "not here",
            "-j",
            target,
        ];
        clinic.network.lab.run(SERVER, "iptables", &rule).unwrap();
        clinic.is_mended_after(check, Some(FORWARD));
        // The rule of the fix accepts the packets; the next fault is made without it.
        clinic.network.lab.run(SERVER, "iptables", &["-F", "INPUT"]).unwrap();
    }
    clinic.close();
}

fn doctor_names_a_link_that_takes_only_short_packets(case: Case) {
    let clinic = Clinic::open(case, false);
    // The switch's end of the server's link drops longer packets without an ICMP error.
    clinic.ip(Role::Switch, &["link", "set", "server1", "mtu", "1400"]);
    let findings = clinic.findings();
    assert_eq!(checks(&findings), ["mtu"], "{findings}");
    clinic.fix(&findings);
    clinic.is_healthy();
    clinic.close();
}

impl Clinic {
    /// A lab with a served client.
    fn open(case: Case, l2: bool) -> Clinic {
        let mut network = Network::bare(case, &LabPlan::new(1, 2).narrow(Role::Client(1)));
        routes(&network);
        let mut clinic = match l2 {
            true => {
                let vip = network.vip().ip().to_string();
                network.script(SERVER, "tc/dsr-server-l2.sh", "up", &[("VIP", &vip)]);
                network.balance_with(&config(case, "l2"));
                Clinic { network, l2, nginx: None }
            }
            false => {
                network.balance_with(&config(case, "l3"));
                let clinic = Clinic { network, l2, nginx: None };
                clinic.script("up", &[]);
                clinic
            }
        };
        clinic.start_service();
        clinic.is_served();
        clinic
    }

    /// Clients of `l2` come to the VIP, others to the server's own address.
    fn start_service(&mut self) {
        let any = (self.network.case.family.any(), PORT).into();
        let own = self.network.address(SERVER);
        self.nginx = Some(self.network.nginx_on(1, if self.l2 { any } else { own }));
    }

    /// Runs the script of `dsr = "l3"` with these variables instead of the right ones.
    fn script(&self, action: &str, other: &[(&str, &str)]) {
        let family = self.network.case.family;
        let (vip, server) = (self.network.vip().ip().to_string(), family.address(SERVER).to_string());
        let balancer = family.address(Role::Balancer).to_string();
        let right = [
            ("VIP", vip.as_str()),
            ("PORTS", "80"),
            ("SERVER", &server),
            ("BALANCERS", &balancer),
            ("INTERFACE", INTERFACE),
        ];
        let variables = [&right[..], other].concat();
        self.network.script(SERVER, "tc/dsr-server-nft.sh", action, &variables);
    }

    fn firewall(&self, rule: &str, policy: &str) {
        let chain = format!("{{ type filter hook input priority 0; policy {policy}; }}");
        let lines = ["add table inet filter", &format!("add chain inet filter input {chain}")].join("\n");
        let neighbours = "add rule inet filter input meta l4proto ipv6-icmp accept";
        let text = format!("{lines}\n{neighbours}\nadd rule inet filter input {rule}\n");
        std::fs::write(self.network.path("firewall"), text).unwrap();
        let file = self.network.path("firewall");
        self.network.lab.run(SERVER, "nft", &["-f", file.to_str().unwrap()]).unwrap();
    }

    /// Adds another interface of the server, by which answers leave.
    fn second_link(&self) {
        let server = self.network.lab.namespace(SERVER);
        self.ip(
            Role::Switch,
            &["link", "add", "second", "type", "veth", "peer", "name", "eth1", "netns", &server],
        );
        self.ip(Role::Switch, &["link", "set", "second", "master", "switch", "up"]);
        self.ip(SERVER, &["addr", "add", "10.77.0.111/24", "dev", "eth1"]);
        self.ip(SERVER, &["link", "set", "eth1", "up"]);
        self.ip(SERVER, &["route", "replace", "default", "via", "10.77.0.253", "dev", "eth1"]);
    }

    fn ip(&self, role: Role, arguments: &[&str]) {
        ip(&self.network, role, arguments);
    }

    fn of_family<'a>(&self, v4: &'a str, v6: &'a str) -> &'a str {
        of_family(self.network.case, v4, v6)
    }

    fn vip_with_length(&self) -> String {
        format!("{}/{}", self.network.vip().ip(), self.of_family("32", "128"))
    }

    /// Returns the observation of the only finding. Its commands fix the fault. The balancer's
    /// doctor names the leg that failed, as far as it can.
    fn is_mended_after(&self, check: &str, leg: Option<&str>) -> String {
        assert!(
            self.network.inside(Role::Client(1), || !is_answered(self.network.vip())),
            "{check} does no harm"
        );
        if leg == Some(RETURN) {
            self.await_failed_client();
        }
        self.assert_balancer_finds(leg);
        let findings = self.findings();
        assert_eq!(checks(&findings), [check], "{findings:#}");
        self.fix(&findings);
        self.is_healthy();
        findings[0]["seen"].as_str().unwrap().to_owned()
    }

    /// Handshakes are counted once a second, and none is in vain in a second with a complete one.
    fn await_failed_client(&self) {
        wait_for("a handshake in vain to be counted", || {
            self.network.inside(Role::Client(1), || is_answered(self.network.vip()));
            let incomplete = self.network.stat("/backends/pool/servers/s1/handshakes/consecutive_incomplete");
            (incomplete.as_u64() > Some(0)).then_some(())
        });
    }

    /// Runs the commands.
    fn fix(&self, findings: &Value) {
        assert_ne!(findings[0]["fix"], serde_json::json!([]), "{findings:#}");
        for command in findings[0]["fix"].as_array().unwrap() {
            let command = command.as_str().unwrap();
            let mut shell = self.network.lab.command(SERVER, "sh");
            let ran = run(shell.current_dir(env!("CARGO_MANIFEST_DIR")).args(["-c", command]));
            assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        }
    }

    fn is_healthy(&self) {
        let findings = self.findings();
        assert_eq!(checks(&findings), [""; 0], "{findings:#}");
        self.is_served();
    }

    /// Checks that in the end, the balancer's doctor finds nothing about the legs either.
    fn close(&self) {
        self.assert_balancer_finds(None);
    }

    /// Waits until the balancer serves the client. The balancer may have to notice first that the
    /// server is up again.
    fn is_served(&self) {
        wait_for("the client to be served", || {
            let name =
                self.network.inside(Role::Client(1), || convey_testkit::fetch(self.network.vip(), "/").ok());
            name.filter(|(_, body)| body.trim() == "s1").map(drop)
        });
    }

    /// Checks that the balancer's doctor names the server and this leg, or finds nothing about
    /// legs.
    fn assert_balancer_finds(&self, leg: Option<&str>) {
        let mut command = self.network.lab.command(Role::Balancer, binary().get_program());
        command.args(["doctor", "--json", "--config"]).arg(self.network.path("config.toml"));
        let found = findings_of(&run(&mut command));
        let server = self.network.case.family.address(SERVER).to_string();
        let ways: Vec<&Value> = found
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| finding["check"].as_str().is_some_and(is_of_a_way))
            .collect();
        let expected = |check: &str| match leg {
            // Doctor may name the server's own address, too.
            Some(FORWARD) => check == FORWARD || !check.starts_with("dsr-"),
            leg => leg == Some(check),
        };
        assert_eq!(ways.len(), usize::from(leg.is_some()), "{found:#}");
        let names_it = |finding: &Value| finding["on"].as_str().is_some_and(|on| on.contains(&server));
        assert!(
            ways.iter().all(|finding| expected(finding["check"].as_str().unwrap()) && names_it(finding)),
            "{found:#}"
        );
    }

    fn findings(&self) -> Value {
        findings_of(&self.doctor(&["--json"]))
    }

    fn doctor(&self, arguments: &[&str]) -> Ran {
        let vip = self.network.vip().to_string();
        let mut command = self.network.lab.command(SERVER, binary().get_program());
        run(command
            .args(["doctor", "--server", &vip])
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR")))
    }
}

/// Whether a check of the balancer is about one server.
fn is_of_a_way(check: &str) -> bool {
    let is_of_status = check == "server-down";
    let is_of_server = check.starts_with("server-") && !is_of_status;
    check.starts_with("dsr-") || is_of_server || check == "vip-duplicate"
}

/// Parses the findings. Exit code 3 means at least one finding.
fn findings_of(ran: &Ran) -> Value {
    let examination: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    let findings = examination["findings"].clone();
    let expected = if findings.as_array().unwrap().is_empty() { 0 } else { 3 };
    assert_eq!(ran.code, Some(expected), "{ran:?}");
    findings
}
fn checks(findings: &Value) -> Vec<&str> {
    findings.as_array().unwrap().iter().map(|finding| finding["check"].as_str().unwrap()).collect()
}

/// Adds routes to the client's address, which only the router leads to.
fn routes(network: &Network) {
    let case = network.case;
    let (client, router) = (of_family(case, CLIENT, CLIENT_V6), of_family(case, "10.77.0.253", "fe80::253"));
    let length = of_family(case, "32", "128");
    let nodad: &[&str] = if case.family == Family::V6 { &["nodad"] } else { &[] };
    let with_length = format!("{client}/{length}");
    ip(network, Role::Client(1), &[&["addr", "add", &with_length, "dev", INTERFACE], nodad].concat());
    let default = ["route", "replace", "default", "via", router, "dev", INTERFACE];
    ip(network, Role::Client(1), &[&default[..], &["src", client]].concat());
    ip(network, Role::Router, &["route", "add", &with_length, "dev", "far"]);
    // Default route.
    ip(network, Role::Router, &["route", "add", "default", "dev", "far"]);
    for role in [Role::Balancer, SERVER, Role::Server(2)] {
        ip(network, role, &default);
    }
}

fn ip(network: &Network, role: Role, arguments: &[&str]) {
    let version: &[&str] = if network.case.family == Family::V6 { &["-6"] } else { &[] };
    network.lab.run(role, "ip", &[version, arguments].concat()).unwrap();
}

fn of_family<'a>(case: Case, v4: &'a str, v6: &'a str) -> &'a str {
    match case.family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

fn is_answered(addr: SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(&addr, std::time::Duration::from_millis(700)).is_ok()
}

fn config(case: Case, dsr: &str) -> String {
    let (vip, server) = (case.family.vip(PORT), SocketAddr::new(case.family.address(SERVER), PORT));
    let offload = case.offload;
    format!(
        "[frontends.web]\nmode = \"dsr\"\nlisten_addr = \"{vip}\"\nbackend = \"pool\"\n\
         [backends.pool]\nalgorithm = \"maglev\"\nhash = \"tuple\"\ndsr = \"{dsr}\"\n\
         [backends.pool.health_check]\nkind = \"tcp\"\ninterval = 0.2\ntimeout = 0.2\nfall = 2\nrise = 1\n\
         [backends.pool.servers.s1]\naddr = \"{server}\"\n\
         [passthrough]\noffload = \"{offload}\"\n"
    )
}
