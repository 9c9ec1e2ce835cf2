//! Checks of this host's clock, and of addresses of host names that the running convey uses past
//! their TTL. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::Diagnosis;

/// Tolerance for file times that are ahead of this host's clock: a file system may have its own
/// clock.
const TOLERANCE: Duration = Duration::from_secs(3_600);

/// Finding for a clock that is behind the modification time of a file.
pub(super) fn wall_clock(now: SystemTime, files: &[(PathBuf, SystemTime)]) -> Option<Diagnosis> {
    let (path, saved) = files.iter().max_by_key(|(_, saved)| *saved)?;
    let ahead = saved.duration_since(now).ok().filter(|ahead| *ahead > TOLERANCE)?;
    let seen = format!(
        "the modification time of {} is {} hours ahead of the clock of this host",
        path.display(),
        ahead.as_secs() / 3_600
    );
    let why = "The clock is behind now, or was ahead when the file was saved. With a wrong clock, health checks reject valid \
               certificates of servers, and times in logs are wrong.";
    Some(Diagnosis::warning("clock", seen, why).fix("timedatectl set-ntp true"))
}

/// Findings for host names whose addresses in the running convey are outdated, according to name
/// servers. A host name gets no finding if one of its addresses is in the current answer, because
/// some name servers return a different subset of many addresses each time.
pub(super) fn of_records(
    running: &BTreeMap<String, BTreeSet<String>>,
    now: &BTreeMap<String, BTreeSet<String>>,
    upgrade: &str,
) -> Vec<Diagnosis> {
    let list = |addresses: &BTreeSet<String>| addresses.iter().cloned().collect::<Vec<_>>().join(", ");
    let is_old = |(name, believed): (&String, &BTreeSet<String>)| {
        let said = now
            .get(name)
            .filter(|said| !said.is_empty() && !believed.is_empty() && said.is_disjoint(believed))?;
        let seen = format!(
            "convey uses {} for {name}, but the name server now returns {}",
            list(believed),
            list(said)
        );
        let why = "convey caches a DNS record for its time to live (TTL), at most 5 minutes, and sends clients to the old addresses until \
                   then. The command starts a new process, which looks up all names again. A shorter TTL at the name server \
                   shortens the next change.";
        Some(Diagnosis::warning("clock", seen, why).fix(upgrade))
    };
    running.iter().filter_map(is_old).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_future_tells_of_a_wrong_clock() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let file = |offset: i64| {
            let at = 1_000_000 + offset;
            (PathBuf::from("config.toml"), SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64))
        };
        assert_eq!(wall_clock(now, &[file(-5), file(3_600)]), None);
        assert_eq!(wall_clock(now, &[]), None);
        let found = wall_clock(now, &[file(-5), file(7_300)]).unwrap();
        assert_eq!(
            found.seen,
            "the modification time of config.toml is 2 hours ahead of the clock of this host"
        );
    }

    #[test]
    fn records_are_old_once_the_name_server_says_nothing_of_them() {
        let names = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|ip| (*ip).to_owned()).collect();
            BTreeMap::from([("app.internal".to_owned(), addresses)])
        };
        let found =
            |running: &[&str], now: &[&str]| of_records(&names(running), &names(now), "convey upgrade").len();
        assert_eq!(found(&["10.0.0.1"], &["10.0.0.2"]), 1);
        assert_eq!(found(&["10.0.0.1", "10.0.0.2"], &["10.0.0.2", "10.0.0.3"]), 0);
        assert_eq!(found(&["10.0.0.1"], &[]), 0, "a name server that does not answer is another matter");
        assert_eq!(found(&[], &["10.0.0.1"]), 0);
    }
}
