//! Ownership of traffic, so that only one process on this host forwards it. Two processes would
//! both capture and answer the same packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use anyhow::anyhow;
use convey_config::Config;
use convey_dataplane::net::{NotOwned, OwnedName, TAKEN};
use convey_model::{Endpoint, FrontendConfig, Mode};

use super::socket_owner::SocketOwner;

/// Frontends of packet modes that this process owns.
#[derive(Debug, Default)]
pub(super) struct Ownership(BTreeMap<Endpoint, OwnedName>);

impl Ownership {
    /// Takes ownership of the configured frontends that this process does not own yet. A frontend
    /// of the predecessor in an upgrade can be taken too. After an error, nothing is taken.
    pub(super) fn missing(&self, config: &Config) -> anyhow::Result<Ownership> {
        let wanted: BTreeSet<Endpoint> =
            config.frontends_where(Mode::forwards_packets).flat_map(FrontendConfig::endpoints).collect();
        let new: Vec<Endpoint> =
            wanted.into_iter().filter(|endpoint| !self.0.contains_key(endpoint)).collect();
        let names = OwnedName::take_all_in_lineage(&new).map_err(|refused| {
            let endpoint = new[refused.which];
            not_ours(refused).context(format!("cannot forward packets to {endpoint}"))
        })?;
        Ok(Ownership(new.into_iter().zip(names).collect()))
    }

    /// Number of owned frontends. Each uses one descriptor.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Adds further frontends.
    pub(super) fn add(&mut self, new: Ownership) {
        self.0.extend(new.0);
    }

    /// Releases all frontends except the `forwarded` ones.
    pub(super) fn retain<'a>(&mut self, forwarded: impl Iterator<Item = &'a Endpoint>) {
        let forwarded: BTreeSet<&Endpoint> = forwarded.collect();
        self.0.retain(|endpoint, _| forwarded.contains(endpoint));
    }
}

/// SNAT ports that this process owns on each SNAT address. It takes the ports of an address when
/// the first server begins to see the address.
#[derive(Debug)]
pub(super) struct SnatOwnership {
    ports: RangeInclusive<u16>,
    names: BTreeMap<IpAddr, OwnedName>,
    /// Addresses whose ports cannot be taken, with an operator-facing reason. convey tries them
    /// again only after `retry_withheld`.
    withheld: BTreeMap<IpAddr, String>,
    /// Addresses whose last attempt failed. convey reports a failure only once.
    refused: BTreeSet<IpAddr>,
}

impl SnatOwnership {
    /// Takes the SNAT ports of these addresses. Ports of the predecessor in an upgrade can be taken
    /// too.
    pub(super) fn take(
        config: &Config,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> anyhow::Result<SnatOwnership> {
        let ports = config.passthrough.snat_ports.clone();
        let (names, withheld, refused) = Default::default();
        let mut ours = SnatOwnership { ports, names, withheld, refused };
        ours.take_all(addresses)?;
        Ok(ours)
    }

    /// Takes the ports of more addresses.
    pub(super) fn take_all(&mut self, addresses: impl IntoIterator<Item = IpAddr>) -> anyhow::Result<()> {
        for ip in addresses {
            if !self.names.contains_key(&ip) {
                let name =
                    self.take_one(ip).map_err(|refused| not_ours(refused).context(self.refusal(ip)))?;
                self.names.insert(ip, name);
            }
        }
        Ok(())
    }

    /// Takes the ports of the addresses that are needed now. `needed` receives the withheld
    /// addresses, and returns the needed ones. Returns a reason for each address whose ports cannot
    /// be taken, unless the previous attempt for that address failed too.
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
                    Err(refused) => {
                        let reason = format!("{}: {refused}", self.refusal(ip));
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

    /// Addresses whose ports this process owns.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.names.keys().copied().collect()
    }

    /// Addresses whose ports could not be taken.
    pub(super) fn withheld(&self) -> Vec<IpAddr> {
        self.withheld.keys().copied().collect()
    }

    /// Reason why the ports of the address could not be taken. `None` if the address is not
    /// withheld.
    pub(super) fn reason(&self, ip: IpAddr) -> Option<&str> {
        self.withheld.get(&ip).map(String::as_str)
    }

    /// Allows another attempt for withheld addresses, at the next time they are needed.
    pub(super) fn retry_withheld(&mut self) {
        self.withheld.clear();
    }

    fn take_one(&self, ip: IpAddr) -> Result<OwnedName, NotOwned> {
        let mut names = OwnedName::take_all_in_lineage(&[self.name(ip)])?;
        Ok(names.pop().unwrap_or_else(|| unreachable!("one was taken")))
    }

    fn name(&self, ip: IpAddr) -> String {
        format!("{ip} ports {}-{}", self.ports.start(), self.ports.end())
    }

    fn refusal(&self, ip: IpAddr) -> String {
        format!(
            "cannot use the SNAT ports {}-{} of {ip} (passthrough.snat_ports)",
            self.ports.start(),
            self.ports.end()
        )
    }
}

/// Error for a resource that another process owns. Names the owner if this user may see it.
fn not_ours(refused: NotOwned) -> anyhow::Error {
    match refused.holder.and_then(|inode| SocketOwner::of(&[inode])) {
        Some(holder) => anyhow!("{TAKEN}: {holder}"),
        None => refused.error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;
    use convey_dataplane::net::lineage;

    /// Each test uses its own port range, because names of port ranges are shared by all processes
    /// of the host.
    fn config(first: u16) -> Config {
        let text = "mode = 'passthrough'\nfrontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                    backends.web.servers.a.addr = '10.0.0.2:80'\n";
        let mut config = convey_config::parse("test.toml", text).unwrap().config;
        config.passthrough.snat_ports = first..=first + 9;
        config
    }

    fn ips<const N: usize>(last: [u8; N]) -> [IpAddr; N] {
        last.map(|last| IpAddr::from([198, 51, 100, last]))
    }

    /// Another process that owns the SNAT ports of an address, with the ports of `config(first)`.
    fn third(lineage: u64, ip: IpAddr, first: u16) -> UnixDatagram {
        let name = format!("convey {ip} ports {first}-{} #{lineage:016x}{:016x}", first + 9, 1);
        UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    fn other_lineage() -> u64 {
        lineage() ^ 1
    }

    #[test]
    fn spare_address_belongs_to_the_process_that_needs_it_first() {
        let [a, b] = ips([1, 2]);
        let second = third(other_lineage(), b, 20_000);
        let mut first = SnatOwnership::take(&config(20_000), [a]).unwrap();
        let said = first.take_needed(|_| BTreeSet::from([b]));
        let start =
            "cannot use the SNAT ports 20000-20009 of 198.51.100.2 (passthrough.snat_ports): another process";
        assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0], "once");
        first.retry_withheld();
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0], "as before");
        assert_eq!((first.addresses(), first.withheld()), (vec![a], vec![b]));
        drop(second);
        first.retry_withheld();
        assert_eq!(first.take_needed(|_| BTreeSet::from([b])), [""; 0]);
        assert_eq!((first.addresses(), first.withheld()), (vec![a, b], vec![]));
    }

    #[test]
    fn withheld_address_makes_the_next_one_needed() {
        let [a, b] = ips([3, 4]);
        let _other = third(other_lineage(), a, 20_010);
        let mut ours = SnatOwnership::take(&config(20_010), []).unwrap();
        ours.take_needed(|withheld| BTreeSet::from([if withheld.contains(&a) { b } else { a }]));
        assert_eq!((ours.addresses(), ours.withheld()), (vec![b], vec![a]));
    }

    #[test]
    fn successor_shares_snat_ports_with_its_predecessor_alone() {
        let [a, b, c] = ips([5, 6, 7]);
        let _predecessor = [third(lineage(), a, 20_020), third(lineage(), b, 20_020)];
        let _other = third(other_lineage(), b, 20_020);
        let mut ours = SnatOwnership::take(&config(20_020), [a]).unwrap();
        ours.take_all([a, c]).unwrap();
        let own = std::process::id();
        for refused in [ours.take_all([b]), SnatOwnership::take(&config(20_020), [b]).map(drop)] {
            let why = format!("{:#}", refused.unwrap_err());
            let start = "cannot use the SNAT ports 20020-20029 of 198.51.100.6 (passthrough.snat_ports): another process";
            assert!(why.starts_with(start) && why.ends_with(&format!(" (process {own})")), "{why}");
        }
        assert_eq!(ours.addresses(), [a, c]);
    }
}
