//! SNAT ports: addresses and ports of convey that replace a client's address and port towards a
//! server.
//!
//! One port may be used for many servers at the same time, because replies are distinguished by
//! their source. Towards each server, only one flow at a time uses the port.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::addr_port::AddrPort;
use super::port_pools::{PoolKey, PortPools};
use super::port_ranges::PortsByKey;
use super::port_split::PortSplit;
use super::snat_choice::{SnatAddresses, SnatChoice};
use super::table_quota::Occupancy;
use convey_model::{Addr, NextHops};

/// Maximum number of servers in [`NatPorts::chosen`].
const MAX_CHOSEN: usize = 1 << 16;

/// SNAT ports of one worker, on every SNAT address.
#[derive(Debug)]
pub struct NatPorts {
    addresses: Vec<Addr>,
    choice: SnatChoice,
    /// Addresses whose ports another process uses; no flow begins with them.
    withheld: Arc<[IpAddr]>,
    /// SNAT addresses that each server sees as clients, chosen with the server's first flow.
    chosen: HashMap<Addr, Places>,
    /// All IPv4 addresses, and all IPv6 addresses.
    of_family: [Places; 2],
    /// Counter of allocations. The counter decides which SNAT address the next flow uses, so that
    /// the SNAT addresses that a server sees take turns.
    turn: usize,
    ports: RangeInclusive<u16>,
    pools: PortPools,
    /// Number of ports in use, over all servers.
    in_use: usize,
    /// Ports that the split between workers excludes: replies to them would not reach this worker.
    not_ours: Arc<[u16]>,
    /// Ports among `ports` that are not allocated: ports that the split excludes, and ports of
    /// frontends.
    excluded: PortsByKey<()>,
    /// Number of ports in `excluded`.
    excluded_len: u32,
}

/// Addresses that a server sees, as indices into the list of SNAT addresses.
#[derive(Debug, Clone)]
struct Places {
    all: Arc<[u16]>,
    /// Number of preferred addresses, which come first. The others are used while all ports of the
    /// preferred addresses are in use.
    first: usize,
}

impl Places {
    fn new(first: impl Iterator<Item = u16>, further: impl Iterator<Item = u16>) -> Places {
        let first: Vec<u16> = first.collect();
        Places { first: first.len(), all: first.into_iter().chain(further).collect() }
    }

    /// Index of the address to try in this step: the preferred addresses in turn, then the others
    /// in turn.
    fn in_turn(&self, turn: usize, step: usize) -> u16 {
        let (first, further) = self.all.split_at(self.first);
        let places = if step < first.len() { first } else { further };
        places[turn.wrapping_add(step) % places.len()]
    }
}

impl NatPorts {
    /// Creates the ports `ports` of each of these addresses. `seed` decides the order of
    /// allocation. It must be a secret: an attacker who has it can forge packets of the next
    /// connection. If the seed differs between runs, a server rarely gets a port that it still
    /// remembers from the last run.
    pub fn new(mut addresses: Vec<Addr>, ports: RangeInclusive<u16>, seed: u64) -> Self {
        addresses.sort_by_key(|address| !address.is_v4());
        let v4 = addresses.iter().filter(|address| address.is_v4()).count();
        let places = |range: Range<usize>| Places::new(range.map(|place| place as u16), std::iter::empty());
        let of_family = [places(0..v4), places(v4..addresses.len())];
        let (pools, not_ours, excluded) = (PortPools::new(seed), Arc::default(), PortsByKey::default());
        NatPorts {
            addresses,
            choice: SnatChoice::Named,
            withheld: Arc::default(),
            chosen: HashMap::new(),
            of_family,
            turn: 0,
            ports,
            pools,
            in_use: 0,
            not_ours,
            excluded,
            excluded_len: 0,
        }
    }

    /// Sets how the addresses that a server sees are chosen.
    #[must_use]
    pub fn choosing(self, choice: SnatChoice) -> Self {
        NatPorts { choice, ..self }
    }

    /// Chooses the addresses that a server sees, unless they are chosen already.
    pub(super) fn choose(&mut self, server: Addr, network: &NextHops) {
        if self.chosen.contains_key(&server) {
            return;
        }
        if self.chosen.len() >= MAX_CHOSEN {
            self.chosen.clear();
        }
        let addresses: Vec<IpAddr> = self.addresses.iter().map(Addr::ip).collect();
        let snat = SnatAddresses { all: &addresses, withheld: &self.withheld };
        let seen = self.choice.of_server(network, server.ip(), snat);
        let places = |seen: Vec<IpAddr>| {
            let addresses = (0..).zip(&addresses);
            addresses.filter(move |(_, ip)| seen.contains(ip)).map(|(place, _)| place)
        };
        self.chosen.insert(server, Places::new(places(seen.first), places(seen.further)));
    }

    /// Discards all choices of addresses, because routes or addresses of this host have changed.
    pub(super) fn reset_choices(&mut self) {
        self.chosen.clear();
    }

    /// Whether these are the withheld addresses.
    pub(super) fn withholds(&self, withheld: &Arc<[IpAddr]>) -> bool {
        self.withheld == *withheld
    }

    /// Sets the addresses that another process uses; no flow begins with them.
    pub(super) fn withhold(&mut self, withheld: &Arc<[IpAddr]>) {
        if !self.withholds(withheld) {
            self.withheld = withheld.clone();
            self.reset_choices();
        }
    }

    /// Indices of the addresses that a server sees; all addresses of its family if no choice was
    /// made.
    fn places(&self, server: &Addr) -> &Places {
        let [v4, v6] = &self.of_family;
        self.chosen.get(server).unwrap_or(if server.is_v4() { v4 } else { v6 })
    }

    /// Whether flows to this server may begin with this address.
    pub(super) fn may_see(&self, server: &Addr, address: Addr) -> bool {
        let places = self.places(server);
        places.all.iter().any(|place| self.addresses.get(usize::from(*place)) == Some(&address))
    }

    /// Creates the ports of a worker, on each of these addresses.
    pub fn of_worker(addresses: Vec<Addr>, split: &PortSplit, worker: u16, seed: u64) -> Self {
        let not_ours = split.excluded.clone();
        let mut ports = NatPorts { not_ours, ..NatPorts::new(addresses, split.ports(worker), seed) };
        ports.exclude_ports([]);
        ports
    }

    /// Excludes the ports of frontends from allocation: late packets of a server to such a port
    /// would begin a flow there. A port in use stays with its flow, whose packets are distinguished
    /// by their source.
    pub(crate) fn exclude_ports(&mut self, frontends: impl IntoIterator<Item = (Addr, RangeInclusive<u16>)>) {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        let ours = frontends.into_iter().filter(|(addr, _)| self.addresses.contains(addr));
        let ours = ours.map(|(_, ports)| first.max(*ports.start())..=last.min(*ports.end()));
        let not_ours =
            self.not_ours.iter().filter(|port| self.ports.contains(port)).map(|port| *port..=*port);
        let excluded =
            ours.filter(|ports| !ports.is_empty()).chain(not_ours).map(|ports| ((), ports)).collect();
        if self.excluded != excluded {
            self.excluded_len = excluded.iter().map(|(_, ports)| ports.len() as u32).sum();
            self.excluded = excluded;
            self.pools.note_exclusions_changed();
        }
    }

    /// Allocates a port for a new flow to a server, on an address that the server may see; `None`
    /// if all such ports are in use. Ports that were never used come first, then the ports that
    /// have been free for longest. Once the pools remember too many used ports, released ports come
    /// first. The server remembers a connection for a while after its end (TIME-WAIT) and may
    /// refuse another one with the same addresses and ports.
    pub fn allocate(&mut self, server: AddrPort, protocol: u8) -> Option<AddrPort> {
        let places = self.places(&server.addr).clone();
        let (first, total) = (*self.ports.start(), self.ports.len() as u32);
        let excluded = &self.excluded;
        let misfits = |number: u32| {
            let range = excluded.around(&(), first + number as u16);
            range.map_or(0, |range| u32::from(range.end() - first) + 1 - number)
        };
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        for place in (0..places.all.len()).map(|step| places.in_turn(turn, step)) {
            let Some(address) = self.addresses.get(usize::from(place)).copied() else { continue };
            if let Some(number) =
                self.pools.take(PoolKey { server, protocol, address: place }, total, misfits)
            {
                self.in_use += 1;
                return Some(AddrPort::new(address, first + number as u16));
            }
        }
        None
    }

    /// Takes this address and port for a flow, such as a flow that another process has begun.
    /// Returns whether the port is free and belongs to this worker.
    pub(super) fn take(&mut self, server: AddrPort, protocol: u8, at: AddrPort) -> bool {
        let Some((place, number)) = self.numbered(&server.addr, at) else { return false };
        let total = self.ports.len() as u32;
        let is_free = self.pools.take_this(PoolKey { server, protocol, address: place }, number, total);
        self.in_use += usize::from(is_free);
        is_free
    }

    /// Releases a port that was allocated for this server. A port outside of these addresses and
    /// ports is ignored: it was allocated before they were changed.
    pub fn release(&mut self, server: AddrPort, protocol: u8, at: AddrPort) {
        self.release_number(server, protocol, at, true);
    }

    /// Releases a port that was allocated for a flow that has not begun: the server has not seen
    /// the port.
    pub(super) fn undo(&mut self, server: AddrPort, protocol: u8, at: AddrPort) {
        self.release_number(server, protocol, at, false);
    }

    fn release_number(&mut self, server: AddrPort, protocol: u8, at: AddrPort, was_seen: bool) {
        if let Some((place, number)) = self.numbered(&server.addr, at) {
            let pool = PoolKey { server, protocol, address: place };
            self.in_use -= usize::from(self.pools.release(pool, number, was_seen));
        }
    }

    /// Whether a new flow to this server may use this address and port once the flow that uses them
    /// now has ended.
    pub(super) fn may_have(&self, server: &Addr, at: AddrPort) -> bool {
        let is_left_out = || self.excluded.around(&(), at.port).is_some();
        self.ports.contains(&at.port) && !is_left_out() && self.may_see(server, at.addr)
    }

    /// Preferred addresses for flows to this server.
    pub(super) fn first_addresses(&self, server: &Addr) -> impl Iterator<Item = Addr> {
        let places = self.places(server);
        let first = places.all.iter().take(places.first);
        first.filter_map(|place| self.addresses.get(usize::from(*place)).copied())
    }

    /// Index of this SNAT address, and number of the port on this address. `None` if the address
    /// has another family than the server, or the address or port does not belong to this worker.
    fn numbered(&self, server: &Addr, at: AddrPort) -> Option<(u16, u32)> {
        let place = self.addresses.iter().position(|address| *address == at.addr)?;
        let fits = at.addr.is_v4() == server.is_v4() && self.ports.contains(&at.port);
        fits.then(|| (place as u16, u32::from(at.port - self.ports.start())))
    }

    /// Whether this address and port are among the SNAT ports of this worker.
    pub fn holds(&self, at: AddrPort) -> bool {
        self.ports.contains(&at.port) && self.addresses.contains(&at.addr)
    }

    /// Number of ports towards a server, including excluded ports.
    pub fn towards(&self, server: &Addr) -> u32 {
        self.ports_of(self.places(server))
    }

    fn ports_of(&self, places: &Places) -> u32 {
        places.all.len() as u32 * self.ports.len() as u32
    }

    /// Numbers of ports in use and free towards a server.
    pub(super) fn occupancy(&self, server: AddrPort, protocol: u8) -> Occupancy {
        let places = self.places(&server.addr);
        let used = places
            .all
            .iter()
            .map(|place| self.pools.in_use(PoolKey { server, protocol, address: *place }))
            .sum();
        let excluded = self.excluded_len * places.all.len() as u32;
        Occupancy::of(self.ports_of(places).saturating_sub(excluded), used)
    }

    /// Number of ports in use, over all servers.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// SNAT addresses.
    pub fn addresses(&self) -> &[Addr] {
        &self.addresses
    }

    /// Requests a check of all pools, because servers have come or gone.
    pub(super) fn begin_to_check(&mut self) {
        self.pools.begin_to_check();
    }

    /// Checks some of the pools, each for a server's address and port. Forgets pools for which
    /// `keep` is false: immediately if no port is in use, otherwise when the last port is released.
    /// Returns whether there are more to check.
    pub(super) fn check(&mut self, budget: usize, keep: impl Fn(AddrPort, u8) -> bool) -> bool {
        self.pools.check(budget, |pool| keep(pool.server, pool.protocol))
    }

    /// Number of pools.
    #[cfg(test)]
    pub(super) fn pools(&self) -> usize {
        self.pools.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use convey_model::TCP;
    use convey_model::fixture::{interface, route};

    fn addr(last: u8) -> Addr {
        Addr::v4([10, 0, 0, last])
    }

    const SERVER: AddrPort = AddrPort::new(Addr::v4([10, 0, 1, 1]), 80);

    fn take(ports: &mut NatPorts, n: usize) -> Vec<AddrPort> {
        (0..n).map_while(|_| ports.allocate(SERVER, TCP)).collect()
    }

    #[test]
    fn every_port_of_every_address_is_handed_out_once_and_then_none() {
        let mut ports = NatPorts::new(vec![addr(1), addr(2)], 1000..=1004, 7);
        let taken = take(&mut ports, 11);
        let all: HashSet<_> = (1000..=1004)
            .flat_map(|port| [AddrPort::new(addr(1), port), AddrPort::new(addr(2), port)])
            .collect();
        assert_eq!(taken.len(), 10);
        assert_eq!(taken.into_iter().collect::<HashSet<_>>(), all);
        assert_eq!(ports.in_use(), 10);
    }

    #[test]
    fn released_ports_are_reused_last_in_order_of_release() {
        let mut ports = NatPorts::new(vec![addr(1)], 1000..=1004, 0);
        let first = take(&mut ports, 3);
        for port in [first[2], first[0]] {
            ports.release(SERVER, TCP, port);
        }
        let unused = take(&mut ports, 2);
        assert!(unused.iter().all(|port| !first.contains(port)), "{unused:?} after {first:?}");
        assert_eq!(take(&mut ports, 3), [first[2], first[0]]);
    }

    #[test]
    fn second_snat_address_is_used_after_the_first_is_exhausted() {
        let mut links = [interface(1, &["10.0.1.254"]), interface(2, &["10.9.0.1"])];
        links[1].details[0].prefix_len = 32;
        let network = NextHops::new(&links, [route("10.0.1.0/24", 1, None)], &[]);
        let [near, further] = [Addr::v4([10, 0, 1, 254]), Addr::v4([10, 9, 0, 1])];
        let mut ports = NatPorts::new(vec![further, near], 1000..=1004, 7);
        ports.choose(SERVER.addr, &network);
        let taken = take(&mut ports, 11);
        let addresses: Vec<Addr> = taken.iter().map(|at| at.addr).collect();
        assert_eq!(addresses, [[near; 5], [further; 5]].concat());
        assert_eq!((ports.towards(&SERVER.addr), ports.occupancy(SERVER, TCP).free), (10, 0));
        ports.release(SERVER, TCP, taken[7]);
        ports.release(SERVER, TCP, taken[2]);
        assert_eq!(take(&mut ports, 3), [taken[2], taken[7]], "the near one first");
    }

    #[test]
    fn snat_port_is_allocated_once_per_server_and_protocol() {
        let mut ports = NatPorts::new(vec![addr(1)], 1000..=1000, 0);
        let (other_port, other_host) = (AddrPort::new(SERVER.addr, 81), AddrPort::new(addr(9), 80));
        for (server, protocol) in [(SERVER, TCP), (SERVER, 17), (other_port, TCP), (other_host, TCP)] {
            assert_eq!(ports.allocate(server, protocol), Some(AddrPort::new(addr(1), 1000)));
            assert_eq!(ports.allocate(server, protocol), None);
        }
    }

    #[test]
    fn servers_see_addresses_of_their_own_family() {
        let six = Addr::v6([7; 16]);
        let mut ports = NatPorts::new(vec![six, addr(1)], 1000..=1001, 0);
        let mut taken = |server| {
            std::iter::from_fn(|| ports.allocate(AddrPort::new(server, 80), TCP)).collect::<Vec<_>>()
        };
        assert!(taken(addr(9)).iter().all(|at| at.addr == addr(1)));
        let of_six = taken(Addr::v6([9; 16]));
        assert!(of_six.len() == 2 && of_six.iter().all(|at| at.addr == six));
        ports.release(AddrPort::new(Addr::v6([9; 16]), 80), TCP, of_six[0]);
        assert_eq!(ports.allocate(AddrPort::new(Addr::v6([9; 16]), 80), TCP), Some(of_six[0]));
        let mut only_four = NatPorts::new(vec![addr(1)], 1000..=1001, 0);
        assert_eq!(only_four.allocate(AddrPort::new(six, 80), TCP), None);
    }

    #[test]
    fn another_run_begins_with_other_ports() {
        let first = |seed| take(&mut NatPorts::new(vec![addr(1)], 33768..=61000, seed), 1);
        assert_ne!(first(1), first(20_000));
    }

    #[test]
    fn ports_of_an_address_that_was_taken_away_do_not_come_back() {
        let mut ports = NatPorts::new(vec![addr(1)], 1000..=1001, 0);
        take(&mut ports, 2);
        ports.release(SERVER, TCP, AddrPort::new(addr(2), 1000));
        ports.release(SERVER, TCP, AddrPort::new(addr(1), 999));
        ports.release(AddrPort::new(addr(9), 80), TCP, AddrPort::new(addr(1), 1000));
        assert_eq!(ports.allocate(SERVER, TCP), None);
    }

    #[test]
    fn without_an_address_there_is_no_port() {
        assert_eq!(NatPorts::new(vec![], 1000..=1001, 3).allocate(SERVER, TCP), None);
    }

    #[test]
    fn a_port_where_a_frontend_listens_is_left_out_while_it_does() {
        let mut ports = NatPorts::new(vec![addr(1), addr(2)], 1000..=1003, 3);
        let elsewhere = [(addr(9), 1002..=1002), (addr(1), 990..=999), (addr(1), 1004..=9999)];
        ports.exclude_ports([(addr(2), 1001..=1001)].into_iter().chain(elsewhere));
        let taken = take(&mut ports, 8);
        assert!(taken.len() == 6 && taken.iter().all(|at| at.port != 1001), "{taken:?}");
        assert_eq!(ports.in_use(), 6);
        // A port in use stays with its flow, and is not allocated again.
        ports.exclude_ports([(addr(1), 900..=1000)]);
        let more = take(&mut ports, 8);
        assert!(more.len() == 2 && more.iter().all(|at| at.port == 1001), "{more:?}");
        taken.iter().for_each(|port| ports.release(SERVER, TCP, *port));
        assert_eq!((take(&mut ports, 8).len(), ports.in_use()), (4, 6));
        ports.exclude_ports([]);
        assert_eq!((take(&mut ports, 8).len(), ports.in_use()), (2, 8));
    }

    #[test]
    fn a_port_that_is_left_out_of_the_split_is_nobodys() {
        let split = PortSplit::new(1000..=1007, 2).without([1001, 1006]);
        assert_eq!([1000, 1001, 1006, 1007].map(|port| split.owner(port)), [Some(0), None, None, Some(1)]);
        for worker in 0..2 {
            let mut ports = NatPorts::of_worker(vec![addr(1)], &split, worker, 7);
            let taken = take(&mut ports, 8);
            assert!(taken.iter().all(|at| split.owner(at.port) == Some(worker)), "{taken:?}");
            assert_eq!((taken.len(), ports.in_use()), (3, 3));
        }
    }

    proptest! {
        #[test]
        fn a_port_in_use_is_never_handed_out_again(
            steps in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 0..400),
            seed in any::<u64>(),
        ) {
            let mut ports = NatPorts::new(vec![addr(1), addr(2), addr(3)], 65_520..=65_535, seed);
            let mut in_use: Vec<AddrPort> = Vec::new();
            for step in steps {
                match step {
                    Some(index) if !in_use.is_empty() => {
                        let port = in_use.swap_remove(index.index(in_use.len()));
                        ports.release(SERVER, TCP, port);
                    }
                    _ => match ports.allocate(SERVER, TCP) {
                        Some(port) => {
                            prop_assert!(!in_use.contains(&port) && port.port >= 65_520);
                            in_use.push(port);
                        }
                        None => prop_assert_eq!(in_use.len(), 48),
                    },
                }
                prop_assert_eq!(ports.in_use(), in_use.len());
            }
        }
    }
}
