//! Requests to the kernel about neighbours: resolve, keep fresh, probe, and release.

use std::net::IpAddr;

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::addresses::HostAddresses;
use super::netlink::Netlink;
use super::requests::Error;
use super::table::neighbour_address;
use convey_model::WantedNeighbour;

/// Entry of the kernel's neighbour tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelNeighbour {
    /// Index of the interface by which the neighbour is reached.
    pub interface: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// Whether the MAC address has not been confirmed for some time, and the kernel is not
    /// verifying it.
    pub is_stale: bool,
    /// Whether the entry is static (permanent).
    pub is_static: bool,
    /// Whether a convey process, this or another one, makes the kernel keep the entry fresh.
    pub is_kept_fresh: bool,
}

impl KernelNeighbour {
    fn new(message: &NeighbourMessage) -> Option<KernelNeighbour> {
        let is_ip = matches!(message.header.family, AddressFamily::Inet | AddressFamily::Inet6);
        let mark = NeighbourAttribute::Protocol(RouteProtocol::from(HostAddresses::PROTOCOL));
        Some(KernelNeighbour {
            interface: message.header.ifindex,
            ip: neighbour_address(message).filter(|_| is_ip)?,
            is_stale: message.header.state == NeighbourState::Stale,
            is_static: message.header.state == NeighbourState::Permanent,
            is_kept_fresh: is_managed(message) && message.attributes.contains(&mark),
        })
    }
}

/// Whether the kernel keeps the entry fresh (`NTF_EXT_MANAGED`).
pub(super) fn is_managed(message: &NeighbourMessage) -> bool {
    message.attributes.iter().any(|attribute| match attribute {
        NeighbourAttribute::ExtFlags(flags) => flags.contains(NeighbourExtFlags::Managed),
        _ => false,
    })
}

impl Netlink {
    /// Makes the kernel resolve a neighbour's MAC address. The answer arrives as a change
    /// notification.
    ///
    /// The entry of a server or router gets convey's mark, and the kernel keeps the entry fresh,
    /// because forwarded packets do not confirm a neighbour to the kernel. (Before Linux 5.16 the
    /// kernel only resolves the neighbour.) The kernel may remove a client's entry. A static entry
    /// stays unchanged.
    pub async fn resolve(&self, wanted: WantedNeighbour) -> Result<(), Error> {
        if self.is_static(wanted.interface, wanted.ip).await? {
            return Ok(());
        }
        match self.send_request(wanted, wanted.is_ours).await {
            Err(error) if wanted.is_ours && error.is_refusal() => self.send_request(wanted, false).await,
            done => done,
        }
    }

    /// Lists the IPv4 and IPv6 entries of the neighbour tables.
    pub async fn neighbours(&self) -> Result<Vec<KernelNeighbour>, Error> {
        Ok(self.list_neighbours().await?.iter().filter_map(KernelNeighbour::new).collect())
    }

    /// Makes the kernel probe a stale entry, as if the host sent a packet (RFC 4861, section
    /// 7.3.3).
    pub async fn probe(&self, interface: u32, ip: IpAddr) -> Result<(), Error> {
        self.resolve(WantedNeighbour { interface, ip, is_ours: false, is_repeated: false }).await
    }

    /// Stops keeping a neighbour fresh, so that the kernel may remove its entry. Returns whether
    /// the entry was changed.
    pub async fn release(&self, interface: u32, ip: IpAddr) -> Result<bool, Error> {
        let entry = self.entry(interface, ip).await?;
        if !entry.is_some_and(|entry| KernelNeighbour::new(&entry).is_some_and(|entry| entry.is_kept_fresh)) {
            return Ok(false);
        }
        let mut known = neighbour(interface, ip);
        known.header.state = NeighbourState::Stale;
        let order = RouteNetlinkMessage::NewNeighbour(known);
        match self.neighbour_requests.order("release a neighbour", order, NLM_F_REPLACE).await {
            // The kernel refuses if the neighbour's MAC address is unknown: delete the entry.
            Err(error) if error.is_refusal() => {
                let order = RouteNetlinkMessage::DelNeighbour(neighbour(interface, ip));
                self.neighbour_requests.order("release a neighbour", order, 0).await?;
            }
            done => done?,
        }
        Ok(true)
    }

    /// Makes the kernel discard a neighbour's MAC address and query the whole link. A static entry
    /// stays unchanged.
    pub(super) async fn query_again(&self, interface: u32, ip: IpAddr) -> Result<(), Error> {
        if self.is_static(interface, ip).await? {
            return Ok(());
        }
        let mut unknown = neighbour(interface, ip);
        unknown.header.state = NeighbourState::Failed;
        let order = RouteNetlinkMessage::NewNeighbour(unknown);
        self.neighbour_requests.order("check a neighbour", order, NLM_F_REPLACE).await?;
        self.send_request(WantedNeighbour { interface, ip, is_ours: true, is_repeated: false }, true).await
    }

    async fn send_request(&self, wanted: WantedNeighbour, managed: bool) -> Result<(), Error> {
        let order = RouteNetlinkMessage::NewNeighbour(question(wanted, managed));
        self.neighbour_requests.order("resolve a neighbour", order, NLM_F_CREATE | NLM_F_REPLACE).await
    }

    async fn is_static(&self, interface: u32, ip: IpAddr) -> Result<bool, Error> {
        let entry = self.entry(interface, ip).await?;
        Ok(entry.is_some_and(|entry| entry.header.state == NeighbourState::Permanent))
    }

    async fn entry(&self, interface: u32, ip: IpAddr) -> Result<Option<NeighbourMessage>, Error> {
        let question = RouteNetlinkMessage::GetNeighbour(neighbour(interface, ip));
        match self.neighbour_requests.one("a neighbour", question).await {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(entry))) => Ok(Some(entry)),
            Ok(_) => Ok(None),
            // The kernel refuses most likely because there is no such entry.
            Err(error) if error.is_refusal() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Request to resolve a neighbour's MAC address, and to keep it fresh if `managed`. Linux before
/// 5.16 ignores the extended flag. Without `NTF_USE`, these kernels would interpret the request as
/// an update to an entry without a state.
fn question(wanted: WantedNeighbour, managed: bool) -> NeighbourMessage {
    let mut message = neighbour(wanted.interface, wanted.ip);
    message.header.flags = NeighbourFlags::Use;
    if managed {
        let keep = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
        let mark = NeighbourAttribute::Protocol(RouteProtocol::from(HostAddresses::PROTOCOL));
        message.attributes.extend([keep, mark]);
    }
    message
}

/// Message about a neighbour, without flags and state.
fn neighbour(interface: u32, ip: IpAddr) -> NeighbourMessage {
    let (family, ip) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    let mut message = NeighbourMessage::default();
    message.header.ifindex = interface;
    message.header.family = family;
    message.attributes.push(NeighbourAttribute::Destination(ip));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_is_one_to_kernels_that_keep_no_neighbour_fresh() {
        for (is_ours, managed) in [(true, true), (true, false), (false, false)] {
            let ip = "192.0.2.1".parse().unwrap();
            let wanted = WantedNeighbour { interface: 1, ip, is_ours, is_repeated: false };
            let message = question(wanted, managed);
            assert!(message.header.flags.contains(NeighbourFlags::Use));
            assert_eq!(is_managed(&message), managed);
        }
    }
}
