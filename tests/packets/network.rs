//! A lab with the balancer in it.

use std::fmt::Write;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::process::Command;
use std::sync::Mutex;

use convey::demo::lab::{Lab, Role, VIP};
use convey::model::Mode;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Nginx, Process, Server, ask, binary, wait_for};

/// Where clients connect to, and every server listens.
pub(crate) const PORT: u16 = 80;

/// The port of a frontend that nobody uses: there has to be one.
const UNUSED: u16 = 81;

/// Statistics, in the balancer's namespace.
const STATS: ([u8; 4], u16) = ([127, 0, 0, 1], 7000);

/// Clients, servers and perhaps a running balancer.
pub(crate) struct Network {
    convey: Mutex<Option<Process>>,
    directory: TempDir,
    pub(crate) mode: Mode,
    pub(crate) lab: Lab,
}

/// A server in its namespace.
pub(crate) struct Inside<'a> {
    server: Option<Server>,
    lab: &'a Lab,
    role: Role,
}

/// A configuration: servers by number, each with further lines.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) servers: Vec<(u8, &'static str)>,
    pub(crate) backend: &'static str,
    pub(crate) health: &'static str,
    pub(crate) passthrough: &'static str,
    pub(crate) timeouts: &'static str,
    /// Whether there is the frontend that everybody uses.
    pub(crate) web: bool,
    pub(crate) frontend: &'static str,
}

impl Network {
    /// A lab whose servers answer as the mode wants it. The balancer does not run yet.
    pub(crate) fn new(mode: Mode, clients: u8, servers: u8) -> Network {
        let lab = Lab::new(clients, servers).unwrap();
        if mode == Mode::Dsr {
            lab.answer_directly(PORT).unwrap();
        }
        Network { convey: Mutex::default(), directory: TempDir::new().unwrap(), mode, lab }
    }

    /// Starts the balancer and waits until it serves.
    pub(crate) fn balance(&mut self, config: &Config) {
        self.save(config);
        let log = File::create(self.directory.path().join("log")).unwrap();
        let mut command = self.lab.command(Role::Balancer, binary().get_program());
        command.arg(format!("--{}", self.mode.name())).arg("--config").arg(self.path("config.toml"));
        command.env_remove("RUST_LOG").stdout(log.try_clone().unwrap()).stderr(log);
        let mut convey = Process::spawn(&mut command);
        wait_for("the balancer to start", || {
            let ended = convey.ended();
            assert!(ended.is_none(), "the balancer ended: {ended:?}\n{}", self.log());
            self.log().contains("statistics on http://").then_some(())
        });
        *self.convey.lock().unwrap() = Some(convey);
    }

    /// Saves the configuration as editors do: a new file takes the name of the old.
    pub(crate) fn save(&self, config: &Config) {
        fs::write(self.path("new"), config.text()).unwrap();
        fs::rename(self.path("new"), self.path("config.toml")).unwrap();
    }

    /// Does something with the process of the balancer.
    pub(crate) fn convey<T>(&self, f: impl FnOnce(&mut Process) -> T) -> T {
        f(self.convey.lock().unwrap().as_mut().expect("the balancer runs"))
    }

    /// Everything the balancer has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A file for this story.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A value of `/stats` by its JSON pointer.
    pub(crate) fn stat(&self, pointer: &str) -> Value {
        let stats = self.stats();
        stats.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {stats:#}")).clone()
    }

    /// Waits until a server is there and considered up, or down.
    pub(crate) fn wait_for_health(&self, server: u8, up: bool) {
        let pointer = format!("/backends/pool/servers/s{server}/up");
        wait_for(&format!("{pointer} = {up}"), || {
            (self.stats().pointer(&pointer) == Some(&up.into())).then_some(())
        });
    }

    fn stats(&self) -> Value {
        let (_, text) = self.inside(Role::Balancer, || ask(STATS.into(), "/stats").unwrap());
        serde_json::from_str(&text).unwrap()
    }

    /// Starts an nginx that answers `/` with its name, `s` and its number.
    pub(crate) fn nginx(&self, number: u8) -> Nginx {
        let addr = address(Role::Server(number));
        let command = self.lab.command(Role::Server(number), "nginx");
        let nginx = Nginx::spawn(command, self.directory.path(), &format!("s{number}"), addr);
        self.inside(Role::Server(number), || {
            wait_for(&format!("nginx on {addr}"), || TcpStream::connect(addr).ok());
        });
        nginx
    }

    /// Starts a server of our own.
    pub(crate) fn server(&self, number: u8, start: impl FnOnce(SocketAddr) -> Server + Send) -> Inside<'_> {
        let role = Role::Server(number);
        let server = self.inside(role, || start(address(role)));
        Inside { server: Some(server), lab: &self.lab, role }
    }

    /// One request of a client on a connection of its own; which server answered.
    pub(crate) fn ask(&self, client: u8) -> std::io::Result<String> {
        let (_, body) = self.inside(Role::Client(client), || ask(vip(), "/"))?;
        Ok(body.trim().to_owned())
    }

    /// A command of a client.
    pub(crate) fn client(&self, number: u8, program: &str) -> Command {
        self.lab.command(Role::Client(number), program)
    }

    /// Does something in a namespace.
    pub(crate) fn inside<T: Send>(&self, role: Role, f: impl FnOnce() -> T + Send) -> T {
        self.lab.enter(role, f).unwrap()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the balancer in the story that failed ---\n{}---", self.log());
        }
    }
}

impl Deref for Inside<'_> {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().expect("it is there until dropped")
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let server = self.server.take();
        let _ = self.lab.enter(self.role, || drop(server));
    }
}

impl Config {
    /// Servers 1 to `servers`, chosen by hash of addresses and ports, whose health is checked five times a
    /// second.
    pub(crate) fn new(servers: u8) -> Config {
        Config {
            servers: (1..=servers).map(|number| (number, "")).collect(),
            backend: "algorithm = \"maglev\"\nhash = \"tuple\"",
            health: "kind = \"tcp\"\ninterval = 0.2\ntimeout = 0.2\nfall = 2\nrise = 1",
            passthrough: "",
            timeouts: "",
            web: true,
            frontend: "",
        }
    }

    fn text(&self) -> String {
        let Config { servers, backend, health, passthrough, timeouts, web, frontend } = self;
        let mut text = format!(
            "[backends.pool]\n{backend}\n[backends.pool.health_check]\n{health}\n\
             [passthrough]\n{passthrough}\n[timeouts]\n{timeouts}\n\
             [frontends.unused]\nlisten_addr = \"{VIP}:{UNUSED}\"\nbackend = \"unused\"\n\
             [backends.unused.servers]\nx.addr = \"{}:{UNUSED}\"\n",
            Role::Server(1).address()
        );
        if *web {
            let vip = vip();
            writeln!(text, "[frontends.web]\nlisten_addr = \"{vip}\"\nbackend = \"pool\"\n{frontend}")
                .unwrap();
        }
        for (number, lines) in servers {
            let addr = address(Role::Server(*number));
            writeln!(text, "[backends.pool.servers.s{number}]\naddr = \"{addr}\"\n{lines}").unwrap();
        }
        text
    }
}

/// Where clients connect to.
pub(crate) fn vip() -> SocketAddr {
    (VIP, PORT).into()
}

/// Where a server listens.
pub(crate) fn address(role: Role) -> SocketAddr {
    (role.address(), PORT).into()
}
