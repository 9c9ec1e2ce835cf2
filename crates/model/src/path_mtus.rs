//! Path MTUs to servers that routers have reported, each valid for ten minutes. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::Timestamp;

/// Time for which a path MTU is valid: ten minutes, as on a host (RFC 1191, section 6.3; Linux:
/// `mtu_expires`).
const HOLDS_FOR: Duration = Duration::from_secs(600);

/// Maximum number of servers with a known path MTU. The limit bounds the memory to about 1 MiB.
const MAX_PATHS: usize = 16_384;

/// Path MTU to a server, as reported by a router, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarrowPath {
    /// Address of the server.
    pub server: IpAddr,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// Smallest path MTU that convey accepts for this server, in bytes.
    pub least: u32,
}

/// Minimum decrease of a known path MTU: one sixteenth. After each decrease workers check all
/// flows. Without the minimum, forged reports could cause a thousand decreases of one path MTU.
const LEAST_STEP: u32 = 16;

/// Path MTU of each server, as reported by routers.
#[derive(Debug, Default)]
pub struct PathMtus(BTreeMap<IpAddr, PathMtu>);

#[derive(Debug, Clone, Copy)]
struct PathMtu {
    mtu: u32,
    since: Timestamp,
}

impl PathMtus {
    /// Records a path MTU. Returns whether the path MTU of the server is new or smaller than
    /// before. If the map is full, the oldest report of another server is removed.
    pub fn lower(&mut self, NarrowPath { server, mtu, least }: NarrowPath, now: Timestamp) -> bool {
        let known = self.0.get(&server).map(|known| known.mtu);
        if known.is_some_and(|known| known <= mtu) {
            return false;
        }
        if self.0.len() >= MAX_PATHS && known.is_none() {
            let first = self.0.iter().min_by_key(|(_, known)| known.since).map(|(server, _)| *server);
            first.map(|first| self.0.remove(&first));
        }
        let mtu = known.map_or(mtu, |known| mtu.min(known - known / LEAST_STEP).max(least));
        self.0.insert(server, PathMtu { mtu, since: now });
        true
    }

    /// Removes expired path MTUs. Returns whether any had expired. If the path is still narrow, a
    /// router reports it again.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let before = self.0.len();
        self.0.retain(|_, known| now.since(known.since) < HOLDS_FOR);
        self.0.len() < before
    }

    /// Time at which the next path MTU expires; `None` if there are none.
    pub fn due(&self) -> Option<Timestamp> {
        self.0.values().map(|known| known.since.after(HOLDS_FOR)).min()
    }

    /// Path MTUs by server, in bytes.
    pub fn by_server(&self) -> BTreeMap<IpAddr, u32> {
        self.0.iter().map(|(server, known)| (*server, known.mtu)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn server(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(n).into()
    }

    fn path(n: u32, mtu: u32) -> NarrowPath {
        NarrowPath { server: server(n), mtu, least: 576 }
    }

    #[test]
    fn a_path_gets_narrower_at_once_and_wide_again_after_ten_minutes() {
        let (mut paths, begin) = (PathMtus::default(), Timestamp(7));
        assert_eq!(paths.due(), None);
        for (mtu, is_smaller) in [(1_400, true), (1_400, false), (1_450, false), (1_280, true)] {
            assert_eq!(paths.lower(path(1, mtu), begin), is_smaller, "{mtu}");
        }
        let later = begin.after(60 * SECOND);
        assert!(paths.lower(path(2, 576), later));
        assert_eq!(paths.by_server(), BTreeMap::from([(server(1), 1_280), (server(2), 576)]));
        assert_eq!(paths.due(), Some(begin.after(HOLDS_FOR)));
        assert!(!paths.expire(begin.after(HOLDS_FOR - SECOND)));
        assert!(paths.expire(begin.after(HOLDS_FOR)));
        assert_eq!(paths.by_server(), BTreeMap::from([(server(2), 576)]));
        assert!(paths.expire(later.after(HOLDS_FOR)));
        assert_eq!(paths.due(), None);
    }

    #[test]
    fn a_path_has_few_steps_down_to_the_least() {
        let mut paths = PathMtus::default();
        let steps = (576..1_500).rev().filter(|mtu| paths.lower(path(1, *mtu), Timestamp(0))).count();
        assert!(steps < 20, "{steps}");
        assert_eq!(paths.by_server(), BTreeMap::from([(server(1), 576)]));
    }

    #[test]
    fn path_mtus_beyond_the_limit_evict_the_oldest() {
        let mut paths = PathMtus::default();
        let most = MAX_PATHS as u32;
        for n in 0..=most {
            assert!(paths.lower(path(n, 1_400), Timestamp(n.into())));
        }
        let known = paths.by_server();
        assert_eq!((known.len(), known.contains_key(&server(0))), (MAX_PATHS, false));
        // An update of a known server does not evict another server.
        assert!(paths.lower(path(1, 1_300), Timestamp(u64::from(most) + 1)));
        assert_eq!(paths.by_server().len(), MAX_PATHS);
    }
}
