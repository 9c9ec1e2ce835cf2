//! Whether a server of a proxied frontend leads back to it, through addresses of this host. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::model::{Endpoint, Listen, Protocol, ServerAddr};

/// Who listens where, and where the servers behind are.
pub(super) struct Loops<'a> {
    frontends: Vec<Listens<'a>>,
    /// Which of them listens where.
    listeners: HashMap<Endpoint, usize>,
    /// By backend. None of these leads back.
    servers: HashMap<&'a str, Vec<SocketAddr>>,
    /// Addresses of this host; those of the loopback interface need not be among them.
    own: &'a BTreeSet<IpAddr>,
}

/// A frontend whose connections end at convey.
pub(super) struct Listens<'a> {
    pub(super) name: &'a str,
    pub(super) protocol: Protocol,
    pub(super) listen: Vec<Listen>,
    pub(super) backend: &'a str,
}

/// The way of a connection back to where it began.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loop<'a> {
    /// The frontends it passes, in order.
    frontends: Vec<&'a str>,
    /// Where the first of them takes it in again.
    listen: SocketAddr,
}

impl<'a> Loops<'a> {
    pub(super) fn new(frontends: Vec<Listens<'a>>, own: &'a BTreeSet<IpAddr>) -> Loops<'a> {
        let listeners = frontends.iter().enumerate().flat_map(|(index, frontend)| {
            let Listens { protocol, listen, .. } = frontend;
            let addrs = listen.iter().flat_map(Listen::addrs);
            addrs.map(move |addr| (Endpoint { protocol: *protocol, addr }, index))
        });
        Loops { listeners: listeners.collect(), frontends, servers: HashMap::new(), own }
    }

    /// Adds a server to a backend, unless it would close a loop.
    pub(super) fn add(&mut self, backend: &'a str, server: SocketAddr) -> Result<(), Loop<'a>> {
        for (index, frontend) in self.frontends.iter().enumerate().filter(|(_, f)| f.backend == backend) {
            let mut asked: Vec<u16> = frontend.listen.iter().flat_map(Listen::ports).collect();
            if server.port() != 0 {
                asked.truncate(1);
            }
            if let Some(found) = asked.into_iter().find_map(|port| self.way_back(index, at(server, port))) {
                return Err(found);
            }
        }
        self.servers.entry(backend).or_default().push(server);
        Ok(())
    }

    /// How a connection to `server` comes to the frontend with this index.
    fn way_back(&self, to: usize, server: SocketAddr) -> Option<Loop<'a>> {
        let protocol = self.frontends[to].protocol;
        let (first, listen) = self.listener(protocol, server)?;
        // Each frontend that is reached, with the one before it and the address that was asked there.
        let mut reached = HashMap::from([(first, (to, listen))]);
        // A server without a port is asked at the port by which its frontend is reached.
        let mut entered = HashSet::from([(first, listen.port())]);
        let mut next = vec![(first, listen.port())];
        while let Some((index, port)) = next.pop().filter(|_| !reached.contains_key(&to)) {
            for server in self.servers.get(self.frontends[index].backend).into_iter().flatten() {
                if let Some((after, listen)) = self.listener(protocol, at(*server, port))
                    && entered.insert((after, listen.port()))
                {
                    reached.entry(after).or_insert((index, listen));
                    next.push((after, listen.port()));
                }
            }
        }
        let (mut before, listen) = *reached.get(&to)?;
        let mut frontends = Vec::new();
        while before != to {
            frontends.push(self.frontends[before].name);
            before = reached[&before].0;
        }
        frontends.push(self.frontends[to].name);
        frontends.reverse();
        Some(Loop { frontends, listen })
    }

    /// The frontend that takes in what this host sends to `addr`, and the address it listens on. A concrete address
    /// goes before a wildcard.
    fn listener(&self, protocol: Protocol, addr: SocketAddr) -> Option<(usize, SocketAddr)> {
        let wildcard: IpAddr = match addr.is_ipv4() {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        let is_own = addr.ip().is_loopback() || self.own.contains(&addr.ip());
        let wildcard = is_own.then(|| SocketAddr::new(wildcard, addr.port()));
        [Some(addr), wildcard].into_iter().flatten().find_map(|addr| {
            let index = self.listeners.get(&Endpoint { protocol, addr })?;
            Some((*index, addr))
        })
    }
}

/// Where a server is for a client that has asked for `port`.
fn at(mut server: SocketAddr, port: u16) -> SocketAddr {
    if server.port() == 0 {
        server.set_port(port);
    }
    server
}

impl Loop<'_> {
    /// What is wrong with a server at `addr`, in words for an operator.
    pub(super) fn describe(&self, addr: SocketAddr) -> String {
        let addr = ServerAddr(addr);
        match &self.frontends[..] {
            [itself] => format!("{addr} is frontend {itself:?} itself, which listens on {}", self.listen),
            [first, others @ ..] => {
                let others = others.join(" -> ");
                format!("{addr} leads back to frontend {first:?}: {first} -> {others} -> {first}")
            }
            [] => format!("{addr} leads back"),
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

    /// Frontends with their addresses; the backend of each has its name.
    fn frontends<'a>(all: &[(&'a str, &str)]) -> Vec<Listens<'a>> {
        let listens = |(name, listen): &(&'a str, &str)| Listens {
            name,
            protocol: Protocol::Tcp,
            listen: listen.split(' ').map(|listen| listen.parse().unwrap()).collect(),
            backend: name,
        };
        all.iter().map(listens).collect()
    }

    #[test]
    fn an_address_of_this_host_behind_a_wildcard_is_the_frontend_itself() {
        let own = own();
        let mut loops = Loops::new(frontends(&[("web", "0.0.0.0:80 [::]:81")]), &own);
        for itself in ["10.0.0.1:80", "127.0.0.1:80", "127.9.9.9:80", "[2001:db8::1]:81", "[::1]:81"] {
            let found = loops.add("web", addr(itself)).unwrap_err();
            assert_eq!(found.frontends, ["web"], "{itself}");
        }
        for other in ["10.0.0.2:80", "10.0.0.1:81", "[2001:db8::1]:80", "[2001:db8::2]:81"] {
            assert_eq!(loops.add("web", addr(other)), Ok(()), "{other}");
        }
    }

    #[test]
    fn a_chain_of_frontends_is_right_until_it_is_closed() {
        let own = own();
        let mut loops =
            Loops::new(frontends(&[("a", "0.0.0.0:1"), ("b", "10.0.0.1:2"), ("c", "0.0.0.0:3")]), &own);
        assert_eq!(loops.add("a", addr("10.0.0.1:2")), Ok(()));
        assert_eq!(loops.add("a", addr("127.0.0.1:3")), Ok(()));
        assert_eq!(loops.add("b", addr("10.0.0.1:3")), Ok(()));
        let found = loops.add("c", addr("10.0.0.1:1")).unwrap_err();
        let told = found.describe(addr("10.0.0.1:1"));
        assert!(
            ["c -> a -> c", "c -> a -> b -> c"].iter().any(|way| told.ends_with(way)),
            "10.0.0.1:1 leads back to frontend \"c\": {told}"
        );
        assert_eq!(loops.add("c", addr("10.0.0.1:2")).unwrap_err().frontends, ["c", "b"]);
        assert_eq!(loops.add("c", addr("10.0.0.9:1")), Ok(()));
    }

    #[test]
    fn what_is_sent_to_a_concrete_address_does_not_come_to_the_wildcard() {
        let own = own();
        let mut loops = Loops::new(frontends(&[("wide", "0.0.0.0:80"), ("narrow", "10.0.0.1:80")]), &own);
        assert_eq!(loops.add("wide", addr("10.0.0.1:80")), Ok(()));
        assert_eq!(loops.add("narrow", addr("127.0.0.1:80")).unwrap_err().frontends, ["narrow", "wide"]);
        assert_eq!(loops.add("narrow", addr("10.0.0.1:80")).unwrap_err().frontends, ["narrow"]);
    }

    #[test]
    fn a_server_without_a_port_leads_back_if_any_port_of_its_frontend_does() {
        let own = own();
        let all = [("range", "0.0.0.0:21-23"), ("other", "10.0.0.1:30-31"), ("next", "10.0.0.2:31")];
        let mut loops = Loops::new(frontends(&all), &own);
        let found = loops.add("range", addr("10.0.0.1:0")).unwrap_err();
        assert_eq!(
            found.describe(addr("10.0.0.1:0")),
            "10.0.0.1 is frontend \"range\" itself, which listens on 0.0.0.0:21"
        );
        assert_eq!(loops.add("range", addr("10.0.0.9:0")), Ok(()));
        assert_eq!(loops.add("other", addr("10.0.0.2:0")), Ok(()));
        assert_eq!(loops.add("next", addr("10.0.0.1:0")).unwrap_err().frontends, ["next", "other"]);
        assert_eq!(loops.add("next", addr("10.0.0.1:30")), Ok(()), "from there it goes to port 30");
    }

    #[test]
    fn tcp_and_udp_do_not_meet() {
        let own = own();
        let mut all = frontends(&[("a", "10.0.0.1:53"), ("b", "10.0.0.1:54")]);
        all[1].protocol = Protocol::Udp;
        let mut loops = Loops::new(all, &own);
        assert_eq!(loops.add("a", addr("10.0.0.1:54")), Ok(()));
        assert_eq!(loops.add("b", addr("10.0.0.1:53")), Ok(()));
    }
}
