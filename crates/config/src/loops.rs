//! Detection of loops: servers of a proxied frontend that lead back to it through addresses of this
//! host. Pure.
//!
//! Connections may pass through several backends: the address of a server may be the address of a
//! frontend, which has a backend again. One pass over the whole configuration finds the backends
//! that cannot be in a loop. Only the servers of the other backends are checked one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use convey_model::{Endpoint, Listen, Protocol, ServerAddr};

/// A frontend whose connections end at convey.
pub(super) struct Listens<'a> {
    pub(super) name: &'a str,
    pub(super) protocol: Protocol,
    pub(super) listen: Vec<Listen>,
    /// Backends that connections of this frontend may go to.
    pub(super) backends: Vec<&'a str>,
}

/// Path of a connection back to its first frontend.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loop<'a> {
    /// Frontends on the path, in order.
    frontends: Vec<&'a str>,
    /// Address at which the first frontend receives the connection again.
    listen: SocketAddr,
}

/// Finds the servers that would close a loop. The result has one item for each server: the loop, or
/// `None`. Servers are added one after another, and a server that would close a loop is not added.
/// `own` has the addresses of this host; it need not contain loopback addresses.
pub(super) fn loops<'a>(
    frontends: &[Listens<'a>],
    servers: &[(&'a str, SocketAddr)],
    own: &BTreeSet<IpAddr>,
) -> Vec<Option<Loop<'a>>> {
    let graph = Graph::new(frontends, servers, own);
    let steps = graph.steps(servers);
    let loops = Ways::new(graph.count, &steps).close(&steps);
    let mut found: Vec<Option<Loop<'a>>> = servers.iter().map(|_| None).collect();
    for (server, way) in loops {
        // The last step leads to the start of the first one.
        let names = way.iter().map(|step| frontends[step.frontend].name);
        let mut names: Vec<&str> = names.collect();
        names.rotate_right(1);
        found[server] = Some(Loop { frontends: names, listen: way[way.len() - 1].listen });
    }
    found
}

/// A backend and the protocol of its connections; also their port, if a server keeps the client's
/// port.
type Node<'a> = (&'a str, Protocol, Option<u16>);

/// Graph of the listen addresses of frontends, and their backends.
struct Graph<'a, 'b> {
    frontends: &'b [Listens<'a>],
    listeners: HashMap<Endpoint, usize>,
    /// IP addresses on which frontends listen.
    addresses: HashSet<IpAddr>,
    own: &'b BTreeSet<IpAddr>,
    /// Backends with a server that has no port of its own and keeps the client's port.
    keeps_port: HashSet<&'a str>,
    numbers: HashMap<Node<'a>, usize>,
    /// Nodes of each backend, with the protocol and the port of their connections.
    of_backend: HashMap<&'a str, BTreeMap<usize, (Protocol, u16)>>,
    count: usize,
}

/// Edge of the graph: `server`, a server of node `from`, sends connections to node `to`.
#[derive(Debug, Clone, Copy)]
struct Step {
    server: usize,
    from: usize,
    to: usize,
    /// Frontend that receives the connection, and its address.
    frontend: usize,
    listen: SocketAddr,
}

impl<'a, 'b> Graph<'a, 'b> {
    fn new(
        frontends: &'b [Listens<'a>],
        servers: &[(&'a str, SocketAddr)],
        own: &'b BTreeSet<IpAddr>,
    ) -> Graph<'a, 'b> {
        let without_port = servers.iter().filter(|(_, server)| server.port() == 0);
        let mut graph = Graph {
            frontends,
            listeners: HashMap::new(),
            addresses: HashSet::new(),
            own,
            keeps_port: without_port.map(|(backend, _)| *backend).collect(),
            numbers: HashMap::new(),
            of_backend: HashMap::new(),
            count: 0,
        };
        for (index, Listens { protocol, listen, backends, .. }) in frontends.iter().enumerate() {
            for addr in listen.iter().flat_map(Listen::addrs) {
                graph.listeners.insert(Endpoint { protocol: *protocol, addr }, index);
                graph.addresses.insert(addr.ip());
                for &backend in backends {
                    graph.number(backend, (*protocol, addr.port()));
                }
            }
        }
        graph
    }

    /// Adds a node for the backend, reached by this protocol and port.
    fn number(&mut self, backend: &'a str, (protocol, port): (Protocol, u16)) {
        let node = self.node(backend, protocol, port);
        let number = *self.numbers.entry(node).or_insert(self.count);
        self.count = self.numbers.len();
        self.of_backend.entry(backend).or_default().entry(number).or_insert((protocol, port));
    }

    fn node(&self, backend: &'a str, protocol: Protocol, port: u16) -> Node<'a> {
        (backend, protocol, self.keeps_port.contains(backend).then_some(port))
    }

    /// Edges that these servers add to the graph, in order.
    fn steps(&self, servers: &[(&'a str, SocketAddr)]) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, (backend, server)) in
            servers.iter().enumerate().filter(|(_, (_, server))| self.is_here(server.ip()))
        {
            for (from, (protocol, port)) in self.of_backend.get(backend).into_iter().flatten() {
                let Some((frontend, listen)) = self.listener(*protocol, at(*server, *port)) else { continue };
                for &backend in &self.frontends[frontend].backends {
                    let to = self.numbers[&self.node(backend, *protocol, listen.port())];
                    steps.push(Step { server: number, from: *from, to, frontend, listen });
                }
            }
        }
        steps
    }

    /// Whether a frontend may listen at this address.
    fn is_here(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip) || self.is_own(ip)
    }

    fn is_own(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own.contains(&ip)
    }

    /// Frontend that receives connections from this host to `addr`, and its listen address. A
    /// specific address takes precedence over a wildcard. `None` if no frontend receives them.
    fn listener(&self, protocol: Protocol, addr: SocketAddr) -> Option<(usize, SocketAddr)> {
        let wildcard: IpAddr = match addr.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let wildcard = self.is_own(addr.ip()).then(|| SocketAddr::new(wildcard, addr.port()));
        [Some(addr), wildcard].into_iter().flatten().find_map(|addr| {
            let index = self.listeners.get(&Endpoint { protocol, addr })?;
            Some((*index, addr))
        })
    }
}

/// Graph of the servers added so far, and the state of searches in it.
struct Ways {
    /// Whether each node may be in a loop once all servers are added.
    in_question: Vec<bool>,
    /// Edges from each node.
    from: Vec<Vec<Step>>,
    /// For each node: the number of the last search that reached it, and the edge to it.
    reached: Vec<Option<(usize, Step)>>,
    searches: usize,
}

impl Ways {
    /// Creates a graph with this number of nodes and no edges. `steps` are all edges that may be
    /// added.
    fn new(nodes: usize, steps: &[Step]) -> Ways {
        let mut in_question = vec![true; nodes];
        drop_ends(&mut in_question, steps.iter().map(|step| (step.from, step.to)));
        drop_ends(&mut in_question, steps.iter().map(|step| (step.to, step.from)));
        Ways { in_question, from: vec![Vec::new(); nodes], reached: vec![None; nodes], searches: 0 }
    }

    /// Adds the edges server by server, except the edges of servers that close a loop. Returns
    /// these servers with their loops.
    fn close(mut self, steps: &[Step]) -> Vec<(usize, Vec<Step>)> {
        let mut found = Vec::new();
        for of_server in steps.chunk_by(|a, b| a.server == b.server) {
            let mut steps =
                of_server.iter().filter(|step| self.in_question[step.from] && self.in_question[step.to]);
            let steps: Vec<Step> = steps.by_ref().copied().collect();
            match steps.iter().find_map(|step| self.path_back(*step)) {
                Some(way) => found.push((of_server[0].server, way)),
                None => steps.into_iter().for_each(|step| self.from[step.from].push(step)),
            }
        }
        found
    }

    /// Edges of a path that begins with `first` and ends at its start; `None` if there is no such
    /// path.
    fn path_back(&mut self, first: Step) -> Option<Vec<Step>> {
        self.searches += 1;
        let mut next = vec![first];
        while let Some(step) = next.pop() {
            if self.reached[step.to].is_none_or(|(search, _)| search != self.searches) {
                self.reached[step.to] = Some((self.searches, step));
                if step.to == first.from {
                    break;
                }
                next.extend_from_slice(&self.from[step.to]);
            }
        }
        let by =
            |node: usize| self.reached[node].filter(|(search, _)| *search == self.searches).map(|(_, by)| by);
        let mut way = vec![by(first.from)?];
        while way[way.len() - 1].from != first.from {
            way.push(by(way[way.len() - 1].from)?);
        }
        way.reverse();
        Some(way)
    }
}

/// Removes nodes without outgoing steps, and nodes that lead only to removed nodes. Each step is a
/// pair of nodes.
fn drop_ends(nodes: &mut [bool], steps: impl Iterator<Item = (usize, usize)>) {
    let (mut onwards, mut before) = (vec![0_usize; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (from, to) in steps.filter(|(from, to)| nodes[*from] && nodes[*to]) {
        onwards[from] += 1;
        before[to].push(from);
    }
    let mut ends: Vec<usize> = (0..nodes.len()).filter(|node| onwards[*node] == 0).collect();
    while let Some(end) = ends.pop() {
        nodes[end] = false;
        for node in std::mem::take(&mut before[end]) {
            onwards[node] -= 1;
            if onwards[node] == 0 {
                ends.push(node);
            }
        }
    }
}

/// Address of a server for a client that connects to `port`. A server without a port keeps the
/// client's port.
fn at(mut server: SocketAddr, port: u16) -> SocketAddr {
    if server.port() == 0 {
        server.set_port(port);
    }
    server
}

impl Loop<'_> {
    /// Operator-facing message about a server at `addr`.
    pub(super) fn describe(&self, addr: SocketAddr) -> String {
        let addr = ServerAddr(addr);
        match &self.frontends[..] {
            [itself] => format!(
                "{addr} would send connections back to frontend {itself:?}, which listens on {}",
                self.listen
            ),
            [first, others @ ..] => {
                let others = others.join(" -> ");
                format!(
                    "{addr} would send connections back to frontend {first:?}: {first} -> {others} -> {first}"
                )
            }
            [] => format!("{addr} would send connections back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> BTreeSet<IpAddr> {
        BTreeSet::from(["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()])
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Frontends with their addresses; the backend of each has the frontend's name.
    fn frontends<'a>(all: &[(&'a str, &str)]) -> Vec<Listens<'a>> {
        let listens = |(name, listen): &(&'a str, &str)| Listens {
            name,
            protocol: Protocol::Tcp,
            listen: listen.split(' ').map(|listen| listen.parse().unwrap()).collect(),
            backends: vec![*name],
        };
        all.iter().map(listens).collect()
    }

    /// Result of `loops` for these servers, each given as backend and address.
    fn found<'a>(frontends: &[Listens<'a>], servers: &[(&'a str, &str)]) -> Vec<Option<Loop<'a>>> {
        let servers: Vec<(&str, SocketAddr)> =
            servers.iter().map(|(backend, server)| (*backend, addr(server))).collect();
        loops(frontends, &servers, &own())
    }

    /// Names of the frontends in each loop.
    fn passed<'a>(frontends: &[Listens<'a>], servers: &[(&'a str, &str)]) -> Vec<String> {
        let names = |found: Option<Loop<'_>>| found.map_or(String::new(), |found| found.frontends.join(" "));
        found(frontends, servers).into_iter().map(names).collect()
    }

    #[test]
    fn an_address_of_this_host_behind_a_wildcard_is_the_frontend_itself() {
        let all = frontends(&[("web", "0.0.0.0:80 [::]:81")]);
        for itself in ["10.0.0.1:80", "127.0.0.1:80", "127.9.9.9:80", "[2001:db8::1]:81", "[::1]:81"] {
            assert_eq!(passed(&all, &[("web", itself)]), ["web"], "{itself}");
        }
        for other in ["10.0.0.2:80", "10.0.0.1:81", "[2001:db8::1]:80", "[2001:db8::2]:81"] {
            assert_eq!(passed(&all, &[("web", other)]), [""], "{other}");
        }
    }

    #[test]
    fn a_chain_of_frontends_is_right_until_it_is_closed() {
        let all = frontends(&[("a", "0.0.0.0:1"), ("b", "10.0.0.1:2"), ("c", "0.0.0.0:3")]);
        let chain = [("a", "10.0.0.1:2"), ("a", "127.0.0.1:3"), ("b", "10.0.0.1:3")];
        let rest = [("c", "10.0.0.1:1"), ("c", "10.0.0.1:2"), ("c", "10.0.0.9:1")];
        let mut found = found(&all, &[chain, rest].concat());
        let rest = found.split_off(3);
        assert_eq!(found, [None, None, None]);
        let [Some(closed), Some(short), None] = &rest[..] else { panic!("{rest:?}") };
        let told = closed.describe(addr("10.0.0.1:1"));
        assert!(
            ["c -> a -> c", "c -> a -> b -> c"].iter().any(|way| told.ends_with(way)),
            "10.0.0.1:1 would send connections back to frontend \"c\": {told}"
        );
        assert_eq!(short.frontends, ["c", "b"]);
    }

    #[test]
    fn concrete_listener_takes_precedence_over_the_wildcard() {
        let all = frontends(&[("wide", "0.0.0.0:80"), ("narrow", "10.0.0.1:80")]);
        let servers = [("wide", "10.0.0.1:80"), ("narrow", "127.0.0.1:80"), ("narrow", "10.0.0.1:80")];
        assert_eq!(passed(&all, &servers), ["", "narrow wide", "narrow"]);
    }

    #[test]
    fn server_without_a_port_loops_if_any_frontend_port_does() {
        let all =
            frontends(&[("range", "0.0.0.0:21-23"), ("other", "10.0.0.1:30-31"), ("next", "10.0.0.2:31")]);
        let found = found(
            &all,
            &[
                ("range", "10.0.0.1:0"),
                ("range", "10.0.0.9:0"),
                ("other", "10.0.0.2:0"),
                ("next", "10.0.0.1:0"),
                ("next", "10.0.0.1:30"),
            ],
        );
        assert_eq!(
            found[0].as_ref().unwrap().describe(addr("10.0.0.1:0")),
            "10.0.0.1 would send connections back to frontend \"range\", which listens on 0.0.0.0:21"
        );
        assert_eq!([&found[1], &found[2], &found[4]], [&None; 3], "port 30 goes to nobody");
        assert_eq!(found[3].as_ref().unwrap().frontends, ["next", "other"]);
    }

    #[test]
    fn tcp_and_udp_do_not_meet() {
        let mut all = frontends(&[("a", "10.0.0.1:53"), ("b", "10.0.0.1:54")]);
        all[1].protocol = Protocol::Udp;
        assert_eq!(passed(&all, &[("a", "10.0.0.1:54"), ("b", "10.0.0.1:53")]), ["", ""]);
    }

    #[test]
    fn frontends_that_share_a_backend_lead_back_by_whichever_is_reached() {
        let mut all = frontends(&[("one", "10.0.0.1:1"), ("two", "10.0.0.1:2"), ("far", "10.0.0.1:3")]);
        all[1].backends = vec!["one"];
        let servers =
            [("one", "10.0.0.1:3"), ("far", "10.0.0.9:1"), ("far", "10.0.0.1:2"), ("far", "10.0.0.1:1")];
        assert_eq!(passed(&all, &servers), ["", "", "far two", "far one"]);
        assert_eq!(passed(&all, &[("one", "10.0.0.1:2")]), ["two"]);
    }

    #[test]
    fn a_frontend_with_several_backends_leads_back_by_each_of_them() {
        let mut all = frontends(&[("web", "10.0.0.1:80"), ("next", "10.0.0.1:81"), ("bare", "10.0.0.1:82")]);
        (all[0].backends, all[2].backends) = (vec!["web", "api"], Vec::new());
        let servers = [("api", "10.0.0.1:80"), ("web", "10.0.0.1:81"), ("next", "10.0.0.1:80")];
        assert_eq!(passed(&all, &servers), ["web", "", "next web"]);
        assert_eq!(passed(&all, &[("api", "10.0.0.1:82"), ("web", "10.0.0.1:82")]), ["", ""]);
    }

    /// A separate search for each server would visit half of the others every time.
    #[test]
    fn long_chain_of_frontends_is_searched_once_for_loops() {
        let n = 20_000_u16;
        let names: Vec<String> = (0..n).map(|n| format!("f{n}")).collect();
        let listen = |n: u16| SocketAddr::from(([10, 0, 0, 1], 1 + n));
        let all = names.iter().zip(0..n).map(|(name, n)| Listens {
            name,
            protocol: Protocol::Tcp,
            listen: vec![listen(n).into()],
            backends: vec![name],
        });
        let all: Vec<Listens<'_>> = all.collect();
        let mut servers: Vec<(&str, SocketAddr)> =
            (1..n).map(|n| (&*names[usize::from(n)], listen(n - 1))).collect();
        let nodes = Graph::new(&all, &servers, &BTreeSet::new()).count;
        let own = own();
        let ways = |servers: &[(&str, SocketAddr)]| {
            let steps = Graph::new(&all, servers, &own).steps(servers);
            Ways::new(nodes, &steps).in_question.iter().filter(|is| **is).count()
        };
        assert_eq!((nodes, ways(&servers)), (usize::from(n), 0));
        servers.insert(0, ("f2", listen(9)));
        assert_eq!(ways(&servers), 8, "from the tenth to the third");
        let found = loops(&all, &servers, &own);
        assert_eq!(found.iter().filter(|found| found.is_some()).count(), 1);
        assert_eq!(found[9].as_ref().unwrap().frontends.len(), 8);
    }
}
