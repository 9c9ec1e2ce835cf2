//! Which flow gives way when there is no room for another. Touched when a flow changes its class, not by
//! its packets.

use std::collections::HashMap;

use super::flow::{Class, Flow};
use super::list::{CLASS, List, SERVER};
use crate::model::Addr;

/// A server's address and port: what SNAT ports are handed out for. One server may have several numbers, as a member of
/// several backends or by a new name.
pub(super) type Server = (Addr, u16);

/// The flows that may be evicted, those that became so first in front.
#[derive(Debug)]
pub(super) struct Queues {
    closing: List<CLASS>,
    half_open: List<CLASS>,
    doubtful: List<CLASS>,
    servers: HashMap<Server, OfServer>,
    open: u32,
}

/// The flows of one server that may be evicted, each kind in its order.
#[derive(Debug, Default)]
pub(super) struct OfServer {
    /// Over as far as we can see, or answered.
    pub(super) closing: Line,
    pub(super) half_open: Line,
}

/// A list that knows how long it is.
#[derive(Debug)]
pub(super) struct Line {
    list: List<SERVER>,
    len: u32,
}

impl Queues {
    pub(super) fn new() -> Self {
        // Enough for most, so that packets do not make it grow; it does with the number of servers.
        let servers = HashMap::with_capacity(256);
        let (closing, half_open, doubtful) = (List::EMPTY, List::EMPTY, List::EMPTY);
        Queues { closing, half_open, doubtful, servers, open: 0 }
    }

    /// The flow that has been over for longest.
    pub(super) fn closing(&self) -> Option<u32> {
        self.closing.first()
    }

    /// The flow that gives way to a new one.
    pub(super) fn victim(&self) -> Option<u32> {
        self.closing.first().or(self.half_open.first()).or(self.doubtful.first())
    }

    /// The flows that may give way to a new one of the same server; `None` if there are none.
    pub(super) fn of_server(&self, server: Server) -> Option<&OfServer> {
        self.servers.get(&server)
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
            Class::HalfOpen => {
                self.half_open.push(flows, id);
                self.servers.entry(server(&flows[id as usize])).or_default().half_open.push(flows, id);
            }
            Class::Closing => {
                self.closing.push(flows, id);
                self.servers.entry(server(&flows[id as usize])).or_default().closing.push(flows, id);
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
            Class::HalfOpen => {
                self.half_open.remove(flows, id);
                self.leave_server(flows, id, |of_server| &mut of_server.half_open);
            }
            Class::Closing => {
                self.closing.remove(flows, id);
                self.leave_server(flows, id, |of_server| &mut of_server.closing);
            }
        }
    }

    fn leave_server(&mut self, flows: &mut [Flow], id: u32, line: fn(&mut OfServer) -> &mut Line) {
        let server = server(&flows[id as usize]);
        if let Some(of_server) = self.servers.get_mut(&server) {
            line(of_server).remove(flows, id);
            if of_server.closing.len == 0 && of_server.half_open.len == 0 {
                self.servers.remove(&server);
            }
        }
    }
}

impl Line {
    /// How many flows are in it.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// They, the first in front.
    pub(super) fn iter<'a>(&self, flows: &'a [Flow]) -> impl Iterator<Item = u32> + use<'a> {
        self.list.iter(flows)
    }

    fn push(&mut self, flows: &mut [Flow], id: u32) {
        self.list.push(flows, id);
        self.len += 1;
    }

    fn remove(&mut self, flows: &mut [Flow], id: u32) {
        self.list.remove(flows, id);
        self.len -= 1;
    }
}

impl Default for Line {
    fn default() -> Line {
        Line { list: List::EMPTY, len: 0 }
    }
}

fn server(flow: &Flow) -> Server {
    let key = flow.server();
    (key.src, key.src_port)
}
