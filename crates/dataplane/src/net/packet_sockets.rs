//! Users that capture packets in this network namespace, from the kernel's list of packet(7)
//! sockets.

use std::collections::BTreeSet;
use std::fs;
use std::io;

/// The kernel's list of packet sockets in the calling thread's network namespace.
const LIST: &str = "/proc/thread-self/net/packet";

/// `ETH_P_ALL` in the format of the list.
const ALL_PROTOCOLS: &str = "0003";

/// Users with a socket that receives packets of every protocol, numbered as in our user namespace.
/// Such a socket requires CAP_NET_RAW in this network namespace. Programs that any user may run
/// with this capability (`ping`, `arping`) open sockets only for one protocol.
pub(super) fn capturing() -> io::Result<BTreeSet<u32>> {
    Ok(users(&fs::read_to_string(LIST)?))
}

fn users(list: &str) -> BTreeSet<u32> {
    let mut lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let Some(names) = lines.next() else { return BTreeSet::new() };
    let column = |name: &str| names.iter().position(|there| *there == name);
    let (Some(protocol), Some(user)) = (column("Proto"), column("User")) else { return BTreeSet::new() };
    let capturing = lines.filter(|fields| fields.get(protocol) == Some(&ALL_PROTOCOLS));
    capturing.filter_map(|fields| fields.get(user)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_for_every_protocol_counts_as_a_capture() {
        let list = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            00000000f3c1a2b4 3      3    0003   2     1 0      65534  41031\n\
            00000000a3c1a2b4 3      3    0003   3     1 0      65534  41032\n\
            0000000053c1a2b4 3      2    0806   2     1 0      1000   41040\n\
            0000000053c1a2b5 3      3    0000   0     0 0      1001   41041\n";
        assert_eq!(users(list), BTreeSet::from([65_534]));
        assert_eq!(users(""), BTreeSet::new());
        assert_eq!(users("something else\n"), BTreeSet::new());
        capturing().unwrap();
    }
}
