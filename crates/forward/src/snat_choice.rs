//! Choice of the SNAT addresses that a server sees.

use std::collections::BTreeSet;
use std::net::IpAddr;

use convey_model::NextHops;

/// Method of choosing the SNAT addresses of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnatChoice {
    /// The address that the kernel would choose for its own connections to the server.
    Kernel,
    /// The configured addresses, as far as they fit the route to the server.
    Named,
}

/// SNAT addresses that servers may see.
#[derive(Debug, Clone, Copy)]
pub struct SnatAddresses<'a> {
    /// All SNAT addresses.
    pub all: &'a [IpAddr],
    /// Addresses whose ports another process uses.
    pub withheld: &'a [IpAddr],
}

impl<'a> SnatAddresses<'a> {
    /// SNAT addresses of which none is withheld.
    pub fn free(all: &'a [IpAddr]) -> SnatAddresses<'a> {
        SnatAddresses { all, withheld: &[] }
    }
}

/// The SNAT addresses of one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerSnat {
    /// Addresses that flows use in turn.
    pub first: Vec<IpAddr>,
    /// Addresses that flows use while all ports of the first addresses are in use.
    pub further: Vec<IpAddr>,
}

impl SnatChoice {
    /// All SNAT addresses of `server`, except withheld addresses. Configured addresses that fit the
    /// server's route best come first, then other addresses to which the server's answers return.
    pub fn of_server(self, network: &NextHops, server: IpAddr, addresses: SnatAddresses<'_>) -> ServerSnat {
        let first = self.among_free(network, server, addresses);
        let is_further = |ip: &IpAddr| {
            self == SnatChoice::Named
                && !first.contains(ip)
                && !addresses.withheld.contains(ip)
                && network.answers_return(*ip, server)
        };
        let further = addresses.all.iter().copied().filter(is_further).collect();
        ServerSnat { first, further }
    }

    /// SNAT addresses that `server` sees, except withheld addresses, whose ports another process
    /// uses. If all of these are withheld, another address to which the server's answers return;
    /// empty if there is none.
    pub fn among_free(
        self,
        network: &NextHops,
        server: IpAddr,
        SnatAddresses { all, withheld }: SnatAddresses<'_>,
    ) -> Vec<IpAddr> {
        let is_free = |ip: &IpAddr| !withheld.contains(ip);
        let mut seen = self.among(network, server, all);
        seen.retain(is_free);
        if seen.is_empty() && !withheld.is_empty() {
            let fits = |ip| all.contains(&ip) && is_free(&ip) && network.answers_return(ip, server);
            seen.extend(network.source_to(server, fits));
        }
        seen
    }

    /// SNAT addresses that `server` sees; all of its family if none fits better than the others.
    pub fn among(self, network: &NextHops, server: IpAddr, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let of_family = || addresses.iter().copied().filter(|ip| ip.is_ipv4() == server.is_ipv4());
        match self {
            SnatChoice::Kernel => match network.source_to(server, |ip| addresses.contains(&ip)) {
                Some(source) => vec![source],
                None => of_family().collect(),
            },
            SnatChoice::Named => {
                let present: Vec<IpAddr> = of_family().filter(|ip| network.is_own(*ip)).collect();
                // Routers may lead to addresses that no interface has.
                network.sources_to(server, if present.is_empty() { addresses } else { &present })
            }
        }
    }
}

/// The `named` SNAT addresses that none of the `servers` sees, each with an operator-facing reason.
/// Empty while there are no servers.
pub fn unused_snat_addresses(
    network: &NextHops,
    servers: &BTreeSet<IpAddr>,
    named: &[IpAddr],
) -> Vec<(IpAddr, String)> {
    let mut unused: BTreeSet<IpAddr> = named.iter().copied().collect();
    for server in servers {
        if unused.is_empty() {
            break;
        }
        let ServerSnat { first, further } =
            SnatChoice::Named.of_server(network, *server, SnatAddresses::free(named));
        first.iter().chain(&further).for_each(|ip| _ = unused.remove(ip));
    }
    if servers.is_empty() {
        return Vec::new();
    }
    unused.into_iter().map(|ip| (ip, why_unused(network, servers, ip))).collect()
}

fn why_unused(network: &NextHops, servers: &BTreeSet<IpAddr>, ip: IpAddr) -> String {
    let mut of_family = servers.iter().filter(|server| server.is_ipv4() == ip.is_ipv4());
    let Some(server) = of_family.next() else {
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        return format!("no server of mode passthrough has an {family} address");
    };
    let holder = network.interfaces().iter().find(|link| link.addresses.contains(&ip));
    match (holder, network.refusal(ip, *server)) {
        (None, _) => "no interface has it, and servers see only addresses that an interface has".to_owned(),
        (Some(link), _) if !link.up => format!("its interface {} is down", link.name),
        (_, Some(refusal)) => format!("server {server} cannot be reached from it: {refusal}"),
        (Some(link), None) => format!(
            "it belongs to the network of {}, but packets from it to servers leave by another interface, or have no route: answers \
             of the servers may not come back",
            link.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::{interface, route};

    fn ips<const N: usize>(texts: [&str; N]) -> [IpAddr; N] {
        texts.map(|text| text.parse().unwrap())
    }

    fn network(floating: &[&str]) -> NextHops {
        let links = [interface(1, &[&["10.1.0.1"], floating].concat()), interface(2, &["10.2.0.1"])];
        NextHops::new(&links, [route("10.1.0.0/24", 1, None), route("10.2.0.0/24", 2, None)], &[])
    }

    #[test]
    fn server_sees_the_address_of_its_own_network() {
        let [near, far, server] = ips(["10.1.0.1", "10.2.0.1", "10.2.0.9"]);
        for choice in [SnatChoice::Kernel, SnatChoice::Named] {
            assert_eq!(choice.among(&network(&[]), server, &[near, far]), [far], "{choice:?}");
            assert_eq!(choice.among(&network(&[]), server, &[near]), [near], "{choice:?}: there is no other");
        }
    }

    #[test]
    fn named_addresses_of_the_link_and_of_no_link_follow_the_nearest() {
        let [near, on_link, alone, far, gone, server] =
            ips(["10.1.0.1", "10.3.0.1", "203.0.113.7", "10.2.0.1", "10.1.0.77", "10.1.0.9"]);
        let mut links = [interface(1, &["10.1.0.1", "10.3.0.1"]), interface(2, &["10.2.0.1", "203.0.113.7"])];
        links[1].details[1].prefix_len = 32;
        let routes = [route("10.1.0.0/24", 1, None), route("10.2.0.0/24", 2, None)];
        let network = NextHops::new(&links, routes, &[]);
        let named = [far, gone, alone, on_link, near];
        let seen = SnatChoice::Named.of_server(&network, server, SnatAddresses::free(&named));
        assert_eq!(seen, ServerSnat { first: vec![near], further: vec![alone, on_link] });
        let kernel = SnatChoice::Kernel.of_server(&network, server, SnatAddresses::free(&named));
        assert_eq!(kernel, ServerSnat { first: vec![near], further: vec![] });

        let unused = unused_snat_addresses(&network, &BTreeSet::from([server]), &named);
        assert_eq!(unused.iter().map(|(ip, _)| *ip).collect::<Vec<_>>(), [gone, far]);
        assert!(unused[0].1.starts_with("no interface has it"), "{unused:?}");
        assert!(unused[1].1.starts_with("it belongs to the network of eth2"), "{unused:?}");
        assert!(unused_snat_addresses(&network, &BTreeSet::new(), &named).is_empty());
        let other_family: IpAddr = "2001:db8::9".parse().unwrap();
        let unused = unused_snat_addresses(&network, &BTreeSet::from([other_family]), &named);
        assert!(unused.len() == named.len() && unused[0].1.contains("has an IPv4 address"), "{unused:?}");
    }

    #[test]
    fn withheld_address_is_replaced_by_one_that_answers_return_to() {
        let [first, floating, far, server] = ips(["10.1.0.1", "10.1.0.5", "10.2.0.1", "10.1.0.9"]);
        let network = network(&["10.1.0.5"]);
        let free = |withheld: &[IpAddr]| {
            SnatChoice::Kernel.among_free(
                &network,
                server,
                SnatAddresses { all: &[first, floating, far], withheld },
            )
        };
        assert_eq!(free(&[]), [first]);
        assert_eq!(free(&[floating]), [first]);
        assert_eq!(free(&[first]), [floating]);
        assert!(free(&[first, floating]).is_empty(), "the far one is on another link");
    }

    #[test]
    fn address_that_is_gone_is_no_choice_while_there_is_another() {
        let [own, floating, server] = ips(["10.1.0.1", "10.1.0.5", "10.1.0.9"]);
        let named = |network: &NextHops| SnatChoice::Named.among(network, server, &[own, floating]);
        assert_eq!(named(&network(&["10.1.0.5"])), [own, floating]);
        assert_eq!(named(&network(&[])), [own]);
        let alone = |choice: SnatChoice| choice.among(&network(&[]), server, &[floating]);
        assert_eq!(alone(SnatChoice::Named), [floating], "routers may lead to it");
        assert_eq!(alone(SnatChoice::Kernel), [floating]);
    }
}
