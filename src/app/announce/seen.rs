//! What the kernel says of the addresses to be announced.

use std::net::IpAddr;

use convey_dataplane::net::{HostAddress, HostAddresses};
use convey_model::AnnounceConfig;

/// Addresses, and the interface to announce on.
pub(super) struct SeenAddresses {
    pub(super) addresses: Vec<HostAddress>,
    interface: Result<u32, String>,
}

impl SeenAddresses {
    /// Asks the kernel.
    ///
    /// # Errors
    /// It does not tell.
    pub(super) async fn ask(
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
                "there is no interface {name} (announce.interface; `ip link add {name} type dummy` makes one); what is announced stays where it is"
            )
        };
        let interface = interface.map(|interface| interface.index).ok_or_else(missing);
        Ok(SeenAddresses { addresses, interface })
    }

    /// The index of the interface to announce on.
    ///
    /// # Errors
    /// It is not there: why, for an operator.
    pub(super) fn interface(&self) -> Result<u32, String> {
        self.interface.clone()
    }

    /// The address where it is to be announced, if a convey has put it there. While the interface of the file is missing, it is kept on
    /// another one: a slip of the pen takes no balancer off the network.
    pub(super) fn announced(&self, ip: IpAddr) -> Option<&HostAddress> {
        self.of(ip).find(|address| address.is_announced && self.is_its_interface(address))
    }

    /// Whether an announced address is where it is to be, as far as that is known.
    pub(super) fn is_its_interface(&self, address: &HostAddress) -> bool {
        self.interface.as_ref().is_ok_and(|index| address.interface == *index) || self.interface.is_err()
    }

    /// Whether a convey has put the address on another interface.
    pub(super) fn has_elsewhere(&self, ip: IpAddr) -> bool {
        self.of(ip).any(|address| address.is_announced && !self.is_its_interface(address))
    }

    /// Whether somebody else has put the address on this host.
    pub(super) fn has_foreign(&self, ip: IpAddr) -> bool {
        self.of(ip).any(|address| !address.is_announced)
    }

    /// The address on the interface of the file, with or without a mark.
    pub(super) fn on_interface(&self, ip: IpAddr) -> Option<&HostAddress> {
        self.of(ip).find(|address| self.interface.as_ref().is_ok_and(|index| address.interface == *index))
    }

    fn of(&self, ip: IpAddr) -> impl Iterator<Item = &HostAddress> {
        self.addresses.iter().filter(move |address| address.ip == ip)
    }
}
