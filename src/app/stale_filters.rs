//! tc filters whose convey process is gone. Before Linux 6.6, the flow cache filters of a killed
//! process stay attached, and forward with outdated state. The guard of DSR frontends stays
//! attached on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use convey_dataplane::net::{self, BpfFilter, Netlink, OwnedName};
use convey_dataplane::{LastingGuard, Lease, Offloader, Terms};
use convey_model::{Endpoint, Interface};
use log::{info, warn};

/// Lowest handle for convey's filters. The kernel does not assign such numbers by itself.
const FIRST_HANDLE: u32 = 0x00c0_0001;

/// Handle of this process's filters. The process owns a name for the handle, which marks its
/// filters as in use.
pub(super) struct OwnHandle {
    /// Number of the handle.
    pub(super) number: u32,
    _name: OwnedName,
}

impl OwnHandle {
    /// Takes the lowest handle that no process owns and no filter on these interfaces uses.
    /// Leftover filters keep their handles, because they may have to stay attached.
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

/// Filter whose process is gone. While this value exists, no process can take its handle.
struct StaleFilter {
    filter: BpfFilter,
    interface: String,
    _name: Arc<OwnedName>,
}

impl StaleFilter {
    fn is_guard(&self) -> bool {
        LastingGuard::is_filter(&self.filter.name)
    }

    /// Description of the filter. For a guard it includes the frontends, because an interface may
    /// have several guards.
    fn description(&self) -> String {
        if self.is_guard() { format!("{self}: {}", self.filter.name) } else { self.to_string() }
    }

    /// `tc` command with which an operator can remove the filter.
    fn manual_command(&self) -> String {
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

/// Selection of the leftover filters to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinds<'a> {
    /// Filters of flow caches only.
    FlowCaches,
    /// Filters of flow caches, and guards all of whose frontends are in this set.
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
    /// Filters that stay because they are in use, with the reason, one per line.
    pub(super) in_use: Vec<String>,
    /// First error with which the kernel refused to remove a filter; `None` if it refused none.
    pub(super) refused: Option<net::Error>,
}

/// Removes leftover flow cache filters, for a process that forwards no packets. Guards stay: they
/// protect connections that this process does not continue. Logs nothing if there are no filters,
/// or if they cannot be listed.
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

/// Removes all filters of these kinds, and logs each removed filter.
pub(super) async fn remove(netlink: &Netlink, interfaces: &[Interface], kinds: Kinds<'_>) {
    for interface in interfaces {
        let refused = match clear(netlink, interface, kinds).await {
            Ok(cleared) => cleared.log(),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            let name = &interface.name;
            warn!(
                "cannot remove filters that an earlier convey may have left on {name} (`tc filter show dev {name} ingress` lists them): {error}"
            );
        }
    }
}

/// Removes leftover flow caches, and guards that guard only these DSR frontends. Returns the guards
/// of other frontends, which stay until they expire.
pub(super) async fn remove_outdated(netlink: &Netlink, dsr: &BTreeSet<Endpoint>) -> Vec<OthersGuard> {
    match netlink.interfaces().await {
        Ok(interfaces) => {
            remove(netlink, &interfaces, Kinds::OwnGuards(dsr)).await;
            guards_of_others(netlink, &interfaces).await
        }
        Err(error) => {
            warn!("cannot remove filters that an earlier convey may have left: {error}");
            Vec::new()
        }
    }
}

/// Waits until these guards have expired, and removes them.
pub(super) async fn outlast(netlink: Arc<Netlink>, guards: Vec<OthersGuard>) {
    if !guards.is_empty() {
        // The processes of the guards are gone, so none of them has renewed its guard since.
        tokio::time::sleep(Terms::default().lasts + Lease::RENEW_EVERY).await;
        remove_guards(&netlink, &guards).await;
    }
}

/// Guard of other frontends. It stays next to the guard of this process until it expires.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OthersGuard {
    interface: Interface,
    filter: BpfFilter,
}

/// Guards whose processes are gone. Logs a line for each guard, which stays attached.
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

/// Removes these guards, except guards that a process owns now.
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
    /// Logs removed filters and filters in use. Returns the error of the kernel, if there was one.
    fn log(self) -> Option<net::Error> {
        self.removed.iter().for_each(|removed| info!("removed {removed}"));
        self.in_use.iter().for_each(|line| warn!("{line}"));
        self.refused
    }
}

/// Removes leftover filters of these kinds on an interface. After a failed removal, continues with
/// the next filter.
pub(super) async fn clear(
    netlink: &Netlink,
    interface: &Interface,
    kinds: Kinds<'_>,
) -> Result<Cleared, net::Error> {
    let FoundFilters { left, in_use } = on(netlink, interface, kinds).await?;
    let mut cleared = Cleared { removed: Vec::new(), in_use, refused: None };
    for left in left {
        match netlink.remove_filter(&left.filter).await {
            Ok(()) => cleared.removed.push(left.description()),
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
            let (name, manual_command) = (&left.interface, left.manual_command());
            lines.push(match left.is_guard() {
                true => format!(
                    "an earlier convey has left the guard of its dsr frontends on {name}: for 5 minutes after that convey's end, the host \
                     does not answer packets of connections that were open (after a kill, also no new connections for a minute); the next start with the same dsr frontends takes over the guard; `convey clear` removes it, as does `{manual_command}`"
                ),
                false => format!(
                    "a killed convey has left a filter on {name} that still forwards packets of old flows; the next start in a \
                     packet mode or `convey clear` removes it, as does `{manual_command}`"
                ),
            });
        }
    }
    lines
}

/// Filters of convey on an interface, grouped by whether their process is gone.
struct FoundFilters {
    /// Filters whose process is gone. While they are held here, no process can take their names.
    left: Vec<StaleFilter>,
    /// Descriptions of the filters of another user, who may run convey with capabilities; one per
    /// line.
    in_use: Vec<String>,
}

async fn on(netlink: &Netlink, interface: &Interface, kinds: Kinds<'_>) -> Result<FoundFilters, net::Error> {
    let mut found = FoundFilters { left: Vec::new(), in_use: Vec::new() };
    // All filters of a process have the same handle.
    let mut names: BTreeMap<u32, Option<Arc<OwnedName>>> = BTreeMap::new();
    for filter in netlink.ingress_filters(interface.index).await? {
        if !kinds.contain(&filter.name) {
            continue;
        }
        if let Some(uid) = OwnedName::foreign_owner(name_of(filter.handle)) {
            found.in_use.push(format!(
                "filter {} (handle {:#x}) on {} stays, because user {uid} has bound the socket name `@convey {}`, which marks it as in use (`sudo ss -xap | \
                 grep @convey` shows the process)",
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
