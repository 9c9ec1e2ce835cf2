//! Which SNAT ports a process has on this host.

use convey_config::Config;
use convey_dataplane::net::{NotReserved, ReservedPorts, SnatPorts};
use convey_model::Mode;

/// The configuration with SNAT ports that can be kept from this host's own connections, and a line for an operator if
/// those are not the ones that it says.
pub(super) fn choose(config: &Config) -> Result<(Config, Option<String>), NotReserved> {
    let mut config = config.clone();
    if config.frontends_where(Mode::has_snat).next().is_none() {
        return Ok((config, None));
    }
    let SnatPorts { ports, instead_of } = ReservedPorts::choose(config.passthrough.snat_ports.clone())?;
    let warning = instead_of.map(|why| {
        let (first, last) = (ports.start(), ports.end());
        format!("passthrough uses the SNAT ports {first}-{last}, which the kernel hands out to nobody: {why}")
    });
    config.passthrough.snat_ports = ports;
    Ok((config, warning))
}
