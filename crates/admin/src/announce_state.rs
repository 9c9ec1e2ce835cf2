//! Which addresses are announced. The task that announces them writes it, whoever asks reads it.

use std::net::IpAddr;

use arc_swap::ArcSwap;
use convey_control::KnownAnnouncement;

/// All addresses that are to be announced.
#[derive(Debug, Default)]
pub struct AnnounceState(ArcSwap<Vec<AnnouncedAddress>>);

/// An address of frontends, to be announced while they can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// The address.
    pub address: IpAddr,
    /// The interface that it is put on.
    pub interface: String,
    /// Whether it is there, put there by this process or taken over.
    pub is_announced: bool,
    /// Why it is, or why not.
    pub reason: String,
    /// Times that it was withdrawn since the program began, upgrades included.
    pub withdrawals: u64,
    /// State for the next process of an upgrade.
    pub announcement: KnownAnnouncement,
}

impl AnnounceState {
    /// These are all.
    pub fn set(&self, addresses: Vec<AnnouncedAddress>) {
        self.0.store(addresses.into());
    }

    /// All of them, in order.
    pub fn addresses(&self) -> Vec<AnnouncedAddress> {
        self.0.load().to_vec()
    }
}
