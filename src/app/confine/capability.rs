//! Capabilities that convey's modes need; convey drops all others.
//!
//! Linux keeps capabilities per thread. The worker threads of proxy mode drop theirs when they
//! start.

use convey_config::Config;
use convey_model::Mode;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::user::User;

/// Ports below this one need a privilege, unless `net.ipv4.ip_unprivileged_port_start` sets another
/// limit.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// Capabilities that a configuration's modes need, now and after a reload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    by_modes: CapabilitySet,
    /// Whether programs that convey starts gain no privileges: then the bounding set makes no
    /// difference.
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

    /// The capabilities of the modes.
    pub(super) fn by_modes(self) -> CapabilitySet {
        self.by_modes
    }

    /// Drops all other capabilities from this thread and the threads that it starts. Returns the
    /// kept ones by name.
    ///
    /// # Errors
    /// Operator-facing reason why the thread keeps more.
    pub(super) fn keep(self) -> Result<String, String> {
        let wanted = self.by_modes | if User::is_root() { OF_ROOT } else { HELD_BACK };
        let has_more =
            |error: Errno| format!("cannot drop capabilities that convey's modes do not need: {error}");
        let sets = capabilities(None).map_err(has_more)?;
        let bounded = bound(wanted);
        let held = sets.permitted & wanted;
        // The kernel lowers the ambient set with these sets.
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

/// Further capabilities that root keeps: for files of other users, socket buffers beyond
/// `net.core.rmem_max`, state that killed processes left, and pipes beyond
/// `fs.pipe-user-pages-soft`.
const OF_ROOT: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::SYS_RESOURCE);

/// Capability with which a service may read root's certificates and keys. It is in effect only
/// while convey reads these.
const HELD_BACK: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Limits the capabilities of programs that convey starts to these.
pub(super) fn bound(wanted: CapabilitySet) -> Result<(), Errno> {
    for other in CapabilitySet::all().difference(wanted).iter() {
        match remove_capability_from_bounding_set(other) {
            // The kernel does not know this capability, so there is none to drop.
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

/// Capabilities from a list in systemd's notation: `cap_net_raw cap_bpf`.
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
