//! Lab network for tests of packet modes, made of network namespaces: clients, a balancer and
//! servers on one switch.
//!
//! ```text
//! client 1  10.77.0.201 ─┐                     ┌─ 10.77.0.11  server 1
//! client 2  10.77.0.202 ─┤─ switch (a bridge) ─┤─ 10.77.0.12  server 2
//!                        └─────────┬───────────┘
//!          balancer  10.77.0.1, VIP 10.77.0.100
//! ```
//!
//! If the kernel supports IPv6, every machine also has an IPv6 address: `fd77::` and the last
//! digits of its IPv4 address, for example `fd77::201`. A [`LabPlan`] may add a second balancer, or
//! put a router in front of one machine. An [`EcmpLab`] is another network, with a router between
//! clients and several balancers.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod ecmp;
mod error;
mod janitor;
mod namespace;
mod plan;
mod programs;
mod role;

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

pub use ecmp::{ANNOUNCED_VIP, EcmpLab, EcmpRole};
pub use error::LabError;
pub use namespace::{Namespace, join};
pub use plan::{LabPlan, NARROW};
use programs::{find, output};
pub use role::Role;

/// IPv4 VIP of a lab. The balancer has this address.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

/// IPv6 VIP of a lab. The balancer has this address.
pub const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100);

/// Interface that connects a machine to the other machines.
pub const INTERFACE: &str = "eth0";

/// Script that sets a server up to send responses directly to clients (DSR).
const DSR_SERVER: &str = include_str!("../../../tc/dsr-server-nft.sh");

/// Lab network: its namespaces and their links. The namespaces and their processes are removed when
/// the lab is dropped, and also when the process ends in any other way.
///
/// A method's error contains the output of the tool that failed.
#[derive(Debug)]
pub struct Lab {
    plan: LabPlan,
    machines: Vec<Role>,
    /// Namespace of the switch, followed by the namespaces of `machines` in the same order.
    namespaces: Vec<Namespace>,
}

impl Lab {
    /// Builds a lab with `clients` (at most 50) and `servers` (at most 80). Removes the remains of
    /// labs whose process has ended.
    ///
    /// Every machine has a route to every other machine, and resolves neighbours by ARP and
    /// neighbour discovery.
    pub fn new(clients: u8, servers: u8) -> Result<Lab, LabError> {
        LabPlan::new(clients, servers).build()
    }

    fn build(plan: &LabPlan) -> Result<Lab, LabError> {
        let machines = plan.machines();
        let namespaces = Namespace::of_roles([Role::Switch].iter().chain(&machines))?;
        let lab = Lab { plan: plan.clone(), machines, namespaces };
        lab.join_up()?;
        Ok(lab)
    }

    /// All machines without the switch: balancers, servers, clients and routers.
    pub fn machines(&self) -> &[Role] {
        &self.machines
    }

    /// Namespace of a machine, or of the switch.
    ///
    /// # Panics
    /// If the lab has no such machine.
    pub fn place(&self, role: Role) -> &Namespace {
        let all = [Role::Switch].iter().chain(&self.machines);
        let found = all.zip(&self.namespaces).find(|(at, _)| **at == role);
        found.unwrap_or_else(|| panic!("the lab has no {role}")).1
    }

    /// Name of a machine's namespace, as in `ip netns`.
    pub fn namespace(&self, role: Role) -> String {
        self.place(role).name().to_owned()
    }

    /// Creates a command that runs a program on a machine. The program is killed when the lab is
    /// dropped.
    pub fn command(&self, role: Role, program: impl AsRef<OsStr>) -> Command {
        self.place(role).command(program)
    }

    /// Runs a program on a machine to its end; returns its output.
    pub fn run(&self, role: Role, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        self.place(role).run(program, arguments)
    }

    /// Runs `f` on a new thread in a machine's namespace, and waits for its result. Sockets that
    /// `f` opens stay in the namespace.
    pub fn enter<T: Send>(&self, role: Role, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.place(role).enter(f)
    }

    /// Moves the calling thread permanently into a machine's namespace. Threads that this thread
    /// starts later are in the namespace too.
    pub fn join(&self, role: Role) -> Result<(), LabError> {
        self.place(role).join()
    }

    /// Sets the servers up to send responses directly to clients (DSR): packets from `ports` leave
    /// with the VIP as their source, except to a balancer. Needs nftables.
    pub fn answer_directly(&self, ports: &[u16]) -> Result<(), LabError> {
        find("nft", "nftables")?;
        let both = |role: Role| format!("{} {}", role.address(), role.address_v6());
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        for role in self.machines.iter().filter(|role| matches!(role, Role::Server(_))) {
            let mut script = self.command(*role, "sh");
            script.args(["-s", "up"]).env("INTERFACE", INTERFACE).env("PORTS", ports.join(" "));
            script.env("VIP", format!("{VIP} {VIP_V6}")).env("SERVER", both(*role));
            script.env("BALANCERS", format!("{} {}", both(Role::Balancer), both(Role::Standby)));
            output(&mut script, DSR_SERVER)?;
        }
        Ok(())
    }

    /// Turns a machine's offloads on (the default) or off. With offloads, virtual interfaces pass
    /// on packets of up to 64 KB and packets with partial checksums. With `Role::Switch`, applies
    /// to packets from the switch to the machines. Needs ethtool.
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

    /// Makes the switch drop `per_mille` of a thousand packets at random; 0 stops it, and 1000
    /// drops all packets. Needs nftables.
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
            self.place(*role).ip(self.plan.links(*role, |role| self.namespace(role)))?;
        }
        for role in &self.machines {
            self.place(*role).ip(self.plan.addresses(*role, v6))?;
        }
        if self.machines.contains(&Role::Router) {
            let on = |file| fs::write(format!("/proc/sys/net/{file}"), "1");
            self.enter(Role::Router, || on("ipv4/ip_forward").and_then(|()| on("ipv6/conf/all/forwarding")))?
                .map_err(|source| LabError::System {
                    what: "enable IP forwarding on the router".to_owned(),
                    source,
                })?;
        }
        Ok(())
    }
}

/// Converts the role of a machine to the machine's IPv4 address, for sockets.
impl From<Role> for IpAddr {
    fn from(role: Role) -> IpAddr {
        role.address().into()
    }
}
