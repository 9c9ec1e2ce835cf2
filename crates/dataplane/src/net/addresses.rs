//! Addresses of interfaces: addresses that convey announces, and the host's own.

use std::io;
use std::net::IpAddr;

use convey_model::Interface;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressMessage, AddressProtocol, CacheInfo,
};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::requests::{Error, Requests};
use super::table;

/// Address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// Index of the interface that has the address.
    pub interface: u32,
    /// Whether a convey process, this or another one, has added the address.
    pub is_announced: bool,
    prefix_len: u8,
}

/// Netlink connection for addresses, in the network namespace of the thread that opened it. It must
/// be created and used within a tokio runtime.
#[derive(Debug)]
pub struct HostAddresses(Requests);

impl HostAddresses {
    /// Mark of addresses that convey adds to interfaces (`IFA_PROTO`, Linux 5.18). `ip address`
    /// shows it as `proto 0xc0`.
    pub const PROTOCOL: u8 = 0xc0;

    /// Opens the connection.
    pub fn open() -> io::Result<HostAddresses> {
        Ok(HostAddresses(Requests::open()?))
    }

    /// Lists the IPv4 and IPv6 addresses of all interfaces.
    pub async fn all(&self) -> Result<Vec<HostAddress>, Error> {
        let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let list = self.0.list("addresses", question, |answer| match answer {
            RouteNetlinkMessage::NewAddress(address) => host_address(&address),
            _ => None,
        });
        list.await
    }

    /// Lists all interfaces, without addresses.
    pub async fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let list = self.0.list("interfaces", question, |answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        Ok(table::new(list.await?, Vec::new(), Vec::new(), Vec::new()).interfaces)
    }

    /// Adds an address with a full-length prefix (/32 or /128) to an interface, and marks it as
    /// convey's.
    ///
    /// # Errors
    /// If the kernel refuses, for example because the interface has the address already.
    pub async fn announce(&self, ip: IpAddr, interface: u32) -> Result<(), Error> {
        let prefix_len = if ip.is_ipv4() { 32 } else { 128 };
        let mut address = message(ip, interface, prefix_len);
        address.attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(Self::PROTOCOL)));
        if ip.is_ipv6() {
            // Skip duplicate address detection, so that the address is usable immediately. With a
            // preferred lifetime of 0, the host's own connections use other source addresses.
            address.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_valid = u32::MAX;
            address.attributes.push(AddressAttribute::CacheInfo(lifetime));
        }
        let order = RouteNetlinkMessage::NewAddress(address);
        self.0.order("add an address", order, NLM_F_CREATE | NLM_F_EXCL).await
    }

    /// Removes an address. Succeeds if the address is already gone.
    pub async fn withdraw(&self, address: &HostAddress) -> Result<(), Error> {
        let message = message(address.ip, address.interface, address.prefix_len);
        let done = self.0.order("remove an address", RouteNetlinkMessage::DelAddress(message), 0).await;
        match done {
            Err(error) if error.is_not_available() => Ok(()),
            done => done,
        }
    }
}

fn message(ip: IpAddr, interface: u32, prefix_len: u8) -> AddressMessage {
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let mut message = AddressMessage::default();
    message.header = AddressHeader { family, prefix_len, index: interface, ..AddressHeader::default() };
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message
}

fn host_address(message: &AddressMessage) -> Option<HostAddress> {
    let mark = AddressProtocol::Other(HostAddresses::PROTOCOL);
    let is_announced = message.attributes.contains(&AddressAttribute::Protocol(mark));
    let (interface, prefix_len) = (message.header.index, message.header.prefix_len);
    Some(HostAddress { ip: table::own_address(message)?, interface, is_announced, prefix_len })
}
