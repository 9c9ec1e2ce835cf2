//! Classic BPF filter of the capture sockets on interfaces where the flow cache's filter does not
//! run. The filter accepts TCP, UDP and ICMP to convey's addresses. The filter may accept further
//! packets, which the forwarder ignores; they only cost time.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_MEM, BPF_RET,
    BPF_ST, BPF_W, ETH_P_IP, ETH_P_IPV6, SKF_AD_OFF, SKF_AD_PKTTYPE, SKF_AD_VLAN_TAG,
    SKF_AD_VLAN_TAG_PRESENT, sock_filter,
};

use super::Selection;
use convey_model::Addr;

/// Maximum number of addresses that the filter compares. With more, it accepts packets to any
/// address. `net.core.optmem_max` (20,480 bytes before Linux 6.7) bounds the kernel's copy of a
/// filter, and the kernel holds both copies while one filter replaces another.
const MAX_ADDRESSES: usize = 64;

/// Mask of the VLAN ID in a VLAN tag.
const VLAN_VID_MASK: u32 = 0xfff;

const REJECT: u32 = 0;
/// Return value of the filter that accepts a whole frame.
const ACCEPT: u32 = u32::MAX;

/// Layout of an address family's packets. Offsets count from the start of the frame.
struct FamilyLayout {
    ethertype: u32,
    protocol_at: u32,
    /// Accepted protocol numbers: TCP, UDP, ICMP, and the IPv6 extension headers that may precede
    /// these (hop-by-hop options, routing, fragment, destination options).
    protocols: &'static [u32],
    destination_at: u32,
}

const V4: FamilyLayout =
    FamilyLayout { ethertype: ETH_P_IP as u32, protocol_at: 23, protocols: &[6, 17, 1], destination_at: 30 };
const V6: FamilyLayout = FamilyLayout {
    ethertype: ETH_P_IPV6 as u32,
    protocol_at: 20,
    protocols: &[6, 17, 58, 0, 43, 44, 60],
    destination_at: 38,
};

/// Classic BPF filter that accepts frames to this host, without a VLAN tag or with a priority tag
/// (VID 0).
#[derive(Clone)]
pub struct CaptureFilter {
    instructions: Vec<sock_filter>,
}

impl CaptureFilter {
    /// Creates a filter that accepts at least the packets of the selection.
    pub fn new(selection: &Selection) -> CaptureFilter {
        let addresses: Vec<Addr> = selection.addresses().into_iter().map(Addr::from).collect();
        let mut instructions = vec![
            load_info(SKF_AD_VLAN_TAG_PRESENT),
            skip_if(0, 3),
            // VID 0 is no VLAN: the tag carries only a priority.
            load_info(SKF_AD_VLAN_TAG),
            op(BPF_ALU | BPF_AND | BPF_K, VLAN_VID_MASK),
            skip_unless(0, 2),
            // Reject frames to other hosts, which the interface receives because of a bridge or a
            // sniffer.
            load_info(SKF_AD_PKTTYPE),
            skip_if(libc::PACKET_HOST.into(), 1),
            ret(REJECT),
        ];
        instructions.extend(family_part(&V4, &addresses));
        instructions.extend(family_part(&V6, &addresses));
        instructions.push(ret(REJECT));
        CaptureFilter { instructions }
    }

    /// Creates a filter that accepts no frame, for sockets that only send.
    pub fn nothing() -> CaptureFilter {
        CaptureFilter { instructions: vec![ret(REJECT)] }
    }

    /// Instructions of the filter. They accept a frame as a whole.
    pub(super) fn instructions(&self) -> &[sock_filter] {
        &self.instructions
    }
}

/// Instructions for the packets of one family. Packets of the other family skip them.
fn family_part(family: &FamilyLayout, addresses: &[Addr]) -> Vec<sock_filter> {
    let mut part = vec![op(BPF_LD | BPF_ABS | BPF_B, family.protocol_at)];
    for (n, protocol) in family.protocols.iter().enumerate() {
        part.push(skip_if(*protocol, family.protocols.len() - n));
    }
    part.push(ret(REJECT));
    let own: Vec<Vec<u32>> = addresses
        .iter()
        .filter(|addr| addr.is_v4() == (family.ethertype == V4.ethertype))
        .map(words)
        .collect();
    if addresses.len() > MAX_ADDRESSES {
        part.push(ret(ACCEPT));
    } else if let Some(first) = own.first() {
        // Save the destination in scratch memory: reading it back takes the kernel one instruction,
        // reading from the frame more than a dozen.
        for slot in 0..first.len() as u32 {
            part.push(op(BPF_LD | BPF_ABS | BPF_W, family.destination_at + 4 * slot));
            part.push(op(BPF_ST, slot));
        }
        own.iter().for_each(|words| accept_address(&mut part, words));
    }
    part.push(ret(REJECT));
    let is_family = skip_if(family.ethertype, 1);
    let skip_part = op(BPF_JMP | BPF_JA, part.len() as u32);
    [vec![op(BPF_LD | BPF_ABS | BPF_H, 12), is_family, skip_part], part].concat()
}

/// Accepts the frame if all words of its destination match this address.
fn accept_address(part: &mut Vec<sock_filter>, words: &[u32]) {
    for (slot, word) in words.iter().enumerate() {
        part.push(op(BPF_LD | BPF_MEM, slot as u32));
        part.push(skip_unless(*word, 2 * (words.len() - slot) - 1));
    }
    part.push(ret(ACCEPT));
}

/// Address as 32-bit words, as in packets of its family.
fn words(addr: &Addr) -> Vec<u32> {
    let bytes = addr.bytes().as_slice();
    let bytes = if addr.is_v4() { &bytes[12..] } else { bytes };
    bytes.chunks(4).map(|word| word.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))).collect()
}

const fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

const fn ret(verdict: u32) -> sock_filter {
    op(BPF_RET | BPF_K, verdict)
}

/// Loads a field of the kernel's metadata for the frame.
const fn load_info(what: i32) -> sock_filter {
    op(BPF_LD | BPF_ABS | BPF_W, (SKF_AD_OFF + what) as u32)
}

/// Skips the next `instructions` instructions if the loaded value equals `value`.
const fn skip_if(value: u32, instructions: usize) -> sock_filter {
    sock_filter { jt: instructions as u8, ..op(BPF_JMP | BPF_JEQ | BPF_K, value) }
}

const fn skip_unless(value: u32, instructions: usize) -> sock_filter {
    sock_filter { jf: instructions as u8, ..op(BPF_JMP | BPF_JEQ | BPF_K, value) }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::Replies;
    use convey_model::Endpoint;
    use convey_wire::TestPacket;

    /// Kernel metadata of a frame: VLAN tag, and whether the frame was sent to another host.
    #[derive(Clone, Copy, Default)]
    struct Beside {
        vlan_tag: Option<u16>,
        is_to_others: bool,
    }

    /// Runs the filter as the kernel does. A load beyond the end of the frame rejects the frame.
    fn run(filter: &CaptureFilter, frame: &[u8], beside: Beside) -> u32 {
        let load = |len: usize, at: u32| match at.wrapping_sub(SKF_AD_OFF as u32) as i32 {
            SKF_AD_VLAN_TAG_PRESENT => Some(u32::from(beside.vlan_tag.is_some())),
            SKF_AD_VLAN_TAG => Some(beside.vlan_tag.unwrap_or_default().into()),
            SKF_AD_PKTTYPE => Some(if beside.is_to_others { 3 } else { 0 }),
            _ => {
                let bytes = frame.get(at as usize..at as usize + len)?;
                Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
            }
        };
        let (mut pc, mut a, mut stored) = (0, 0, [0; 16]);
        loop {
            let sock_filter { code, jt, jf, k } = filter.instructions[pc];
            pc += 1;
            let loaded = match u32::from(code) {
                c if c == BPF_RET | BPF_K => return k,
                c if c == BPF_JMP | BPF_JA => {
                    pc += k as usize;
                    continue;
                }
                c if c == BPF_JMP | BPF_JEQ | BPF_K => {
                    pc += usize::from(if a == k { jt } else { jf });
                    continue;
                }
                c if c == BPF_ALU | BPF_AND | BPF_K => {
                    a &= k;
                    continue;
                }
                c if c == BPF_ST => {
                    stored[k as usize] = a;
                    continue;
                }
                c if c == BPF_LD | BPF_MEM => Some(stored[k as usize]),
                c if c == BPF_LD | BPF_ABS | BPF_B => load(1, k),
                c if c == BPF_LD | BPF_ABS | BPF_H => load(2, k),
                c if c == BPF_LD | BPF_ABS | BPF_W => load(4, k),
                other => panic!("no such instruction: {other:#x}"),
            };
            match loaded {
                Some(value) => a = value,
                None => return REJECT,
            }
        }
    }

    fn accepts(filter: &CaptureFilter, frame: &[u8]) -> bool {
        run(filter, frame, Beside::default()) == ACCEPT
    }

    /// Selection with a frontend at each VIP, and with replies to these SNAT addresses.
    fn selection(vips: &[IpAddr], snat_addresses: &[IpAddr]) -> Selection {
        let replies = Replies {
            servers: [Endpoint::tcp("10.0.0.7:80".parse().unwrap())].into(),
            snat_addresses: snat_addresses.iter().copied().collect(),
            snat_ports: 33768..=61000,
        };
        Selection {
            frontends: vips.iter().map(|ip| Endpoint::tcp((*ip, 80).into())).collect(),
            draining: [].into(),
            replies: (!snat_addresses.is_empty()).then_some(replies),
        }
    }

    fn usual() -> CaptureFilter {
        let ips = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>();
        CaptureFilter::new(&selection(&ips(&["203.0.113.1", "2001:db8::1"]), &ips(&["10.0.0.1", "fd00::1"])))
    }

    /// SYN to this address.
    fn syn(to: IpAddr) -> TestPacket {
        let from = if to.is_ipv4() { "198.51.100.9:4000" } else { "[2001:db8:9::9]:4000" };
        TestPacket::from(from).to(std::net::SocketAddr::new(to, 80).to_string()).syn()
    }

    #[test]
    fn packets_to_our_addresses_get_in_and_none_to_others() {
        let filter = usual();
        for (to, ours) in [
            ("203.0.113.1", true),
            ("10.0.0.1", true),
            ("203.0.113.2", false),
            ("2001:db8::1", true),
            ("fd00::1", true),
            ("2001:db8::2", false),
            ("2001:db9::1", false),
            ("fd00::1:0:0:1", false),
        ] {
            let packet = syn(to.parse().unwrap());
            assert_eq!(accepts(&filter, &packet.clone().bytes()), ours, "{to}");
            assert_eq!(accepts(&filter, &packet.clone().udp().bytes()), ours, "{to}/udp");
            for fragment in packet.udp().payload(&[7; 100]).fragments(9, 48) {
                assert_eq!(accepts(&filter, &fragment), ours, "a fragment to {to}");
            }
            assert!(!accepts(&CaptureFilter::nothing(), &syn(to.parse().unwrap()).bytes()));
        }
    }

    #[test]
    fn icmp_and_extension_headers_get_in_and_other_protocols_stay_out() {
        let filter = usual();
        for (to, at, ours) in
            [("203.0.113.1", 23, &[6, 17, 1][..]), ("2001:db8::1", 20, &[6, 17, 58, 0, 43, 44, 60])]
        {
            for protocol in 0..=255 {
                let mut frame = syn(to.parse().unwrap()).bytes();
                frame[at] = protocol;
                assert_eq!(accepts(&filter, &frame), ours.contains(&protocol), "{protocol} to {to}");
            }
            let mut arp = syn(to.parse().unwrap()).bytes();
            arp[12..14].copy_from_slice(&[0x08, 0x06]);
            assert!(!accepts(&filter, &arp));
        }
    }

    #[test]
    fn frames_for_other_machines_tagged_frames_and_torn_ones_stay_out() {
        let filter = usual();
        for (to, needed) in [("203.0.113.1", 34), ("2001:db8::1", 54)] {
            let frame = syn(to.parse().unwrap()).bytes();
            for (tag, verdict) in [(7, REJECT), (0xe007, REJECT), (0, ACCEPT), (0xe000, ACCEPT)] {
                let beside = Beside { vlan_tag: Some(tag), ..Beside::default() };
                assert_eq!(run(&filter, &frame, beside), verdict, "tag {tag:#x}");
            }
            assert_eq!(run(&filter, &frame, Beside { is_to_others: true, ..Beside::default() }), REJECT);
            for len in 0..frame.len() {
                assert_eq!(accepts(&filter, &frame[..len]), len >= needed, "{len} bytes to {to}");
            }
        }
    }

    #[test]
    fn with_too_many_addresses_packets_to_any_get_in() {
        let many: Vec<IpAddr> = (0..=MAX_ADDRESSES as u32).map(|n| Ipv4Addr::from(n << 8).into()).collect();
        let filter = CaptureFilter::new(&selection(&many, &[]));
        for to in ["203.0.113.1", "2001:db8::1"] {
            assert!(accepts(&filter, &syn(to.parse().unwrap()).bytes()));
        }
        let filter = CaptureFilter::new(&selection(&many[1..], &[]));
        assert!(!accepts(&filter, &syn("203.0.113.1".parse().unwrap()).bytes()));
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        // Use few addresses, so that VIPs and destinations often coincide.
        let v4 = (0..200u32).prop_map(|n| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + n)));
        let v6 = (0..4u128, 0..50u128)
            .prop_map(|(net, n)| Ipv6Addr::from((0xfd00 << 112) | (net << 64) | n).into());
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn capture_filter_accepts_every_selected_address(
            vips in prop::collection::vec(any_address(), 0..40),
            snat in prop::collection::vec(any_address(), 0..40),
            others in prop::collection::vec(any_address(), 20),
        ) {
            let selection = selection(&vips, &snat);
            let (filter, ours) = (CaptureFilter::new(&selection), selection.addresses());
            for to in vips.iter().chain(&snat) {
                prop_assert!(accepts(&filter, &syn(*to).bytes()), "{}", to);
            }
            for to in others.iter().filter(|to| !ours.contains(to) && ours.len() <= MAX_ADDRESSES) {
                prop_assert!(!accepts(&filter, &syn(*to).bytes()), "{}", to);
            }
        }
    }
}
