//! The traffic that this process alone forwards on this host: two processes would both capture it, and answer
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

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

/// Takes the SNAT ports of these addresses. In an upgrade another process has them, too, and hands over to this one. Returns the
/// addresses without those that another process has and no server `needs`.
pub(super) fn snat(
    config: &Config,
    addresses: &[IpAddr],
    needs: impl Fn(IpAddr) -> bool,
    is_upgrade: bool,
) -> anyhow::Result<(Vec<IpAddr>, Vec<OwnedName>)> {
    let ports = &config.passthrough.snat_ports;
    let (first, last) = (ports.start(), ports.end());
    let (mut ours, mut names) = (Vec::new(), Vec::new());
    for ip in addresses {
        let name = format!("{ip} ports {first}-{last}");
        let taken = if is_upgrade { OwnedName::beside(name) } else { OwnedName::take(name) };
        match taken {
            Ok(name) => names.push(name),
            Err(_) if !needs(*ip) => continue,
            Err(error) => {
                let context = format!("cannot use the passthrough.snat_ports {first}-{last} of {ip}");
                return Err(anyhow::Error::from(error).context(context));
            }
        }
        ours.push(*ip);
    }
    Ok((ours, names))
}
