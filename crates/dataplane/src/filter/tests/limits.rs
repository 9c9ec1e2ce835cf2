//! What becomes of sets that are too large for the kernel.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// Addresses of a family near to each other, but not in a row: servers, and VIPs with as many ports each; and one SNAT
/// address.
fn many(v6: bool, servers: u32, vips: u32, ports: u16) -> Selection {
    let ip = |net: u16, host: u32| -> IpAddr {
        let host = 2 * host;
        if v6 {
            Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(net) << 64 | u128::from(host)).into()
        } else {
            Ipv4Addr::from(0x0a00_0000 + (u32::from(net) << 20) + host).into()
        }
    };
    let vips =
        (0..vips).flat_map(|v| (0..ports).map(move |port| Endpoint::tcp((ip(1, v), 1 + 2 * port).into())));
    let replies = Replies {
        servers: (0..servers).map(|s| Endpoint::tcp((ip(2, s), 80).into())).collect(),
        snat_addresses: [ip(3, 1)].into(),
        snat_ports: 33768..=61000,
    };
    Selection { frontends: vips.collect(), draining: [].into(), replies: Some(replies) }
}

#[test]
fn a_set_too_large_for_the_kernel_lets_in_more_and_never_less() {
    for (v6, servers, vips, ports, precision) in [
        (false, 300, 2, 50, Precision::Exact),
        (false, 1, 1, 400, Precision::Exact),
        (false, 10, 100, 100, Precision::Exact),
        (true, 300, 2, 50, Precision::Exact),
        (false, 20_000, 2, 50, Precision::AnyServer),
        (true, 20_000, 2, 50, Precision::AnyServer),
        (true, 10, 10, 1_000, Precision::AnyPort),
        (false, 10, 10_000, 1, Precision::AnyAddress),
        (true, 10, 10_000, 1, Precision::AnyAddress),
    ] {
        let selection = many(v6, servers, vips, ports);
        let filter = Filter::new(&selection);
        assert_eq!(filter.precision(), precision, "{servers} servers, {vips} VIPs, {ports} ports");
        assert!(kernel_instructions(filter.instructions()) <= MAX_KERNEL_INSTRUCTIONS);
        let client = if v6 { "[2001:db8::9]:40000" } else { "198.51.100.9:40000" };
        let from_client = |to: &Endpoint| tcp(client, &to.addr.to_string());
        for frontend in &selection.frontends {
            assert!(accepts(&filter, &from_client(frontend)), "{frontend}");
        }
        let replies = selection.replies.as_ref().unwrap();
        let snat = *replies.snat_addresses.first().unwrap();
        for server in &replies.servers {
            let reply = Frame::new(Protocol::Tcp, server.addr, (snat, 40000).into());
            assert!(accepts(&filter, &reply), "{server}");
        }
        let vip = selection.frontends.first().unwrap();
        let (error, echo) = if v6 { (2, 128) } else { (3, 8) };
        assert!(accepts(&filter, &from_client(vip).icmp(error)));
        assert!(!accepts(&filter, &from_client(vip).icmp(echo)));
        let later = if v6 { from_client(vip).extension(44) } else { from_client(vip).fragment(1) };
        assert!(accepts(&filter, &later));
    }
}

#[test]
fn ranges_of_any_number_of_ports_fit() {
    let ports = |ip: &str, ports: std::ops::RangeInclusive<u16>| -> Vec<Endpoint> {
        let ip: IpAddr = ip.parse().unwrap();
        ports.map(|port| Endpoint::udp((ip, port).into())).collect()
    };
    let mut frontends = ports("10.0.0.1", 10_000..=20_000);
    frontends.extend(ports("fd00::1", 65_000..=65_535));
    frontends.extend([
        endpoint("10.0.0.1:5060/udp"),
        endpoint("10.0.0.1:20002/udp"),
        endpoint("10.0.0.1:20004/udp"),
    ]);
    let selection =
        Selection { frontends: frontends.into_iter().collect(), draining: [].into(), replies: None };
    let filter = Filter::new(&selection);
    assert_eq!(filter.precision(), Precision::Exact);
    for port in 0..=u16::MAX {
        for (ip, client) in [("10.0.0.1", "198.51.100.9:40000"), ("[fd00::1]", "[2001:db8::9]:40000")] {
            let to: std::net::SocketAddr = format!("{ip}:{port}").parse().unwrap();
            let is_ours = selection.frontends.contains(&Endpoint::udp(to));
            assert_eq!(accepts(&filter, &udp(client, &to.to_string())), is_ours, "{to}");
        }
    }
}

#[test]
fn addresses_that_have_nothing_in_common_fit_too() {
    let random = |n: u64| (fastrand::Rng::with_seed(n).u128(..) >> 1, 80);
    let servers = (0..15).map(|n| {
        let (ip, port) = random(n);
        Endpoint::tcp((Ipv6Addr::from(ip), port).into())
    });
    let mut selection = many(true, 0, 1, 1);
    selection.replies.as_mut().unwrap().servers = servers.collect();
    assert_eq!(Filter::new(&selection).precision(), Precision::Exact);
}
