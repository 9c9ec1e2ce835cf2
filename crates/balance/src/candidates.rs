//! Servers of a lookup table, and the fallback when the chosen server cannot take the connection.

use super::hash::ADDRESS;
use super::steps::{Step, Witness};
use super::{FlowHash, Identity, Loads, Member};

/// Maximum number of table lookups for one flow; afterwards the servers are searched one by one.
const MAX_PLACES_TRIED: usize = 8;

/// Length of `Candidate::identity` in bytes: an address with its port, then a two-byte number.
pub(super) const IDENTITY: usize = ADDRESS + 2;

/// Server that a hash table may include.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Index of the server among the members.
    pub index: u32,
    /// Weight of the server, at least 1.
    pub weight: u16,
    /// Bytes that place the server in the table: `Identity`'s place, then the number of earlier
    /// members with the same place.
    pub identity: [u8; IDENTITY],
}

/// Servers that a table may include, in an order that depends only on their identities.
pub(super) fn candidates(members: &[Member]) -> Vec<Candidate> {
    let mut sorted: Vec<(Identity, u16, usize)> =
        members.iter().enumerate().map(|(index, m)| (m.identity, m.weight, index)).collect();
    sorted.sort_unstable();
    let mut candidates = Vec::with_capacity(sorted.len());
    for twins in sorted.chunk_by(|a, b| a.0.place == b.0.place) {
        // Counts all members, also ineligible ones: a change of one server's health must not
        // renumber others.
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

/// Servers that may be chosen, for algorithms that do not hash: index of the server, and its weight
/// times its percentage.
pub(super) fn weighted(members: &[Member]) -> impl Iterator<Item = (u32, u64)> {
    let chosen = members.iter().enumerate().filter(|(_, member)| may_be_chosen(member));
    let share = |member: &Member| u64::from(member.weight) * u64::from(member.percent);
    chosen.map(move |(index, member)| (index as u32, share(member)))
}

/// Load of a server: open connections, compared in relation to its weight.
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

/// Whether a table may include this server: eligible, with a weight above 0.
fn may_be_chosen(member: &Member) -> bool {
    member.eligible && member.weight > 0
}

/// Table of servers for lookups by hash.
pub(super) trait HashTable {
    /// Indices of all servers in the table.
    fn servers(&self) -> &[u32];

    /// Looks up the server of a flow; `None` if the table is empty.
    fn named(&self, flow: FlowHash) -> Option<usize>;

    /// Step of a prediction: the lookup of this flow found the server with index `server`. `usable`
    /// is whether the server can take the connection now.
    fn step(&self, flow: FlowHash, server: usize, usable: bool) -> Step;
}

/// Chooses a usable server for a flow from a hash table.
///
/// Looks up the flow's hash first. While the found server is not usable, tries further hashes of
/// the flow, up to `MAX_PLACES_TRIED` lookups in total. So the flows of a full server spread over
/// the other servers by weight, and each flow always finds the same substitute. Then searches the
/// servers one by one. Returns `None` if no server is usable.
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

/// First usable server in `servers`: searches from position `start` to the end, then from the
/// beginning.
pub(super) fn first_usable(servers: &[u32], start: usize, loads: &dyn Loads) -> Option<usize> {
    let (before, after) = servers.split_at(start);
    after.iter().chain(before).map(|&server| server as usize).find(|&server| loads.usable(server))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestLoads, members};
    use super::*;

    /// Table of three servers. The given flow leads to server 0, all other flows to the server at
    /// the given index.
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
