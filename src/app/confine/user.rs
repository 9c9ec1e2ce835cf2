//! Unprivileged user that convey switches to, with the capabilities that its modes need.

use std::ffi::CString;
use std::io;

use anyhow::Context;
use convey_dataplane::net::ReservedPorts;
use nix::unistd::{Gid, Uid, getgrouplist};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::capability::bound;
use crate::app::state_folder::FileOwner;

/// A user of this host.
#[derive(Debug, Clone)]
pub(super) struct User {
    uid: Uid,
    gid: Gid,
    /// All groups of the user. The primary group is first.
    groups: Vec<Gid>,
}

impl User {
    /// Finds the user with this name or number. A number that the host does not list is accepted
    /// with a group of the same number, as in a container without a list of users.
    pub(super) fn find(name: &str) -> Result<User, String> {
        let number = name.parse().ok().map(Uid::from_raw);
        let found = match number {
            Some(uid) => nix::unistd::User::from_uid(uid),
            None => nix::unistd::User::from_name(name),
        };
        match (found, number) {
            (Ok(Some(user)), _) => {
                let groups = CString::new(user.name).ok().and_then(|name| getgrouplist(&name, user.gid).ok());
                Ok(User { uid: user.uid, gid: user.gid, groups: groups.unwrap_or_else(|| vec![user.gid]) })
            }
            (_, Some(uid)) => {
                let gid = Gid::from_raw(uid.as_raw());
                Ok(User { uid, gid, groups: vec![gid] })
            }
            (Ok(None), None) => Err(format!(
                "there is no user {name} (privileges.user); `useradd --system {name}` creates it, as does the Debian package"
            )),
            (Err(error), None) => Err(format!("cannot look for the user {name} (privileges.user): {error}")),
        }
    }

    /// Owner of the files that this user creates: the user and its primary group.
    pub(super) fn owner(&self) -> FileOwner {
        FileOwner { uid: self.uid.as_raw(), gid: self.gid.as_raw() }
    }

    pub(super) fn is_current(&self) -> bool {
        Uid::current() == self.uid && Uid::effective() == self.uid
    }

    pub(super) fn is_root() -> bool {
        Uid::effective().is_root()
    }

    /// Creates the folders for this user that only root can create.
    pub(super) fn prepare(&self) -> io::Result<()> {
        ReservedPorts::prepare_for(self.uid.as_raw(), self.gid.as_raw())
    }

    /// Switches this thread, and the threads that it starts, permanently to this user. Only the
    /// capabilities in `needed` remain; programs that convey starts (`nft`, `ip`) get them too.
    /// Returns the needed capabilities that root had. In a container, some may be missing.
    pub(super) fn become_it(&self, needed: CapabilitySet) -> anyhow::Result<CapabilitySet> {
        let held = capabilities(None)?.permitted & needed;
        // Without CAP_SETPCAP the bounding set stays as it is. Programs then still gain no more
        // than root had.
        let _ = bound(needed);
        let (uid, gid) = (rustix::thread::Uid::from_raw(self.uid.as_raw()), group(self.gid));
        let groups: Vec<_> = self.groups.iter().copied().map(group).collect();
        set_keep_capabilities(true)?;
        set_thread_groups(&groups).context("cannot set its groups (CAP_SETGID)")?;
        set_thread_res_gid(gid, gid, gid).context("cannot set its group (CAP_SETGID)")?;
        set_thread_res_uid(uid, uid, uid).context("cannot set the user ID (CAP_SETUID)")?;
        set_keep_capabilities(false)?;
        set_capabilities(None, CapabilitySets { effective: held, permitted: held, inheritable: held })?;
        for one in held.iter() {
            configure_capability_in_ambient_set(one, true)?;
        }
        Ok(held)
    }
}

fn group(gid: Gid) -> rustix::thread::Gid {
    rustix::thread::Gid::from_raw(gid.as_raw())
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
    fn a_user_has_all_its_groups() {
        assert!(User::find("root").unwrap().groups.contains(&Gid::from_raw(0)));
        assert_eq!(User::find("654321").unwrap().groups, [Gid::from_raw(654_321)]);
    }
}
