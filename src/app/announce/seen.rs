//! Addresses of this host, as the kernel reports them.

use std::net::IpAddr;

use convey_dataplane::net::{HostAddress, HostAddresses};
use convey_model::AnnounceConfig;

/// Addresses of the host, and the interface on which convey announces.
pub(super) struct SeenAddresses {
    pub(super) addresses: Vec<HostAddress>,
    interface: Result<u32, String>,
}

impl SeenAddresses {
    /// Reads addresses and interfaces from the kernel.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub(super) async fn read(
        netlink: &HostAddresses,
        config: Option<&AnnounceConfig>,
    ) -> Result<SeenAddresses, convey_dataplane::net::Error> {
        let addresses = netlink.all().await?;
        let Some(AnnounceConfig { interface: name, .. }) = config else {
            return Ok(SeenAddresses { addresses, interface: Ok(0) });
        };
        let interfaces = netlink.interfaces().await?;
        let interface = interfaces.iter().find(|interface| interface.name == *name);
        let missing = || {
            format!(
                "there is no interface {name} (announce.interface; `ip link add {name} type dummy` creates one); addresses that are already announced stay"
            )
        };
        let interface = interface.map(|interface| interface.index).ok_or_else(missing);
        Ok(SeenAddresses { addresses, interface })
    }

    /// Index of the interface on which convey announces.
    ///
    /// # Errors
    /// The configured interface does not exist: operator-facing reason.
    pub(super) fn interface(&self) -> Result<u32, String> {
        self.interface.clone()
    }

    /// Returns the address if it carries convey's mark and is on the configured interface. If the
    /// configured interface does not exist, any interface is accepted: a typing error in the
    /// configuration must not take the balancer off the network.
    pub(super) fn announced(&self, ip: IpAddr) -> Option<&HostAddress> {
        self.of(ip).find(|address| address.is_announced && self.is_its_interface(address))
    }

    /// Whether the address is on the configured interface. Returns true if that interface does not
    /// exist.
    pub(super) fn is_its_interface(&self, address: &HostAddress) -> bool {
        self.interface.as_ref().is_ok_and(|index| address.interface == *index) || self.interface.is_err()
    }

    /// Whether a convey has added the address to an interface other than the configured one.
    pub(super) fn has_elsewhere(&self, ip: IpAddr) -> bool {
        self.of(ip).any(|address| address.is_announced && !self.is_its_interface(address))
    }

    /// Whether another program has added the address to this host.
    pub(super) fn has_foreign(&self, ip: IpAddr) -> bool {
        self.of(ip).any(|address| !address.is_announced)
    }

    /// Returns the address if it is on the configured interface, with or without convey's mark.
    pub(super) fn on_interface(&self, ip: IpAddr) -> Option<&HostAddress> {
        self.of(ip).find(|address| self.interface.as_ref().is_ok_and(|index| address.interface == *index))
    }

    fn of(&self, ip: IpAddr) -> impl Iterator<Item = &HostAddress> {
        self.addresses.iter().filter(move |address| address.ip == ip)
    }
}
