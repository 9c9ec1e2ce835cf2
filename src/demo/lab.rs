//! A network to try packet modes in, made of network namespaces: clients, the balancer and servers on one
//! switch.
//!
//! ```text
//! client 1  10.77.0.201 ─┐                     ┌─ 10.77.0.11  server 1
//! client 2  10.77.0.202 ─┤─ switch (a bridge) ─┤─ 10.77.0.12  server 2
//!                        └─────────┬───────────┘
//!          balancer  10.77.0.1, VIP 10.77.0.100
//! ```
//!
//! Where the kernel has IPv6, everybody has an address of it too: `fd77::` and the same last digits, `fd77::201`.
//! A [`Plan`] may have more: a second balancer, a router before one of the machines.

mod janitor;
mod plan;
mod role;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use janitor::Janitor;
pub use plan::{NARROW, Plan};
pub use role::Role;

use crate::programs;

/// Where clients connect to; an address of the balancer.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

/// Where clients connect to by IPv6.
pub const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);

/// The interface that joins every machine to the others.
pub const INTERFACE: &str = "eth0";

/// The namespaces and what joins them. They are gone, with whatever runs in them, when this is dropped, and
/// when the process ends in any other way.
///
/// Every method that fails says what the tool it used said.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    plan: Plan,
    machines: Vec<Role>,
    _janitor: Janitor,
}

/// Why there is no lab, or why it does not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Only root may make network namespaces.
    #[error("a lab of network namespaces needs root; try sudo")]
    NotRoot,
    /// A program that the lab is made with is not installed.
    #[error("{program} is not installed (Debian package {package})")]
    Missing {
        /// What could not be started.
        program: &'static str,
        /// What has it.
        package: &'static str,
    },
    /// A program refused.
    #[error("`{command}` failed: {said}")]
    Failed {
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// The system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: io::Error,
    },
}

impl Lab {
    /// Builds a lab with so many clients (at most 50) and servers (at most 80), and removes what is left of
    /// labs whose process is gone. Every machine knows every other's way; neighbours are found by ARP and
    /// neighbour discovery.
    pub fn new(clients: u8, servers: u8) -> Result<Lab, LabError> {
        Plan::new(clients, servers).build()
    }

    fn build(plan: &Plan) -> Result<Lab, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        find("ip", "iproute2")?;
        janitor::sweep()?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("convey-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let machines = plan.machines();
        let all = [Role::Switch].iter().chain(&machines);
        let names: Vec<String> = all.map(|role| format!("{prefix}-{role}")).collect();
        // In charge before there is anything to clear away.
        let janitor = Janitor::start(&names)?;
        let lab = Lab { prefix, plan: plan.clone(), machines, _janitor: janitor };
        ip(&[], names.iter().map(|name| format!("netns add {name}")))?;
        lab.join_up()?;
        Ok(lab)
    }

    /// All but the switch: balancers, servers, clients and what joins them.
    pub fn machines(&self) -> &[Role] {
        &self.machines
    }

    /// Name of a namespace, as `ip netns` has it.
    pub fn namespace(&self, role: Role) -> String {
        format!("{}-{role}", self.prefix)
    }

    /// A command that runs a program in a namespace. What still runs there when the lab is dropped is killed.
    pub fn command(&self, role: Role, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = programs::command("ip");
        command.args(["netns", "exec", &self.namespace(role)]).arg(program);
        command
    }

    /// Runs a program in a namespace to its end; what it printed.
    pub fn run(&self, role: Role, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        output(self.command(role, program).args(arguments), "")
    }

    /// Does `f` on a thread that is in a namespace, and waits for it. Sockets made there stay in it.
    pub fn enter<T: Send>(&self, role: Role, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let inside = || {
            self.join(role)?;
            Ok(f())
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into a namespace for good; threads it starts from now on are there too.
    pub fn join(&self, role: Role) -> Result<(), LabError> {
        let name = self.namespace(role);
        File::open(format!("{}/{name}", janitor::NAMESPACES))
            .and_then(|file| Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?))
            .map_err(|source| LabError::System { what: format!("enter the namespace {name}"), source })
    }

    /// Lets servers answer clients directly (DSR): what they send from `ports` leaves with the VIP as its
    /// source, except to a balancer. Needs nftables.
    pub fn answer_directly(&self, ports: &[u16]) -> Result<(), LabError> {
        const SCRIPT: &str = include_str!("../../tc/dsr-server-nft.sh");
        find("nft", "nftables")?;
        let both = |role: Role| format!("{} {}", role.address(), role.address_v6());
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        for role in self.machines.iter().filter(|role| matches!(role, Role::Server(_))) {
            let mut script = self.command(*role, "sh");
            script.args(["-s", "up"]).env("INTERFACE", INTERFACE).env("PORTS", ports.join(" "));
            script.env("VIP", format!("{VIP} {VIP_V6}")).env("SERVER", both(*role));
            script.env("BALANCERS", format!("{} {}", both(Role::Balancer), both(Role::Standby)));
            output(&mut script, SCRIPT)?;
        }
        Ok(())
    }

    /// Turns a machine's offloads on (as they are at first) or off: unfinished checksums and packets of up to
    /// 64 KB, which virtual interfaces pass on as they are. Those of the switch are on its way to the machines.
    /// Needs ethtool.
    pub fn offloads(&self, role: Role, on: bool) -> Result<(), LabError> {
        find("ethtool", "ethtool")?;
        let on = if on { "on" } else { "off" };
        let interfaces = match role {
            Role::Switch => self.plan.on_switch().iter().map(Role::to_string).collect(),
            _ => vec![INTERFACE.to_owned()],
        };
        for interface in &interfaces {
            self.run(role, "ethtool", &["-K", interface, "tx", on, "tso", on, "gso", on, "gro", on])?;
        }
        Ok(())
    }

    /// Lets the switch lose this many of a thousand packets (at most all), at random; 0 ends it. Needs nftables.
    pub fn lose(&self, per_mille: u16) -> Result<(), LabError> {
        find("nft", "nftables")?;
        let rule = match per_mille {
            0 => String::new(),
            _ => format!("numgen random mod 1000 <= {} counter drop", per_mille - 1),
        };
        let rules = format!(
            "table bridge loss
            delete table bridge loss
            table bridge loss {{
                chain forward {{
                    type filter hook forward priority 0
                    {rule}
                }}
            }}"
        );
        output(self.command(Role::Switch, "nft").args(["-f", "-"]), &rules).map(drop)
    }

    fn join_up(&self) -> Result<(), LabError> {
        let v6 = Path::new("/proc/sys/net/ipv6").exists();
        for role in [Role::Switch].iter().chain(&self.machines) {
            ip(&["-n", &self.namespace(*role)], self.plan.links(*role, |role| self.namespace(role)))?;
        }
        for role in &self.machines {
            ip(&["-n", &self.namespace(*role)], self.plan.addresses(*role, v6))?;
        }
        if self.machines.contains(&Role::Router) {
            let on = |file| fs::write(format!("/proc/sys/net/{file}"), "1");
            self.enter(Role::Router, || on("ipv4/ip_forward").and_then(|()| on("ipv6/conf/all/forwarding")))?
                .map_err(|source| LabError::System { what: "make a router".to_owned(), source })?;
        }
        Ok(())
    }
}

/// The address of a machine, as sockets want it.
impl From<Role> for IpAddr {
    fn from(role: Role) -> IpAddr {
        role.address().into()
    }
}

/// Runs lines of `ip` in one process.
fn ip(options: &[&str], lines: impl IntoIterator<Item = String>) -> Result<(), LabError> {
    let lines: Vec<String> = lines.into_iter().collect();
    if lines.is_empty() {
        return Ok(());
    }
    output(programs::command("ip").args(options).args(["-batch", "-"]), &lines.join("\n")).map(drop)
}

/// Makes sure of a program. It is started, since only that shows where the system looks for it.
fn find(program: &'static str, package: &'static str) -> Result<(), LabError> {
    let started =
        programs::command(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match started {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LabError::Missing { program, package }),
        _ => Ok(()),
    }
}

/// Runs a command to its end with something to read; what it printed.
fn output(command: &mut Command, input: &str) -> Result<String, LabError> {
    let text = shown(command);
    let system = |source| LabError::System { what: format!("run `{text}`"), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(system)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Whoever does not read to the end has a reason, and says it.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(system)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Failed { command: text, said })
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
