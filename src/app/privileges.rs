//! Privileges that the packet modes need on this host.

use anyhow::bail;
use rustix::thread::{CapabilitySet, capabilities};

/// Fails if a privilege is missing. The error lists all needed privileges in one line, before the
/// kernel refuses the first step.
pub(super) fn check() -> anyhow::Result<()> {
    match missing(capabilities(None)?.effective) {
        Some(missing) => bail!("{missing}"),
        None => Ok(()),
    }
}

fn missing(held: CapabilitySet) -> Option<String> {
    let needed = [("CAP_NET_RAW", CapabilitySet::NET_RAW), ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN)];
    let lacking: Vec<&str> =
        needed.iter().filter(|(_, one)| !held.contains(*one)).map(|(name, _)| *name).collect();
    (!lacking.is_empty()).then(|| {
        format!(
            "this process lacks {}, which packet modes need (and CAP_BPF and CAP_PERFMON, to forward in the kernel): run convey as root \
             (sudo), or grant them (with the Debian package: /usr/share/convey/systemd/packet-modes.conf)",
            lacking.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_privileges_are_listed_in_one_line() {
        let admin = CapabilitySet::NET_ADMIN;
        assert_eq!(missing(admin | CapabilitySet::NET_RAW), None);
        let said = missing(admin).unwrap();
        assert!(
            said.starts_with("this process lacks CAP_NET_RAW, which packet modes need (and CAP_BPF and"),
            "{said}"
        );
        assert!(missing(CapabilitySet::empty()).unwrap().contains("CAP_NET_RAW and CAP_NET_ADMIN, which"));
    }
}
