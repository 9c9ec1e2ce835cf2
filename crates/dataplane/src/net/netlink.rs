//! The netlink socket: reads the kernel's tables, hears of their changes, has neighbours resolved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use log::warn;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::AsyncSocket;
use rtnetlink::{MulticastGroup, RouteMessageBuilder};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use tokio::task::JoinSet;

use super::notifications::{Notifications, Pending};
use super::requests::{Error, Requests};
use super::table;
use convey_model::{Interface, NetworkTables, WantedNeighbour};

/// What may change the way of a packet.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv6Ifinfo,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Neigh,
];

/// Bytes of notifications that may wait for us: some thousand neighbours' at once. Notifications beyond that are lost. To
/// read everything anew takes seconds where there are a million routes.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Before notifications are subscribed to again. They come thick and fast if they were lost.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(100);

/// The same if that fails.
const RETRY: Duration = Duration::from_secs(1);

/// Connections to the kernel, in the network namespace of the thread that opened them. Made and used within a tokio
/// runtime, all threads of which are in that namespace; closed when dropped.
#[derive(Debug)]
pub struct Netlink {
    /// For lists and what is done once. They may be long.
    pub(super) lists: Requests,
    /// For neighbours that are asked for.
    asks: Requests,
    notifications: Arc<Notifications>,
    _tasks: JoinSet<()>,
}

impl Netlink {
    /// Opens the connections. Changes from now on are heard of.
    pub fn open() -> io::Result<Netlink> {
        let subscription = Subscription::open()?;
        let notifications = Arc::new(Notifications::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(subscription, notifications.clone()));
        Ok(Netlink { lists: Requests::open()?, asks: Requests::open()?, notifications, _tasks: tasks })
    }

    /// Waits until something has changed since the last call; many changes are told as one. Most are only a
    /// neighbour's timer.
    pub async fn changed(&self) {
        self.notifications.told().await;
    }

    /// Brings a table up to date, and returns whether packets take other ways now. Neighbours are as they were heard of;
    /// the tables are read for everything else, and if notifications were lost. On error the table is as before, and the next
    /// call tries again.
    pub async fn update(&self, table: &mut NetworkTables) -> Result<bool, Error> {
        let before = table.clone();
        match self.notifications.take() {
            Pending::Neighbours(changes) => {
                changes.into_iter().for_each(|change| table::set(table, change));
            }
            Pending::Any => *table = self.table().await.inspect_err(|_| self.notifications.anything())?,
        }
        Ok(*table != before)
    }

    /// Brings up to date what the kernel tells nobody of (`net.ipv6.conf.X.mtu`, `tc qdisc`), and returns whether any of it
    /// has changed. On error the table is as before.
    pub async fn look_at_links(&self, table: &mut NetworkTables) -> Result<bool, Error> {
        Ok(table::look_at(table, &self.links().await?))
    }

    /// Reads the interfaces, without their addresses.
    pub async fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        Ok(table::new(self.links().await?, Vec::new(), Vec::new(), Vec::new()).interfaces)
    }

    /// Reads the tables, of both families.
    pub async fn table(&self) -> Result<NetworkTables, Error> {
        use RouteNetlinkMessage::{GetAddress, GetNeighbour, GetRoute, NewAddress, NewNeighbour, NewRoute};
        let lists = &self.lists;
        let links = self.links().await?;
        let question = GetAddress(AddressMessage::default());
        let addresses = lists.list("addresses", question, |answer| match answer {
            NewAddress(address) => Some(address),
            _ => None,
        });
        let addresses = addresses.await?;
        let mut routes = Vec::new();
        for family in
            [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()]
        {
            let list = lists.list("routes", GetRoute(family), |answer| match answer {
                NewRoute(route) => Some(route),
                _ => None,
            });
            routes.extend(list.await?);
        }
        let question = GetNeighbour(NeighbourMessage::default());
        let neighbours = lists.list("neighbours", question, |answer| match answer {
            NewNeighbour(neighbour) => Some(neighbour),
            _ => None,
        });
        Ok(table::new(links, addresses, routes, neighbours.await?))
    }

    pub(super) async fn links(&self) -> Result<Vec<LinkMessage>, Error> {
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let list = self.lists.list("interfaces", question, |answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        list.await
    }

    /// Has the kernel find a neighbour's Ethernet address. The answer comes as a change. One of ours is kept fresh from
    /// then on: nothing that we forward tells the kernel that it is alive (before Linux 5.16 it is only found). A
    /// client is the kernel's to forget. A static entry stays as it is.
    pub async fn resolve(&self, wanted: WantedNeighbour) -> Result<(), Error> {
        if self.is_static(wanted).await? {
            return Ok(());
        }
        match self.ask(wanted, wanted.is_ours).await {
            Err(error) if wanted.is_ours && error.is_refusal() => self.ask(wanted, false).await,
            done => done,
        }
    }

    async fn ask(&self, wanted: WantedNeighbour, managed: bool) -> Result<(), Error> {
        let mut neighbour = neighbour(wanted);
        if managed {
            let keep = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
            neighbour.attributes.push(keep);
        } else {
            neighbour.header.flags = NeighbourFlags::Use;
        }
        let order = RouteNetlinkMessage::NewNeighbour(neighbour);
        self.asks.order("resolve a neighbour", order, NLM_F_CREATE | NLM_F_REPLACE).await
    }

    async fn is_static(&self, wanted: WantedNeighbour) -> Result<bool, Error> {
        let question = RouteNetlinkMessage::GetNeighbour(neighbour(wanted));
        match self.asks.one("a neighbour", question).await {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(entry))) => {
                Ok(entry.header.state == NeighbourState::Permanent)
            }
            // Whatever else is said, that there is none above all, it is not static.
            Ok(_) => Ok(false),
            Err(error) if error.is_refusal() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What a request says of whom is asked for.
fn neighbour(WantedNeighbour { interface, ip, .. }: WantedNeighbour) -> NeighbourMessage {
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

/// A socket that hears of changes.
struct Subscription {
    messages: BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>,
    _connection: JoinSet<()>,
}

impl Subscription {
    fn open() -> io::Result<Subscription> {
        let (mut connection, _, messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
        let socket = connection.socket_mut().socket_ref();
        // Without privileges in the first user namespace, as much as `net.core.rmem_max` allows.
        set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
            .or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BUFFER))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok(Subscription { messages: messages.map(|(message, _)| message).boxed(), _connection: tasks })
    }
}

/// Hears of changes for as long as somebody waits for notifications. When some were lost, a new socket takes the place of the old
/// one, and then everything is read anew.
async fn listen(mut subscription: Subscription, notifications: Arc<Notifications>) {
    loop {
        while let Some(message) = subscription.messages.next().await {
            let are_lost = matches!(message.payload, NetlinkPayload::Overrun(_));
            notifications.hear(&message);
            if are_lost {
                break;
            }
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        subscription = loop {
            match Subscription::open() {
                Ok(subscription) => break subscription,
                Err(error) => {
                    warn!("cannot hear of changes to routes and neighbours: {error}");
                    notifications.anything();
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        notifications.anything();
    }
}
