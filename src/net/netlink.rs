//! The netlink socket: reads the kernel's tables, hears of their changes, has neighbours resolved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::Table;
use super::news::{News, Pending};
use crate::model::Wanted;

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

/// A connection to the kernel, in the network namespace of the thread that opened it. Made and used within a
/// tokio runtime; closed when dropped.
#[derive(Debug)]
pub struct Netlink {
    pub(super) handle: Handle,
    /// The kernel makes one list at a time for a socket, and refuses a second.
    pub(super) lists: Mutex<()>,
    news: Arc<News>,
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
        let news = Arc::new(News::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        tasks.spawn({
            let news = news.clone();
            // The end of all messages is told as well, so that reading the tables tells of the error.
            async move {
                while let Some((message, _)) = messages.next().await {
                    news.hear(&message);
                }
                news.anything();
            }
        });
        Ok(Netlink { handle, lists: Mutex::default(), news, _tasks: tasks })
    }

    /// Waits until something has changed since the last call; many changes are told as one. Most are only a
    /// neighbour's timer.
    pub async fn changed(&self) {
        self.news.told().await;
    }

    /// Brings a table up to date, and returns whether packets take other ways now. Neighbours are as they were heard of;
    /// the tables are read for everything else, and if news were lost. On error the table is as before, and the next
    /// call tries again.
    pub async fn update(&self, table: &mut Table) -> Result<bool, Error> {
        let before = table.clone();
        match self.news.take() {
            Pending::Neighbours(news) => news.into_iter().for_each(|news| table.set(news)),
            Pending::Any => *table = self.table().await.inspect_err(|_| self.news.anything())?,
        }
        Ok(*table != before)
    }

    /// Brings up to date what the kernel tells nobody of (`net.ipv6.conf.X.mtu`, `tc qdisc`), and returns whether any of it
    /// has changed. On error the table is as before.
    pub async fn look_at_links(&self, table: &mut Table) -> Result<bool, Error> {
        let _alone = self.lists.lock().await;
        Ok(table.look_at(&self.links().await?))
    }

    /// Reads the tables, of both families.
    pub async fn table(&self) -> Result<Table, Error> {
        let failed = |what| move |source| Error { what, source };
        let handle = &self.handle;
        let _alone = self.lists.lock().await;
        let links = self.links().await?;
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

    async fn links(&self) -> Result<Vec<LinkMessage>, Error> {
        let list = self.handle.link().get().execute().try_collect();
        list.await.map_err(|source| Error { what: "interfaces", source })
    }

    /// Has the kernel find a neighbour's Ethernet address. The answer comes as a change. One of ours is kept fresh from
    /// then on: nothing that we forward tells the kernel that it is alive (before Linux 5.16 it is only found). A
    /// client is the kernel's to forget. A static entry stays as it is.
    pub async fn resolve(&self, wanted: Wanted) -> Result<(), Error> {
        if self.is_static(wanted).await? {
            return Ok(());
        }
        match self.ask(wanted, wanted.is_ours).await {
            Err(rtnetlink::Error::NetlinkError(_)) if wanted.is_ours => self.ask(wanted, false).await,
            done => done,
        }
        .map_err(|source| Error { what: "resolve a neighbour", source })
    }

    async fn ask(&self, wanted: Wanted, managed: bool) -> Result<(), rtnetlink::Error> {
        let Wanted { interface, ip, .. } = wanted;
        let mut request = self.handle.neighbours().add(interface, ip).replace().state(NeighbourState::None);
        if managed {
            let keep = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
            request.message_mut().attributes.push(keep);
        } else {
            request = request.flags(NeighbourFlags::Use);
        }
        request.execute().await
    }

    async fn is_static(&self, wanted: Wanted) -> Result<bool, Error> {
        let failed = |source| Error { what: "a neighbour", source };
        let mut question = NeighbourMessage::default();
        question.header.ifindex = wanted.interface;
        let (family, ip) = match wanted.ip {
            IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
            IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
        };
        question.header.family = family;
        question.attributes.push(NeighbourAttribute::Destination(ip));
        let mut question = NetlinkMessage::from(RouteNetlinkMessage::GetNeighbour(question));
        question.header.flags = NLM_F_REQUEST;
        let mut answers = self.handle.clone().request(question).map_err(failed)?;
        // Whatever else is said, that there is none above all, it is not static.
        Ok(answers.next().await.is_some_and(|answer| match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) => {
                entry.header.state == NeighbourState::Permanent
            }
            _ => false,
        }))
    }
}
