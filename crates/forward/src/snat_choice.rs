//! Choice of the SNAT addresses that a server sees.

use std::net::IpAddr;

use convey_model::NextHops;

/// How the SNAT addresses of a server are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnatChoice {
    /// The one that the kernel would choose for its own connections to the server.
    Kernel,
    /// Those that an operator has named, as far as they fit the way to the server.
    Named,
}

impl SnatChoice {
    /// The SNAT addresses that `server` sees, without those that are `withheld` because another process has their ports. None if
    /// the server's answers would return to no other address.
    pub fn among_free(
        self,
        network: &NextHops,
        server: IpAddr,
        (addresses, withheld): (&[IpAddr], &[IpAddr]),
    ) -> Vec<IpAddr> {
        let is_free = |ip: &IpAddr| !withheld.contains(ip);
        let mut seen = self.among(network, server, addresses);
        seen.retain(is_free);
        if seen.is_empty() && !withheld.is_empty() {
            let fits = |ip| addresses.contains(&ip) && is_free(&ip) && network.answers_return(ip, server);
            seen.extend(network.source_to(server, fits));
        }
        seen
    }

    /// The SNAT addresses that `server` sees; all of its family if none can be told from the others.
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
    fn withheld_address_is_replaced_by_one_that_answers_return_to() {
        let [first, floating, far, server] = ips(["10.1.0.1", "10.1.0.5", "10.2.0.1", "10.1.0.9"]);
        let network = network(&["10.1.0.5"]);
        let free = |withheld: &[IpAddr]| {
            SnatChoice::Kernel.among_free(&network, server, (&[first, floating, far], withheld))
        };
        assert_eq!(free(&[]), [first]);
        assert_eq!(free(&[floating]), [first]);
        assert_eq!(free(&[first]), [floating]);
        assert_eq!(free(&[first, floating]), [], "the far one is on another link");
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
