//! Flags of a flow and the number of its frontend, packed into few bits.

use super::{ForwardingMethod, NewFlow};
use crate::state::{FlowState, View};
use crate::tcp_sequence::PendingFin;
use convey_model::{TCP, UDP};

/// Protocol and forwarding mode of a flow, in a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowFlags(pub(super) u8);

impl FlowFlags {
    pub(super) const UDP: u8 = 1;
    pub(super) const CLIENT_SIDE: u8 = 2;
    pub(super) const L2_DSR: u8 = 4;
    pub(super) const CACHED: u8 = 8;
    /// Connection in DSR that was not seen from its beginning.
    pub(super) const MET: u8 = 16;
    /// Narrowness of the path to the client: two bits.
    pub(super) const NARROW: u8 = 32 + 64;
    pub(super) const NARROW_SHIFT: u32 = FlowFlags::NARROW.trailing_zeros();
    /// A FIN of the client is pending.
    pub(super) const CLIENTS_FIN: u8 = 128;
    /// Passthrough, where [`FlowFlags::MET`] is not used: a FIN of the server is pending.
    pub(super) const SERVERS_FIN: u8 = FlowFlags::MET;
    /// Passthrough: a SYN of the client is pending, and no FIN.
    pub(super) const REOPENING: u8 = FlowFlags::CLIENTS_FIN | FlowFlags::SERVERS_FIN;
    /// DSR, where no path to a client is narrow: a SYN of the client is pending.
    pub(super) const CLIENTS_SYN: u8 = 32;
    /// DSR: the sequence numbers began with a SYN within the connection. The client, or a host in
    /// its name, has sent a segment that confirms the SYN.
    pub(super) const REOPENED: u8 = 64;

    pub(super) fn new(new: &NewFlow, state: FlowState) -> FlowFlags {
        let set = |flag, yes| if yes { flag } else { 0 };
        let is_adopted = new.view == View::ClientSide && state == FlowState::Adopted;
        FlowFlags(
            set(FlowFlags::UDP, new.client.protocol == UDP)
                | set(FlowFlags::CLIENT_SIDE, new.view == View::ClientSide)
                | set(FlowFlags::L2_DSR, new.method == ForwardingMethod::OnLink)
                | set(FlowFlags::MET, is_adopted),
        )
    }

    #[inline]
    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, yes: bool) {
        self.0 = if yes { self.0 | flag } else { self.0 & !flag };
    }

    pub(super) fn is_adopted(self) -> bool {
        self.has(FlowFlags::MET) && self.has(FlowFlags::CLIENT_SIDE)
    }

    #[inline]
    pub(super) fn pending_fin(self) -> PendingFin {
        match self.0 & (FlowFlags::CLIENTS_FIN | FlowFlags::SERVERS_FIN | FlowFlags::CLIENT_SIDE) {
            FlowFlags::REOPENING => PendingFin::Reopening,
            flags if flags & FlowFlags::CLIENTS_FIN != 0 => PendingFin::Clients,
            FlowFlags::SERVERS_FIN => PendingFin::Servers,
            flags if flags & FlowFlags::CLIENT_SIDE != 0 && self.has(FlowFlags::CLIENTS_SYN) => {
                PendingFin::Reopening
            }
            _ => PendingFin::Nobodys,
        }
    }

    #[inline]
    pub(super) fn set_pending_fin(&mut self, pending: PendingFin) {
        let is_reopening = pending == PendingFin::Reopening;
        if self.has(FlowFlags::CLIENT_SIDE) {
            self.set(FlowFlags::CLIENTS_FIN, pending == PendingFin::Clients);
            self.set(FlowFlags::CLIENTS_SYN, is_reopening);
        } else {
            self.set(FlowFlags::CLIENTS_FIN, is_reopening || pending == PendingFin::Clients);
            self.set(FlowFlags::SERVERS_FIN, is_reopening || pending == PendingFin::Servers);
        }
    }

    /// Narrowness of the path to the client.
    #[inline]
    pub(super) fn narrowness(self) -> u8 {
        if self.has(FlowFlags::CLIENT_SIDE) {
            0
        } else {
            (self.0 & FlowFlags::NARROW) >> FlowFlags::NARROW_SHIFT
        }
    }

    #[inline]
    pub(super) fn protocol(self) -> u8 {
        if self.has(FlowFlags::UDP) { UDP } else { TCP }
    }
}

/// Number of a frontend, with three flags of the flow: counted at its source, sent through a
/// tunnel, and answered by the server on another interface. Frontend numbers have at most 29 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrontendMark(pub(super) u32);

impl FrontendMark {
    pub(super) const COUNTED: u32 = 1 << 31;
    pub(super) const TUNNELED: u32 = 1 << 30;
    pub(super) const SERVER_MOVED: u32 = 1 << 29;
    pub(super) const ID: u32 = !(FrontendMark::COUNTED | FrontendMark::TUNNELED | FrontendMark::SERVER_MOVED);

    pub(super) fn new(id: u32, method: ForwardingMethod) -> FrontendMark {
        let tunneled = if method == ForwardingMethod::Tunneled { FrontendMark::TUNNELED } else { 0 };
        FrontendMark(id & FrontendMark::ID | tunneled)
    }
}
