//! Filters of the flow cache whose process is gone. Before Linux 6.6 they stay attached when it is killed, and go on
//! forwarding by what they knew.

use std::io;

use anyhow::Context;
use log::{info, warn};

use crate::dataplane::Offloader;
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

/// Detaches all of them.
pub(super) async fn remove(netlink: &Netlink, interfaces: &[Interface]) {
    for interface in interfaces {
        let done = async {
            for (filter, _claim) in on(netlink, interface).await? {
                netlink.remove_filter(&filter).await?;
                info!("removed the filter that a killed convey left on {}", interface.name);
            }
            Ok::<_, net::Error>(())
        };
        if let Err(error) = done.await {
            let name = &interface.name;
            warn!(
                "what a killed convey may have left on {name} stays (`tc filter show dev {name} ingress`): {error}"
            );
        }
    }
}

/// What to tell of each, a line; nobody is to be told of one that cannot be looked for.
pub(super) async fn describe(netlink: &Netlink, interfaces: &[Interface]) -> Vec<String> {
    let mut lines = Vec::new();
    for interface in interfaces {
        for (filter, _claim) in on(netlink, interface).await.unwrap_or_default() {
            let (name, BpfFilter { priority, handle, .. }) = (&interface.name, filter);
            lines.push(format!(
                "a killed convey has left a filter on {name} that forwards by what it knew; the next start in a packet mode \
                 removes it, or `tc filter del dev {name} ingress pref {priority} handle {handle:#x} bpf`"
            ));
        }
    }
    lines
}

/// Those on an interface. They are nobody's as long as their claims are held.
async fn on(netlink: &Netlink, interface: &Interface) -> Result<Vec<(BpfFilter, Claim)>, net::Error> {
    let filters = netlink.ingress_filters(interface.index).await?.into_iter();
    let ours = filters.filter(|filter| filter.name == Offloader::FILTER);
    Ok(ours.filter_map(|filter| claim(filter.handle).ok().map(|claim| (filter, claim))).collect())
}

fn claim(handle: u32) -> io::Result<Claim> {
    Claim::new(format!("filters {handle:#x}"))
}
