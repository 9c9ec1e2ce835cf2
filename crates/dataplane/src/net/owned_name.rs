//! Names that only one process in a network namespace may own.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use log::warn;
use rustix::process::geteuid;

use super::lineage::{Lineage, THIS};
use super::packet_sockets::capturing;
use super::unix_sockets::{UnixSocket, named};

/// Name that this process owns in its network namespace. The process owns it until this value is
/// dropped or the process ends, however it ends.
///
/// The process binds the name as an abstract Unix socket (unix(7)). Any process can bind any socket
/// name. So each process appends a unique number to the name, binds the result, and then searches
/// for other sockets with the same name. Such a socket counts only if it belongs to root, to this
/// process's user, or to a user who captures packets, which requires privileges.
#[derive(Debug)]
pub struct OwnedName {
    _socket: UnixDatagram,
}

/// Failure to take ownership of names.
#[derive(Debug)]
pub struct NotOwned {
    /// Index of the refused name in the request.
    pub which: usize,
    /// Error of the attempt; `AddrInUse` if another process owns the name.
    pub error: io::Error,
    /// Inode of the owner's socket; `None` if the kernel does not list sockets.
    pub holder: Option<u64>,
}

impl OwnedName {
    /// Takes ownership of a name.
    ///
    /// # Errors
    /// `AddrInUse` if a process of root, of this user or of a user who captures packets owns the
    /// name, or takes it at the same time.
    pub fn take(name: impl Display) -> io::Result<OwnedName> {
        let mut owned = OwnedName::take_all(&[name]).map_err(|refused| refused.error)?;
        owned.pop().ok_or_else(|| unreachable!("one was taken"))
    }

    /// Takes ownership of all these names. On error, none of them stays owned.
    pub fn take_all(names: &[impl Display]) -> Result<Vec<OwnedName>, NotOwned> {
        OwnedName::take_all_but(names, None, named)
    }

    /// Takes ownership of all these names, even if processes of the same [`lineage`] own some of
    /// them. On error, none of them stays owned.
    ///
    /// [`lineage`]: super::lineage::lineage
    pub fn take_all_in_lineage(names: &[impl Display]) -> Result<Vec<OwnedName>, NotOwned> {
        OwnedName::take_all_but(names, Some(&THIS), named)
    }

    /// Takes ownership of all names, unless a process outside of the lineage `but` owns one of the
    /// names. `list` returns the sockets whose names begin with a prefix.
    fn take_all_but(
        names: &[impl Display],
        but: Option<&Lineage>,
        list: fn(&[u8]) -> io::Result<Vec<UnixSocket>>,
    ) -> Result<Vec<OwnedName>, NotOwned> {
        let names: Vec<String> = names.iter().map(|name| format!("convey {name}")).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let refused = |which| move |error| NotOwned { which, error, holder: None };
        let mut owned = Vec::new();
        for (which, name) in names.iter().enumerate() {
            owned.push(OwnedName::numbered(name).map_err(refused(which))?);
        }
        // If sockets cannot be listed, bind the plain names, which only one process can have, also
        // in an upgrade.
        let Ok(others) = list(b"\0convey ") else { return alone(&names) };
        // There may be tens of thousands of sockets, one for each port of a range.
        let ours: HashSet<&[u8]> = owned.iter().map(|(_, full)| full.as_bytes()).collect();
        let wanted: HashMap<&[u8], usize> =
            names.iter().enumerate().map(|(which, name)| (name.as_bytes(), which)).collect();
        // Our names must be bound before the users are read: a process that starts later finds our
        // names.
        let capturing = capturing().unwrap_or_default();
        let mut foreign_owners = ForeignOwners::default();
        for socket in others.iter().filter(|socket| !ours.contains(&socket.name[1..])) {
            let Some(&which) = wanted.get(without_number(&socket.name[1..])) else { continue };
            if but.is_some_and(|lineage| lineage.has(lineage_of(&socket.name[1..]))) {
                continue;
            }
            match socket.uid {
                Some(uid) if is_foreign_user(uid) && !capturing.contains(&uid) => {
                    foreign_owners.add(uid, &names[which])
                }
                _ => return Err(NotOwned { which, error: taken(), holder: Some(socket.inode) }),
            }
        }
        foreign_owners.log_foreign_users();
        Ok(owned.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns the number (uid) of a user who owns the name and is neither root nor this process's
    /// user. `None` if there is no such user, or the kernel does not report users.
    ///
    /// The owner may be an impostor, so callers respect the owner only if that has no disadvantage.
    pub fn foreign_owner(name: impl Display) -> Option<u32> {
        let name = format!("convey {name}");
        let sockets = named(b"\0convey ").ok()?;
        let mut users =
            sockets.iter().filter(|socket| is_of(&socket.name[1..], &name)).filter_map(|socket| socket.uid);
        users.find(|uid| is_foreign_user(*uid))
    }

    /// Binds a name that several processes may share.
    ///
    /// # Errors
    /// If the kernel refuses the name.
    pub fn shared(name: impl Display) -> io::Result<OwnedName> {
        OwnedName::numbered(&format!("convey {name}")).map(|(name, _)| name)
    }

    /// Binds `name` with a unique number; returns the full name, too.
    fn numbered(name: &str) -> io::Result<(OwnedName, String)> {
        let full = format!("{name} #{:016x}{:016x}", THIS.number(), convey_random::secret_u64());
        Ok((OwnedName::bound(&full)?, full))
    }

    fn bound(name: &str) -> io::Result<OwnedName> {
        Ok(OwnedName { _socket: UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)? })
    }
}

/// Names that the processes of all users own in this network namespace.
///
/// Any process can bind a name. So an entry does not prevent other processes from owning the name.
/// But convey does not remove resources (such as addresses) while their name has an owner.
#[derive(Debug, Default)]
pub struct OwnedNames(HashMap<Vec<u8>, Vec<u64>>);

impl OwnedNames {
    /// Reads all owned names, including the names of this process.
    ///
    /// # Errors
    /// If the kernel does not list sockets.
    pub fn read() -> io::Result<OwnedNames> {
        let sockets = named(b"\0convey ")?;
        let mut names: HashMap<Vec<u8>, Vec<u64>> = HashMap::new();
        for socket in sockets {
            names.entry(without_number(&socket.name[1..]).to_vec()).or_default().push(socket.inode);
        }
        Ok(OwnedNames(names))
    }

    /// Inodes of all sockets that hold an owned name.
    pub fn inodes(&self) -> Vec<u64> {
        self.0.values().flatten().copied().collect()
    }

    /// Inodes of the sockets that hold this name.
    pub fn inodes_of(&self, name: &str) -> &[u64] {
        self.0.get(format!("convey {name}").as_bytes()).map_or(&[], |inodes| inodes)
    }

    /// Whether a process owns this name.
    pub fn contains(&self, name: &str) -> bool {
        !self.inodes_of(name).is_empty()
    }
}

/// Binds the names without a number, which only one process can bind.
fn alone(names: &[String]) -> Result<Vec<OwnedName>, NotOwned> {
    let take = |(which, name): (usize, &String)| {
        OwnedName::bound(name).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => NotOwned { which, error: taken(), holder: None },
            _ => NotOwned { which, error, holder: None },
        })
    };
    names.iter().enumerate().map(take).collect()
}

/// Socket name without its number.
fn without_number(socket: &[u8]) -> &[u8] {
    let number = socket.windows(2).position(|two| two == b" #");
    &socket[..number.unwrap_or(socket.len())]
}

/// Lineage of the process that bound a name; 0 if its version has no lineages.
fn lineage_of(socket: &[u8]) -> u64 {
    let number = socket.get(without_number(socket).len() + 2..).unwrap_or_default();
    let lineage = number.get(..16).filter(|_| number.len() == 32);
    lineage.and_then(|hex| u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()).unwrap_or(0)
}

/// Whether the socket's name is `name`: with a number, or without a number as in older versions.
fn is_of(socket: &[u8], name: &str) -> bool {
    let rest = socket.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b" #"))
}

fn is_foreign_user(uid: u32) -> bool {
    uid != 0 && uid != geteuid().as_raw()
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, format!("{TAKEN} (`sudo ss -xap | grep @convey` shows which)"))
}

/// Error text for a name that another process owns.
pub const TAKEN: &str = "another process on this host already does this";

/// Users whose names do not count. Otherwise any user could bind names to keep convey from
/// starting.
#[derive(Default)]
struct ForeignOwners(Option<(u32, String, usize)>);

impl ForeignOwners {
    fn add(&mut self, uid: u32, name: &str) {
        let (_, _, count) = self.0.get_or_insert_with(|| (uid, name.to_owned(), 0));
        *count += 1;
    }

    fn log_foreign_users(&self) {
        if let Some((uid, name, count)) = &self.0 {
            warn!(
                "user {uid} has bound `@{name}`, the name of a process that forwards this traffic, but captures no packets: convey \
                 ignores the sockets of this user ({count})"
            );
        }
    }
}

impl fmt::Display for NotOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for NotOwned {}

#[cfg(test)]
mod tests {
    use super::super::lineage::lineage;
    use super::super::unix_sockets::by_file;
    use super::*;

    #[test]
    fn owned_name_is_free_again_after_drop() {
        let name = format!("test {}", std::process::id());
        let owned = OwnedName::take(&name).unwrap();
        let error = OwnedName::take(&name).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().starts_with(TAKEN), "{error}");
        let _other = OwnedName::take(format!("{name} b")).unwrap();
        drop(owned);
        assert!(!OwnedNames::read().unwrap().contains(&name));
        let _again = OwnedName::take(&name).unwrap();
        assert!(OwnedNames::read().unwrap().contains(&name));
    }

    #[test]
    fn owned_names_are_taken_all_or_none() {
        let [a, b] = ["a", "b"].map(|name| format!("test of all {} {name}", std::process::id()));
        let held = OwnedName::take(&b).unwrap();
        assert_eq!(OwnedName::take_all(&[&a, &b]).unwrap_err().which, 1);
        drop(held);
        assert_eq!(OwnedName::take_all(&[&a, &b]).unwrap().len(), 2);
    }

    #[test]
    fn a_name_without_a_number_counts_too() {
        let name = format!("test of the old {}", std::process::id());
        let _old = OwnedName::bound(&format!("convey {name}")).unwrap();
        assert_eq!(OwnedName::take(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(is_of(b"convey 10.0.0.1:80 #12", "convey 10.0.0.1:80"));
        assert!(!is_of(b"convey 10.0.0.1:8080 #12", "convey 10.0.0.1:80"));
    }

    #[test]
    fn lineage_shares_its_names_with_no_other_process() {
        let name = format!("test of a lineage {}", std::process::id());
        let of_lineage = OwnedName::take(&name).unwrap();
        let again = OwnedName::take_all_in_lineage(&[&name]).unwrap();
        assert!(OwnedName::take(&name).is_err());
        drop((of_lineage, again));
        for other in [format!("#{:016x}{:016x}", lineage() ^ 1, 7), format!("#{:016x}", 7), String::new()] {
            let third = OwnedName::bound(format!("convey {name} {other}").trim()).unwrap();
            let refused = OwnedName::take_all_in_lineage(&[&name]).unwrap_err();
            assert_eq!(refused.error.kind(), io::ErrorKind::AddrInUse, "{other}");
            let inodes = OwnedNames::read().unwrap().inodes_of(&name).to_vec();
            assert_eq!(refused.holder.into_iter().collect::<Vec<_>>(), inodes, "{other}");
            drop(third);
        }
    }

    #[test]
    fn second_process_is_refused_where_no_list_of_sockets_can_be_read() {
        let [a, b] = ["a", "b"].map(|name| format!("test without a list {} {name}", std::process::id()));
        let no_list = |_: &[u8]| Err(io::ErrorKind::NotFound.into());
        for lineage in [None, Some(&THIS)] {
            let take = |names: &[&String]| OwnedName::take_all_but(names, lineage, no_list);
            let first = take(&[&b]).unwrap();
            let refused = take(&[&a, &b]).unwrap_err();
            assert_eq!((refused.which, refused.error.kind()), (1, io::ErrorKind::AddrInUse));
            assert!(OwnedName::take(&b).is_err(), "the name counts for processes that can read a list");
            drop(first);
            assert_eq!(take(&[&a, &b]).unwrap().len(), 2);
        }
    }

    #[test]
    fn names_of_other_lineages_are_refused_without_sock_diag() {
        let name = format!("test without sock_diag {}", std::process::id());
        let take = |lineage| OwnedName::take_all_but(&[&name], lineage, by_file);
        let first = take(None).unwrap();
        let inodes = OwnedNames::read().unwrap().inodes_of(&name).to_vec();
        let third = Lineage::of(lineage() ^ 1);
        for other in [None, Some(&third)] {
            let refused = take(other).unwrap_err();
            assert_eq!(refused.error.kind(), io::ErrorKind::AddrInUse);
            assert_eq!(refused.holder.into_iter().collect::<Vec<_>>(), inodes);
        }
        let _successor = take(Some(&THIS)).unwrap();
        drop(first);
    }

    #[test]
    fn names_without_a_lineage_are_taken_only_from_a_predecessor_without_one() {
        let name = format!("test of two lineages {}", std::process::id());
        let take = |lineage: &Lineage| OwnedName::take_all_but(&[&name], Some(lineage), named);
        for old in [format!("#{:016x}", 7), format!("#{:016x}{:016x}", 0, 7), String::new()] {
            let _old = OwnedName::bound(format!("convey {name} {old}").trim()).unwrap();
            let [successor, other] = [Lineage::new(), Lineage::of(9)];
            successor.inherit(0);
            take(&successor).unwrap();
            assert!(take(&other).is_err(), "{old}");
            successor.end_inheritance();
            assert!(take(&successor).is_err(), "{old}");
        }
    }

    #[test]
    fn lineage_of_a_name_is_the_first_half_of_its_number() {
        let name = "convey 10.0.0.1:80 #00000000000000ff0123456789abcdef";
        assert_eq!(lineage_of(name.as_bytes()), 0xff);
        for old in ["convey 10.0.0.1:80 #0123456789abcdef", "convey 10.0.0.1:80", "convey #", ""] {
            assert_eq!(lineage_of(old.as_bytes()), 0, "{old}");
        }
    }
}
