//! Network state of the kernel (over netlink), the few changes that convey requests, and names that
//! a process owns in its network namespace.

use std::time::Duration;

mod addresses;
mod asking;
mod driver;
mod filters;
mod ipsec;
mod kernel_route;
mod lineage;
mod link_probe;
mod list_attempts;
mod moved;
mod neighbours;
mod netlink;
mod nexthops;
mod notifications;
mod owned_name;
mod packet_sockets;
mod peer;
mod port_ranges;
mod raw_netlink;
mod requests;
mod reserved_ports;
mod routes;
mod rules;
mod table;
mod unix_sockets;
mod xdp;

pub use addresses::{HostAddress, HostAddresses};
pub use asking::Asking;
pub use driver::driver;
pub use filters::BpfFilter;
pub use kernel_route::{KernelRoute, KernelRouteKind, RouteQuery};
pub use lineage::{end_inheritance, inherit_lineage, lineage};
pub use link_probe::{LinkAnswers, LinkQuery, find_owners};
pub use neighbours::KernelNeighbour;
pub use netlink::Netlink;
pub use owned_name::{NotOwned, OwnedName, OwnedNames, TAKEN};
pub use port_ranges::PortRanges;
pub use requests::Error;
pub use reserved_ports::{NotReserved, ReservedPorts, SnatPorts};
pub use unix_sockets::{UnixSocket, named as unix_sockets};
pub use xdp::XdpProgram;

/// Maximum wait for an answer of the kernel, or for the next part of an answer. Afterwards the
/// answer is considered lost. The kernel usually answers immediately. But the kernel makes one
/// network change at a time, and takes seconds for hundreds of network namespaces.
pub(crate) const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);
