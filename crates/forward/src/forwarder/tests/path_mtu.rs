//! ICMP errors about outer packets: their validation, and the effect on clients' packets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::lab::{Family, LAN, Lab, Outcome, TestFrontend, neighbour, run_with_cache};
use crate::View;
use crate::plan::{Plan, PlannedFrontend, PlannedPool, PlannedServer, TunnelUsers};
use convey_model::{Addr, DropReason, DsrKind, Encapsulation, Mode, Prefix, Protocol, TunnelConfig};
use convey_wire::{IcmpError, TunnelMtuReport};

run_cases_over_both_families! {
    a_router_on_the_way_to_a_server_is_believed,
    tunnel_mtu_report_about_foreign_packets_is_ignored,
    tunnel_path_mtu_is_never_lowered_below_the_minimum,
    tunnel_path_mtu_leaves_room_for_ipv6_clients,
    tunnel_mtu_report_never_raises_a_path_mtu,
    oversized_tunnel_packets_are_refused_while_the_path_is_narrow,
    the_cache_obeys_it_too,
}

const KINDS: [DsrKind; 2] = [DsrKind::Ipip, DsrKind::Gue];

/// The server of these scenarios.
const SERVER: u8 = 11;

/// All packets go to one server, behind a router on a link with an MTU of 1,500 bytes.
fn lab(family: Family, dsr: DsrKind) -> Lab {
    let mut lab = Lab::dsr(family);
    let router = neighbour(LAN, family.server_ip(99), 99);
    lab.change(|world| {
        world.frontends[0].dsr = dsr;
        world.servers.truncate(1);
        world.lan_mtu = 1_500;
        world.neighbours.push(router);
        world.server_router = Some(router.ip);
    });
    lab
}

fn narrower(plan: &Plan, report: &TunnelMtuReport) -> Option<(IpAddr, u32)> {
    TunnelUsers::default().narrower_path(plan, report).map(|path| (path.server, path.mtu))
}

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().unwrap().into()
}

fn encapsulation(dsr: DsrKind) -> Encapsulation {
    dsr.encapsulation(&TunnelConfig::default()).unwrap()
}

/// Report of the router about a packet in the tunnel.
fn report(family: Family, dsr: DsrKind, mtu: u32) -> TunnelMtuReport {
    TunnelMtuReport {
        router: family.server_ip(99).into(),
        mtu,
        source: addr(family.snat()),
        server: family.server_ip(SERVER).into(),
        encapsulation: encapsulation(dsr),
        inner_destination: Some(addr(family.vip_ip())),
    }
}

fn overhead(family: Family, dsr: DsrKind) -> u32 {
    let gue = if dsr == DsrKind::Gue { 12 } else { 0 };
    gue + family.pick(20, 40)
}

fn a_router_on_the_way_to_a_server_is_believed(family: Family) {
    for dsr in KINDS {
        let lab = lab(family, dsr);
        let reply = report(family, dsr, 1_400);
        let server = family.server_ip(SERVER);
        assert_eq!(narrower(&lab.plan, &reply), Some((server, 1_400)));
        // IPv4 routers may quote only eight bytes of a packet's payload.
        let short = TunnelMtuReport { inner_destination: None, ..reply };
        assert_eq!(narrower(&lab.plan, &short), Some((server, 1_400)));
        let anybody = TunnelMtuReport { router: addr("203.0.113.7"), ..reply };
        assert_eq!(narrower(&lab.plan, &anybody), Some((server, 1_400)));
    }
}

fn tunnel_mtu_report_about_foreign_packets_is_ignored(family: Family) {
    for dsr in KINDS {
        let mut lab = lab(family, dsr);
        let reply = report(family, dsr, 1_400);
        let other = KINDS[usize::from(dsr == KINDS[0])];
        let elsewhere = family.server_ip(12).into();
        let (vip, client) = (addr(family.vip_ip()), addr(family.pick("198.51.100.2", "2001:db8:100::1")));
        for (what, refused) in [
            ("of somebody else", TunnelMtuReport { source: elsewhere, ..reply }),
            ("of another of our addresses", TunnelMtuReport { source: addr(family.own_ip()), ..reply }),
            ("to no server", TunnelMtuReport { server: elsewhere, ..reply }),
            ("to a VIP", TunnelMtuReport { server: vip, ..reply }),
            ("of the other kind", TunnelMtuReport { encapsulation: encapsulation(other), ..reply }),
            ("to another port", TunnelMtuReport { encapsulation: Encapsulation::Gue { port: 1 }, ..reply }),
            ("with a packet to no VIP", TunnelMtuReport { inner_destination: Some(client), ..reply }),
            (
                "with a packet to the server",
                TunnelMtuReport { inner_destination: Some(reply.server), ..reply },
            ),
        ] {
            assert_eq!(narrower(&lab.plan, &refused), None, "{what}");
        }
        // A VIP whose clients have other servers.
        let passthrough = family.pick("192.0.2.9:80", "[2001:db8:2::9]:80");
        lab.change(|world| world.frontends.push(TestFrontend::new(1, Mode::Passthrough, passthrough)));
        let inner = addr(family.pick("192.0.2.9", "2001:db8:2::9"));
        assert_eq!(narrower(&lab.plan, &TunnelMtuReport { inner_destination: Some(inner), ..reply }), None);
        // No host answers to a network that is the source of outer packets.
        let source = family.pick("172.16.0.0/16", "fd16::/64").parse::<Prefix>().unwrap();
        lab.change(|world| world.tunnel.source = Some(source));
        assert_eq!(narrower(&lab.plan, &reply), None);
        let of_network = TunnelMtuReport { source: source.member(7).into(), ..reply };
        assert_eq!(narrower(&lab.plan, &of_network), None);
        lab.change(|world| world.frontends[0].dsr = DsrKind::L2);
        assert_eq!(narrower(&lab.plan, &reply), None);
    }
}

fn tunnel_path_mtu_is_never_lowered_below_the_minimum(family: Family) {
    for dsr in KINDS {
        let mut lab = lab(family, dsr);
        let lowest = |lab: &Lab, mtu| narrower(&lab.plan, &report(family, dsr, mtu)).map(|reply| reply.1);
        // IPv6 clients send packets of 1,280 bytes whatever the errors report; IPv4 clients accept
        // 576.
        let least = family.pick(576, 1_280) + overhead(family, dsr);
        for mtu in [0, 68, least - 1, least] {
            assert_eq!(lowest(&lab, mtu), Some(least), "{mtu}");
        }
        assert_eq!(lowest(&lab, least + 1), Some(least + 1));
        let both = [Family::V4.vip(), Family::V6.vip()].map(str::to_owned);
        lab.change(|world| world.frontends[0].listen = both.into());
        assert_eq!(lowest(&lab, 68), Some(1_280 + overhead(family, dsr)));
        lab.change(|world| world.frontends[0].listen = vec![Family::V4.vip().to_owned()]);
        let inner_destination = Some(addr(Family::V4.vip_ip()));
        let reply = TunnelMtuReport { inner_destination, ..report(family, dsr, 68) };
        assert_eq!(
            narrower(&lab.plan, &reply).map(|reply| reply.1),
            Some(family.pick(576 + overhead(family, dsr), 1_280))
        );
    }
}

/// Two backends have the server, each with a number of its own.
fn tunnel_path_mtu_leaves_room_for_ipv6_clients(family: Family) {
    let lab = lab(family, DsrKind::Ipip);
    let frontend = |id, dsr, vip: &str| {
        let server = Arc::new(PlannedServer::new(id, SocketAddr::new(family.server_ip(SERVER), 80)));
        let pool = PlannedPool::new(vec![server], lab.plan.pools[0].picker.clone());
        let pool = Arc::new(PlannedPool { dsr, ..pool });
        Arc::new(PlannedFrontend::new(id, View::ClientSide, Protocol::Tcp, vip.parse().unwrap(), pool))
    };
    let frontends =
        vec![frontend(1, DsrKind::Ipip, Family::V4.vip()), frontend(2, DsrKind::Gue, Family::V6.vip())];
    let plan = Plan::new(9, frontends, lab.plan.network.clone());
    let report = TunnelMtuReport { inner_destination: None, ..report(family, DsrKind::Ipip, 68) };
    let least = 1_280 + overhead(family, DsrKind::Gue);
    assert_eq!(narrower(&plan, &report).map(|reply| reply.1), Some(least));
    // The quoted packets have the VIP of the other tunnel.
    let other = TunnelMtuReport { inner_destination: Some(addr(Family::V6.vip_ip())), ..report };
    assert_eq!(narrower(&plan, &other), None);
}

fn tunnel_mtu_report_never_raises_a_path_mtu(family: Family) {
    let dsr = DsrKind::Ipip;
    let mut lab = lab(family, dsr);
    let believed = |lab: &Lab, mtu| narrower(&lab.plan, &report(family, dsr, mtu)).is_some();
    assert!(!believed(&lab, 1_500) && !believed(&lab, 9_000) && believed(&lab, 1_499));
    lab.change(|world| _ = world.path_mtus.insert(family.server_ip(SERVER), 1_400));
    assert!(!believed(&lab, 1_400) && !believed(&lab, 1_450) && believed(&lab, 1_399));
    // Nor is the MTU of a link raised to the length that every link takes.
    lab.change(|world| world.lan_mtu = 570);
    assert!(!believed(&lab, 560) && !believed(&lab, 0));
}

/// Data of the first client, with a packet of this length.
fn upload(lab: &mut Lab, length: u32) -> Outcome {
    let payload = vec![7; length as usize - lab.family.pick(40, 60)];
    lab.handle(&lab.client(1).seq(1).ack(1).payload(&payload))
}

fn oversized_tunnel_packets_are_refused_while_the_path_is_narrow(family: Family) {
    for dsr in KINDS {
        let mut lab = lab(family, dsr);
        lab.send(lab.client(1).syn());
        let most = |mtu| mtu - overhead(family, dsr);
        let reply = |outcome| match outcome {
            Outcome::Answered(seen, DropReason::TooBig) => seen.icmp_error().0,
            other => panic!("{other:?}"),
        };
        assert!(matches!(upload(&mut lab, most(1_500)), Outcome::Sent(_)));
        let (server, mtu) = narrower(&lab.plan, &report(family, dsr, 1_400)).unwrap();
        lab.change(|world| _ = world.path_mtus.insert(server, mtu));
        assert_eq!(reply(upload(&mut lab, most(1_500))), IcmpError::TooBig { mtu: most(1_400) });
        assert_eq!(reply(upload(&mut lab, most(1_400) + 1)), IcmpError::TooBig { mtu: most(1_400) });
        assert!(matches!(upload(&mut lab, most(1_400)), Outcome::Sent(_)));
        lab.change(|world| world.path_mtus.clear());
        assert!(matches!(upload(&mut lab, most(1_500)), Outcome::Sent(_)));
    }
}

fn the_cache_obeys_it_too(family: Family) {
    for dsr in KINDS {
        let mut made = None;
        run_with_cache(|| made = Some(lab(family, dsr)));
        let mut lab = made.unwrap();
        lab.send(lab.client(1).syn());
        lab.send(lab.client(1).seq(1).ack(1));
        let key = convey_wire::parse(&lab.client(1).bytes()).unwrap().key;
        let in_kernel = |lab: &Lab| lab.kernel.as_ref().unwrap().forwarded(&key);
        let most = |mtu| mtu - overhead(family, dsr);
        upload(&mut lab, most(1_500));
        assert_eq!(in_kernel(&lab), Some(2));
        lab.change(|world| _ = world.path_mtus.insert(family.server_ip(SERVER), 1_400));
        let told_anew = in_kernel(&lab).unwrap();
        assert!(matches!(upload(&mut lab, most(1_500)), Outcome::Answered(_, DropReason::TooBig)));
        assert_eq!(in_kernel(&lab), Some(told_anew));
        assert!(matches!(upload(&mut lab, most(1_400)), Outcome::Sent(_)));
        assert_eq!(in_kernel(&lab), Some(told_anew + 1));
        lab.change(|world| world.path_mtus.clear());
        let told_anew = in_kernel(&lab).unwrap();
        assert!(matches!(upload(&mut lab, most(1_500)), Outcome::Sent(_)));
        assert_eq!(in_kernel(&lab), Some(told_anew + 1));
    }
}
