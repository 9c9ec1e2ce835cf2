//! The traffic that this process alone forwards on this host: two processes would both capture it, and answer
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use anyhow::Context;

use crate::config::Config;
use crate::model::{Endpoint, FrontendConfig, Mode};
use crate::net::OwnedName;

/// The frontends of packet modes that are ours.
#[derive(Debug, Default)]
pub(super) struct Ownership(BTreeMap<Endpoint, OwnedName>);

impl Ownership {
    /// Takes what is wanted and not ours yet. Errors leave nothing taken.
    pub(super) fn missing(&self, config: &Config) -> anyhow::Result<Ownership> {
        let wanted: BTreeSet<Endpoint> =
            config.frontends_where(Mode::forwards_packets).flat_map(FrontendConfig::endpoints).collect();
        let new: Vec<Endpoint> =
            wanted.into_iter().filter(|endpoint| !self.0.contains_key(endpoint)).collect();
        let names = OwnedName::take_all(&new).map_err(|refused| {
            let endpoint = new[refused.which];
            anyhow::Error::from(refused.error).context(format!("cannot forward packets to {endpoint}"))
        })?;
        Ok(Ownership(new.into_iter().zip(names).collect()))
    }

    /// Takes what is wanted, though another process has it: that one hands over to this one.
    pub(super) fn beside(config: &Config) -> anyhow::Result<Ownership> {
        let wanted: BTreeSet<Endpoint> =
            config.frontends_where(Mode::forwards_packets).flat_map(FrontendConfig::endpoints).collect();
        let own = |endpoint: Endpoint| {
            let name = OwnedName::beside(endpoint);
            let name = name.with_context(|| format!("cannot forward packets to {endpoint}"))?;
            Ok((endpoint, name))
        };
        Ok(Ownership(wanted.into_iter().map(own).collect::<anyhow::Result<_>>()?))
    }

    /// How many there are: each is a descriptor.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Keeps these too.
    pub(super) fn add(&mut self, new: Ownership) {
        self.0.extend(new.0);
    }

    /// Gives up what is forwarded no longer.
    pub(super) fn keep<'a>(&mut self, forwarded: impl Iterator<Item = &'a Endpoint>) {
        let forwarded: BTreeSet<&Endpoint> = forwarded.collect();
        self.0.retain(|endpoint, _| forwarded.contains(endpoint));
    }
}

/// The SNAT ports of this process: those of the addresses that servers see, each taken when a server comes to see it.
#[derive(Debug)]
pub(super) struct SnatOwnership {
    ports: RangeInclusive<u16>,
    names: BTreeMap<IpAddr, OwnedName>,
    /// Addresses whose ports cannot be had, each with the reason in words for an operator.
    withheld: BTreeMap<IpAddr, String>,
    /// Those that could not be had at the last attempt.
    refused: BTreeSet<IpAddr>,
    /// Whether another process has some of them, and hands over to this one.
    is_upgrade: bool,
}

impl SnatOwnership {
    /// Takes the SNAT ports of these addresses. In an upgrade another process has them, too, and hands over to this one.
    pub(super) fn take(
        config: &Config,
        addresses: impl IntoIterator<Item = IpAddr>,
        is_upgrade: bool,
    ) -> anyhow::Result<SnatOwnership> {
        let ports = config.passthrough.snat_ports.clone();
        let (names, withheld, refused) = Default::default();
        let mut ours = SnatOwnership { ports, names, withheld, refused, is_upgrade };
        for ip in addresses {
            let name = ours.take_one(ip).with_context(|| ours.refusal(ip))?;
            ours.names.insert(ip, name);
        }
        Ok(ours)
    }

    /// Takes what is `needed` now, which depends on the addresses that are withheld. Returns the reason for each address that cannot
    /// be had and could be had at the last attempt.
    pub(super) fn take_needed(&mut self, needed: impl Fn(&[IpAddr]) -> BTreeSet<IpAddr>) -> Vec<String> {
        let mut refusals = Vec::new();
        loop {
            let before = self.withheld.len();
            for ip in needed(&self.withheld()) {
                if self.names.contains_key(&ip) || self.withheld.contains_key(&ip) {
                    continue;
                }
                match self.take_one(ip) {
                    Ok(name) => {
                        self.refused.remove(&ip);
                        self.names.insert(ip, name);
                    }
                    Err(error) => {
                        let reason = format!("{}: {error}", self.refusal(ip));
                        if self.refused.insert(ip) {
                            refusals.push(reason.clone());
                        }
                        self.withheld.insert(ip, reason);
                    }
                }
            }
            if self.withheld.len() == before {
                return refusals;
            }
        }
    }

    /// Takes the ports of addresses that flows of another process have, which hands over to this one.
    pub(super) fn take_beside(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> anyhow::Result<()> {
        for ip in addresses {
            if !self.names.contains_key(&ip) {
                let name = OwnedName::beside(self.name(ip)).with_context(|| self.refusal(ip))?;
                self.names.insert(ip, name);
            }
        }
        Ok(())
    }

    /// The addresses whose ports are ours.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.names.keys().copied().collect()
    }

    /// The addresses whose ports could not be had.
    pub(super) fn withheld(&self) -> Vec<IpAddr> {
        self.withheld.keys().copied().collect()
    }

    /// Why the ports of an address could not be had.
    pub(super) fn reason(&self, ip: IpAddr) -> Option<&str> {
        self.withheld.get(&ip).map(String::as_str)
    }

    /// Has addresses that are withheld taken again when they are needed next.
    pub(super) fn forget_withheld(&mut self) {
        self.withheld.clear();
    }

    /// The process before this one has handed over: what is needed from now on may belong to others.
    pub(super) fn end_upgrade(&mut self) {
        self.is_upgrade = false;
    }

    fn take_one(&self, ip: IpAddr) -> io::Result<OwnedName> {
        let name = self.name(ip);
        if self.is_upgrade { OwnedName::beside(name) } else { OwnedName::take(name) }
    }

    fn name(&self, ip: IpAddr) -> String {
        format!("{ip} ports {}-{}", self.ports.start(), self.ports.end())
    }

    fn refusal(&self, ip: IpAddr) -> String {
        format!("cannot use the passthrough.snat_ports {}-{} of {ip}", self.ports.start(), self.ports.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Port ranges are names: one that no other test has.
    fn config(first: u16) -> Config {
        let text = "mode = 'passthrough'\nfrontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                    backends.web.servers.a.addr = '10.0.0.2:80'\n";
        let mut config = crate::config::parse("test.toml", text).unwrap().config;
        config.passthrough.snat_ports = first..=first + 9;
        config
    }

    fn ips<const N: usize>(last: [u8; N]) -> [IpAddr; N] {
        last.map(|last| IpAddr::from([198, 51, 100, last]))
    }

    #[test]
    fn spare_address_belongs_to_the_process_that_needs_it_first() {
        let [a, b] = ips([1, 2]);
        let mut first = SnatOwnership::take(&config(20_000), [a], false).unwrap();
        let second = SnatOwnership::take(&config(20_000), [b], false).unwrap();
        assert!(SnatOwnership::take(&config(20_000), [a], false).is_err());
        let said = first.take_needed(|_| BTreeSet::from([b]));
        let start = "cannot use the passthrough.snat_ports 20000-20009 of 198.51.100.2: another process";
        assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0], "once");
        first.forget_withheld();
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0], "as before");
        assert_eq!((first.addresses(), first.withheld()), (vec![a], vec![b]));
        drop(second);
        first.forget_withheld();
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0]);
        assert_eq!((first.addresses(), first.withheld()), (vec![a, b], vec![]));
    }

    #[test]
    fn withheld_address_makes_the_next_one_needed() {
        let [a, b, c] = ips([3, 4, 5]);
        let _other = SnatOwnership::take(&config(20_010), [a], false).unwrap();
        let mut ours = SnatOwnership::take(&config(20_010), [], false).unwrap();
        ours.take_needed(|withheld| BTreeSet::from([if withheld.contains(&a) { b } else { a }]));
        assert_eq!((ours.addresses(), ours.withheld()), (vec![b], vec![a]));
        ours.take_beside([a, c]).unwrap();
        assert_eq!(ours.addresses(), [a, b, c]);
    }
}
