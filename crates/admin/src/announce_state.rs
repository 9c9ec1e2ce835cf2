//! State of announced addresses. The announcing task writes it, and API requests read it.

use std::net::IpAddr;

use arc_swap::ArcSwap;
use convey_control::KnownAnnouncement;

/// State of all addresses that convey is to announce.
#[derive(Debug, Default)]
pub struct AnnounceState(ArcSwap<Vec<AnnouncedAddress>>);

/// Address that convey announces while the frontends at the address can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// Address to announce.
    pub address: IpAddr,
    /// Interface that the address is added to.
    pub interface: String,
    /// Whether the address is on the interface, added by this process or taken over.
    pub is_announced: bool,
    /// Reason why the address is announced or not.
    pub reason: String,
    /// Number of withdrawals since the program began. Withdrawals by earlier processes of an
    /// upgrade are included.
    pub withdrawals: u64,
    /// State of the announcement, to be handed over in an upgrade.
    pub announcement: KnownAnnouncement,
}

impl AnnounceState {
    /// Replaces the state of all addresses.
    pub fn set(&self, addresses: Vec<AnnouncedAddress>) {
        self.0.store(addresses.into());
    }

    /// State of all addresses, in order.
    pub fn addresses(&self) -> Vec<AnnouncedAddress> {
        self.0.load().to_vec()
    }
}
