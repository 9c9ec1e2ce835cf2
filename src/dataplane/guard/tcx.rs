//! The guard of tcx: a BPF program (`bpf/guard.bpf.c`) on the ingress of each captured interface. Its links belong
//! to descriptors of this process.

use std::collections::HashSet;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, Pod};
use thiserror::Error;

use super::super::{Replies, Selection};
use crate::model::{Addr, Endpoint, Interface};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/guard.bpf.o"));

/// The program's name, and its maps'.
const PROGRAM: &str = "guard";
const FRONTENDS: &str = "frontends";
const SERVERS: &str = "servers";
const SNAT: &str = "snat";

/// The program, attached. Detached when dropped.
#[derive(Debug)]
pub(super) struct Tcx {
    guard: Ebpf,
    /// Each with the index of its interface.
    links: Vec<(u32, SchedClassifierLinkId)>,
}

/// Why tcx does not guard.
#[derive(Debug, Error)]
pub enum TcxError {
    /// The program could not be loaded.
    #[error("the guard's program cannot be loaded (needs CAP_BPF): {0}")]
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

impl Tcx {
    /// Guards the interfaces, in the thread's network namespace.
    pub(super) fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Tcx, TcxError> {
        let mut guard = Tcx { guard: Ebpf::load(OBJECT)?, links: Vec::new() };
        guard.program()?.load()?;
        guard.select(selection)?;
        guard.cover(interfaces)?;
        Ok(guard)
    }

    /// Guards these interfaces and no others.
    pub(super) fn cover(&mut self, interfaces: &[Interface]) -> Result<(), TcxError> {
        let is_covered = |index: u32| interfaces.iter().any(|interface| interface.index == index);
        let gone: Vec<_> = self.links.extract_if(.., |(index, _)| !is_covered(*index)).collect();
        for (_, link) in gone {
            // Fails if the interface is gone: so is what was attached to it.
            let _ = self.program()?.detach(link);
        }
        for interface in interfaces {
            if self.links.iter().any(|(index, _)| *index == interface.index) {
                continue;
            }
            // After others: what they take away (a redirect, say) needs no guarding.
            let last = TcAttachOptions::TcxOrder(LinkOrder::last());
            let link = self.program()?.attach_with_options(&interface.name, TcAttachType::Ingress, last)?;
            self.links.push((interface.index, link));
        }
        Ok(())
    }

    /// Drops by another selection. What is in both is dropped throughout.
    pub(super) fn select(&mut self, selection: &Selection) -> Result<(), TcxError> {
        let replies = selection.replies.as_ref();
        let servers = replies.iter().flat_map(|replies| &replies.servers);
        let snat: Vec<(IpKey, PortRange)> = replies.iter().flat_map(|replies| snat_ports(replies)).collect();
        replace(
            self.map(FRONTENDS)?,
            (selection.draining.iter().map(|frontend| (endpoint(frontend), DRAINING)))
                .chain(selection.frontends.iter().map(|frontend| (endpoint(frontend), SERVING)))
                .collect(),
        )?;
        replace(self.map(SERVERS)?, servers.map(|server| (endpoint(server), 1u8)).collect())?;
        replace(self.map(SNAT)?, snat)?;
        Ok(())
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, TcxError> {
        let program = self.guard.program_mut(PROGRAM).ok_or(TcxError::Missing(PROGRAM))?;
        Ok(program.try_into()?)
    }

    fn map<K: Pod, V: Pod>(&mut self, name: &'static str) -> Result<HashMap<&mut MapData, K, V>, TcxError> {
        let map = self.guard.map_mut(name).ok_or(TcxError::Missing(name))?;
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

/// `struct endpoint` of `bpf/guard.bpf.c`: address, port, protocol, a zero.
type EndpointKey = [u8; 20];

/// What the map of frontends says of one, as in `bpf/guard.bpf.c`.
const SERVING: u8 = 1;
const DRAINING: u8 = 2;

/// `struct addr` of `bpf/packet.h`.
type IpKey = [u8; 16];

/// `struct port_range` of `bpf/guard.bpf.c`: first and last.
type PortRange = [u16; 2];

fn endpoint(endpoint: &Endpoint) -> EndpointKey {
    let mut key = [0; 20];
    key[..16].copy_from_slice(Addr::from(endpoint.addr.ip()).bytes());
    key[16..18].copy_from_slice(&endpoint.addr.port().to_ne_bytes());
    key[18] = endpoint.protocol as u8;
    key
}

fn snat_ports(replies: &Replies) -> impl Iterator<Item = (IpKey, PortRange)> {
    let ports = [*replies.snat_ports.start(), *replies.snat_ports.end()];
    replies.snat_addresses.iter().map(move |ip| (*Addr::from(*ip).bytes(), ports))
}
