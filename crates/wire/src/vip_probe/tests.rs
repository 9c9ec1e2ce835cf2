use super::*;
use crate::testing::checksums_hold;
use crate::{ANSWER_LEN, IcmpError, TestPacket, icmp_error, reset_reply};

const HOP: NextHop =
    NextHop { interface: 2, src_mac: [2; 6], dst_mac: [4; 6], mtu: 1500, redirect_peer: false };

fn probe(dsr: DsrKind, v6: bool) -> VipProbe {
    let addr = |last: &str| match v6 {
        true => format!("[2001:db8::{last}").parse().unwrap(),
        false => format!("192.0.2.{}", last.replace(']', "")).parse().unwrap(),
    };
    let client = match dsr {
        DsrKind::L3 => addr("100]:40000"),
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => addr("1]:40000"),
    };
    VipProbe { client, vip: addr("100]:80"), server: addr("11]:80"), dsr, seq: u32::MAX }
}

/// Probes of each kind and family, with the destination address of the SYN.
fn probes() -> impl Iterator<Item = (VipProbe, SocketAddr)> {
    [(DsrKind::L3, false), (DsrKind::L3, true), (DsrKind::L2, false), (DsrKind::L2, true)].into_iter().map(
        |(dsr, v6)| {
            let probe = probe(dsr, v6);
            let to = match dsr {
                DsrKind::L3 => probe.server,
                DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => probe.vip,
            };
            (probe, to)
        },
    )
}

fn accepted(probe: &VipProbe, from: SocketAddr) -> TestPacket {
    TestPacket::from(from).to(probe.client).syn().seq(99).ack(probe.seq.wrapping_add(1))
}

#[test]
fn vip_probe_sends_the_syn_as_forwarded_and_then_a_reset() {
    for (probe, to) in probes() {
        let mut frame = Vec::new();
        probe.syn(&HOP, &mut frame);
        let headers = parse(&frame).unwrap();
        assert_eq!(
            (headers.key, headers.seq, headers.flags.0),
            (FlowKey::tcp(probe.client, to), probe.seq, 2)
        );
        assert_eq!((&frame[..6], &frame[6..12]), (&HOP.dst_mac[..], &HOP.src_mac[..]));
        assert_eq!(checksums_hold(&frame), (true, true));
        probe.reset(&HOP, &mut frame);
        let headers = parse(&frame).unwrap();
        assert_eq!((headers.key, headers.seq, headers.flags.0), (FlowKey::tcp(probe.client, to), 0, 4));
        assert_eq!(checksums_hold(&frame), (true, true));
    }
}

#[test]
fn vip_probe_accepts_replies_from_the_vip_only() {
    for (probe, _) in probes() {
        assert_eq!(probe.answer(&accepted(&probe, probe.vip).bytes()), Some(VipAnswer::Accepted));
        let other = SocketAddr::new(probe.vip.ip(), 81);
        for from in [probe.server, other] {
            let answer = probe.answer(&accepted(&probe, from).bytes());
            assert_eq!(answer, Some(VipAnswer::WrongSource { from }));
        }
    }
}

#[test]
fn a_reset_says_who_refuses() {
    for (probe, to) in probes() {
        let (mut syn, mut frame) = (Vec::new(), Vec::with_capacity(ANSWER_LEN));
        probe.syn(&HOP, &mut syn);
        reset_reply(&syn, &parse(&syn).unwrap(), &mut frame);
        assert_eq!(probe.answer(&frame), Some(VipAnswer::Refused { from: to }));
    }
}

#[test]
fn an_icmp_error_says_who_rejects_and_why() {
    for (probe, _) in probes() {
        let (mut syn, mut frame) = (Vec::new(), Vec::with_capacity(ANSWER_LEN));
        probe.syn(&HOP, &mut syn);
        let headers = parse(&syn).unwrap();
        icmp_error(&syn, &headers, IcmpError::PortUnreachable, probe.server.ip().into(), &mut frame);
        let icmp = if headers.is_v4() { [3, 3] } else { [1, 4] };
        assert_eq!(probe.answer(&frame), Some(VipAnswer::Unreachable { from: probe.server.ip(), icmp }));
        let another = VipProbe { seq: 5, ..probe };
        assert_eq!(another.answer(&frame), None);
    }
}

#[test]
fn unrelated_packets_are_not_probe_replies() {
    for (probe, _) in probes() {
        let good = accepted(&probe, probe.vip);
        let client = SocketAddr::new(probe.client.ip(), 40_001);
        let syn = TestPacket::from(probe.vip).to(probe.client).syn().seq(99);
        for packet in [
            good.clone().to(client),
            good.clone().ack(7),
            syn.clone(),
            TestPacket::from(probe.vip).to(probe.client).ack(0),
            TestPacket::from(probe.vip).to(probe.client).rst(),
            TestPacket::from(probe.vip).to(probe.client).udp().payload(b"hello"),
        ] {
            assert_eq!(probe.answer(&packet.bytes()), None, "{packet:?}");
        }
        assert_eq!(probe.answer(&good.bytes()[..30]), None);
        assert_eq!(probe.answer(&[]), None);
    }
}
