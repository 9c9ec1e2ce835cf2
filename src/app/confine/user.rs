//! Another user than root, with the capabilities that convey's modes need.

use anyhow::Context;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities,
};

use crate::config::Config;
use crate::model::Mode;
use crate::net::ReservedPorts;

/// A user of this host.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    uid: Uid,
    gid: Gid,
}

impl User {
    /// The user with this name, or with this number. A number that no user has is its own group, as in a container
    /// without a list of users.
    pub(super) fn find(name: &str) -> Result<User, String> {
        let number = name.parse().ok().map(Uid::from_raw);
        let found = match number {
            Some(uid) => nix::unistd::User::from_uid(uid),
            None => nix::unistd::User::from_name(name),
        };
        match (found, number) {
            (Ok(Some(user)), _) => Ok(User { uid: user.uid, gid: user.gid }),
            (_, Some(uid)) => Ok(User { uid, gid: Gid::from_raw(uid.as_raw()) }),
            (Ok(None), None) => Err(format!(
                "there is no user {name} (privileges.user); `useradd --system {name}` makes one, the Debian package does too"
            )),
            (Err(error), None) => Err(format!("cannot look for the user {name} (privileges.user): {error}")),
        }
    }

    pub(super) fn is_current(self) -> bool {
        Uid::current() == self.uid && Uid::effective() == self.uid
    }

    pub(super) fn is_root() -> bool {
        Uid::effective().is_root()
    }

    /// Becomes this user for good, with no capabilities but these. Programs that convey starts (`nft`, `ip`) have them, too.
    /// Returns those that root had, for in a container it may lack some.
    pub(super) fn become_it(self, needed: CapabilitySet) -> anyhow::Result<CapabilitySet> {
        let held = capabilities(None)?.permitted & needed;
        ReservedPorts::prepare_for(self.uid.as_raw(), self.gid.as_raw()).context("/run/convey")?;
        for other in CapabilitySet::all().difference(needed).iter() {
            // A kernel that does not know it has none to take away.
            let _ = remove_capability_from_bounding_set(other);
        }
        set_keep_capabilities(true)?;
        setgroups(&[self.gid]).context("its groups")?;
        setgid(self.gid).context("its group")?;
        setuid(self.uid)?;
        set_keep_capabilities(false)?;
        set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: held })?;
        for one in held.iter() {
            configure_capability_in_ambient_set(one, true)?;
        }
        Ok(held)
    }
}

/// The capabilities that the modes of a configuration need, now and after a reload.
pub(super) fn needed(config: &Config) -> CapabilitySet {
    let has = |kind: fn(Mode) -> bool| config.frontends_where(kind).next().is_some();
    let mut needed = CapabilitySet::empty();
    if has(Mode::is_proxied) {
        needed |= CapabilitySet::NET_BIND_SERVICE;
    }
    if has(Mode::forwards_packets) {
        needed |=
            CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON;
        if !knows_bpf_capability() {
            // Before Linux 5.8 BPF is among what only these allow.
            needed |= CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_RESOURCE;
        }
    }
    needed
}

/// As `getpcaps` writes them.
pub(super) fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if names.is_empty() { "no capabilities".to_owned() } else { names.join(", ") }
}

fn knows_bpf_capability() -> bool {
    rustix::thread::capability_is_in_bounding_set(CapabilitySet::BPF).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        assert_eq!(User::find("root").unwrap().uid, Uid::from_raw(0));
        assert_eq!(User::find("0").unwrap().gid, Gid::from_raw(0));
        let unknown = User::find("654321").unwrap();
        assert_eq!((unknown.uid.as_raw(), unknown.gid.as_raw()), (654_321, 654_321));
        let missing = User::find("nobody-has-this-name").unwrap_err();
        assert!(missing.starts_with("there is no user nobody-has-this-name (privileges.user)"), "{missing}");
    }

    #[test]
    fn capabilities_have_the_names_that_an_operator_knows() {
        assert_eq!(names(CapabilitySet::empty()), "no capabilities");
        assert_eq!(names(CapabilitySet::NET_RAW | CapabilitySet::BPF), "CAP_NET_RAW, CAP_BPF");
    }
}
