//! Addresses of this host.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// All addresses of this host's interfaces, of both families.
pub fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|interface| interface.address);
    let ip = addresses.filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(ip.collect())
}

/// Addresses of this host, and a warning if they are unknown. With packet modes, a failed query is
/// an error, because these modes need the addresses. Without packet modes, a failed query results
/// in an empty set and a warning, because the kernel may refuse the query
/// (`RestrictAddressFamilies=` of a unit without AF_NETLINK). convey then detects a loop only at
/// its first connection.
pub fn own_addresses_for(
    packet_modes: bool,
    found: io::Result<BTreeSet<IpAddr>>,
) -> io::Result<(BTreeSet<IpAddr>, Option<String>)> {
    match found {
        Ok(own) => Ok((own, None)),
        Err(error) if packet_modes => Err(error),
        Err(error) => Ok((
            BTreeSet::new(),
            Some(format!(
                "cannot list this host's addresses: {error}; if a server's address leads back to a frontend, convey detects \
                 this only at the first connection"
            )),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_tell_holds_up_packet_modes_only() {
        let refused = || Err(io::Error::from_raw_os_error(97)); // EAFNOSUPPORT
        assert!(own_addresses_for(true, refused()).is_err());
        let (own, warning) = own_addresses_for(false, refused()).unwrap();
        assert!(own.is_empty() && warning.unwrap().contains("Address family not supported"));
        let own = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
        assert_eq!(own_addresses_for(false, Ok(own.clone())).unwrap(), (own, None));
    }

    #[test]
    fn the_loopback_address_is_among_them() {
        assert!(own_addresses().unwrap().contains(&"127.0.0.1".parse().unwrap()));
    }
}
