//! Lab network with a router that spreads clients over several balancers (ECMP). The balancers
//! announce one VIP to the router.
//!
//! ```text
//! client 203.0.113.2 ── 203.0.113.1  router  192.0.2.1 ── switch ─┬─ 192.0.2.2 to .9    balancers
//!                                                                 └─ 192.0.2.11 to .18  servers
//! ```
//!
//! The router and the balancers run BIRD, with BGP and BFD. Balancers use the BIRD configuration
//! that convey ships.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use convey_dataplane::programs;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::programs::{find, output};
use super::{DSR_SERVER, INTERFACE, LabError, Namespace};

/// VIP of an [`EcmpLab`]. No machine has this address until a balancer announces it.
pub const ANNOUNCED_VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Shipped BIRD configuration, a template for the balancers.
const SHIPPED: &str = include_str!("../../../packaging/bird/convey.conf");

/// Line of the shipped BIRD configuration that contains the balancer's address.
const SHIPPED_OWN: &str = "define OWN_ADDRESS = 192.0.2.2;";

/// The router's interface to the client.
const OUTSIDE: &str = "outside";

/// A machine of an [`EcmpLab`]. Balancers and servers are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EcmpRole {
    /// The bridge between the router, the balancers and the servers.
    Switch,
    /// Sends packets for the VIP to one of the balancers that announce it.
    Router,
    /// Opens connections.
    Client,
    /// Runs convey and BIRD.
    Balancer(u8),
    /// Answers connections.
    Server(u8),
}

impl EcmpRole {
    /// IPv4 address of the machine; 0.0.0.0 for the switch, which has none.
    pub const fn address(self) -> Ipv4Addr {
        match self {
            EcmpRole::Switch => Ipv4Addr::UNSPECIFIED,
            EcmpRole::Router => Ipv4Addr::new(192, 0, 2, 1),
            EcmpRole::Client => Ipv4Addr::new(203, 0, 113, 2),
            EcmpRole::Balancer(n) => Ipv4Addr::new(192, 0, 2, 1 + n),
            EcmpRole::Server(n) => Ipv4Addr::new(192, 0, 2, 10 + n),
        }
    }
}

impl fmt::Display for EcmpRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EcmpRole::Switch => f.write_str("switch"),
            EcmpRole::Router => f.write_str("router"),
            EcmpRole::Client => f.write_str("client"),
            EcmpRole::Balancer(n) => write!(f, "balancer{n}"),
            EcmpRole::Server(n) => write!(f, "server{n}"),
        }
    }
}

/// Lab of network namespaces with a router, balancers and servers. The namespaces and their
/// processes, BIRD included, are removed when the lab is dropped, and also when the process ends in
/// any other way.
///
/// A method's error contains the output of the tool that failed.
#[derive(Debug)]
pub struct EcmpLab {
    machines: Vec<(EcmpRole, Namespace)>,
    balancers: u8,
    /// Directory of BIRD's configurations and sockets.
    directory: PathBuf,
    birds: Mutex<BTreeMap<EcmpRole, Child>>,
}

impl EcmpLab {
    /// Builds a lab with `balancers` and `servers` (at most 8 of each), and starts BIRD on the
    /// router. Configurations and sockets of BIRD go into `directory`.
    pub fn new(balancers: u8, servers: u8, directory: &Path) -> Result<EcmpLab, LabError> {
        assert!(balancers <= 8 && servers <= 8, "a lab has addresses for 8 balancers and 8 servers");
        find("bird", "bird2")?;
        let roles: Vec<EcmpRole> = [EcmpRole::Switch, EcmpRole::Router, EcmpRole::Client]
            .into_iter()
            .chain((1..=balancers).map(EcmpRole::Balancer))
            .chain((1..=servers).map(EcmpRole::Server))
            .collect();
        let namespaces = Namespace::of_roles(&roles)?;
        let machines = roles.into_iter().zip(namespaces).collect();
        let lab = EcmpLab { machines, balancers, directory: directory.to_owned(), birds: Mutex::default() };
        lab.join_up()?;
        lab.start_daemon(EcmpRole::Router, &router_config(balancers))?;
        Ok(lab)
    }

    /// Namespace of a machine.
    ///
    /// # Panics
    /// If the lab has no such machine.
    pub fn place(&self, role: EcmpRole) -> &Namespace {
        let found = self.machines.iter().find(|(at, _)| *at == role);
        &found.unwrap_or_else(|| panic!("the lab has no {role}")).1
    }

    /// Creates a command that runs a program on a machine. The program is killed when the lab is
    /// dropped.
    pub fn command(&self, role: EcmpRole, program: impl AsRef<OsStr>) -> Command {
        self.place(role).command(program)
    }

    /// Runs `f` on a new thread in a machine's namespace, and waits for its result. Sockets that
    /// `f` opens stay in the namespace.
    pub fn enter<T: Send>(&self, role: EcmpRole, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.place(role).enter(f)
    }

    /// Connects a balancer to the switch, and starts BIRD. Its configuration is the one that convey
    /// ships, except for the line with the balancer's own address.
    pub fn power_on(&self, balancer: u8) -> Result<(), LabError> {
        self.plug(balancer, true)?;
        let role = EcmpRole::Balancer(balancer);
        let own = format!("define OWN_ADDRESS = {};", role.address());
        self.start_daemon(role, &SHIPPED.replace(SHIPPED_OWN, &own))
    }

    /// Simulates the crash of a balancer: disconnects the balancer, kills all of its processes with
    /// SIGKILL, and removes the VIP. The router's own link stays up, so only BFD detects the crash.
    pub fn power_off(&self, balancer: u8) -> Result<(), LabError> {
        self.plug(balancer, false)?;
        let role = EcmpRole::Balancer(balancer);
        let place = self.place(role);
        for pid in output(programs::command("ip").args(["netns", "pids", place.name()]), "")?.lines() {
            if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw).filter(|pid| *pid != getpid())
            {
                // The process may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if let Some(mut bird) = self.birds().remove(&role) {
            let _ = bird.wait();
        }
        // A machine that restarts does not have the VIP.
        place.ip(["addr flush dev lo scope global".to_owned()]).map(drop)
    }

    fn plug(&self, balancer: u8, is_in: bool) -> Result<(), LabError> {
        let state = if is_in { "up" } else { "down" };
        let line = format!("link set {} {state}", EcmpRole::Balancer(balancer));
        self.place(EcmpRole::Switch).ip([line]).map(drop)
    }

    /// Numbers of the balancers to which the router sends packets for the VIP.
    pub fn next_hops(&self) -> Result<Vec<u8>, LabError> {
        let routes = self.place(EcmpRole::Router).ip([format!("route show {ANNOUNCED_VIP}")])?;
        let is_hop = |n: &u8| {
            let hop = EcmpRole::Balancer(*n).address().to_string();
            routes
                .split_whitespace()
                .zip(routes.split_whitespace().skip(1))
                .any(|pair| pair == ("via", hop.as_str()))
        };
        Ok((1..=self.balancers).filter(is_hop).collect())
    }

    /// Sets the servers up to send responses directly to clients (DSR): packets from `port` leave
    /// with the VIP as their source, except to a balancer. Needs nftables.
    pub fn answer_directly(&self, port: u16) -> Result<(), LabError> {
        find("nft", "nftables")?;
        let balancers = (1..=self.balancers).map(|n| EcmpRole::Balancer(n).address().to_string());
        let balancers = balancers.collect::<Vec<_>>().join(" ");
        for (role, namespace) in &self.machines {
            if matches!(role, EcmpRole::Server(_)) {
                let mut script = namespace.command("sh");
                script.args(["-s", "up"]).env("INTERFACE", INTERFACE).env("PORTS", port.to_string());
                script.env("VIP", ANNOUNCED_VIP.to_string()).env("SERVER", role.address().to_string());
                output(script.env("BALANCERS", &balancers), DSR_SERVER)?;
            }
        }
        Ok(())
    }

    fn join_up(&self) -> Result<(), LabError> {
        let router = self.place(EcmpRole::Router);
        self.place(EcmpRole::Switch)
            .ip(["link add name switch up type bridge mcast_snooping 0".to_owned()])?;
        for (role, namespace) in &self.machines {
            let on = |interface: &str, length: u8| {
                let add = format!("addr add {}/{length} dev {interface}", role.address());
                [add, format!("link set {interface} up")]
            };
            namespace.ip(["link set lo up".to_owned()])?;
            match role {
                EcmpRole::Switch => {}
                EcmpRole::Client => {
                    let peer = namespace.name();
                    router.ip([
                        format!("link add {OUTSIDE} type veth peer name {INTERFACE} netns {peer}"),
                        format!("addr add 203.0.113.1/24 dev {OUTSIDE}"),
                        format!("link set {OUTSIDE} up"),
                    ])?;
                    namespace.ip(on(INTERFACE, 24))?;
                    namespace.ip(["route add default via 203.0.113.1".to_owned()])?;
                }
                _ => {
                    self.place(EcmpRole::Switch).ip([
                        format!("link add {role} type veth peer name {INTERFACE} netns {}", namespace.name()),
                        format!("link set {role} master switch up"),
                    ])?;
                    namespace.ip(on(INTERFACE, 24))?;
                    if *role != EcmpRole::Router {
                        let gateway = EcmpRole::Router.address();
                        namespace.ip([format!("route add default via {gateway}")])?;
                    }
                }
            }
        }
        self.enter(EcmpRole::Router, become_router)?.map_err(|source| LabError::System {
            what: "enable IP forwarding on the router".to_owned(),
            source,
        })
    }

    /// Starts BIRD on a machine.
    fn start_daemon(&self, role: EcmpRole, config: &str) -> Result<(), LabError> {
        let file = |ending: &str| self.directory.join(format!("{role}.{ending}"));
        let refused = |source| LabError::System { what: format!("start BIRD on {role}"), source };
        fs::write(file("conf"), config).map_err(refused)?;
        let mut bird = self.command(role, "bird");
        bird.arg("-f").arg("-c").arg(file("conf")).arg("-s").arg(file("ctl")).arg("-P").arg(file("pid"));
        bird.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = bird.spawn().map_err(refused)?;
        self.birds().insert(role, child);
        Ok(())
    }

    fn birds(&self) -> std::sync::MutexGuard<'_, BTreeMap<EcmpRole, Child>> {
        self.birds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EcmpLab {
    fn drop(&mut self) {
        for child in self.birds().values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Turns the calling thread's namespace into a router, which spreads packets over next hops by
/// addresses, ports and protocol.
fn become_router() -> std::io::Result<()> {
    let set = |file: &str, value: &str| fs::write(format!("/proc/sys/net/ipv4/{file}"), value);
    set("ip_forward", "1")?;
    // Policy 1 would use the hash of the sender's socket, which changes within a connection if the
    // packet comes from another namespace on this host.
    set("fib_multipath_hash_policy", "3")?;
    set("fib_multipath_hash_fields", "0x37")
}

/// BIRD configuration of the router, the counterpart of the balancers' shipped configuration.
fn router_config(balancers: u8) -> String {
    let router = EcmpRole::Router.address();
    let mut text = format!(
        "router id {router};
        protocol device {{}}
        protocol kernel {{ merge paths on; ipv4 {{ import none; export where source = RTS_BGP; }}; }}
        protocol bfd {{ interface \"*\" {{ min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }}; }}
        template bgp balancer {{
            local {router} as 65000;
            connect retry time 1;
            connect delay time 1;
            error wait time 1, 1;
            bfd on;
            ipv4 {{ import all; export none; }};
        }}\n",
    );
    for n in 1..=balancers {
        let address = EcmpRole::Balancer(n).address();
        text += &format!("protocol bgp balancer{n} from balancer {{ neighbor {address} as 65001; }}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_has_the_line_that_differs_between_balancers() {
        assert_eq!(SHIPPED.matches(SHIPPED_OWN).count(), 1);
        assert_eq!(EcmpRole::Balancer(1).address().to_string(), "192.0.2.2");
        assert!(!SHIPPED.replace(SHIPPED_OWN, "").lines().any(|line| {
            let statement = line.split('#').next().unwrap_or_default();
            statement.contains("192.0.2.2")
        }));
    }
}
