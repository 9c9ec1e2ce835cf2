use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{FlowFilter, FlowKind, FlowServer, FlowSort, ListedFlowId, Mode, Protocol};

/// Flow of a client with a number of bytes.
#[derive(Debug, Clone)]
struct Sample {
    number: u32,
    client: u8,
    server: u8,
    seconds: u64,
    bytes: u64,
}

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let sample = (0..20_u8, 0..3_u8, 0..50_u64, 0..9_u64);
    proptest::collection::vec(sample, 0..200).prop_map(|samples| {
        let numbered = samples.into_iter().enumerate();
        let sample = |(number, (client, server, seconds, bytes))| Sample {
            number: number as u32,
            client,
            server,
            seconds,
            bytes,
        };
        numbered.map(sample).collect()
    })
}

fn query(limit: usize) -> FlowQuery {
    FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Age, limit, count_by: None }
}

fn offer(listing: &mut FlowListing, sample: &Sample) {
    let (frontend, backend): (Arc<str>, Arc<str>) = ("www".into(), "web".into());
    let name: Arc<str> = format!("s{}", sample.server).into();
    let addr = SocketAddr::from(([10, 0, 0, sample.server], 80));
    let flow = FlowFacts {
        id: ListedFlowId { kind: FlowKind::Packets, worker: 0, place: sample.number, serial: 0 },
        mode: Mode::Passthrough,
        protocol: Protocol::Tcp,
        frontend: (1, &frontend),
        server: Some(FlowServer { id: sample.server.into(), backend: &backend, name: &name, addr }),
        client: SocketAddr::from(([192, 0, 2, sample.client], 7)),
        listen: addr,
        snat: None,
        state: "established",
        is_over: false,
        is_offloaded: false,
    };
    listing.offer(&flow, || FlowActivity {
        age: Some(Duration::from_secs(sample.seconds)),
        idle: None,
        bytes_rx: Some(sample.bytes),
        bytes_tx: Some(1),
    });
}

fn listed(query: FlowQuery, samples: &[Sample]) -> FlowListing {
    let mut listing = FlowListing::new(query);
    samples.iter().for_each(|sample| offer(&mut listing, sample));
    listing
}

proptest! {
    #[test]
    fn merged_listing_has_the_first_flows_and_counts_all(
        samples in samples(), limit in 0..30_usize, cut in 0..200_usize,
    ) {
        let (one, other) = samples.split_at(cut.min(samples.len()));
        let mut listing = listed(query(limit), one);
        listing.merge(listed(query(limit), other));
        let answer = listing.answer();
        let mut all = samples.clone();
        all.sort_by_key(|sample| (Reverse(sample.seconds), sample.number));
        let expected: Vec<u32> = all.iter().take(limit).map(|sample| sample.number).collect();
        prop_assert_eq!(answer.flows.iter().map(|flow| flow.id.place).collect::<Vec<_>>(), expected);
        prop_assert_eq!(answer.matching, samples.len() as u64);
        prop_assert_eq!(answer.bytes_rx, Some(samples.iter().map(|sample| sample.bytes).sum::<u64>()));
    }

    #[test]
    fn groups_add_up_and_the_largest_come_first(
        samples in samples(), limit in 1..30_usize, cut in 0..200_usize,
    ) {
        for grouping in FlowGrouping::ALL {
            let query = FlowQuery { count_by: Some(grouping), ..query(limit) };
            let (one, other) = samples.split_at(cut.min(samples.len()));
            let mut listing = listed(query.clone(), one);
            listing.merge(listed(query, other));
            let answer = listing.answer();
            let told: u64 = answer.groups.iter().map(|group| group.flows).sum();
            prop_assert_eq!(told + answer.more_flows, samples.len() as u64);
            prop_assert!(answer.groups.is_sorted_by_key(|group| Reverse(group.flows)));
            prop_assert!(answer.groups.len() <= limit && answer.flows.is_empty());
            for group in answer.groups {
                let is_in = |sample: &&Sample| match grouping {
                    FlowGrouping::Client => group.name == format!("192.0.2.{}", sample.client),
                    FlowGrouping::Server => group.name == format!("web/s{}", sample.server),
                    FlowGrouping::Frontend => group.name == "www",
                    FlowGrouping::State => group.name == "established",
                    FlowGrouping::Mode => group.name == "passthrough",
                };
                let of_group: Vec<_> = samples.iter().filter(is_in).collect();
                prop_assert_eq!(group.flows, of_group.len() as u64);
                prop_assert_eq!(group.bytes_rx, Some(of_group.iter().map(|sample| sample.bytes).sum::<u64>()));
                prop_assert_eq!(group.bytes_tx, Some(of_group.len() as u64));
            }
        }
    }
}

#[test]
fn flows_of_clients_beyond_the_most_groups_are_counted_together() {
    let mut listing = FlowListing::new(FlowQuery { count_by: Some(FlowGrouping::Client), ..query(10) });
    let clients = MAX_GROUPS as u32 + 7;
    for client in 0..clients {
        listing.add_to_group(GroupKey::Client(IpAddr::from(client.to_be_bytes())), 1, [None; 2], String::new);
    }
    listing.add_to_group(GroupKey::Client(IpAddr::from([0; 4])), 5, [None; 2], String::new);
    let answer = listing.answer();
    assert_eq!((answer.groups.len(), answer.groups[0].flows), (10, 6));
    assert_eq!(answer.more_groups, MAX_GROUPS as u64 - 10);
    assert_eq!(answer.more_flows, u64::from(clients) - 10);
}

#[test]
fn bytes_that_nobody_knows_are_not_told_as_none() {
    assert_eq!(sum(None, None), None);
    assert_eq!(sum(Some(3), None), Some(3), "as far as they are known");
    assert_eq!(sum(None, Some(3)), Some(3));
    assert_eq!(sum(Some(3), Some(u64::MAX)), Some(u64::MAX));
    let nothing = FlowListing::new(query(1)).answer();
    assert_eq!((nothing.bytes_rx, nothing.bytes_tx), (Some(0), Some(0)), "no flows have no bytes");
}
