//! Which flow gives way when there is no room for another. Touched when a flow changes its class, not by
//! its packets.

use std::collections::HashMap;

use super::flow::{Class, Flow};
use super::list::{CLASS, List, SERVER};
use crate::model::Addr;

/// A server's address, port and protocol: what SNAT ports are handed out for. One server may have several numbers,
/// as a member of several backends or by a new name.
pub(super) type Server = (Addr, u16, u8);

/// The flows that may be evicted, those that became so first in front.
#[derive(Debug)]
pub(super) struct Queues {
    closing: List<CLASS>,
    half_open: List<CLASS>,
    doubtful: List<CLASS>,
    closing_of_server: HashMap<Server, List<SERVER>>,
    open: u32,
}

impl Queues {
    pub(super) fn new() -> Self {
        // Enough for most, so that packets do not make it grow; it does with the number of servers.
        let closing_of_server = HashMap::with_capacity(256);
        let (closing, half_open, doubtful) = (List::EMPTY, List::EMPTY, List::EMPTY);
        Queues { closing, half_open, doubtful, closing_of_server, open: 0 }
    }

    /// The flow that has been over for longest.
    pub(super) fn closing(&self) -> Option<u32> {
        self.closing.first()
    }

    /// The flow that gives way to a new one.
    pub(super) fn victim(&self) -> Option<u32> {
        self.closing.first().or(self.half_open.first()).or(self.doubtful.first())
    }

    /// The flow that gives way to a new one of the same server.
    pub(super) fn closing_of_server(&self, server: Server) -> Option<u32> {
        self.closing_of_server.get(&server)?.first()
    }

    /// How many flows are open, as far as can be told.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// Adds a flow that is now in `class`.
    pub(super) fn enter(&mut self, flows: &mut [Flow], id: u32, class: Class) {
        match class {
            Class::Open => self.open += 1,
            Class::Doubtful => {
                self.open += 1;
                self.doubtful.push(flows, id);
            }
            Class::HalfOpen => self.half_open.push(flows, id),
            Class::Closing => {
                self.closing.push(flows, id);
                let server = server(&flows[id as usize]);
                self.closing_of_server.entry(server).or_insert(List::EMPTY).push(flows, id);
            }
        }
    }

    /// Takes out a flow that was in `class`.
    pub(super) fn leave(&mut self, flows: &mut [Flow], id: u32, class: Class) {
        match class {
            Class::Open => self.open -= 1,
            Class::Doubtful => {
                self.open -= 1;
                self.doubtful.remove(flows, id);
            }
            Class::HalfOpen => self.half_open.remove(flows, id),
            Class::Closing => {
                self.closing.remove(flows, id);
                let server = server(&flows[id as usize]);
                if let Some(list) = self.closing_of_server.get_mut(&server) {
                    list.remove(flows, id);
                    if list.first().is_none() {
                        self.closing_of_server.remove(&server);
                    }
                }
            }
        }
    }
}

fn server(flow: &Flow) -> Server {
    let key = flow.server();
    (key.src, key.src_port, key.protocol)
}
