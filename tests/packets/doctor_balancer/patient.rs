//! Network whose balancer doctor examines.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use convey_lab::Role;
use convey_testkit::{Process, Ran, binary, run, wait_for};
use serde_json::Value;

use crate::case::Case;
use crate::network::{Network, PORT};

/// A network whose balancer doctor examines.
pub(crate) struct Patient {
    pub(crate) convey: Option<Process>,
    pub(crate) network: Network,
}

impl Patient {
    /// A client and a server. The configuration is there, convey does not run yet.
    pub(crate) fn new(network: Network, mode: &str, more: &str) -> Patient {
        let Case { family, offload, .. } = network.case;
        let (vip, server) = (family.vip(PORT), network.address(Role::Server(1)));
        let text = format!(
            "[frontends.web]\nmode = \"{mode}\"\nlisten_addr = \"{vip}\"\nbackend = \"pool\"\n\
             trusted_clients = [\"10.77.0.0/24\", \"fd77::/64\"]\n\
             [backends.pool.health_check]\nkind = \"tcp\"\ninterval = 0.2\nfall = 2\nrise = 1\n\
             [backends.pool.servers.s1]\naddr = \"{server}\"\n\
             [passthrough]\noffload = \"{offload}\"\n{more}"
        );
        fs::write(network.path("config.toml"), text).unwrap();
        Patient { convey: None, network }
    }

    /// A network in the mode of the test.
    pub(crate) fn of(case: Case) -> Patient {
        Patient::new(Network::new(case, 1, 1), case.mode.name(), "")
    }

    /// A network in proxy mode.
    pub(crate) fn proxy(case: Case) -> Patient {
        Patient::new(Network::new(case, 1, 1), "proxy", "")
    }

    /// Starts convey.
    pub(crate) fn started(mut self) -> Patient {
        self.start();
        self
    }

    pub(crate) fn start(&mut self) {
        let mut command = self.command();
        command.arg("--config").arg(self.network.path("config.toml"));
        self.convey = Some(convey_testkit::start(command, &self.network.path("balancer")));
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.network.lab.command(Role::Balancer, binary().get_program());
        command.env("CONVEY_SOCKET", self.network.path("control.sock")).env_remove("RUST_LOG");
        command
    }

    pub(crate) fn examine(&self) -> (Ran, Value) {
        self.examine_by(self.command())
    }

    pub(crate) fn examine_by(&self, mut command: Command) -> (Ran, Value) {
        let ran = run(command.args(["doctor", "--json", "--config"]).arg(self.network.path("config.toml")));
        let json = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        (ran, json)
    }

    /// Checks that doctor finds nothing, and skips no check while convey runs, once servers have
    /// passed their checks.
    pub(crate) fn is_well(&self) {
        let is_of_health =
            |one: &Value| ["server-down", "not-ready"].iter().any(|check| one["check"] == *check);
        let (ran, json) = wait_for("servers to pass their checks", || {
            let (ran, json) = self.examine();
            let waits = json["findings"].as_array().unwrap().iter().any(is_of_health);
            (!waits).then_some((ran, json))
        });
        assert_eq!(json["findings"], serde_json::json!([]), "{json:#}");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        if self.convey.is_some() {
            // The balancer of a lab has no default route.
            let unseen: Vec<&Value> =
                json["skipped"].as_array().unwrap().iter().map(|one| &one["check"]).collect();
            assert!(unseen.into_iter().all(|check| check == "client-route"), "{json:#}");
        }
    }

    /// Checks that this is the only finding. Returns the finding.
    pub(crate) fn has(&self, check: &str) -> Value {
        is_found(check, self.examine())
    }

    /// Checks that this is the only finding, and runs its commands on a machine. Returns the
    /// finding.
    pub(crate) fn is_mended(&self, check: &str, on: Role) -> Value {
        let finding = self.has(check);
        self.carry_out(&finding, on);
        finding
    }

    pub(crate) fn carry_out(&self, finding: &Value, on: Role) {
        assert_eq!(finding.get("on").is_some(), on != Role::Balancer, "{finding:#}");
        let commands = finding["fix"].as_array().unwrap();
        assert!(!commands.is_empty(), "{finding:#}");
        for command in commands {
            let command = command.as_str().unwrap();
            // An installed convey is in the path.
            let convey = binary().get_program().to_str().unwrap().to_owned();
            let command =
                command.strip_prefix("convey ").map_or(command.to_owned(), |rest| format!("{convey} {rest}"));
            let mut shell = self.network.lab.command(on, "sh");
            let ran =
                run(shell.args(["-c", &command]).env("CONVEY_SOCKET", self.network.path("control.sock")));
            assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        }
    }

    pub(crate) fn serves(&self) {
        wait_for("a client to be served", || {
            self.network.fetch(1).ok().filter(|answer| answer == "s1").map(drop)
        });
    }

    /// Waits until a client can connect: the server may have been down at first.
    pub(super) fn takes_connections(&self) {
        let vip = self.network.vip();
        let connected = || self.network.inside(Role::Client(1), || TcpStream::connect(vip).ok());
        wait_for("a client to be connected", connected);
    }

    pub(crate) fn ip(&self, role: Role, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.network.lab.run(role, "ip", &words).unwrap();
    }

    /// A name server for `convey.test` in the balancer's namespace, at port 5353. Its names are in
    /// this file.
    pub(crate) fn name_server(&self, hosts: &Path) -> Process {
        let mut dnsmasq = self.network.lab.command(Role::Balancer, "dnsmasq");
        dnsmasq.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--user=root",
            "--no-resolv",
        ]);
        dnsmasq.args(["--no-hosts", "--bind-interfaces", "--listen-address=127.0.0.1", "--port=5353"]);
        dnsmasq.args(["--local-ttl=300", "--local=/convey.test/", "--log-facility=-"]);
        dnsmasq.arg(format!("--addn-hosts={}", hosts.display()));
        let dnsmasq = Process::spawn(dnsmasq.stdout(Stdio::null()).stderr(Stdio::null()));
        wait_for("dnsmasq", || {
            self.network.inside(Role::Balancer, || TcpStream::connect("127.0.0.1:5353").ok())
        });
        dnsmasq
    }

    /// Replaces a part of the configuration file.
    pub(crate) fn change(&self, from: &str, to: &str) {
        let config = self.network.path("config.toml");
        let text = fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&config, text.replace(from, to)).unwrap();
    }

    /// The VIP with its prefix length.
    pub(super) fn vip(&self) -> String {
        let vip = self.network.vip().ip();
        format!("{vip}/{}", if vip.is_ipv4() { 32 } else { 128 })
    }
}

/// Checks that this is the only finding.
pub(crate) fn is_found(check: &str, (ran, json): (Ran, Value)) -> Value {
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.len() == 1 && findings[0]["check"] == check, "{check} is to be found: {json:#}");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    findings[0].clone()
}
