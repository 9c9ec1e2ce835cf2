//! Handover of packet-mode flows in a sealed memory file. The numbers of frontends and servers
//! differ between processes, so their names are sent too.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use convey_dataplane::{Answers, WorkerFlows};
use convey_forward::{CacheEvent, KnownFlow, View, decode, encode};
use convey_model::{ServerKey, Timestamp};
use convey_snapshot::Snapshot;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Flows of workers that have stopped handling frames. The flows refer to frontends and servers by
/// the numbers in `snapshot`.
pub(in crate::app) struct HeldFlows {
    pub(in crate::app) flows: Answers<WorkerFlows>,
    pub(in crate::app) snapshot: Arc<Snapshot>,
}

/// Flows for the new process, in a file.
pub(super) struct SentFlows {
    pub(super) file: OwnedFd,
    /// Time since which the workers have handled no frames.
    pub(super) since: Timestamp,
    pub(super) owners: Owners,
    /// Number of open flows that must stay with their worker, because the worker owns their SNAT
    /// port.
    pub(super) bound_to_workers: usize,
}

/// Flows that the previous process has handed over.
#[derive(Debug, Default)]
pub(in crate::app) struct HandedFlows {
    flows: Vec<KnownFlow>,
    since: Timestamp,
    owners: Owners,
}

/// Handed-over flows, converted to this process's numbers of frontends and servers.
pub(in crate::app) struct OwnedFlows {
    pub(in crate::app) flows: Vec<KnownFlow>,
    /// Time since which no process has handled frames.
    pub(in crate::app) since: Timestamp,
    /// Number of open flows whose frontend or server does not exist in this process.
    pub(in crate::app) lost: usize,
}

/// Names of frontends and servers, by their numbers in a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    pub(super) servers: HashMap<u32, ServerKey>,
    pub(super) frontends: HashMap<u32, String>,
}

impl Owners {
    /// Names and numbers in this snapshot.
    fn of(snapshot: &Snapshot) -> Owners {
        let servers = snapshot.pools.iter().flat_map(|pool| {
            pool.servers.iter().map(|server| {
                let key = ServerKey {
                    backend: pool.config.name.clone(),
                    server: server.config.name.clone(),
                    addr: server.config.addr,
                };
                (server.live.id, key)
            })
        });
        let frontends = snapshot.frontends.iter();
        let frontends = frontends.map(|frontend| (frontend.live.id, frontend.config.name.clone()));
        Owners { servers: servers.collect(), frontends: frontends.collect() }
    }
}

impl HeldFlows {
    /// Waits for the flows of all workers and writes them to a file.
    pub(super) fn wait(self) -> Result<SentFlows, String> {
        let told = self.flows.wait().ok_or("a worker thread does not return its flows")?;
        let since = told.iter().map(|told| told.since).min().unwrap_or_default();
        let has_many_workers = told.len() > 1;
        let flows: Vec<KnownFlow> = told.into_iter().flat_map(|told| told.flows).collect();
        let file = write(&encode(&flows)).map_err(|error| format!("cannot write the flows: {error}"))?;
        let is_bound = |flow: &&KnownFlow| has_many_workers && flow.is_open() && flow.view == View::BothSides;
        let bound_to_workers = flows.iter().filter(is_bound).count();
        Ok(SentFlows { file, since, owners: Owners::of(&self.snapshot), bound_to_workers })
    }
}

impl HandedFlows {
    /// Reads the flows from the file that another process has written.
    pub(super) fn read(file: OwnedFd, since: Timestamp, owners: Owners) -> anyhow::Result<HandedFlows> {
        Ok(HandedFlows { flows: decode(&read(file, MAX_FILE)?)?, since, owners })
    }

    /// Number of open flows.
    pub(in crate::app) fn open(&self) -> usize {
        self.flows.iter().filter(|flow| flow.is_open()).count()
    }

    /// SNAT addresses that open flows use.
    pub(in crate::app) fn snat_addresses(&self) -> BTreeSet<IpAddr> {
        let open = self.flows.iter().filter(|flow| flow.is_open() && flow.view == View::BothSides);
        open.map(|flow| flow.server.dst.ip()).collect()
    }

    /// Converts the flows to this snapshot's numbers of frontends and servers.
    pub(in crate::app) fn owned_by(self, snapshot: &Snapshot) -> OwnedFlows {
        let Owners { servers, frontends } = Owners::of(snapshot);
        let servers: HashMap<ServerKey, u32> = servers.into_iter().map(|(id, key)| (key, id)).collect();
        let frontends: HashMap<String, u32> = frontends.into_iter().map(|(id, name)| (name, id)).collect();
        let known = |flow: &KnownFlow| {
            let server_id = *servers.get(self.owners.servers.get(&flow.server_id)?)?;
            let frontend_id = *frontends.get(self.owners.frontends.get(&flow.frontend_id)?)?;
            Some(flow.owned_by(server_id, frontend_id))
        };
        let open = self.open();
        let flows: Vec<KnownFlow> = self.flows.iter().filter_map(known).collect();
        let lost = open - flows.iter().filter(|flow| flow.is_open()).count();
        OwnedFlows { flows, since: self.since, lost }
    }
}

/// Writes flow cache events to a file.
pub(super) fn write_events(events: &[CacheEvent]) -> io::Result<OwnedFd> {
    write(&encode(events))
}

/// Reads flow cache events from a file.
pub(super) fn read_events(file: OwnedFd) -> anyhow::Result<Vec<CacheEvent>> {
    Ok(decode(&read(file, MAX_FILE)?)?)
}

/// Maximum size of a file in bytes. It has room for more than fifty million flows.
const MAX_FILE: u64 = 8 << 30;

/// Seals that prevent the writer from changing the file.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

fn write(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create("convey-flows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads a sealed file. Only memory files have seals, so reading does not block and the length is
/// fixed.
fn read(file: OwnedFd, limit: u64) -> anyhow::Result<Vec<u8>> {
    anyhow::ensure!(
        fcntl_get_seals(&file)?.contains(SEALS),
        "the old process has not sealed the file of flows"
    );
    let (mut file, mut bytes) = (File::from(file), Vec::new());
    let len = file.seek(SeekFrom::End(0))?;
    anyhow::ensure!(
        len <= limit,
        "the file of flows has {len} bytes, and this version reads at most {limit}"
    );
    bytes.try_reserve_exact(usize::try_from(len)?).context("no memory for the file of flows")?;
    file.seek(SeekFrom::Start(0))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_file_is_sealed_after_writing() {
        let file = write(b"flows").unwrap();
        let mut writer = File::from(file.try_clone().unwrap());
        assert!(writer.write_all(b"more").is_err());
        assert_eq!(read(file, 5).unwrap(), b"flows");
    }

    #[test]
    fn a_file_beyond_the_limit_is_refused_before_it_is_read() {
        let error = read(write(b"flows").unwrap(), 4).unwrap_err();
        assert_eq!(error.to_string(), "the file of flows has 5 bytes, and this version reads at most 4");
    }

    #[test]
    fn unsealed_or_invalid_flow_files_are_refused() {
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        let error = read(open, 5).unwrap_err();
        assert_eq!(error.to_string(), "the old process has not sealed the file of flows");
        let error = read_events(write(b"nonsense").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "this is not a flow table");
        assert_eq!(read_events(write_events(&[]).unwrap()).unwrap(), []);
    }
}
