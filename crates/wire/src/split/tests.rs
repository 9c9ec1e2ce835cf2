use etherparse::defrag::IpDefragPool;
use etherparse::{SlicedPacket, checksum::Sum16BitWords};
use proptest::prelude::*;

use super::*;
use crate::testing::any_ip_options;
use crate::{TestPacket, parse};

/// Cuts a frame into fragments that keep its ID.
fn cut(frame: &[u8], checksum: Checksum, mtu: usize) -> Vec<Vec<u8>> {
    let (mut frame, mut pieces) = (frame.to_vec(), Vec::new());
    let headers = parse(&frame).unwrap();
    split(&mut frame, &headers, Split { checksum, mtu, id: None }, |piece| pieces.push(piece.to_vec()));
    pieces
}

/// Reassembles fragments with etherparse; returns the payload of the packet.
fn together(pieces: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut pool = IpDefragPool::<(), ()>::new();
    let mut whole = None;
    for piece in pieces {
        let sliced = SlicedPacket::from_ethernet(piece).unwrap();
        if let Some(payload) = pool.process_sliced_packet(&sliced, (), ()).unwrap() {
            whole = Some(payload.payload);
        }
    }
    whole
}

fn packet(len: usize) -> TestPacket {
    let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
    TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp().payload(&payload).may_be_cut(77)
}

#[test]
fn datagram_of_4000_bytes_is_cut_into_four_fragments_for_mtu_1280() {
    let frame = packet(4_000).bytes();
    let pieces = cut(&frame, Checksum::Complete, 1_280);
    assert_eq!(pieces.iter().map(|piece| piece.len() - 14).collect::<Vec<_>>(), [1276, 1276, 1276, 260]);
    assert_eq!(pieces, packet(4_000).fragments(77, 1_256));
    assert_eq!(together(&pieces).unwrap(), &frame[34..]);
}

#[test]
fn by_ipv6_a_datagram_and_its_fragments_can_be_cut_too() {
    let payload: Vec<u8> = (0..4_000).map(|n| n as u8).collect();
    let packet = || TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(&payload);
    let whole = packet().bytes();
    assert!(is_simple(&whole, &parse(&whole).unwrap()));
    for (frame, checksum) in
        [(whole.clone(), Checksum::Complete), (packet().partial().bytes(), Checksum::Partial)]
    {
        let pieces = cut(&frame, checksum, 1_280);
        assert_eq!(
            pieces.iter().map(|piece| piece.len() - 14).collect::<Vec<_>>(),
            [1_280, 1_280, 1_280, 360]
        );
        assert_eq!(together(&pieces).unwrap(), &whole[54..]);
    }
    let coarse = packet().fragments(77, 1_448);
    assert!(coarse.iter().all(|piece| is_simple(piece, &parse(piece).unwrap())));
    let fine: Vec<_> = coarse.iter().flat_map(|piece| cut(piece, Checksum::Complete, 1_280)).collect();
    assert!(fine.len() > coarse.len() && fine.iter().all(|piece| piece.len() - 14 <= 1_280));
    assert_eq!(together(&fine).unwrap(), &whole[54..]);
    let options = packet().extension(60, &[0; 7]).bytes();
    assert!(!is_simple(&options, &parse(&options).unwrap()));
}

#[test]
fn a_fragment_can_be_cut_further() {
    let frame = packet(4_000).bytes();
    let coarse = packet(4_000).fragments(77, 1_480);
    let fine: Vec<_> = coarse.iter().flat_map(|piece| cut(piece, Checksum::Complete, 600)).collect();
    assert_eq!(together(&fine).unwrap(), &frame[34..]);
}

#[test]
fn partial_checksum_is_completed_before_fragmentation() {
    let pieces = cut(&packet(2_000).partial().bytes(), Checksum::Partial, 1_000);
    assert_eq!(together(&pieces).unwrap(), &packet(2_000).bytes()[34..]);
}

#[test]
fn uncopied_ip_options_are_in_the_first_fragment_only() {
    // Record route (7) is not copied; router alert (148) is copied.
    let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
    let pieces = cut(&packet(1_000).ip_options(&options).bytes(), Checksum::Complete, 576);
    assert_eq!(pieces[0][34..46], options);
    assert_eq!(pieces[1][34..46], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0]);
}

proptest! {
    #[test]
    fn fragments_reassemble_to_the_original(
        len in 100usize..9_000, mtu in 68usize..1_500, options in any_ip_options(),
    ) {
        let frame = packet(len).ip_options(&options).bytes();
        let headers = parse(&frame).unwrap();
        prop_assume!(frame.len() - 14 > mtu);
        let pieces = cut(&frame, Checksum::Complete, mtu);
        for piece in &pieces {
            prop_assert!(piece.len() - 14 <= mtu.max(headers.l4 - 14 + 8));
            let header = &piece[14..headers.l4];
            prop_assert_eq!(Sum16BitWords::new().add_slice(header).ones_complement(), 0);
        }
        prop_assert_eq!(together(&pieces).unwrap(), &frame[headers.l4..]);
    }
}
