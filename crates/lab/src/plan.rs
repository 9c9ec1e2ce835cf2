//! Plan of a lab: its machines and links.

use super::{INTERFACE, Lab, LabError, Role, VIP, VIP_V6};

/// Maximum packet length in bytes at the router of [`LabPlan::narrow`].
pub const NARROW: u16 = 1280;

/// The router's interface to the machine behind it.
const FAR: &str = "far";

/// Machines of a lab and their links, before the lab is built.
#[derive(Debug, Clone)]
pub struct LabPlan {
    clients: u8,
    servers: u8,
    standby: bool,
    behind_router: Option<Role>,
}

impl LabPlan {
    /// Plans a balancer, `clients` (at most 50) and `servers` (at most 80), all on one switch.
    pub fn new(clients: u8, servers: u8) -> LabPlan {
        assert!(clients <= 50 && servers <= 80, "a lab has addresses for 50 clients and 80 servers");
        LabPlan { clients, servers, standby: false, behind_router: None }
    }

    /// Adds a second balancer, which does not have the VIP.
    pub fn standby(mut self) -> LabPlan {
        self.standby = true;
        self
    }

    /// Puts a client or a server behind a router that drops packets longer than [`NARROW`] bytes in
    /// both directions. The links on both sides of the router have the usual MTU of 1500, so only
    /// the router's ICMP errors report the limit.
    pub fn narrow(mut self, role: Role) -> LabPlan {
        self.behind_router = Some(role);
        self
    }

    /// Builds the lab.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    pub fn build(&self) -> Result<Lab, LabError> {
        Lab::build(self)
    }

    /// All machines except the switch.
    pub(super) fn machines(&self) -> Vec<Role> {
        let standby = self.standby.then_some(Role::Standby);
        let router = self.behind_router.map(|_| Role::Router);
        let servers = (1..=self.servers).map(Role::Server);
        let clients = (1..=self.clients).map(Role::Client);
        std::iter::once(Role::Balancer).chain(standby).chain(router).chain(servers).chain(clients).collect()
    }

    /// Machines with a port on the switch. Each port has the name of its machine.
    pub(super) fn on_switch(&self) -> Vec<Role> {
        self.machines().into_iter().filter(|role| Some(*role) != self.behind_router).collect()
    }

    /// Lines of `ip` that create the links of a machine, for the namespace of `role`. `namespace`
    /// returns the name of a machine's namespace.
    pub(super) fn links(&self, role: Role, namespace: impl Fn(Role) -> String) -> Vec<String> {
        let veth = |name: &str, peer: Role| {
            let (mac, peer) = (peer.mac_text(), namespace(peer));
            format!("link add name {name} type veth peer name {INTERFACE} address {mac} netns {peer}")
        };
        match (role, self.behind_router) {
            (Role::Switch, _) => {
                let bridge = "link add name switch up type bridge mcast_snooping 0".to_owned();
                let port =
                    |role: Role| [veth(&role.to_string(), role), format!("link set {role} master switch up")];
                std::iter::once(bridge).chain(self.on_switch().into_iter().flat_map(port)).collect()
            }
            (Role::Router, Some(far)) => vec![veth(FAR, far)],
            _ => Vec::new(),
        }
    }

    /// Lines of `ip` that add the addresses and routes of a machine; IPv6 only if `v6` is set.
    pub(super) fn addresses(&self, role: Role, v6: bool) -> Vec<String> {
        let is_far = Some(role) == self.behind_router;
        let (v4, length) = (role.address(), if is_far { 32 } else { 24 });
        let mut lines = vec!["link set lo up".to_owned(), format!("addr add {v4}/{length} dev {INTERFACE}")];
        if role == Role::Balancer {
            lines.push(format!("addr add {VIP}/32 dev {INTERFACE}"));
        }
        if v6 {
            let length = if is_far { 128 } else { 64 };
            lines.extend(link_local(role, INTERFACE));
            lines.push(format!("addr add {}/{length} dev {INTERFACE} nodad", role.address_v6()));
            if role == Role::Balancer {
                // The address is deprecated, so that the balancer does not use it as the source of
                // its own connections.
                lines.push(format!("addr add {VIP_V6}/128 dev {INTERFACE} nodad preferred_lft 0"));
            }
        }
        lines.push(format!("link set {INTERFACE} up"));
        if let Some(far) = self.behind_router {
            lines.extend(routes(role, far, v6));
        }
        lines
    }
}

/// Lines of `ip` that add a link-local address without duplicate address detection (DAD): while DAD
/// runs, the machine cannot resolve neighbours.
fn link_local(role: Role, interface: &str) -> [String; 2] {
    [
        format!("link set {interface} addrgenmode none"),
        format!("addr add {}/64 dev {interface} nodad", role.link_local()),
    ]
}

/// Routes of a machine to the machine behind the router, or from that machine to the other
/// machines. The routes are needed, because the address of the machine behind the router belongs to
/// the switch's network.
fn routes(role: Role, far: Role, v6: bool) -> Vec<String> {
    let (router, target) = (Role::Router.address(), far.address());
    // IPv6 routes use the router's link-local address, as in router advertisements.
    let (router_v6, target_v6) = (Role::Router.link_local(), far.address_v6());
    let mut lines = Vec::new();
    match role {
        Role::Router => {
            if v6 {
                lines.extend(link_local(role, FAR));
            }
            lines.push(format!("link set {FAR} up"));
            lines.push(format!("route add {target}/32 dev {FAR} mtu {NARROW}"));
            lines.push(format!("route replace 10.77.0.0/24 dev {INTERFACE} proto kernel mtu {NARROW}"));
            if v6 {
                lines.push(format!("route add {target_v6}/128 dev {FAR} mtu {NARROW}"));
                lines.push(format!(
                    "route replace fd77::/64 dev {INTERFACE} proto kernel metric 256 mtu {NARROW}"
                ));
            }
        }
        _ if role == far => {
            lines.push(format!("route add {router}/32 dev {INTERFACE}"));
            lines.push(format!("route add default via {router}"));
            if v6 {
                lines.push(format!("route add ::/0 via {router_v6} dev {INTERFACE}"));
            }
        }
        _ => {
            lines.push(format!("route add {target}/32 via {router}"));
            if v6 {
                lines.push(format!("route add {target_v6}/128 via {router_v6} dev {INTERFACE}"));
            }
        }
    }
    lines
}
