//! Measures the cost of listing a million flows for a worker, and the longest slice.
//! `cargo run --profile dist -p convey-forward --example look_at_a_million [PLACES]`
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use convey_forward::{FlowInfo, Forwarder, Frame, Plan, Settings, Verdict, View, VisitBudget};
use convey_model::{
    FlowFacts, FlowFilter, FlowGrouping, FlowKind, FlowListing, FlowQuery, FlowServer, FlowSort, Interface,
    ListedFlowId, Mode, NextHops, Protocol, Timestamp,
};
use convey_wire::{TestPacket, parse};

const FLOWS: u32 = 1_000_000;

fn main() {
    let places = std::env::args().nth(1).and_then(|places| places.parse().ok()).unwrap_or(2_000);
    let mut forwarder = filled();
    let query = |filter, count_by| FlowQuery { filter, sort: FlowSort::Age, limit: 100, count_by };
    let none = FlowFilter { frontend: Some("nobody's".to_owned()), ..FlowFilter::default() };
    for (what, query) in [
        ("the 100 oldest of all", query(FlowFilter::default(), None)),
        ("none matches", query(none, None)),
        ("all counted by client", query(FlowFilter::default(), Some(FlowGrouping::Client))),
    ] {
        let times: Vec<Vec<Duration>> = (0..5).map(|_| list(&mut forwarder, &query, places)).collect();
        let total = times.iter().map(|slices| slices.iter().sum::<Duration>()).min().unwrap_or_default();
        let longest = times.iter().filter_map(|slices| slices.iter().max()).min().copied();
        let mut all: Vec<Duration> = times.concat();
        all.sort_unstable();
        let median = all[all.len() / 2];
        println!(
            "{what}: {total:.1?} in {} slices of {places}; the median slice {median:.1?}, the longest {:.1?} (best of 5 lists)",
            times[0].len(),
            longest.unwrap_or_default()
        );
    }
}

/// Lists the flows. Returns the duration of each slice.
fn list(forwarder: &mut Forwarder, query: &FlowQuery, places: u32) -> Vec<Duration> {
    let names: [Arc<str>; 3] = ["www".into(), "web".into(), "a".into()];
    let mut listing = FlowListing::new(query.clone());
    let (mut slices, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let began = Instant::now();
        let budget = VisitBudget { places, lookups: 64 };
        next = forwarder.visit_flows(from, budget, Timestamp(60_000_000_000), |flow, activity| {
            listing.offer(&facts(flow, &names), activity);
        });
        slices.push(began.elapsed());
    }
    let answer = listing.answer();
    assert!(answer.matching == u64::from(FLOWS) || query.filter.frontend.is_some());
    slices
}

fn facts<'a>(flow: &FlowInfo, [frontend, backend, name]: &'a [Arc<str>; 3]) -> FlowFacts<'a> {
    FlowFacts {
        id: ListedFlowId { kind: FlowKind::Packets, worker: 0, place: flow.place, serial: flow.serial },
        mode: Mode::Dsr,
        protocol: Protocol::Tcp,
        frontend: (flow.owners.frontend, frontend),
        server: Some(FlowServer { id: flow.owners.server, backend, name, addr: flow.server.source() }),
        client: flow.client.source(),
        listen: flow.client.destination(),
        snat: None,
        state: flow.state.name(),
        is_over: flow.is_over(),
        is_offloaded: flow.is_cached,
    }
}

/// Creates a forwarder with a flow of each of a million clients.
fn filled() -> Forwarder {
    let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
    let server = [10, 0, 0, 1];
    let network = NextHops::on_link(eth0, &[(server.into(), [2, 0, 0, 0, 0, 1])]);
    let vip = ([192, 0, 2, 1], 80).into();
    let plan = Plan::balancing(View::ClientSide, Protocol::Tcp, vip, &[(server, 80).into()], network);
    let mut forwarder = Forwarder::new(Settings::alone(FLOWS, 7));
    for n in 0..FLOWS {
        let [_, b, c, d] = n.to_be_bytes();
        let client = std::net::SocketAddr::from(([100, 64 + b, c, d], 4_242));
        let mut syn = TestPacket::from(client).to(vip).syn().bytes();
        let headers = parse(&syn);
        let now = Timestamp(u64::from(n) * 10_000);
        let verdict = forwarder.handle_frame(&mut Frame::new(&mut syn, &headers), &plan, now);
        assert!(matches!(verdict, Verdict::Transmit(_)), "{verdict:?}");
    }
    forwarder
}
