//! Netlink client: reads the kernel's network tables, receives change notifications, and resolves
//! neighbours.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use log::warn;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::neighbour::NeighbourMessage;
use rtnetlink::packet_route::rule::RuleMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::AsyncSocket;
use rtnetlink::{MulticastGroup, RouteMessageBuilder};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use tokio::task::JoinSet;

use super::moved::MovedNeighbours;
use super::nexthops::Nexthops;
use super::notifications::{Notifications, Pending};
use super::raw_netlink::{self, RawList};
use super::requests::{Error, Requests};
use super::table::{self, NeighbourChange};
use super::{ipsec, routes, rules};
use convey_model::{Interface, NetworkTables, Route, RoutingRule, RuleAction};

/// Multicast groups whose notifications may change the route of a packet.
const GROUPS: [MulticastGroup; 9] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv6Ifinfo,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Neigh,
];

/// Receive buffer for notifications in bytes, enough for some thousand neighbours that change at
/// the same time. If more notifications arrive, some are lost, and all tables are read again, which
/// takes seconds with a million routes.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Pause before a new subscription after notifications were lost. A loss means that notifications
/// arrive at a high rate.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(100);

/// Pause before another attempt after a failed subscription.
const RETRY: Duration = Duration::from_secs(1);

/// Netlink connections, in the network namespace of the thread that opened them. They must be
/// created and used within a tokio runtime whose threads are all in that namespace. Dropping this
/// value closes the connections.
#[derive(Debug)]
pub struct Netlink {
    /// Connection for lists, which may be long, and for other requests.
    pub(super) lists: Requests,
    /// Connection for requests about neighbours, so that these do not wait for lists.
    pub(super) neighbour_requests: Requests,
    moved: Mutex<MovedNeighbours>,
    notifications: Arc<Notifications>,
    _tasks: JoinSet<()>,
}

impl Netlink {
    /// Opens the connections and subscribes to changes.
    pub fn open() -> io::Result<Netlink> {
        let subscription = Subscription::open()?;
        let notifications = Arc::new(Notifications::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(subscription, notifications.clone()));
        raw_netlink::listen(&mut tasks, &notifications);
        let (lists, neighbour_requests) = (Requests::open()?, Requests::open()?);
        Ok(Netlink { lists, neighbour_requests, moved: Mutex::default(), notifications, _tasks: tasks })
    }

    /// Waits until the kernel has sent a change notification since the last call. Several
    /// notifications wake the caller only once. Most notifications only report a timer of a
    /// neighbour.
    pub async fn changed(&self) {
        self.notifications.wait().await;
    }

    /// Updates a table; returns whether it has changed.
    ///
    /// Changes of neighbours are taken from notifications. After any other notification, or if
    /// notifications were lost, all tables are read again. On error the table stays unchanged, and
    /// the next call tries again.
    ///
    /// If the MAC address of a server or router has changed, packets go to the old address until
    /// the kernel has queried the link, because any host on the link can forge such a change.
    pub async fn update(&self, table: &mut NetworkTables) -> Result<bool, Error> {
        let before = table.clone();
        let unchecked = match self.notifications.take() {
            Pending::Neighbours(changes) => self.moved(|moved| moved.apply(table, changes)),
            Pending::Any => {
                let read = self.read().await.inspect_err(|_| self.notifications.anything())?;
                let (mut new, listed) = read;
                let unchecked = self.moved(|moved| moved.apply_list(table, &mut new, &listed));
                *table = new;
                unchecked
            }
        };
        for neighbour in unchecked {
            if let Err(error) = self.query_again(neighbour.interface, neighbour.ip).await {
                warn!("cannot check the Ethernet address of {}: {error}", neighbour.ip);
                self.moved(|moved| moved.cancel(neighbour));
                self.notifications.anything();
            }
        }
        Ok(*table != before)
    }

    fn moved<T>(&self, change: impl FnOnce(&mut MovedNeighbours) -> T) -> T {
        change(&mut self.moved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates state for which the kernel sends no notifications (`net.ipv6.conf.X.mtu`, `tc
    /// qdisc`). Returns whether any of this state has changed. On error the table stays unchanged.
    /// A check of a neighbour whose MAC address has changed expires at the second call.
    pub async fn refresh_links(&self, table: &mut NetworkTables) -> Result<bool, Error> {
        if self.moved(MovedNeighbours::age) {
            self.notifications.anything();
        }
        Ok(table::refresh(table, &self.links().await?))
    }

    /// Lists the interfaces, without addresses.
    pub async fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        Ok(table::new(self.links().await?, Vec::new(), Vec::new(), Vec::new()).interfaces)
    }

    /// Reads the tables of IPv4 and IPv6.
    pub async fn table(&self) -> Result<NetworkTables, Error> {
        Ok(self.read().await?.0)
    }

    /// Reads the tables, and the neighbours with their states.
    async fn read(&self) -> Result<(NetworkTables, Vec<NeighbourChange>), Error> {
        use RouteNetlinkMessage::{GetAddress, GetRoute, NewAddress, NewRoute};
        let lists = &self.lists;
        let links = self.links().await?;
        let question = GetAddress(AddressMessage::default());
        let addresses = lists.list("addresses", question, |answer| match answer {
            NewAddress(address) => Some(address),
            _ => None,
        });
        let addresses = addresses.await?;
        let read =
            |list: RawList| list.read().map_err(|error| Error::new("nexthops and IPsec policies", error));
        let (nexthops, policies) = (Nexthops::new(&read(RawList::Nexthops)?), read(RawList::IpsecPolicies)?);
        let policies = policies.iter().filter_map(|message| ipsec::policy(message)).collect();
        let rules = self.rules().await?;
        let tables = tables(&rules);
        let mut families = vec![RouteMessageBuilder::<Ipv4Addr>::new().build()];
        // If the kernel has no IPv6, it would answer with the IPv4 routes.
        if self.has_ipv6_routes().await? {
            families.push(RouteMessageBuilder::<Ipv6Addr>::new().build());
        }
        let mut routes = Vec::new();
        for family in families {
            let list = lists.list("routes", GetRoute(family), |answer| match answer {
                NewRoute(route) => routes::route(&route, &nexthops).filter(|one| tables.contains(&one.table)),
                _ => None,
            });
            routes.extend(list.await?);
        }
        let neighbours = self.list_neighbours().await?;
        let listed = neighbours.iter().filter_map(NeighbourChange::new).collect();
        let tables = table::new(links, addresses, routes, neighbours);
        Ok((NetworkTables { rules: rules.into(), policies, ..tables }, listed))
    }

    pub(super) async fn list_neighbours(&self) -> Result<Vec<NeighbourMessage>, Error> {
        let question = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let list = self.lists.list("neighbours", question, |answer| match answer {
            RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
            _ => None,
        });
        list.await
    }

    /// Reads the policy rules of IPv4 and IPv6 in the order of their priorities. A kernel without
    /// support for policy rules has none.
    async fn rules(&self) -> Result<Vec<RoutingRule>, Error> {
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = RuleMessage::default();
            question.header.family = family;
            let question = RouteNetlinkMessage::GetRule(question);
            let list = self.lists.list("policy rules", question, |answer| match answer {
                RouteNetlinkMessage::NewRule(rule) => rules::rule(&rule),
                _ => None,
            });
            match list.await {
                Ok(list) => rules.extend(list),
                Err(error) if error.is_refusal() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules)
    }

    pub(super) async fn links(&self) -> Result<Vec<LinkMessage>, Error> {
        let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let list = self.lists.list("interfaces", question, |answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        list.await
    }
}

/// Numbers of the routing tables that a lookup may use.
fn tables(rules: &[RoutingRule]) -> BTreeSet<u32> {
    let named = rules.iter().filter_map(|rule| match rule.action {
        RuleAction::Table(table) => Some(table),
        _ => None,
    });
    named.chain([Route::LOCAL, Route::MAIN, Route::DEFAULT]).collect()
}

/// Netlink socket that receives change notifications.
struct Subscription {
    messages: BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>,
    _connection: JoinSet<()>,
}

impl Subscription {
    fn open() -> io::Result<Subscription> {
        let (mut connection, _, messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
        let socket = connection.socket_mut().socket_ref();
        // Without privileges in the initial user namespace, `net.core.rmem_max` limits the size.
        set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
            .or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BUFFER))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        Ok(Subscription { messages: messages.map(|(message, _)| message).boxed(), _connection: tasks })
    }
}

/// Receives notifications until the task is aborted. After a loss, opens a new socket and marks
/// everything as changed.
async fn listen(mut subscription: Subscription, notifications: Arc<Notifications>) {
    loop {
        while let Some(message) = subscription.messages.next().await {
            let are_lost = matches!(message.payload, NetlinkPayload::Overrun(_));
            notifications.note(&message);
            if are_lost {
                break;
            }
        }
        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        subscription = loop {
            match Subscription::open() {
                Ok(subscription) => break subscription,
                Err(error) => {
                    warn!("cannot subscribe to changes of routes and neighbours: {error}");
                    notifications.anything();
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        notifications.anything();
    }
}
