//! Shared parts of the algorithms: the servers of a table, and the fallback when the server of a
//! table cannot take the connection.

use super::hash::ADDRESS;
use super::steps::{Step, Witness};
use super::{FlowHash, Identity, Loads, Member};

/// Maximum number of table places that are tried before the servers are searched one by one.
const MAX_PLACES_TRIED: usize = 8;

/// Length of a server's identity in bytes.
pub(super) const IDENTITY: usize = ADDRESS + 2;

/// Server in a hash table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Index of the server among the members.
    pub index: u32,
    /// Weight of the server, at least 1.
    pub weight: u16,
    /// Place of the server, followed by the number of earlier members with the same place.
    pub identity: [u8; IDENTITY],
}

/// Servers that may be chosen, in an order that depends only on their identities.
pub(super) fn candidates(members: &[Member]) -> Vec<Candidate> {
    let mut sorted: Vec<(Identity, u16, usize)> =
        members.iter().enumerate().map(|(index, m)| (m.identity, m.weight, index)).collect();
    sorted.sort_unstable();
    let mut candidates = Vec::with_capacity(sorted.len());
    for twins in sorted.chunk_by(|a, b| a.0.place == b.0.place) {
        // Numbered over all members, so that the health of one server does not renumber the others.
        for (nth, &(Identity { place, .. }, weight, index)) in twins.iter().enumerate() {
            if may_be_chosen(&members[index]) {
                let mut identity = [0; IDENTITY];
                identity[..ADDRESS].copy_from_slice(&place);
                identity[ADDRESS..].copy_from_slice(&(nth as u16).to_be_bytes());
                candidates.push(Candidate { index: index as u32, weight, identity });
            }
        }
    }
    candidates
}

/// Servers that may be chosen, for algorithms that do not hash: index, and weight in hundredths.
pub(super) fn weighted(members: &[Member]) -> impl Iterator<Item = (u32, u64)> {
    let chosen = members.iter().enumerate().filter(|(_, member)| may_be_chosen(member));
    let share = |member: &Member| u64::from(member.weight) * u64::from(member.percent);
    chosen.map(move |(index, member)| (index as u32, share(member)))
}

/// Load of a server: connections for its weight.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub connections: u64,
    pub weight: u64,
}

impl Load {
    /// Compares connections per weight, without rounding.
    pub(super) fn is_less_than(self, other: Load) -> bool {
        self.connections * other.weight < other.connections * self.weight
    }
}

/// Whether a table may include this server.
fn may_be_chosen(member: &Member) -> bool {
    member.eligible && member.weight > 0
}

/// Table of servers for lookups by hash.
pub(super) trait HashTable {
    /// All servers of the table.
    fn servers(&self) -> &[u32];

    /// Server of a flow.
    fn named(&self, flow: FlowHash) -> Option<usize>;

    /// Step that leads to this server, which is `usable` or not.
    fn step(&self, flow: FlowHash, server: usize, usable: bool) -> Step;
}

/// Returns the server of a flow. If that server is not usable, tries other places of the table, so
/// that its flows spread by weight and the same flow finds the same substitute. At last, returns
/// the first usable server of the table.
pub(super) fn usable_or_again(
    table: &impl HashTable,
    flow: FlowHash,
    loads: &dyn Loads,
    witness: &mut impl Witness,
) -> Option<usize> {
    let mut attempt = flow;
    for _ in 0..MAX_PLACES_TRIED {
        let server = table.named(attempt)?;
        let usable = loads.usable(server);
        witness.see(|| table.step(attempt, server, usable));
        if usable {
            return Some(server);
        }
        attempt = attempt.again();
    }
    let servers = table.servers();
    let server = first_usable(servers, attempt.below(servers.len()), loads);
    witness.see(|| Step::FirstUsable { server });
    server
}

/// First usable server of `servers`, from position `start` on and once around.
pub(super) fn first_usable(servers: &[u32], start: usize, loads: &dyn Loads) -> Option<usize> {
    let (before, after) = servers.split_at(start);
    after.iter().chain(before).map(|&server| server as usize).find(|&server| loads.usable(server))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members};
    use super::*;

    /// Table of three servers: this flow finds the first, all others the server at the given index.
    struct Table(FlowHash, usize);

    impl HashTable for Table {
        fn servers(&self) -> &[u32] {
            &[0, 1, 2]
        }

        fn named(&self, flow: FlowHash) -> Option<usize> {
            Some(if flow == self.0 { 0 } else { self.1 })
        }

        fn step(&self, _: FlowHash, server: usize, usable: bool) -> Step {
            Step::Slot { slot: 0, of: 1, server, usable }
        }
    }

    #[test]
    fn a_flow_whose_server_is_full_tries_other_places_of_the_table() {
        let table = Table(FlowHash(7), 1);
        let mut now = TestLoads::idle(3);
        assert_eq!(usable_or_again(&table, FlowHash(7), &now, &mut ()), Some(0));
        now.unusable[0] = true;
        assert_eq!(usable_or_again(&table, FlowHash(7), &now, &mut ()), Some(1));
    }

    #[test]
    fn a_server_that_the_table_hardly_ever_names_is_still_found() {
        let table = Table(FlowHash(7), 0);
        let mut now = TestLoads::idle(3);
        now.unusable = vec![true, true, false];
        assert_eq!(usable_or_again(&table, FlowHash(7), &now, &mut ()), Some(2));
        now.unusable[2] = true;
        assert_eq!(usable_or_again(&table, FlowHash(7), &now, &mut ()), None);
    }

    #[test]
    fn two_servers_at_one_address_keep_their_identities_when_one_goes_down() {
        let mut twins = members(&[1, 1]);
        twins[1].identity = twins[0].identity;
        let both = candidates(&twins);
        assert_ne!(both[0].identity, both[1].identity);
        twins[0].eligible = false;
        let left = candidates(&twins);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].identity, both[1].identity);
    }
}
