//! Segments of a flow that reach a worker while the cache forwards others of that flow.

use super::*;
use crate::FlowEnd;
use std::time::Duration;

run_cases_with_cache! {
    a_servers_reset_behind_data_that_a_worker_forwarded_ends_the_flow,
    a_fin_behind_data_that_a_worker_forwarded_is_believed,
    dsr_numbers_in_the_cache_follow_segments_that_workers_forward,
    numbers_of_a_worker_follow_gigabytes_that_the_cache_forwarded,
    connection_of_nearly_4_gib_in_the_cache_ends,
    dsr_upload_of_nearly_4_gib_in_the_cache_ends,
    cached_connection_of_nearly_4_gib_is_reset_in_sequence,
    request_by_a_worker_follows_nearly_4_gib_that_the_cache_forwarded,
    nearly_4_gib_in_the_cache_follow_data_that_a_worker_forwarded,
    numbers_of_a_worker_are_in_the_cache_before_they_are_forgotten,
}

/// Number of bytes after which outdated numbers look as if they were 5 MB ahead.
const NEARLY_4_GIB: u32 = 4_290_000_000;

/// Makes a worker forward a packet, as if the cache had left the packet to it.
fn by_worker(lab: &mut Lab, packet: TestPacket) -> Seen {
    let kernel = lab.kernel.take();
    let seen = lab.send(packet);
    lab.kernel = kernel;
    seen
}

mod cases {
    use super::*;

    pub(super) fn a_servers_reset_behind_data_that_a_worker_forwarded_ends_the_flow(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        by_worker(&mut lab, syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
        by_worker(&mut lab, syn.reply().seq(1_501).ack(101).payload(&[7; 1_000]));
        // The cache forwards the first segment once more, and has not seen the other.
        lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
        lab.send(lab.client(1).seq(101).ack(1_501));
        lab.send(syn.reply().seq(2_501).rst());
        assert_eq!((state(&lab), lab.ends()), (FlowState::Closed, vec![FlowEnd::ServerReset]));
    }

    pub(super) fn a_fin_behind_data_that_a_worker_forwarded_is_believed(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let data = lab.client(1).seq(101).ack(501).payload(&[7; 1_000]);
        by_worker(&mut lab, data);
        lab.send(lab.client(1).seq(1_101).ack(501).fin());
        lab.send(syn.reply().seq(501).ack(1_102).fin());
        assert_eq!((state(&lab), lab.ended()), (FlowState::Closing, 1));
    }

    pub(super) fn dsr_numbers_in_the_cache_follow_segments_that_workers_forward(family: Family) {
        let mut lab = Lab::dsr(family);
        lab.send(lab.client(1).syn().seq(100));
        let (mut seq, mut ack) = (101, 501);
        lab.send(lab.client(1).seq(seq).ack(ack));
        lab.send(lab.client(1).seq(seq).ack(ack).payload(&[7; 1_000]));
        seq += 1_000;
        for _ in 0..10 {
            for _ in 0..50 {
                let data = lab.client(1).seq(seq).ack(ack).payload(&[7; 1_000]);
                by_worker(&mut lab, data);
                (seq, ack) = (seq + 100_000, ack + 50_000);
            }
            lab.send(lab.client(1).seq(seq).ack(ack).payload(&[7; 1_000]));
            seq += 1_000;
        }
        let before = kernel(&lab).forwarded(&client_key(&lab, 1));
        lab.send(lab.client(1).seq(seq).ack(ack).fin());
        assert_eq!(state(&lab), FlowState::HalfClosedByClient);
        assert!(before.is_some(), "the cache has the flow");
    }

    pub(super) fn numbers_of_a_worker_follow_gigabytes_that_the_cache_forwarded(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (mut client, mut server) = (101_u32, 501_u32);
        // 3 GB in each direction.
        for _ in 0..30 {
            (client, server) = go_on(&mut lab, &syn, client, server, 100_000_000);
        }
        by_worker(&mut lab, syn.reply().seq(server).ack(client).payload(&[7; 1_000]));
        lab.send(syn.reply().seq(server.wrapping_add(1_000)).rst());
        assert_eq!((state(&lab), lab.ends()), (FlowState::Closed, vec![FlowEnd::ServerReset]));
    }

    pub(super) fn connection_of_nearly_4_gib_in_the_cache_ends(family: Family) {
        for end in [FlowEnd::ClientReset, FlowEnd::ServerReset, FlowEnd::Finished] {
            let mut lab = Lab::passthrough(family);
            let syn = lab.connect(1);
            let (client, server) = go_on(&mut lab, &syn, 101, 501, NEARLY_4_GIB);
            match end {
                FlowEnd::ClientReset => drop(lab.send(lab.client(1).seq(client).rst())),
                FlowEnd::ServerReset => drop(lab.send(syn.reply().seq(server).rst())),
                _ => {
                    lab.send(lab.client(1).seq(client).ack(server).fin());
                    lab.send(syn.reply().seq(server).ack(client + 1).fin());
                }
            }
            assert_eq!(lab.ends(), [end]);
        }
    }

    pub(super) fn dsr_upload_of_nearly_4_gib_in_the_cache_ends(family: Family) {
        for is_reset in [true, false] {
            let mut lab = Lab::dsr(family);
            lab.send(lab.client(1).syn().seq(100));
            let mut seq = 101_u32;
            for _ in 0..=NEARLY_4_GIB / 4_000_000 {
                lab.send(lab.client(1).seq(seq).ack(501).payload(&[7; 1_000]));
                seq = seq.wrapping_add(4_000_000);
            }
            lab.send(lab.client(1).seq(seq).ack(501));
            let end = lab.client(1).seq(seq);
            lab.send(if is_reset { end.rst() } else { end.ack(501).fin() });
            assert_eq!(lab.ended(), 1, "{is_reset}");
        }
    }

    pub(super) fn cached_connection_of_nearly_4_gib_is_reset_in_sequence(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = go_on(&mut lab, &syn, 101, 501, NEARLY_4_GIB);
        let (info, _) = lab.forwarder.find_flow(&client_key(&lab, 1), lab.now).unwrap();
        let mut resets = Vec::new();
        lab.forwarder.kill((info.place, info.serial), &lab.plan, lab.now, |frame, interface| {
            resets.push(Seen::read(frame, interface).seq);
        });
        assert_eq!(resets, [server, client]);
    }

    /// The cache has not seen the client's packets, so the worker has the client's latest number.
    pub(super) fn request_by_a_worker_follows_nearly_4_gib_that_the_cache_forwarded(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let mut server = 501_u32;
        for _ in 0..NEARLY_4_GIB / 10_000_000 {
            server = server.wrapping_add(10_000_000);
            lab.send(syn.reply().seq(server).ack(101));
            lab.send(lab.client(1).seq(101).ack(server));
        }
        let request = lab.client(1).seq(101).ack(server).payload(&[7; 1_000]);
        by_worker(&mut lab, request);
        lab.send(syn.reply().seq(server).rst());
        assert_eq!(lab.ends(), [FlowEnd::ServerReset]);
    }

    pub(super) fn nearly_4_gib_in_the_cache_follow_data_that_a_worker_forwarded(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let data = lab.client(1).seq(101).ack(501).payload(&[7; 1_000]);
        by_worker(&mut lab, data);
        by_worker(&mut lab, syn.reply().seq(501).ack(1_101).payload(&[7; 1_000]));
        (0..3).for_each(|_| drop(lab.wait(Duration::from_millis(300))));
        let (_, server) = go_on(&mut lab, &syn, 1_101, 1_501, NEARLY_4_GIB);
        lab.send(syn.reply().seq(server).rst());
        assert_eq!(lab.ends(), [FlowEnd::ServerReset]);
    }

    pub(super) fn numbers_of_a_worker_are_in_the_cache_before_they_are_forgotten(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        by_worker(&mut lab, syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
        by_worker(&mut lab, syn.reply().seq(1_501).ack(101).payload(&[7; 1_000]));
        (0..3).for_each(|_| drop(lab.wait(Duration::from_millis(300))));
        // The cache forwards the first segment once more, and nothing after it.
        lab.send(syn.reply().seq(501).ack(101).payload(&[7; 1_000]));
        lab.send(syn.reply().seq(2_501).rst());
        assert_eq!(lab.ends(), [FlowEnd::ServerReset]);
    }

    /// Client 1 and its server exchange `bytes` more through the cache.
    fn go_on(lab: &mut Lab, syn: &Seen, client: u32, server: u32, bytes: u32) -> (u32, u32) {
        let (mut client, mut server) = (client, server);
        for _ in 0..bytes / 10_000_000 {
            lab.send(syn.reply().seq(server).ack(client.wrapping_add(10_000_000)));
            (client, server) = (client.wrapping_add(10_000_000), server.wrapping_add(10_000_000));
            lab.send(lab.client(1).seq(client).ack(server));
        }
        lab.send(syn.reply().seq(server).ack(client));
        (client, server)
    }
}
