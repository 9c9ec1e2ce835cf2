//! Reservation of the SNAT ports in `ip_local_reserved_ports`, so that the kernel does not assign
//! these ports to the host's own connections.

mod divide;
mod records;

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use log::{info, warn};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use thiserror::Error;

use super::PortRanges;
use divide::divide;
use records::{PortRecord, PortRecords};

const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// File with the range of ports that the kernel assigns to connections.
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Directory of the records of added ports. It is empty after a reboot.
const DIRECTORY: &str = "/run/convey";

/// Reserved ports, which the kernel does not assign to the host's own connections. Dropping this
/// value releases the ports that this process added to the list of reserved ports. After a crash,
/// the next process that starts or stops in the same network namespace releases these ports.
#[derive(Debug)]
pub struct ReservedPorts {
    directory: PathBuf,
    added: Added,
}

/// Ports that this process has added to the reserved list.
#[derive(Debug)]
enum Added {
    /// Recorded in a file. When this process ends, other processes that need some of the ports take
    /// them over.
    Recorded(PortRecord),
    /// Not recorded, because the file cannot be written.
    Unrecorded(PortRanges),
}

/// Error: the ports cannot be reserved, and the kernel may assign some of them to the host's own
/// connections.
#[derive(Debug, Error)]
#[error(
    "the SNAT ports {wanted} cannot be reserved ({SYSCTL}: {source}), and this host's own connections may take {taken} \
     of them; to use them, reserve them outside of convey (`sysctl -w net.ipv4.ip_local_reserved_ports={wanted}`, for a container \
     `docker run --sysctl net.ipv4.ip_local_reserved_ports={wanted}`), or set passthrough.snat_ports to a range outside \
     of net.ipv4.ip_local_port_range ({first}-{last})",
    first = .ephemeral.start(),
    last = .ephemeral.end()
)]
pub struct NotReserved {
    wanted: PortRanges,
    taken: PortRanges,
    ephemeral: RangeInclusive<u16>,
    source: io::Error,
}

/// SNAT ports of a process.
#[derive(Debug)]
pub struct SnatPorts {
    /// Range of the ports.
    pub ports: RangeInclusive<u16>,
    /// Error because of which `ports` are not the requested ports; `None` if they are.
    pub instead_of: Option<NotReserved>,
}

/// Minimum number of ports in a range that replaces the requested range. If fewer ports were
/// requested, that number is the minimum.
const FEW: u16 = 1024;

/// Lowest port that a process can bind without privileges.
const FIRST_UNPRIVILEGED: u16 = 1024;

impl ReservedPorts {
    /// Adds the ports to the reserved ports of this network namespace.
    ///
    /// # Errors
    /// If the ports cannot be reserved, and the kernel may assign some of them to connections.
    pub fn add(ports: RangeInclusive<u16>) -> Result<ReservedPorts, NotReserved> {
        ReservedPorts::recorded_in(&records::directory(Path::new(DIRECTORY)), ports)
    }

    /// Like [`ReservedPorts::add`], with the records in another directory.
    ///
    /// # Errors
    /// As [`ReservedPorts::add`].
    pub fn recorded_in(directory: &Path, ports: RangeInclusive<u16>) -> Result<ReservedPorts, NotReserved> {
        let wanted = PortRanges::from(ports);
        let added = match PortRecords::open(directory) {
            Ok(records) => add_recorded(records, &wanted),
            Err(error) => {
                log_unrecorded(directory, &error);
                add_unrecorded(&wanted)
            }
        };
        let added = added.or_else(|source| {
            tolerate(&wanted, source)?;
            info!(
                "the SNAT ports {wanted} are not reserved and need not be: they are outside of net.ipv4.ip_local_port_range"
            );
            Ok(Added::Unrecorded(PortRanges::default()))
        })?;
        Ok(ReservedPorts { directory: directory.to_owned(), added })
    }

    /// Chooses the SNAT ports: the requested ones or, if these cannot be reserved, ports outside
    /// the range that the kernel assigns. The check only reads files, and changes nothing.
    ///
    /// # Errors
    /// If there are too few ports outside that range.
    pub fn choose(wanted: RangeInclusive<u16>) -> Result<SnatPorts, NotReserved> {
        let error = match check_reserved(&PortRanges::from(wanted.clone())) {
            Ok(()) => return Ok(SnatPorts { ports: wanted, instead_of: None }),
            Err(error) => error,
        };
        match outside(&error.ephemeral, wanted.len()) {
            Some(ports) => Ok(SnatPorts { ports, instead_of: Some(error) }),
            None => Err(error),
        }
    }

    /// Creates a directory for the records of another user. Root calls this before it switches to
    /// that user.
    ///
    /// # Errors
    /// If the directory cannot be created, or its owner cannot be changed.
    pub fn prepare_for(user: u32, group: u32) -> io::Result<()> {
        records::prepare_for(Path::new(DIRECTORY), user, group)
    }

    /// Creates the directory of the records, unless it exists.
    ///
    /// # Errors
    /// If this user may not create it.
    pub fn make_directory() -> io::Result<()> {
        records::make(Path::new(DIRECTORY))
    }

    /// Releases ports that killed processes added in this network namespace, and logs them. To be
    /// called by processes that need no ports.
    pub fn release_stale() {
        match ReservedPorts::clear_stale() {
            Ok(given_back) if given_back.is_empty() => {}
            Ok(given_back) => info!("released the reserved ports {given_back} of a killed convey"),
            // A proxy runs without these privileges, so this is not worth a log line.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => warn!("ports that a killed convey added to {SYSCTL} stay reserved: {error}"),
        }
    }

    /// Releases ports that killed processes of this user added in this network namespace. Returns
    /// these ports.
    ///
    /// # Errors
    /// If the records cannot be read, or the list cannot be written.
    pub fn clear_stale() -> io::Result<PortRanges> {
        clear_stale(&records::directory(Path::new(DIRECTORY)))
    }
}

impl Drop for ReservedPorts {
    fn drop(&mut self) {
        let restored = match &self.added {
            Added::Recorded(record) => {
                PortRecords::open(&self.directory).and_then(|records| remove_recorded(records, record))
            }
            Added::Unrecorded(added) if added.is_empty() => Ok(()),
            Added::Unrecorded(added) => read().and_then(|now| change(&now, &now.without(added))),
        };
        if let Err(error) = restored {
            warn!("ports that convey added to {SYSCTL} stay reserved: {error}");
        }
    }
}

/// Reserves ports, and records the ports that were added. Fails if the kernel refuses the ports.
fn add_recorded(mut records: PortRecords, wanted: &PortRanges) -> io::Result<Added> {
    let now = read()?;
    let divided = divide(&now, &records.orphans(&now), wanted, &records.wanted());
    // Write the record first: if this process is killed before it changes the list, the record has
    // no effect.
    let record = match records.create(wanted, &divided.added) {
        Ok(record) => record,
        Err(error) => {
            log_unrecorded(records.directory(), &error);
            return add_unrecorded(wanted);
        }
    };
    if let Err(error) = change(&now, &divided.list) {
        record.remove();
        // If the list contains all wanted ports already, the error is harmless: the list only keeps
        // ports that other processes should have released.
        return if wanted.without(&now).is_empty() { add_unrecorded(wanted) } else { Err(error) };
    }
    if let Err(error) = records.pass_on_ports(&divided.handed) {
        log_unrecorded(records.directory(), &error);
    }
    Ok(Added::Recorded(record))
}

fn log_unrecorded(directory: &Path, error: &io::Error) {
    let directory = directory.display();
    warn!(
        "cannot record reserved ports in {directory}: {error}; if convey is killed, they may stay in {SYSCTL}"
    );
}

fn add_unrecorded(wanted: &PortRanges) -> io::Result<Added> {
    let now = read()?;
    let added = wanted.without(&now);
    change(&now, &now.with(&added))?;
    Ok(Added::Unrecorded(added))
}

fn remove_recorded(mut records: PortRecords, own: &PortRecord) -> io::Result<()> {
    records.abandon(own)?;
    let now = read()?;
    let divided = divide(&now, &records.orphans(&now), &PortRanges::default(), &records.wanted());
    change(&now, &divided.list)?;
    records.pass_on_ports(&divided.handed)
}

fn clear_stale(directory: &Path) -> io::Result<PortRanges> {
    match fs::symlink_metadata(directory) {
        // There are no records, or only records of another user, who must release these ports.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PortRanges::default()),
        Ok(metadata) if metadata.uid() != geteuid().as_raw() => return Ok(PortRanges::default()),
        _ => {}
    }
    let mut records = PortRecords::open(directory)?;
    let now = read()?;
    let orphans = records.orphans(&now);
    if orphans.is_empty() {
        return Ok(PortRanges::default());
    }
    let divided = divide(&now, &orphans, &PortRanges::default(), &records.wanted());
    change(&now, &divided.list)?;
    records.pass_on_ports(&divided.handed)?;
    Ok(now.without(&divided.list))
}

/// Returns an error if these ports must be reserved but cannot be reserved.
fn check_reserved(wanted: &PortRanges) -> Result<(), NotReserved> {
    if wanted.without(&read().unwrap_or_default()).is_empty() {
        return Ok(());
    }
    match OpenOptions::new().write(true).open(SYSCTL) {
        Ok(_) => Ok(()),
        // Without CAP_NET_ADMIN the result is unknown: the user who starts convey may have this
        // privilege.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !may_configure() => Ok(()),
        Err(error) => tolerate(wanted, error),
    }
}

/// Whether this process has CAP_NET_ADMIN, and so may change settings of its network namespace
/// unless other restrictions apply.
fn may_configure() -> bool {
    capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Chooses `count` ports next to the range that the kernel assigns: below it if they fit, otherwise
/// above it, otherwise all ports on the larger side. `None` if these are too few.
fn outside(ephemeral: &RangeInclusive<u16>, count: usize) -> Option<RangeInclusive<u16>> {
    let (below, above) = (
        FIRST_UNPRIVILEGED..*ephemeral.start(),
        ephemeral.end().checked_add(1).map(|first| first..=u16::MAX),
    );
    let (room_below, room_above) = (below.len().min(count), above.map_or(0, |above| above.len().min(count)));
    let room = room_below.max(room_above);
    // The conversion cannot lose digits: there are at most 65,535 ports.
    let size = room as u16;
    if room == 0 || room < count.min(FEW.into()) {
        return None;
    }
    Some(match room_below >= room_above {
        true => below.end - size..=below.end - 1,
        false => ephemeral.end() + 1..=ephemeral.end() + size,
    })
}

/// Returns the error `source` if the kernel may assign some of these ports to connections.
fn tolerate(wanted: &PortRanges, source: io::Error) -> Result<(), NotReserved> {
    let ephemeral = ephemeral();
    let missing = wanted.without(&read().unwrap_or_default());
    let taken = missing.within(&PortRanges::from(ephemeral.clone()));
    match taken.is_empty() {
        true => Ok(()),
        false => Err(NotReserved { wanted: wanted.clone(), taken, ephemeral, source }),
    }
}

fn ephemeral() -> RangeInclusive<u16> {
    let range = || {
        let text = fs::read_to_string(EPHEMERAL).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some(numbers.next()??..=numbers.next()??)
    };
    range().unwrap_or(32_768..=60_999)
}

fn read() -> io::Result<PortRanges> {
    fs::read_to_string(SYSCTL)?.parse().map_err(io::Error::other)
}

fn change(now: &PortRanges, ports: &PortRanges) -> io::Result<()> {
    if now == ports {
        return Ok(());
    }
    // Writing nothing would change nothing, so an empty list needs the newline.
    fs::write(SYSCTL, format!("{ports}\n"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn ports_are_chosen_on_the_larger_side_of_the_ephemeral_range() {
        for (ephemeral, count, expected) in [
            (32_768..=60_999, 27_233, Some(5_535..=32_767)),
            (32_768..=60_999, 6, Some(32_762..=32_767)),
            (10_000..=60_999, 27_233, Some(1_024..=9_999)),
            (1_024..=50_000, 27_233, Some(50_001..=65_535)),
            (1_024..=50_000, 10_000, Some(50_001..=60_000)),
            (1..=65_000, 27_233, None),
            (1..=65_000, 100, Some(65_001..=65_100)),
            (1..=65_535, 1, None),
        ] {
            assert_eq!(outside(&ephemeral, count), expected, "{count} outside of {ephemeral:?}");
        }
    }

    #[test]
    fn records_of_another_user_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        // A process without privileges cannot change the owner, so it uses the root directory
        // instead.
        let others = match chown(directory.path(), Some(65_534), None) {
            Ok(()) => directory.path(),
            Err(_) => Path::new("/"),
        };
        assert!(clear_stale(others).unwrap().is_empty());
        assert!(clear_stale(&directory.path().join("missing")).unwrap().is_empty());
    }
}
