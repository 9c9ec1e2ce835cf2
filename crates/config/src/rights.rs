//! Rights to read files: a capability that convey raises only for certificates and keys, and
//! explanations of refusals by the kernel.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capability to read files of all users.
const READ_ALL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Advice if a certificate or a key of another user cannot be read.
const ADVICE: &str = "; with the Debian package, /usr/share/convey/systemd/certificates.conf lets the service read certificates and \
                      keys of root (docs/guides/tls.md)";

/// Explanation of a refusal by the kernel if the file's mode allows access: Linux also applies the
/// rules of security modules.
const BY_MODULE: &str = "the file mode permits access, but Landlock (privileges.landlock) or another security module \
                         refuses it. With landlock = true, convey reads only directories that the configuration named at the \
                         start: if this one is new, restart convey";

/// Maximum number of symbolic links followed to explain a refusal.
const MAX_LINKS: usize = 8;

/// Lowers `CAP_DAC_READ_SEARCH` in this thread, and in the threads that it starts later. Threads
/// that hold the capability may raise it again. Root keeps the capability, and reads all files
/// anyway.
///
/// # Errors
/// The kernel refuses.
pub fn lower_rights() -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let sets = capabilities(None)?;
    if sets.effective.contains(READ_ALL) {
        set_capabilities(None, CapabilitySets { effective: sets.effective - READ_ALL, ..sets })?;
    }
    Ok(())
}

/// Guard that holds `CAP_DAC_READ_SEARCH` in effect in this thread until it is dropped.
pub(crate) struct RaisedRights(CapabilitySets);

impl RaisedRights {
    /// Raises the capability; `None` if this thread does not hold it, or if it is in effect
    /// already.
    pub(crate) fn raise() -> Option<RaisedRights> {
        let sets = capabilities(None).ok()?;
        if !sets.permitted.contains(READ_ALL) || sets.effective.contains(READ_ALL) {
            return None;
        }
        set_capabilities(None, CapabilitySets { effective: sets.effective | READ_ALL, ..sets }).ok()?;
        Some(RaisedRights(sets))
    }
}

impl Drop for RaisedRights {
    fn drop(&mut self) {
        let _ = set_capabilities(None, self.0);
    }
}

/// A refusal because of the mode of a file or of a directory on its path.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RefusedByMode(String);

/// Reads a certificate or a key as the current user. If the kernel refuses access, the function
/// tries again with the capability raised.
pub(crate) fn with_rights<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let refused = match read() {
        Err(refused) if refused.kind() == ErrorKind::PermissionDenied => refused,
        done => return done,
    };
    if let Some(_raised) = RaisedRights::raise() {
        return read();
    }
    let is_by_mode = refused.get_ref().is_some_and(|error| error.is::<RefusedByMode>());
    Err(if is_by_mode { io::Error::new(refused.kind(), format!("{refused}{ADVICE}")) } else { refused })
}

/// Adds the reason to an error if the kernel refuses access to the file: a directory on its path,
/// its mode, or a security module.
pub(crate) fn explained(path: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(Errno::ACCESS.raw_os_error()) {
        return error;
    }
    let user = rustix::process::geteuid().as_raw();
    let why = match refusing_folder(path, MAX_LINKS) {
        Some(folder) => format!("user {user} may not enter {}", folder.display()),
        None if is_refused(path, Access::READ_OK) => format!("user {user} may not read it"),
        None => return io::Error::new(ErrorKind::PermissionDenied, format!("{error}: {BY_MODULE}")),
    };
    io::Error::new(ErrorKind::PermissionDenied, RefusedByMode(format!("{error}: {why}")))
}

/// First directory on the path to a file that this user may not enter; `None` if there is none.
fn refusing_folder(path: &Path, links: usize) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let mut folders: Vec<&Path> = absolute.ancestors().skip(1).collect();
    folders.reverse();
    if let Some(refusing) = folders.into_iter().find(|folder| is_refused(folder, Access::EXEC_OK)) {
        return Some(refusing.to_owned());
    }
    let target = absolute.read_link().ok()?;
    refusing_folder(&absolute.parent()?.join(target), links.checked_sub(1)?)
}

/// Whether the mode of a file or of a directory on its path refuses access. This check does not
/// cover Landlock.
fn is_refused(path: &Path, access: Access) -> bool {
    accessat(CWD, path, access, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;

    use rustix::thread::{Gid, Uid, set_keep_capabilities, set_thread_res_gid, set_thread_res_uid};

    use super::*;
    use crate::files;

    /// A file in a directory that only its owner may enter, and a link to the file: the layout of
    /// certbot.
    fn lab() -> (tempfile::TempDir, PathBuf) {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        for folder in ["archive", "live"] {
            fs::create_dir(at(folder)).unwrap();
        }
        fs::write(at("archive/key1.pem"), "key").unwrap();
        fs::set_permissions(at("archive/key1.pem"), Permissions::from_mode(0o600)).unwrap();
        symlink("../archive/key1.pem", at("live/key.pem")).unwrap();
        for (folder, mode) in [("archive", 0o700), ("live", 0o755), ("", 0o755)] {
            fs::set_permissions(at(folder), Permissions::from_mode(mode)).unwrap();
        }
        let link = at("live/key.pem");
        (lab, link)
    }

    /// Runs `act` as another user with these capabilities. Returns `None` unless the test runs as
    /// root.
    fn as_other<T: Send>(held: CapabilitySet, act: impl FnOnce() -> T + Send) -> Option<T> {
        rustix::process::geteuid().is_root().then(|| {
            let acted = thread::scope(|scope| {
                let other = scope.spawn(|| {
                    set_keep_capabilities(true).unwrap();
                    let (uid, gid) = (Uid::from_raw(65_533), Gid::from_raw(65_533));
                    set_thread_res_gid(gid, gid, gid).unwrap();
                    set_thread_res_uid(uid, uid, uid).unwrap();
                    let none = CapabilitySet::empty();
                    let sets = CapabilitySets { effective: held, permitted: held, inheritable: none };
                    set_capabilities(None, sets).unwrap();
                    act()
                });
                other.join()
            });
            acted.unwrap()
        })
    }

    #[test]
    fn refusal_names_the_folder_that_the_user_may_not_enter() {
        let (lab, link) = lab();
        let Some(refused) = as_other(CapabilitySet::empty(), || files::read_secret(&link)) else { return };
        let said = refused.unwrap_err().to_string();
        let folder = lab.path().join("live/../archive");
        let expected =
            format!("(os error 13): user 65533 may not enter {}; with the Debian", folder.display());
        assert!(said.contains(&expected), "{said}");
    }

    #[test]
    fn held_capability_reads_keys_and_nothing_else() {
        let (_lab, link) = lab();
        let read = as_other(READ_ALL, || {
            lower_rights().unwrap();
            let key = files::read_secret(&link).unwrap();
            let others = [files::read(&link).is_err(), capabilities(None).unwrap().effective.is_empty()];
            (key, files::read_certificates(&link).is_ok(), others)
        });
        let Some((key, certificates, others)) = read else { return };
        assert_eq!((key.as_slice(), certificates, others), (&b"key"[..], true, [true, true]));
    }
}
