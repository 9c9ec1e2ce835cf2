//! Filters of tc whose process is gone. Those of the flow cache stay attached before Linux 6.6 when it is killed, and go on
//! forwarding by what they knew. The guard of DSR frontends stays on purpose.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::rc::Rc;

use anyhow::Context;
use log::{info, warn};

use crate::dataplane::{LastingGuard, Offloader};
use crate::model::Interface;
use crate::net::{self, BpfFilter, Claim, Netlink};

/// Where the handles of our filters begin. Nobody gets such a number who asks for none.
const FIRST_HANDLE: u32 = 0x00c0_0001;

/// The handle of this process's filters, which is what says that they are in use.
pub(super) struct OwnHandle {
    /// The number.
    pub(super) number: u32,
    _claim: Claim,
}

impl OwnHandle {
    /// The first that no process has.
    pub(super) fn new() -> anyhow::Result<OwnHandle> {
        let mut number = FIRST_HANDLE;
        loop {
            match claim(number) {
                Ok(claim) => return Ok(OwnHandle { number, _claim: claim }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => number += 1,
                Err(error) => return Err(error).context("cannot claim a handle for filters"),
            }
        }
    }
}

/// A filter that nobody has; nobody gets its handle as long as this is held.
struct LeftOver {
    filter: BpfFilter,
    interface: String,
    _claim: Rc<Claim>,
}

impl LeftOver {
    fn is_guard(&self) -> bool {
        self.filter.name == LastingGuard::FILTER
    }

    /// How an operator removes it.
    fn by_hand(&self) -> String {
        let BpfFilter { priority, handle, .. } = &self.filter;
        format!("tc filter del dev {} ingress pref {priority} handle {handle:#x} bpf", self.interface)
    }
}

/// What it is.
impl fmt::Display for LeftOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.interface;
        match self.is_guard() {
            true => write!(f, "the guard of dsr frontends that an earlier convey left on {name}"),
            false => write!(f, "the filter that a killed convey left on {name}"),
        }
    }
}

/// The same for a process that forwards no packets. Nobody need be told where there is nothing, or nothing can be seen.
pub(super) async fn remove_without_packets() {
    let Ok(netlink) = Netlink::open() else { return };
    let Ok(interfaces) = netlink.interfaces().await else { return };
    for interface in interfaces {
        match clear(&netlink, &interface).await {
            Ok(removed) => removed.iter().for_each(|removed| info!("removed {removed}")),
            Err(_) => describe(&netlink, &[interface]).await.iter().for_each(|line| warn!("{line}")),
        }
    }
}

/// Detaches all of them, and says so in the log.
pub(super) async fn remove(netlink: &Netlink, interfaces: &[Interface]) {
    for interface in interfaces {
        match clear(netlink, interface).await {
            Ok(removed) => removed.iter().for_each(|removed| info!("removed {removed}")),
            Err(error) => {
                let name = &interface.name;
                warn!(
                    "what an earlier convey may have left on {name} stays (`tc filter show dev {name} ingress`): {error}"
                );
            }
        }
    }
}

/// Detaches those on an interface; what they were.
pub(super) async fn clear(netlink: &Netlink, interface: &Interface) -> Result<Vec<String>, net::Error> {
    let mut removed = Vec::new();
    for left in on(netlink, interface).await? {
        netlink.remove_filter(&left.filter).await?;
        removed.push(left.to_string());
    }
    Ok(removed)
}

/// What to tell of each, a line; nobody is to be told of one that cannot be looked for.
pub(super) async fn describe(netlink: &Netlink, interfaces: &[Interface]) -> Vec<String> {
    let mut lines = Vec::new();
    for interface in interfaces {
        for left in on(netlink, interface).await.unwrap_or_default() {
            let (name, by_hand) = (&left.interface, left.by_hand());
            lines.push(match left.is_guard() {
                true => format!(
                    "an earlier convey has left the guard of its dsr frontends on {name}: until 5 minutes after its end the host does \
                     not answer connections that were under way (after a kill, nor new ones for a minute); the next start takes \
                     over, `convey clear` removes it, and so does `{by_hand}`"
                ),
                false => format!(
                    "a killed convey has left a filter on {name} that forwards by what it knew; the next start in a packet mode \
                     removes it, and so does `convey clear`, or `{by_hand}`"
                ),
            });
        }
    }
    lines
}

/// Those on an interface. They are nobody's as long as their claims are held.
async fn on(netlink: &Netlink, interface: &Interface) -> Result<Vec<LeftOver>, net::Error> {
    let filters = netlink.ingress_filters(interface.index).await?.into_iter();
    let ours = filters.filter(|filter| [Offloader::FILTER, LastingGuard::FILTER].contains(&&*filter.name));
    // A process has one number for all of its filters.
    let mut claims = BTreeMap::new();
    let left = ours.filter_map(|filter| {
        let claim: &Option<Rc<Claim>> =
            claims.entry(filter.handle).or_insert_with(|| claim(filter.handle).ok().map(Rc::new));
        Some(LeftOver { _claim: claim.clone()?, filter, interface: interface.name.clone() })
    });
    Ok(left.collect())
}

fn claim(handle: u32) -> io::Result<Claim> {
    Claim::new(format!("filters {handle:#x}"))
}
