//! Capabilities that convey's modes need; convey drops all others.
//!
//! Linux keeps capabilities per thread. The worker threads of proxy mode drop all of their
//! capabilities when they start.

use convey_config::Config;
use convey_model::Mode;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::user::User;

/// Lowest port that needs no privilege, unless `net.ipv4.ip_unprivileged_port_start` sets another
/// limit.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Capabilities that a configuration's modes need, now and after a reload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    by_modes: CapabilitySet,
    /// Whether programs that convey starts cannot gain privileges (`no_new_privileges`). The
    /// bounding set then makes no difference.
    gains_none: bool,
}

impl Needed {
    pub(super) fn by(config: &Config) -> Needed {
        let has = |kind: fn(Mode) -> bool| config.frontends_where(kind).next().is_some();
        let mut by_modes = CapabilitySet::empty();
        if has(Mode::is_proxied) || config.stats.listen.port() < FIRST_UNPRIVILEGED_PORT {
            by_modes |= CapabilitySet::NET_BIND_SERVICE;
        }
        if has(Mode::forwards_packets) {
            by_modes |= CapabilitySet::NET_RAW
                | CapabilitySet::NET_ADMIN
                | CapabilitySet::BPF
                | CapabilitySet::PERFMON;
            if !knows_bpf_capability() {
                // Before Linux 5.8 there is no CAP_BPF; these capabilities allow BPF.
                by_modes |= CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_RESOURCE;
            }
        }
        if config.announce.is_some() {
            by_modes |= CapabilitySet::NET_ADMIN;
        }
        Needed { by_modes, gains_none: config.privileges.no_new_privileges }
    }

    /// Capabilities that the configured modes need.
    pub(super) fn by_modes(self) -> CapabilitySet {
        self.by_modes
    }

    /// Drops all capabilities that are not needed, from this thread and from the threads that it
    /// starts. Returns the names of the capabilities that remain.
    ///
    /// # Errors
    /// The thread keeps more capabilities than needed: operator-facing reason.
    pub(super) fn keep(self) -> Result<String, String> {
        let wanted = self.by_modes | if User::is_root() { OF_ROOT } else { HELD_BACK };
        let has_more =
            |error: Errno| format!("cannot drop capabilities that convey's modes do not need: {error}");
        let sets = capabilities(None).map_err(has_more)?;
        let bounded = bound(wanted);
        let held = sets.permitted & wanted;
        // `capset` also removes capabilities from the ambient set if these sets lack them.
        let kept = CapabilitySets {
            effective: held - HELD_BACK,
            permitted: held,
            inheritable: sets.inheritable & wanted,
        };
        set_capabilities(None, kept).map_err(has_more)?;
        match bounded {
            Err(error) if !self.gains_none => {
                Err(format!("cannot restrict the capabilities of programs that convey starts: {error}"))
            }
            _ => Ok(names(held)),
        }
    }
}

/// Capabilities that root keeps in addition to those of the modes. They give access to files of
/// other users, to socket buffers beyond `net.core.rmem_max`, to state that killed processes left
/// behind, and to pipes beyond `fs.pipe-user-pages-soft`.
const OF_ROOT: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::SYS_RESOURCE);

/// Capability to read certificates and keys of root. convey keeps it permitted, and makes it
/// effective only while it reads these files.
const HELD_BACK: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Limits the capabilities of programs that convey starts to the `wanted` ones.
pub(super) fn bound(wanted: CapabilitySet) -> Result<(), Errno> {
    for other in CapabilitySet::all().difference(wanted).iter() {
        match remove_capability_from_bounding_set(other) {
            // The kernel does not know this capability, so there is nothing to drop.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Names of capabilities in the notation of `getpcaps`.
pub(super) fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if names.is_empty() { "no capabilities".to_owned() } else { names.join(", ") }
}

/// Parses a list of capabilities in systemd's notation: `cap_net_raw cap_bpf`. Skips unknown names.
pub(super) fn parse(list: &str) -> CapabilitySet {
    let named = |word: &str| CapabilitySet::from_name(word.strip_prefix("cap_")?.to_uppercase().as_str());
    list.split_whitespace().filter_map(named).collect()
}

fn knows_bpf_capability() -> bool {
    rustix::thread::capability_is_in_bounding_set(CapabilitySet::BPF).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(text: &str) -> String {
        let text = format!("{text}\n[backends.a]\nservers.a.addr = '10.0.0.2:80'\n");
        names(Needed::by(&convey_config::parse("c.toml", &text).unwrap().config).by_modes())
    }

    #[test]
    fn each_mode_needs_its_own() {
        let web = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'a' }";
        let packets = "CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF";
        assert_eq!(needed(web), "CAP_NET_BIND_SERVICE");
        assert_eq!(needed(&format!("announce = {{}}\n{web}")), "CAP_NET_BIND_SERVICE, CAP_NET_ADMIN");
        assert_eq!(needed(&format!("mode = 'passthrough'\n{web}")), packets);
        let low = format!("mode = 'passthrough'\nstats.port = 70\n{web}");
        assert_eq!(needed(&low), packets.replace("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE, CAP_NET_ADMIN"));
    }

    #[test]
    fn capabilities_have_the_names_that_an_operator_knows() {
        assert_eq!(names(CapabilitySet::empty()), "no capabilities");
        assert_eq!(names(CapabilitySet::NET_RAW | CapabilitySet::BPF), "CAP_NET_RAW, CAP_BPF");
    }
}
