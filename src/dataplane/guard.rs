//! The guard: keeps what we forward from the host's own stack, which would answer it with RST.
//!
//! A BPF program (`bpf/guard.bpf.c`) on the ingress of each captured interface. Its links belong to descriptors of
//! this process, so it is gone when the process is, however that ends.

use std::collections::{HashMap as Links, HashSet};
use std::net::SocketAddr;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, Pod};
use thiserror::Error;

use super::{Replies, Selection};
use crate::model::{Addr, Interface, TCP};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/guard.bpf.o"));

/// The program's name, and its maps'.
const PROGRAM: &str = "guard";
const FRONTENDS: &str = "frontends";
const SERVERS: &str = "servers";
const SNAT: &str = "snat";

/// Drops, on the interfaces it is attached to, what is forwarded: packets to a frontend, and packets from a server
/// to a SNAT port that belong to no connection of this host. What goes to a frontend that drains is dropped unless it
/// begins a connection or belongs to one of this host. Removed when dropped.
#[derive(Debug)]
pub struct Guard {
    bpf: Ebpf,
    links: Links<u32, SchedClassifierLinkId>,
}

/// Why there is no guard.
#[derive(Debug, Error)]
pub enum GuardError {
    /// The program could not be loaded.
    #[error("loading the guard (needs CAP_BPF and CAP_NET_ADMIN): {0}")]
    Load(#[from] EbpfError),
    /// The kernel refused the program, or it could not be attached.
    #[error("the guard's program (needs Linux 6.6): {0}")]
    Program(#[from] ProgramError),
    /// A map could not be changed; most likely it is full.
    #[error("what the guard drops: {0}")]
    Map(#[from] MapError),
    /// The object is not what this program was built for.
    #[error("the guard's object lacks `{0}`")]
    Missing(&'static str),
}

impl Guard {
    /// Loads the program, attached to nothing.
    pub fn load(selection: &Selection) -> Result<Guard, GuardError> {
        let mut guard = Guard { bpf: Ebpf::load(OBJECT)?, links: Links::new() };
        guard.program()?.load()?;
        guard.select(selection)?;
        Ok(guard)
    }

    /// Guards exactly these interfaces; in the thread's network namespace, where they have to be found by name.
    /// Those guarded already stay so throughout.
    pub fn attach<'a>(
        &mut self,
        interfaces: impl IntoIterator<Item = &'a Interface>,
    ) -> Result<(), GuardError> {
        let wanted: Links<u32, &Interface> = interfaces.into_iter().map(|i| (i.index, i)).collect();
        self.detach_all_but(|index| wanted.contains_key(&index))?;
        for interface in wanted.into_values() {
            if !self.links.contains_key(&interface.index) {
                // After others: what they take away (a redirect, say) needs no guarding.
                let last = TcAttachOptions::TcxOrder(LinkOrder::last());
                let link =
                    self.program()?.attach_with_options(&interface.name, TcAttachType::Ingress, last)?;
                self.links.insert(interface.index, link);
            }
        }
        Ok(())
    }

    /// Drops by another selection. What is in both is dropped throughout.
    pub fn select(&mut self, selection: &Selection) -> Result<(), GuardError> {
        let replies = selection.replies.as_ref();
        let servers = replies.iter().flat_map(|replies| &replies.servers);
        let snat: Vec<(IpKey, PortRange)> = replies.iter().flat_map(|replies| snat_ports(replies)).collect();
        replace(
            self.map(FRONTENDS)?,
            (selection.draining.iter().map(|addr| (endpoint(addr), DRAINING)))
                .chain(selection.frontends.iter().map(|addr| (endpoint(addr), SERVING)))
                .collect(),
        )?;
        replace(self.map(SERVERS)?, servers.map(|addr| (endpoint(addr), 1u8)).collect())?;
        replace(self.map(SNAT)?, snat)?;
        Ok(())
    }

    fn detach_all_but(&mut self, keep: impl Fn(u32) -> bool) -> Result<(), GuardError> {
        let gone: Vec<u32> = self.links.keys().copied().filter(|index| !keep(*index)).collect();
        for index in gone {
            if let Some(link) = self.links.remove(&index) {
                self.program()?.detach(link)?;
            }
        }
        Ok(())
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, GuardError> {
        let program = self.bpf.program_mut(PROGRAM).ok_or(GuardError::Missing(PROGRAM))?;
        Ok(program.try_into()?)
    }

    fn map<K: Pod, V: Pod>(&mut self, name: &'static str) -> Result<HashMap<&mut MapData, K, V>, GuardError> {
        let map = self.bpf.map_mut(name).ok_or(GuardError::Missing(name))?;
        Ok(HashMap::try_from(map)?)
    }
}

/// Makes `entries` the map's contents: what is new goes in before what is old comes out.
fn replace<K, V>(mut map: HashMap<&mut MapData, K, V>, entries: Vec<(K, V)>) -> Result<(), MapError>
where
    K: Pod + Eq + std::hash::Hash,
    V: Pod,
{
    for (key, value) in &entries {
        map.insert(key, value, 0)?;
    }
    let wanted: HashSet<K> = entries.into_iter().map(|(key, _)| key).collect();
    let present: Vec<K> = map.keys().collect::<Result<_, _>>()?;
    for key in present.iter().filter(|key| !wanted.contains(key)) {
        map.remove(key)?;
    }
    Ok(())
}

/// `struct endpoint` of `bpf/packet.h`: address, port in network order, protocol, a zero.
type Endpoint = [u8; 20];

/// What the map of frontends says of one, as in `bpf/guard.bpf.c`.
const SERVING: u8 = 1;
const DRAINING: u8 = 2;

/// `struct addr` of `bpf/packet.h`.
type IpKey = [u8; 16];

/// `struct port_range` of `bpf/guard.bpf.c`: first and last.
type PortRange = [u16; 2];

fn endpoint(addr: &SocketAddr) -> Endpoint {
    let mut key = [0; 20];
    key[..16].copy_from_slice(Addr::from(addr.ip()).bytes());
    key[16..18].copy_from_slice(&addr.port().to_be_bytes());
    key[18] = TCP;
    key
}

fn snat_ports(replies: &Replies) -> impl Iterator<Item = (IpKey, PortRange)> {
    let ports = [*replies.snat_ports.start(), *replies.snat_ports.end()];
    replies.snat_addresses.iter().map(move |ip| (*Addr::from(*ip).bytes(), ports))
}
