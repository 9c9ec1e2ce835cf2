//! tc filters whose process is gone. Before Linux 6.6, filters of a killed process's flow cache
//! stay attached, and forward with outdated state. The guard of DSR frontends stays on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use convey_dataplane::net::{self, BpfFilter, Netlink, OwnedName};
use convey_dataplane::{LastingGuard, Lease, Offloader, Terms};
use convey_model::{Endpoint, Interface};
use log::{info, warn};

/// First handle of our filters. The kernel does not assign such a number by itself.
const FIRST_HANDLE: u32 = 0x00c0_0001;

/// Handle of this process's filters. The owned name marks the filters as in use.
pub(super) struct OwnHandle {
    /// Number of the handle.
    pub(super) number: u32,
    _name: OwnedName,
}

impl OwnHandle {
    /// First handle that no process and no filter on these interfaces has: a leftover filter may
    /// have to stay next to ours.
    pub(super) async fn new(netlink: &Netlink, interfaces: &[Interface]) -> anyhow::Result<OwnHandle> {
        let mut attached = BTreeSet::new();
        for interface in interfaces {
            let filters = netlink.ingress_filters(interface.index).await.unwrap_or_default();
            attached.extend(filters.into_iter().map(|filter| filter.handle));
        }
        let mut number = FIRST_HANDLE;
        loop {
            if attached.contains(&number) {
                number += 1;
                continue;
            }
            match own(number) {
                Ok(name) => return Ok(OwnHandle { number, _name: name }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => number += 1,
                Err(error) => return Err(error).context("cannot take a handle for filters"),
            }
        }
    }
}

/// Filter without a process; no process gets its handle while this is held.
struct StaleFilter {
    filter: BpfFilter,
    interface: String,
    _name: Arc<OwnedName>,
}

impl StaleFilter {
    fn is_guard(&self) -> bool {
        LastingGuard::is_filter(&self.filter.name)
    }

    /// Description of the filter. For a guard, also its frontends, since an interface may have
    /// several guards.
    fn told(&self) -> String {
        if self.is_guard() { format!("{self}: {}", self.filter.name) } else { self.to_string() }
    }

    /// Command with which an operator removes the filter.
    fn by_hand(&self) -> String {
        let BpfFilter { priority, handle, .. } = &self.filter;
        format!("tc filter del dev {} ingress pref {priority} handle {handle:#x} bpf", self.interface)
    }
}

/// Short description of the filter.
impl fmt::Display for StaleFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.interface;
        match self.is_guard() {
            true => write!(f, "the guard of dsr frontends that an earlier convey left on {name}"),
            false => write!(f, "the filter that a killed convey left on {name}"),
        }
    }
}

/// Kinds of leftover filters to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds<'a> {
    /// Filters of flow caches: they are always removed.
    FlowCaches,
    /// Filters of flow caches, and guards that guard only frontends of this set.
    OwnGuards(&'a BTreeSet<Endpoint>),
    /// All filters, including the guards of DSR frontends.
    All,
}

impl Kinds<'_> {
    fn contain(self, filter: &str) -> bool {
        match self {
            Kinds::OwnGuards(frontends) if LastingGuard::is_filter(filter) => {
                LastingGuard::guards_only(filter, frontends)
            }
            Kinds::All if LastingGuard::is_filter(filter) => true,
            _ => filter == Offloader::FILTER,
        }
    }
}

/// Result of removing filters on an interface.
pub(super) struct Cleared {
    /// Descriptions of the removed filters.
    pub(super) removed: Vec<String>,
    /// Filters that stay, each with the reason; a line each.
    pub(super) in_use: Vec<String>,
    /// First refusal of the kernel to remove a filter.
    pub(super) refused: Option<net::Error>,
}

/// Removes filters of flow caches, for a process that forwards no packets. Guards stay, because
/// this process continues none of their connections. Logs nothing if there is no filter, or filters
/// cannot be listed.
pub(super) async fn remove_without_packets() {
    let Ok(netlink) = Netlink::open() else { return };
    let Ok(interfaces) = netlink.interfaces().await else { return };
    for interface in interfaces {
        let refused = match clear(&netlink, &interface, Kinds::FlowCaches).await {
            Ok(cleared) => cleared.log(),
            Err(error) => Some(error),
        };
        if refused.is_some() {
            describe(&netlink, &[interface]).await.iter().for_each(|line| warn!("{line}"));
        }
    }
}

/// Removes all filters of these kinds, and logs each.
pub(super) async fn remove(netlink: &Netlink, interfaces: &[Interface], kinds: Kinds<'_>) {
    for interface in interfaces {
        let refused = match clear(netlink, interface, kinds).await {
            Ok(cleared) => cleared.log(),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            let name = &interface.name;
            warn!(
                "filters that an earlier convey may have left on {name} stay (`tc filter show dev {name} ingress`): {error}"
            );
        }
    }
}

/// Removes leftover flow caches, and guards that guard only these DSR frontends. Returns the guards
/// of other frontends, which stay until their time is over.
pub(super) async fn remove_outdated(netlink: &Netlink, dsr: &BTreeSet<Endpoint>) -> Vec<OthersGuard> {
    match netlink.interfaces().await {
        Ok(interfaces) => {
            remove(netlink, &interfaces, Kinds::OwnGuards(dsr)).await;
            guards_of_others(netlink, &interfaces).await
        }
        Err(error) => {
            warn!("filters that an earlier convey may have left stay: {error}");
            Vec::new()
        }
    }
}

/// Removes these guards once their time is over.
pub(super) async fn outlast(netlink: Arc<Netlink>, guards: Vec<OthersGuard>) {
    if !guards.is_empty() {
        // The guards' processes are gone: none has extended their time since.
        tokio::time::sleep(Terms::default().lasts + Lease::RENEW_EVERY).await;
        remove_guards(&netlink, &guards).await;
    }
}

/// Guard that stays next to ours until its time is over.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OthersGuard {
    interface: Interface,
    filter: BpfFilter,
}

/// Guards of other frontends whose processes are gone. Logs each.
async fn guards_of_others(netlink: &Netlink, interfaces: &[Interface]) -> Vec<OthersGuard> {
    let mut guards = Vec::new();
    for interface in interfaces {
        let Ok(FoundFilters { left, .. }) = on(netlink, interface, Kinds::All).await else { continue };
        for left in left.into_iter().filter(StaleFilter::is_guard) {
            info!("{left} stays until it expires, because it guards other frontends: {}", left.filter.name);
            guards.push(OthersGuard { interface: interface.clone(), filter: left.filter });
        }
    }
    guards
}

/// Removes these guards, unless a process owns them by now.
async fn remove_guards(netlink: &Netlink, guards: &[OthersGuard]) {
    for OthersGuard { interface, filter } in guards {
        let Ok(FoundFilters { left, .. }) = on(netlink, interface, Kinds::All).await else { continue };
        for left in left.iter().filter(|left| left.filter == *filter) {
            match netlink.remove_filter(&left.filter).await {
                Ok(()) => info!("removed {left}, which has expired"),
                Err(error) => warn!("{left} stays: {error}"),
            }
        }
    }
}

impl Cleared {
    /// Logs removed filters and filters in use. Returns the refusal of the kernel.
    fn log(self) -> Option<net::Error> {
        self.removed.iter().for_each(|removed| info!("removed {removed}"));
        self.in_use.iter().for_each(|line| warn!("{line}"));
        self.refused
    }
}

/// Removes filters of these kinds on an interface. Continues after a failure.
pub(super) async fn clear(
    netlink: &Netlink,
    interface: &Interface,
    kinds: Kinds<'_>,
) -> Result<Cleared, net::Error> {
    let FoundFilters { left, in_use } = on(netlink, interface, kinds).await?;
    let mut cleared = Cleared { removed: Vec::new(), in_use, refused: None };
    for left in left {
        match netlink.remove_filter(&left.filter).await {
            Ok(()) => cleared.removed.push(left.told()),
            Err(error) => _ = cleared.refused.get_or_insert(error),
        }
    }
    Ok(cleared)
}

/// Lines for operators about leftover filters. Skips interfaces whose filters cannot be listed.
pub(super) async fn describe(netlink: &Netlink, interfaces: &[Interface]) -> Vec<String> {
    let mut lines = Vec::new();
    for interface in interfaces {
        let Ok(FoundFilters { left, in_use }) = on(netlink, interface, Kinds::All).await else { continue };
        lines.extend(in_use);
        for left in left {
            let (name, by_hand) = (&left.interface, left.by_hand());
            lines.push(match left.is_guard() {
                true => format!(
                    "an earlier convey has left the guard of its dsr frontends on {name}: until 5 minutes after its end the host does \
                     not answer connections that were open (after a kill, nor new ones for a minute); the next start with the same dsr frontends takes the guard over; `convey clear` removes it, as does `{by_hand}`"
                ),
                false => format!(
                    "a killed convey has left a filter on {name} that still forwards packets of old flows; the next start in a \
                     packet mode or `convey clear` removes it, as does `{by_hand}`"
                ),
            });
        }
    }
    lines
}

/// Filters of convey on an interface whose process may be gone.
struct FoundFilters {
    /// Filters without a process. No process can take their names while they are held here.
    left: Vec<StaleFilter>,
    /// Filters of another user, who may run convey with capabilities; a line each.
    in_use: Vec<String>,
}

async fn on(netlink: &Netlink, interface: &Interface, kinds: Kinds<'_>) -> Result<FoundFilters, net::Error> {
    let mut found = FoundFilters { left: Vec::new(), in_use: Vec::new() };
    // A process has one handle for all of its filters.
    let mut names: BTreeMap<u32, Option<Arc<OwnedName>>> = BTreeMap::new();
    for filter in netlink.ingress_filters(interface.index).await? {
        if !kinds.contain(&filter.name) {
            continue;
        }
        if let Some(uid) = OwnedName::strangers(name_of(filter.handle)) {
            found.in_use.push(format!(
                "filter {} (handle {:#x}) on {} stays: user {uid} has bound `@convey {}`, so it counts as in use (`sudo ss -xap | grep \
                 @convey` shows by which process)",
                filter.name,
                filter.handle,
                interface.name,
                name_of(filter.handle)
            ));
            continue;
        }
        let name = names.entry(filter.handle).or_insert_with_key(|handle| own(*handle).ok().map(Arc::new));
        if let Some(name) = name.clone() {
            found.left.push(StaleFilter { filter, interface: interface.name.clone(), _name: name });
        }
    }
    Ok(found)
}

fn name_of(handle: u32) -> String {
    format!("filters {handle:#x}")
}

fn own(handle: u32) -> io::Result<OwnedName> {
    OwnedName::take(name_of(handle))
}
