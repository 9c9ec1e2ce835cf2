//! Manages the kernel's neighbour entries. Resolves next hops for packets, keeps the next hops of
//! servers and the default routers fresh, has the next hops of flows checked, and releases entries
//! that are no longer needed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use convey_dataplane::PacketState;
use convey_dataplane::net::{Asking, KernelNeighbour, Netlink, OwnedNames};
use convey_forward::HopUse;
use convey_model::{NeighbourKey, WantedNeighbour};
use convey_pacing::LogLimit;
use log::warn;
use tokio::sync::mpsc::Receiver;
use tokio::time::MissedTickBehavior;

use super::clock;

/// Minimum interval between log lines about neighbours that cannot be resolved.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// Interval between reads of the kernel's neighbour entries.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of stale entries that the kernel is asked to check per round.
const MAX_PROBED: usize = 256;

/// Name that a process owns in its network namespace while it keeps neighbours fresh.
pub(super) const NAME: &str = "neighbours";

/// Neighbours that the kernel keeps fresh for this process. Clones share the set.
#[derive(Debug, Clone, Default)]
pub(super) struct FreshNeighbours(Arc<Mutex<FreshSet>>);

#[derive(Debug)]
struct FreshSet {
    neighbours: BTreeSet<NeighbourKey>,
    /// Whether the next round adds the entries that other processes have left behind to this set.
    adopts: bool,
}

impl Default for FreshSet {
    /// The first round adopts entries, because a predecessor or a killed process may have left
    /// some.
    fn default() -> FreshSet {
        FreshSet { neighbours: BTreeSet::new(), adopts: true }
    }
}

impl FreshNeighbours {
    fn lock(&self) -> MutexGuard<'_, FreshSet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the neighbour entries that a failed upgrade left behind: the new process ended
    /// before it served.
    pub(super) fn adopt(&self) {
        self.lock().adopts = true;
    }

    /// Asks the kernel to stop keeping the entries fresh.
    pub(super) async fn release(self, netlink: &Netlink) {
        let kept = std::mem::take(&mut self.lock().neighbours);
        for NeighbourKey { interface, ip } in kept {
            if let Err(error) = netlink.release(interface, ip).await {
                return warn!("cannot release neighbour entries of convey: {error}");
            }
        }
    }
}

/// Resolves the neighbours that workers request. Returns when the workers have ended. Each request
/// ends within seconds, with or without an answer.
pub(super) async fn resolve(
    netlink: Arc<Netlink>,
    mut wanted: Receiver<WantedNeighbour>,
    kept: FreshNeighbours,
) {
    let (mut asking, mut log_limit) = (Asking::default(), LogLimit::once_in(LOG_PERIOD));
    loop {
        let more = async {
            match asking.pause() {
                Some(pause) => tokio::time::timeout(pause, wanted.recv()).await.ok(),
                None => Some(wanted.recv().await),
            }
        };
        match more.await {
            Some(Some(neighbour)) => asking.want(neighbour, clock::now()),
            Some(None) => return,
            None => {}
        }
        loop {
            while let Ok(neighbour) = wanted.try_recv() {
                asking.want(neighbour, clock::now());
            }
            let Some(next) = asking.next(clock::now()) else { break };
            if next.is_ours {
                kept.lock().neighbours.insert(next.key());
            }
            if let Err(error) = netlink.resolve(next).await
                && let Some(suppressed) = log_limit.admit(clock::now())
            {
                warn!("cannot resolve the link-layer address of {}: {error}{suppressed}", next.ip);
            }
        }
    }
}

/// Maintains the kernel's neighbour entries while packets are forwarded.
pub(super) async fn maintain(
    netlink: Arc<Netlink>,
    packet_state: Arc<ArcSwap<PacketState>>,
    uses: Vec<HopUse>,
    kept: FreshNeighbours,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = Rounds::default();
    loop {
        ticks.tick().await;
        let entries = match netlink.neighbours().await {
            Ok(entries) => entries,
            Err(error) => {
                warn!("cannot read the kernel's neighbours: {error}");
                continue;
            }
        };
        let needs = Needs::of(&packet_state.load(), &uses);
        let round = rounds.next(&entries, &needs, &mut kept.lock());
        if let Err(error) = carry_out(&netlink, round, &kept).await {
            warn!("cannot manage neighbours: {error}");
        }
    }
}

async fn carry_out(
    netlink: &Netlink,
    round: Round,
    kept: &FreshNeighbours,
) -> Result<(), convey_dataplane::net::Error> {
    for neighbour in round.released {
        netlink.release(neighbour.interface, neighbour.ip).await?;
        kept.lock().neighbours.remove(&neighbour);
    }
    for neighbour in round.kept {
        kept.lock().neighbours.insert(neighbour);
        let NeighbourKey { interface, ip } = neighbour;
        netlink.resolve(WantedNeighbour { interface, ip, is_ours: true, is_repeated: false }).await?;
    }
    for NeighbourKey { interface, ip } in round.probed {
        netlink.probe(interface, ip).await?;
    }
    Ok(())
}

/// Neighbours to which packets are sent.
#[derive(Debug, Default)]
struct Needs {
    /// Next hops of servers, and the default routers.
    ours: BTreeSet<NeighbourKey>,
    /// Next hops of flows.
    used: BTreeSet<NeighbourKey>,
}

impl Needs {
    fn of(packet_state: &PacketState, uses: &[HopUse]) -> Needs {
        let plan = packet_state.plan();
        let network = &plan.network;
        let servers: BTreeSet<IpAddr> = plan.servers.values().map(|server| server.addr.ip()).collect();
        let to_servers = servers.into_iter().flat_map(|server| network.neighbours_by_any_route(server));
        let is_used = |index: u32| uses.iter().any(|hops| hops.is_used(index));
        Needs {
            ours: to_servers.chain(network.default_routers()).collect(),
            used: network
                .known()
                .filter(|(_, index)| is_used(*index))
                .map(|(neighbour, _)| neighbour)
                .collect(),
        }
    }
}

/// Actions of one round over the kernel's entries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    /// Entries that the kernel need not keep fresh any more.
    released: Vec<NeighbourKey>,
    /// Entries that the kernel is to keep fresh.
    kept: Vec<NeighbourKey>,
    /// Entries that the kernel is to check.
    probed: Vec<NeighbourKey>,
}

/// Decides, in rounds, how to handle each of the kernel's neighbour entries. Pure.
#[derive(Debug, Default)]
struct Rounds {
    /// Entries of this process that were unneeded in the last round. The next round releases them
    /// if they still are.
    idle: BTreeSet<NeighbourKey>,
    /// The last entry that the kernel was asked to check.
    probed: Option<NeighbourKey>,
}

impl Rounds {
    fn next(&mut self, entries: &[KernelNeighbour], needs: &Needs, kept: &mut FreshSet) -> Round {
        if std::mem::take(&mut kept.adopts) {
            kept.neighbours.extend(entries.iter().filter(|entry| entry.is_kept_fresh).map(key));
        }
        let mut round = Round::default();
        let idle: BTreeSet<NeighbourKey> = entries
            .iter()
            .filter(|entry| entry.is_kept_fresh)
            .map(key)
            .filter(|entry| {
                kept.neighbours.contains(entry) && !needs.ours.contains(entry) && !needs.used.contains(entry)
            })
            .collect();
        round.released.extend(idle.intersection(&self.idle));
        self.idle = idle;
        let to_keep = |entry: &&KernelNeighbour| {
            !entry.is_kept_fresh && !entry.is_static && needs.ours.contains(&key(entry))
        };
        round.kept.extend(entries.iter().filter(to_keep).map(key));
        let is_stale = |entry: &&KernelNeighbour| {
            entry.is_stale && !entry.is_kept_fresh && !needs.ours.contains(&key(entry))
        };
        let stale: BTreeSet<NeighbourKey> =
            entries.iter().filter(is_stale).map(key).filter(|entry| needs.used.contains(entry)).collect();
        let after = stale.iter().filter(|entry| self.probed.is_none_or(|last| **entry > last));
        let before = stale.iter().filter(|entry| self.probed.is_some_and(|last| **entry <= last));
        round.probed.extend(after.chain(before).take(MAX_PROBED));
        self.probed = round.probed.last().copied().or(self.probed);
        round
    }
}

fn key(entry: &KernelNeighbour) -> NeighbourKey {
    NeighbourKey { interface: entry.interface, ip: entry.ip }
}

/// Releases the neighbours that a killed convey kept fresh. Does nothing while another convey runs.
/// Returns the number of released neighbours.
pub(super) async fn clear(netlink: &Netlink) -> Result<usize, convey_dataplane::net::Error> {
    if OwnedNames::read().is_ok_and(|names| names.contains(NAME)) {
        return Ok(0);
    }
    let mut released = 0;
    for entry in netlink.neighbours().await?.into_iter().filter(|entry| entry.is_kept_fresh) {
        released += usize::from(netlink.release(entry.interface, entry.ip).await?);
    }
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(n: u16) -> NeighbourKey {
        NeighbourKey { interface: 1, ip: IpAddr::from([10, 0, (n >> 8) as u8, n as u8]) }
    }

    fn kept(n: u16) -> KernelNeighbour {
        KernelNeighbour { is_kept_fresh: true, is_stale: false, ..stale(n) }
    }

    fn stale(n: u16) -> KernelNeighbour {
        let NeighbourKey { interface, ip } = neighbour(n);
        KernelNeighbour { interface, ip, is_stale: true, is_static: false, is_kept_fresh: false }
    }

    fn needs(ours: &[u16], used: &[u16]) -> Needs {
        let set = |list: &[u16]| list.iter().copied().map(neighbour).collect();
        Needs { ours: set(ours), used: set(used) }
    }

    #[test]
    fn entries_are_released_at_the_second_look_without_server_or_flow() {
        let (mut rounds, mut ours) = (Rounds::default(), FreshSet::default());
        let entries = [kept(1), kept(2), kept(3)];
        let mut look = |needs| rounds.next(&entries, &needs, &mut ours).released;
        assert_eq!(look(needs(&[1], &[2])), []);
        assert_eq!(look(needs(&[1], &[2])), [neighbour(3)]);
        assert_eq!(look(needs(&[1], &[])), [neighbour(3)]);
        assert_eq!(look(needs(&[1, 2], &[])), [neighbour(3)]);
        assert_eq!(look(needs(&[1], &[])), [neighbour(3)]);
        assert_eq!(look(needs(&[1], &[])), [2, 3].map(neighbour));
    }

    #[test]
    fn entries_that_another_process_had_kept_since_the_start_stay() {
        let (mut rounds, mut ours) = (Rounds::default(), FreshSet::default());
        rounds.next(&[], &needs(&[1], &[]), &mut ours);
        for _ in 0..3 {
            assert_eq!(rounds.next(&[kept(2)], &needs(&[1], &[]), &mut ours), Round::default());
        }
    }

    #[test]
    fn entries_of_a_failed_successor_are_released() {
        let (mut rounds, ours) = (Rounds::default(), FreshNeighbours::default());
        let mut look_at =
            |entries: &[KernelNeighbour]| rounds.next(entries, &needs(&[1], &[]), &mut ours.lock()).released;
        look_at(&[]);
        let mut look = || look_at(&[kept(2)]);
        assert_eq!([look(), look()].concat(), []);
        ours.adopt();
        assert_eq!([look(), look()].concat(), [neighbour(2)]);
    }

    #[test]
    fn entries_of_servers_are_kept_again_unless_they_are_static() {
        let (mut rounds, mut ours) = (Rounds::default(), FreshSet::default());
        let entries = [stale(1), KernelNeighbour { is_static: true, ..stale(2) }, kept(3)];
        let round = rounds.next(&entries, &needs(&[1, 2, 3], &[1, 2, 3]), &mut ours);
        assert_eq!(round, Round { kept: vec![neighbour(1)], ..Round::default() });
    }

    #[test]
    fn stale_entries_that_flows_use_are_checked_in_turn() {
        let (mut rounds, mut ours) = (Rounds::default(), FreshSet::default());
        let entries: Vec<KernelNeighbour> = (0..600).map(stale).collect();
        let used: Vec<u16> = (0..500).collect();
        let needs = needs(&[], &used);
        let first = rounds.next(&entries, &needs, &mut ours).probed;
        let second = rounds.next(&entries, &needs, &mut ours).probed;
        assert_eq!((first.len(), second.len()), (MAX_PROBED, MAX_PROBED));
        let all: BTreeSet<NeighbourKey> = first.into_iter().chain(second).collect();
        assert_eq!(all, needs.used);
    }
}
