//! Finds the process that owns a socket: its id, its name, and whether it is ending.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use rustix::process::Signal;

/// Maximum number of file descriptors of other processes to read. Reading this many takes a tenth
/// of a second.
const MAX_LOOKS: usize = 50_000;

/// Flag of a task that is ending (`PF_EXITING` of Linux).
const EXITING: u64 = 4;

/// Process that owns a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SocketOwner {
    pub(super) number: u32,
    pub(super) name: String,
}

impl SocketOwner {
    /// Process that owns one of the sockets with these inodes. `None` if this user may not see it.
    pub(super) fn of(inodes: &[u64]) -> Option<SocketOwner> {
        SocketOwner::of_each(inodes).into_values().next()
    }

    /// Owners of the sockets with these inodes, by inode. The result omits sockets of processes
    /// that this user may not see.
    pub(super) fn of_each(inodes: &[u64]) -> BTreeMap<u64, SocketOwner> {
        let mut wanted: HashSet<u64> = inodes.iter().copied().collect();
        let mut found = BTreeMap::new();
        let Ok(processes) = fs::read_dir("/proc") else { return found };
        let mut looks = 0;
        for process in processes.flatten() {
            if wanted.is_empty() {
                break;
            }
            let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
            for descriptor in descriptors.flatten() {
                looks += 1;
                if looks > MAX_LOOKS {
                    return found;
                }
                let Some(inode) = inode(&descriptor.path()).filter(|inode| wanted.remove(inode)) else {
                    continue;
                };
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.insert(inode, SocketOwner { number, name: name.trim().to_owned() });
            }
        }
        found
    }

    /// Whether the process was killed or is exiting, so that its sockets will close soon.
    pub(super) fn is_ending(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.number));
        stat.map_or(true, |stat| is_ending(&stat))
    }
}

impl std::fmt::Display for SocketOwner {
    /// Formats as `nginx (process 123)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (process {})", self.name, self.number)
    }
}

/// Whether `/proc/PID/stat` describes a process that is ending: a zombie, an exiting process, or
/// one with a pending `SIGKILL`.
fn is_ending(stat: &str) -> bool {
    // The second field is the name in parentheses, which may contain any byte.
    let Some((_, after_name)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Fields are numbered as in proc(5). `fields` begins with the state, which is field 3.
    let number = |n: usize| fields.get(n - 3).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let is_dead = matches!(fields.first(), Some(&"Z" | &"X"));
    is_dead || number(9) & EXITING != 0 || number(31) & (1 << (Signal::KILL.as_raw() - 1)) != 0
}

/// Inode of the socket behind a descriptor. `None` if the descriptor is not a socket.
fn inode(descriptor: &Path) -> Option<u64> {
    let target = fs::read_link(descriptor).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_processes_are_known_by_state_flags_and_pending_signals() {
        let stat = |state: &str, flags: u64, pending: u64| {
            let middle = vec!["0"; 21].join(" ");
            format!("12 (a) Z 4) {state} 1 1 1 0 -1 {flags} {middle} {pending} 0 0 0\n")
        };
        for (expected, stat) in [
            (false, stat("S", 0x40_0000, 0)),
            (false, stat("R", 0, 1 << 14)),
            (true, stat("Z", 0, 0)),
            (true, stat("D", 0x40_0004, 0)),
            (true, stat("R", 0, 1 << 8)),
            (false, "12".to_owned()),
        ] {
            assert_eq!(is_ending(&stat), expected, "{stat}");
        }
        let own = SocketOwner { number: std::process::id(), name: String::new() };
        assert!(!own.is_ending());
    }
}
