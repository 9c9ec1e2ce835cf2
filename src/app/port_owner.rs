//! Finds the owner of a port, for messages to operators.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use convey_model::{Endpoint, Protocol, overlap};

use super::socket_owner::SocketOwner;

/// State of a listening socket in `/proc/net/tcp` (`TCP_LISTEN` of Linux).
const LISTENING: &str = "0A";

/// Owner of an endpoint as text, such as `; nginx (process 123) uses it`. Empty if this user may not
/// see the owner.
pub(super) fn describe(at: Endpoint) -> String {
    match owner(at) {
        Some((process, name)) => format!("; {name} (process {process}) uses it"),
        None => String::new(),
    }
}

/// Id and name of the process that listens on an endpoint. `None` if this user may not see it.
pub(super) fn owner(at: Endpoint) -> Option<(u32, String)> {
    let inodes: Vec<u64> =
        tables(at.protocol).iter().flat_map(|table| listeners(table, at)).map(|one| one.inode).collect();
    SocketOwner::of(&inodes).map(|SocketOwner { number, name }| (number, name))
}

/// Ids of the users whose sockets listen on an endpoint.
pub(super) fn users(at: Endpoint) -> Vec<u32> {
    tables(at.protocol).iter().flat_map(|table| listeners(table, at)).map(|listener| listener.user).collect()
}

/// Current length of the accept queue of each listening TCP socket of this host, with its address.
pub(super) fn accept_queues() -> Vec<(SocketAddr, u32)> {
    tables(Protocol::Tcp).iter().flat_map(|table| table.lines()).filter_map(accept_queue).collect()
}

fn accept_queue(line: &str) -> Option<(SocketAddr, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, LISTENING, queues, ..] = fields[..] else { return None };
    // For a listening socket, the second number is the length of the accept queue.
    let (_, waiting) = queues.split_once(':')?;
    Some((address(local)?, u32::from_str_radix(waiting, 16).ok()?))
}

fn tables(protocol: Protocol) -> [String; 2] {
    let name = protocol.name();
    [format!("/proc/self/net/{name}"), format!("/proc/self/net/{name}6")]
        .map(|path| fs::read_to_string(path).unwrap_or_default())
}

/// Listening socket.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    user: u32,
    inode: u64,
}

/// Sockets in this table that conflict with a socket at `at`.
fn listeners(table: &str, at: Endpoint) -> Vec<Listener> {
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, user, _, inode, ..] = fields[..] else { return None };
        let listens = at.protocol == Protocol::Udp || state == LISTENING;
        let is_there = listens && overlap(address(local)?, at.addr);
        is_there.then(|| Some(Listener { user: user.parse().ok()?, inode: inode.parse().ok()? }))?
    };
    table.lines().filter_map(listener).collect()
}

/// Parses an address of `/proc/net`: `0100007F:1F90` is 127.0.0.1:8080. The words of the IP address
/// are in the byte order of this machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = ip.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => IpAddr::V4(Ipv4Addr::from(bytes)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?)),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        for taken in [at, everywhere] {
            let told = describe(Endpoint::tcp(taken));
            assert!(told.ends_with(&format!(" (process {}) uses it", std::process::id())), "{told}");
        }
        assert_eq!(describe(Endpoint::udp(at)), "");
        drop(listener);
        assert_eq!(describe(Endpoint::tcp(at)), "");
    }

    #[test]
    fn accept_queue_of_a_socket_is_read() {
        let listener = std::net::TcpListener::bind("127.0.93.8:0").unwrap();
        let at = listener.local_addr().unwrap();
        let waiting =
            || accept_queues().into_iter().find(|(addr, _)| *addr == at).map(|(_, waiting)| waiting);
        assert_eq!(waiting(), Some(0));
        let _client = std::net::TcpStream::connect(at).unwrap();
        assert_eq!(waiting(), Some(1));
    }

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let at = Endpoint::tcp("[::1]:80".parse().unwrap());
        let little = "  1: 00000000000000000000000001000000:0050 0:0 0A 0:0 0:0 0 0 0 77 1";
        let big = "  1: 00000000000000000000000000000001:0050 0:0 0A 0:0 0:0 0 0 0 77 1";
        let table = if cfg!(target_endian = "little") { little } else { big };
        assert_eq!(
            listeners(&table.replace("0 0 77", "65534 0 77"), at),
            [Listener { user: 65_534, inode: 77 }]
        );
        assert_eq!(listeners(&table.replace(" 0A ", " 01 "), at), [], "a connection is in nobody's way");
        assert_eq!(listeners("sl local_address\n:\n1: x 0 0A 0 0 0 0 0 7", at), []);
    }
}
