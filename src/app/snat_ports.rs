//! Choice of the SNAT ports of this process.

use convey_config::Config;
use convey_dataplane::net::{NotReserved, ReservedPorts, SnatPorts};
use convey_model::Mode;

/// Chooses SNAT ports that this host can reserve, so that its own connections do not use them.
/// Returns the configuration with these ports, and a line for operators if they differ from the
/// configured ports.
pub(super) fn choose(config: &Config) -> Result<(Config, Option<String>), NotReserved> {
    let mut config = config.clone();
    if config.frontends_where(Mode::has_snat).next().is_none() {
        return Ok((config, None));
    }
    let SnatPorts { ports, instead_of } = ReservedPorts::choose(config.passthrough.snat_ports.clone())?;
    let warning = instead_of.map(|why| {
        let (first, last) = (ports.start(), ports.end());
        format!("passthrough uses the SNAT ports {first}-{last}, which are reserved for it in the kernel, instead of the configured ports: {why}")
    });
    config.passthrough.snat_ports = ports;
    Ok((config, warning))
}
