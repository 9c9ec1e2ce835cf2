//! Configuration together with the network state of this host's kernel.

use std::sync::Arc;

use anyhow::Context;
use convey_config::{HostNetwork, LoadError, Loaded};
use convey_control::ConfigFile;
use convey_control::{own_addresses, own_addresses_for};
use convey_dataplane::net::Netlink;
use convey_model::{Mode, NetworkTables, NextHops};
use log::warn;

use super::Failure;

/// Network tables of the kernel. convey reads them only once, because routers may have a million
/// routes.
pub(super) struct Kernel {
    /// Receives every change since the tables were read.
    pub(super) netlink: Netlink,
    pub(super) table: NetworkTables,
    /// Routes and neighbours from the tables.
    pub(super) network: Arc<NextHops>,
}

/// Loads a configuration and completes it with facts about this host. If a frontend is in a packet
/// mode, reads the kernel's tables. Must be called within a tokio runtime, which `Kernel` needs.
pub(super) async fn load(file: &ConfigFile) -> Result<(Loaded, Option<Kernel>), Failure> {
    fit(file.load()).await
}

/// Completes a loaded configuration with facts about this host. Reads the kernel's tables if a
/// frontend is in a packet mode.
pub(super) async fn fit(loaded: Result<Loaded, LoadError>) -> Result<(Loaded, Option<Kernel>), Failure> {
    let mut loaded = loaded.map_err(Failure::Config)?;
    let kernel = match loaded.config.frontends_where(Mode::forwards_packets).next() {
        Some(_) => Some(read_kernel().await.context("cannot list the kernel's routes")?),
        None => None,
    };
    let none = NextHops::default();
    let hops = kernel.as_ref().map_or(&none, |kernel| &kernel.network);
    let (own, warning) =
        own_addresses_for(kernel.is_some(), own_addresses()).context("cannot list this host's addresses")?;
    warning.iter().for_each(|warning| warn!("{warning}"));
    hops.rules_not_followed().iter().for_each(|rule| warn!("{rule}"));
    let network = HostNetwork {
        interfaces: hops.interfaces(),
        own: &own,
        hop_to: &|ip| hops.hop_to(ip),
        refusal: &|ip| hops.refusal_of(ip, loaded.config.snat_addresses()),
    };
    let odd = convey_config::validate_mode(&loaded, &network);
    loaded.warnings.extend(odd.map_err(|wrong| Failure::Config(LoadError::Invalid(wrong)))?);
    Ok((loaded, kernel))
}

/// Reads the kernel's tables.
pub(super) async fn read_kernel() -> anyhow::Result<Kernel> {
    let netlink = Netlink::open()?;
    let table = netlink.table().await?;
    let network = NextHops::default().update_all(&table);
    Ok(Kernel { netlink, table, network: Arc::new(network) })
}
