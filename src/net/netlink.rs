//! The netlink socket: reads the kernel's tables, hears of their changes, has neighbours resolved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourState,
};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use thiserror::Error;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

use super::Table;
use super::table::neighbour_address;

/// What may change the way of a packet.
const GROUPS: [MulticastGroup; 6] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Neigh,
];

/// How often a list is asked for again that changed while it was read.
const LIST_ATTEMPTS: u32 = 5;

/// A connection to the kernel, in the network namespace of the thread that opened it. Made and used within a
/// tokio runtime; closed when dropped.
#[derive(Debug)]
pub struct Netlink {
    pub(super) handle: Handle,
    /// The kernel makes one list at a time for a socket, and refuses a second.
    pub(super) lists: Mutex<()>,
    changed: Arc<Notify>,
    _tasks: JoinSet<()>,
}

/// The kernel refused a request.
#[derive(Debug, Error)]
#[error("netlink: {what}: {source}")]
pub struct Error {
    pub(super) what: &'static str,
    pub(super) source: rtnetlink::Error,
}

impl Netlink {
    /// Opens the connection. Changes from now on are heard of.
    pub fn open() -> io::Result<Netlink> {
        let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
        let changed = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        tasks.spawn({
            let changed = changed.clone();
            // What a message says is not looked at: a message that was lost to a full buffer says "changed" too.
            // The end of all messages does as well, so that reading the tables tells of the error.
            async move {
                while messages.next().await.is_some() {
                    changed.notify_one();
                }
                changed.notify_one();
            }
        });
        Ok(Netlink { handle, lists: Mutex::default(), changed, _tasks: tasks })
    }

    /// Waits until something has changed since the last call; many changes are told as one. Most are only a
    /// neighbour's timer: compare tables.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads the tables, of both families.
    pub async fn table(&self) -> Result<Table, Error> {
        let failed = |what| move |source| Error { what, source };
        let handle = &self.handle;
        let _alone = self.lists.lock().await;
        let links = handle.link().get().execute().try_collect().await.map_err(failed("interfaces"))?;
        let addresses = handle.address().get().execute().try_collect().await.map_err(failed("addresses"))?;
        let mut routes = Vec::new();
        for family in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let list = handle.route().get(family).execute();
            routes.extend(list.try_collect::<Vec<_>>().await.map_err(failed("routes"))?);
        }
        let neighbours =
            handle.neighbours().get().execute().try_collect().await.map_err(failed("neighbours"))?;
        Ok(Table::new(links, addresses, routes, neighbours))
    }

    /// Has the kernel find a neighbour's Ethernet address, and keep it fresh from then on: nothing that we
    /// forward tells it that the neighbour is alive. Kernels before 5.16 only find it. The answer comes as a
    /// change. A static entry stays as it is.
    pub async fn resolve(&self, ip: IpAddr, interface: u32) -> Result<(), Error> {
        if self.is_static(ip, interface).await? {
            return Ok(());
        }
        match self.ask(ip, interface, true).await {
            Err(rtnetlink::Error::NetlinkError(_)) => self.ask(ip, interface, false).await,
            done => done,
        }
        .map_err(|source| Error { what: "resolve a neighbour", source })
    }

    async fn ask(&self, ip: IpAddr, interface: u32, managed: bool) -> Result<(), rtnetlink::Error> {
        let mut request = self.handle.neighbours().add(interface, ip).replace().state(NeighbourState::None);
        if managed {
            let keep = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
            request.message_mut().attributes.push(keep);
        } else {
            request = request.flags(NeighbourFlags::Use);
        }
        request.execute().await
    }

    async fn is_static(&self, ip: IpAddr, interface: u32) -> Result<bool, Error> {
        // The kernel ends a list early if what it lists changes meanwhile, and neighbours change all the time.
        for _ in 0..LIST_ATTEMPTS {
            if let Ok(found) = self.is_listed_as_static(ip, interface).await {
                return Ok(found);
            }
        }
        self.is_listed_as_static(ip, interface).await
    }

    async fn is_listed_as_static(&self, ip: IpAddr, interface: u32) -> Result<bool, Error> {
        let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let _alone = self.lists.lock().await;
        let mut entries = self.handle.neighbours().get().set_address_family(family).execute();
        let failed = |source| Error { what: "neighbours", source };
        let mut found = false;
        while let Some(entry) = entries.try_next().await.map_err(failed)? {
            found |= entry.header.ifindex == interface
                && entry.header.state == NeighbourState::Permanent
                && neighbour_address(&entry) == Some(ip);
        }
        Ok(found)
    }
}
