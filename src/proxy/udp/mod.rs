//! UDP in proxy mode: each client has a session with a server, and a socket of its own towards it, so that servers see
//! clients apart and a refusal is known to be about whom.
//!
//! One task for each address of each worker does all that is to be done there, a batch of datagrams at a time.

mod listener;
mod relay;
mod send;
mod session;
mod socket;
mod sockets;
mod table;

pub(super) use listener::Listener;
pub(super) use sockets::{Listening, Sockets, receive_buffer};

use crate::snapshot::Slots;

/// How many sessions there are, of all frontends and workers, and how many there may be.
#[derive(Debug)]
pub struct Sessions {
    open: Slots,
    most: u32,
}

impl Sessions {
    /// None yet. Each needs a port of its own, of `ports` that this host gives to sockets: an eighth stays for everybody
    /// else. And it counts as one of the most `connections` there may be: half stays for those of TCP.
    pub fn share(ports: u32, connections: u64) -> Sessions {
        let half = u32::try_from(connections / 2).unwrap_or(u32::MAX);
        Sessions { open: Slots::default(), most: (ports - ports / 8).min(half).max(1) }
    }

    /// How many more there may be.
    fn left(&self) -> u64 {
        self.most.saturating_sub(self.open.open()).into()
    }

    fn try_take(&self) -> bool {
        self.open.try_take(Some(self.most))
    }

    fn release(&self) {
        self.open.release();
    }
}
