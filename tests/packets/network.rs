//! A lab with the balancer.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use convey_lab::{INTERFACE, Lab, LabPlan, Role};
use convey_testkit::{Nginx, Process, Ran, TcpServer, binary, fetch, run, wait_for};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::case::{Case, Family};
use crate::config::Config;
use crate::udp::ECHO;

/// Port of the HTTP servers and of the VIP.
pub(crate) const PORT: u16 = 80;

/// Port of DNS servers.
pub(crate) const DNS: u16 = 53;

/// Address of statistics, in the balancer's namespace.
pub(crate) const STATS: ([u8; 4], u16) = ([127, 0, 0, 1], 7000);

/// Clients, servers and perhaps a running balancer.
pub(crate) struct Network {
    convey: Mutex<Option<Process>>,
    directory: TempDir,
    pub(crate) case: Case,
    pub(crate) lab: Lab,
}

/// A server in its namespace.
pub(crate) struct Inside<'a> {
    server: Option<TcpServer>,
    lab: &'a Lab,
    role: Role,
}

/// Connects from an address, and from a port if it is not 0.
pub(crate) fn connect_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// A TCP counter (`Tcp` in `/proc/net/snmp`) of the calling thread's namespace.
pub(crate) fn tcp_counter(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let [names, values] = ["Tcp: RtoAlgorithm", "Tcp: 1"].map(|start| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.split(' ').collect::<Vec<_>>()
    });
    let at = names.iter().position(|of| *of == name).unwrap();
    values[at].parse().unwrap()
}

impl Network {
    /// Builds a lab whose servers answer as the mode requires. The balancer does not run yet.
    pub(crate) fn new(case: Case, clients: u8, servers: u8) -> Network {
        Network::planned(case, &LabPlan::new(clients, servers))
    }

    /// Like [`Network::new`], with a plan of the lab.
    pub(crate) fn planned(case: Case, plan: &LabPlan) -> Network {
        let network = Network::bare(case, plan);
        if case.is_dsr() {
            network.answer_directly();
        }
        network
    }

    /// A network whose servers are not prepared for DSR.
    pub(crate) fn bare(case: Case, plan: &LabPlan) -> Network {
        Network {
            convey: Mutex::default(),
            directory: TempDir::new().unwrap(),
            case,
            lab: plan.build().unwrap(),
        }
    }

    /// Prepares the servers for DSR.
    pub(crate) fn answer_directly(&self) {
        self.lab.answer_directly(&[PORT, DNS, ECHO]).unwrap();
    }

    /// Starts the balancer and waits until it serves.
    pub(crate) fn balance(&mut self, config: &Config) {
        self.balance_with(&config.text(self.case));
    }

    /// Starts the balancer with any configuration.
    pub(crate) fn balance_with(&mut self, text: &str) {
        fs::write(self.path("config.toml"), text).unwrap();
        *self.convey.lock().unwrap() = Some(self.start(Role::Balancer));
    }

    /// Starts the balancer again, with the file that is there.
    pub(crate) fn start_again(&mut self) {
        *self.convey.lock().unwrap() = Some(self.start(Role::Balancer));
    }

    /// Starts the balancer by a command with fewer privileges than root.
    pub(crate) fn balance_by(&mut self, command: Command, config: &Config) {
        fs::write(self.path("config.toml"), config.text(self.case)).unwrap();
        *self.convey.lock().unwrap() = Some(self.start_by(command, Role::Balancer));
    }

    /// Starts the balancer with a log that goes elsewhere, so that the log cannot show when it is
    /// ready.
    pub(crate) fn balance_telling(&mut self, log: impl Into<Stdio>, config: &Config) {
        fs::write(self.path("config.toml"), config.text(self.case)).unwrap();
        let mut command = self.lab.command(Role::Balancer, binary().get_program());
        command.arg(format!("--{}", self.case.mode.name())).arg("--config").arg(self.path("config.toml"));
        let convey = Process::spawn(command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(log));
        *self.convey.lock().unwrap() = Some(convey);
        wait_for("the balancer to serve", || {
            self.inside(Role::Balancer, || fetch(STATS.into(), "/healthz").ok()).map(drop)
        });
    }

    /// Status of `/healthz`.
    pub(crate) fn health(&self) -> u16 {
        self.inside(Role::Balancer, || fetch(STATS.into(), "/healthz").unwrap().0)
    }

    /// Starts a second balancer with the configuration of the first.
    pub(crate) fn start_standby(&self) -> Process {
        self.start(Role::Standby)
    }

    /// Starts a second balancer with a configuration of its own.
    pub(crate) fn start_standby_with(&self, text: &str) -> Process {
        fs::write(self.path("standby.toml"), text).unwrap();
        self.start_from(
            "standby.toml",
            self.lab.command(Role::Standby, binary().get_program()),
            Role::Standby,
        )
    }

    fn start(&self, role: Role) -> Process {
        self.start_by(self.lab.command(role, binary().get_program()), role)
    }

    fn start_by(&self, command: Command, role: Role) -> Process {
        self.start_from("config.toml", command, role)
    }

    fn start_from(&self, file: &str, mut command: Command, role: Role) -> Process {
        command.arg(format!("--{}", self.case.mode.name())).arg("--config").arg(self.path(file));
        convey_testkit::start(command, &self.path(&role.to_string()))
    }

    /// Saves the configuration as editors do: a new file takes the name of the old.
    pub(crate) fn save(&self, config: &Config) {
        self.save_with(&config.text(self.case));
    }

    /// Saves any configuration, as [`Network::save`] does.
    pub(crate) fn save_with(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("config.toml")).unwrap();
    }

    /// Calls `f` with the process of the balancer.
    pub(crate) fn convey<T>(&self, f: impl FnOnce(&mut Process) -> T) -> T {
        f(self.convey.lock().unwrap().as_mut().expect("the balancer runs"))
    }

    /// Address that clients connect to.
    pub(crate) fn vip(&self) -> SocketAddr {
        self.case.family.vip(PORT)
    }

    /// Address of a server.
    pub(crate) fn address(&self, role: Role) -> SocketAddr {
        SocketAddr::new(self.case.family.address(role), PORT)
    }

    /// Log of a balancer so far.
    pub(crate) fn log(&self, role: Role) -> String {
        fs::read_to_string(self.path(&role.to_string())).unwrap_or_default()
    }

    /// Waits until the balancer has logged this text. convey writes its log aside, so a line may
    /// come later than the change that it reports.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(&format!("the log to contain {text:?}"), || {
            self.log(Role::Balancer).contains(text).then_some(())
        });
    }

    /// Limits the router in front of this machine to 1,400 bytes, without ICMP errors.
    pub(crate) fn narrow_in_silence(&self, far: Role) {
        let address = self.case.family.address(far);
        let (flag, program, kind, net, metric) = match self.case.family {
            Family::V4 => {
                let kind = ["icmp", "--icmp-type", "fragmentation-needed"];
                ("-4", "iptables", kind, "10.77.0.0/24", "")
            }
            Family::V6 => {
                let kind = ["icmpv6", "--icmpv6-type", "packet-too-big"];
                ("-6", "ip6tables", kind, "fd77::/64", "metric 256")
            }
        };
        for route in [format!("{address} dev far"), format!("{net} dev {INTERFACE} {metric}")] {
            let line = format!("{flag} route replace {route} mtu 1400");
            self.lab.run(Role::Router, "ip", &line.split_whitespace().collect::<Vec<_>>()).unwrap();
        }
        let [protocol, option, kind] = kind;
        let rule = ["-A", "OUTPUT", "-p", protocol, option, kind, "-j", "DROP"];
        self.lab.run(Role::Router, program, &rule).unwrap();
    }

    /// Path of a file for this test.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A value of `/stats` by its JSON pointer.
    pub(crate) fn stat(&self, pointer: &str) -> Value {
        self.stat_of(Role::Balancer, pointer)
    }

    /// The names of the pool's servers.
    pub(crate) fn servers_of_pool(&self) -> Vec<String> {
        self.stat("/backends/pool/servers").as_object().unwrap().keys().cloned().collect()
    }

    /// A value of `/stats` of any balancer.
    pub(crate) fn stat_of(&self, role: Role, pointer: &str) -> Value {
        let stats = self.stats(role);
        stats.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {stats:#}")).clone()
    }

    /// Waits until a probe has found a server up, or down: before its first probe, a server counts
    /// as up.
    pub(crate) fn wait_for_health(&self, server: u8, up: bool) {
        let pointer = format!("/backends/pool/servers/s{server}/health");
        wait_for(&format!("{pointer}: up = {up}"), || {
            let stats = self.stats(Role::Balancer);
            let health = stats.pointer(&pointer)?;
            (health["up"] == up && health["reason"] != "not probed yet").then_some(())
        });
    }

    fn stats(&self, role: Role) -> Value {
        let (_, text) = self.inside(role, || fetch(STATS.into(), "/stats").unwrap());
        serde_json::from_str(&text).unwrap()
    }

    /// Starts an nginx that answers `/` with its name, `s` and its number.
    pub(crate) fn nginx(&self, number: u8) -> Nginx {
        self.nginx_on(number, self.address(Role::Server(number)))
    }

    /// Starts an nginx on another address.
    pub(crate) fn nginx_on(&self, number: u8, addr: SocketAddr) -> Nginx {
        self.receive_by_flow(Role::Server(number));
        let command = self.lab.command(Role::Server(number), "nginx");
        let nginx = Nginx::spawn(command, self.directory.path(), &format!("s{number}"), addr);
        let own = self.address(Role::Server(number));
        self.inside(Role::Server(number), || {
            wait_for(&format!("nginx on {own}"), || TcpStream::connect(own).ok());
        });
        nginx
    }

    /// Lets one core receive all packets of a connection, as network cards do (RSS); a veth uses
    /// the core that sent each. Before Linux 6.19, a request may be looked up on one core while its
    /// connection is made on another, and gets a reset: `inet_ehash_insert` removed the half-open
    /// socket before it added the open one.
    fn receive_by_flow(&self, role: Role) {
        let cores = thread::available_parallelism().map_or(1, usize::from).min(32);
        let file = format!("/sys/class/net/{INTERFACE}/queues/rx-0/rps_cpus");
        let steer = format!("echo {:x} > {file}", (1_u64 << cores) - 1);
        self.lab.run(role, "sh", &["-c", &steer]).unwrap();
    }

    /// Starts a server of our own.
    pub(crate) fn server(
        &self,
        number: u8,
        start: impl FnOnce(SocketAddr) -> TcpServer + Send,
    ) -> Inside<'_> {
        let role = Role::Server(number);
        let server = self.inside(role, || start(self.address(role)));
        Inside { server: Some(server), lab: &self.lab, role }
    }

    /// Runs a script of the repository on a machine, and checks that it succeeds.
    pub(crate) fn script(&self, role: Role, name: &str, action: &str, variables: &[(&str, &str)]) {
        let mut command = self.lab.command(role, Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
        let ran = run(command.arg(action).envs(variables.iter().copied()));
        assert_eq!(ran.code, Some(0), "{name} {action}: {ran:?}");
    }

    /// Bytes that a machine has received.
    pub(crate) fn received(&self, role: Role) -> u64 {
        let file = format!("/sys/class/net/{INTERFACE}/statistics/rx_bytes");
        self.lab.run(role, "cat", &[&file]).unwrap().trim().parse().unwrap()
    }

    /// Sends one request of a client on its own connection. Returns the name of the server.
    pub(crate) fn fetch(&self, client: u8) -> std::io::Result<String> {
        let (_, body) = self.inside(Role::Client(client), || fetch(self.vip(), "/"))?;
        Ok(body.trim().to_owned())
    }

    /// Runs a command of a client to its end.
    pub(crate) fn run(&self, client: u8, program: &str, arguments: &[&str]) -> Ran {
        run(self.client(client, program).args(arguments))
    }

    /// A command of a client.
    pub(crate) fn client(&self, number: u8, program: &str) -> Command {
        self.lab.command(Role::Client(number), program)
    }

    /// Calls `f` in a namespace.
    pub(crate) fn inside<T: Send>(&self, role: Role, f: impl FnOnce() -> T + Send) -> T {
        self.lab.enter(role, f).unwrap()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.log(Role::Balancer) + &self.log(Role::Standby);
            eprintln!("--- log of the balancer in the test that failed ---\n{logs}---");
        }
    }
}

impl Deref for Inside<'_> {
    type Target = TcpServer;

    fn deref(&self) -> &TcpServer {
        self.server.as_ref().expect("it is there until dropped")
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let server = self.server.take();
        let _ = self.lab.enter(self.role, || drop(server));
    }
}
