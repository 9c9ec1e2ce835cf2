//! Traces: packets of watched flows pass the balancer, and the cache again later.

use super::*;
use convey_trace::{
    DropPattern, PacketStep, TraceFilter, TraceStep, TracedAnswer, TracedOutcome, TracedRole,
};

run_cases_with_cache! {
    a_watched_connection_leaves_the_cache_and_goes_back_once_nobody_watches,
    trace_of_others_or_of_drops_leaves_connections_cached,
    connection_begun_under_a_trace_is_not_cached,
    cache_events_before_a_trace_began_still_count,
    trace_does_not_shorten_the_idle_timeout_of_cached_connections,
    trace_takes_at_most_1024_connections_from_the_cache,
}

mod cases {
    use super::*;

    pub(super) fn a_watched_connection_leaves_the_cache_and_goes_back_once_nobody_watches(family: Family) {
        for (mut lab, is_dsr) in [(Lab::passthrough(family), false), (Lab::dsr(family), true)] {
            let syn = lab.send(lab.client(1).syn().seq(100));
            if !is_dsr {
                lab.send(syn.reply().syn().seq(500).ack(101));
            }
            lab.send(lab.client(1).seq(101).ack(501));
            let entries = kernel(&lab).entries();
            watch(&mut lab, TraceFilter::default());
            assert_eq!((kernel(&lab).entries(), lab.forwarder.cached_flows()), (0, 0));
            let hi = lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?"));
            assert_eq!(hi.route(), syn.route(), "it goes where it went");
            assert_eq!(kernel(&lab).entries(), 0);
            lab.forwarder.watch_flows(Vec::new());
            lab.send(lab.client(1).seq(104).ack(501).payload(b"more"));
            lab.tick();
            assert_eq!((kernel(&lab).entries(), lab.forwarder.cached_flows()), (entries, 1));
            let more = lab.send(lab.client(1).seq(108).ack(501).payload(b"and more"));
            assert_eq!(more.route(), syn.route());
            assert_eq!(kernel(&lab).forwarded(&client_key(&lab, 1)), Some(1));
            lab.wait(Duration::from_secs(7_500));
            assert_eq!(lab.forwarder.flows().len(), 0);
        }
    }

    pub(super) fn trace_of_others_or_of_drops_leaves_connections_cached(family: Family) {
        let mut lab = Lab::passthrough(family);
        lab.connect(1);
        let drops = TraceFilter { drops: Some(DropPattern::Any), ..TraceFilter::default() };
        let others = TraceFilter { client: "203.0.113.77".parse().ok(), ..TraceFilter::default() };
        for filter in [drops, others] {
            watch(&mut lab, filter);
            assert_eq!(kernel(&lab).entries(), 2);
        }
        let client = client_key(&lab, 1).source();
        let of_client = format!("[{}]:{}", client.ip(), client.port()).replace("[::ffff:", "[");
        watch(&mut lab, TraceFilter { client: of_client.parse().ok(), ..TraceFilter::default() });
        assert_eq!(kernel(&lab).entries(), 0);
    }

    pub(super) fn connection_begun_under_a_trace_is_not_cached(family: Family) {
        let mut lab = Lab::passthrough(family);
        watch(&mut lab, TraceFilter::default());
        let syn = lab.connect(1);
        lab.send(syn.reply().seq(501).ack(101).payload(b"hello"));
        assert_eq!((kernel(&lab).entries(), state(&lab)), (0, FlowState::Established));
        lab.close(1, &syn);
        lab.wait(Duration::from_secs(61));
        assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (0, 0));
    }

    pub(super) fn cache_events_before_a_trace_began_still_count(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        let (client, server) = transfer_100_mb(&mut lab, &syn);
        lab.is_deaf = true;
        lab.send(syn.reply().seq(server).ack(client).fin());
        watch(&mut lab, TraceFilter::default());
        assert_eq!(kernel(&lab).entries(), 0);
        lab.apply_cache_events();
        lab.is_deaf = false;
        assert_eq!(state(&lab), FlowState::HalfClosedByServer);
        lab.send(lab.client(1).seq(client).ack(server + 1).fin());
        assert_eq!((state(&lab), lab.ended()), (FlowState::Closing, 1));
    }

    pub(super) fn trace_does_not_shorten_the_idle_timeout_of_cached_connections(family: Family) {
        let mut lab = Lab::passthrough(family);
        let syn = lab.connect(1);
        lab.wait(Duration::from_secs(7_000));
        lab.send(syn.reply().seq(501).ack(101));
        watch(&mut lab, TraceFilter::default());
        lab.wait(Duration::from_secs(7_000));
        assert_eq!((lab.forwarder.flows().len(), lab.ended()), (1, 0));
        lab.wait(Duration::from_secs(500));
        assert_eq!((lab.forwarder.flows().len(), lab.ended()), (0, 1));
    }

    pub(super) fn trace_takes_at_most_1024_connections_from_the_cache(family: Family) {
        let mut lab = Lab::dsr_of(family, 2_000);
        for n in 1..=1_100 {
            lab.send(lab.client(n).syn().seq(100));
            lab.send(lab.client(n).seq(101).ack(501));
        }
        assert_eq!(kernel(&lab).entries(), 1_100);
        watch(&mut lab, TraceFilter::default());
        assert_eq!(kernel(&lab).entries(), 76);
        // A flow that ends makes room for another.
        lab.send(lab.client(1).seq(101).ack(501).rst());
        lab.send(lab.client(1_101).syn().seq(100));
        assert!(kernel(&lab).entries() <= 77);
    }
}

#[test]
fn an_event_tells_what_came_what_was_decided_and_what_went() {
    let mut lab = Lab::passthrough(Family::V4);
    let (client, vip) = (client_key(&lab, 1).source(), client_key(&lab, 1).destination());
    let syn = lab.client(1).syn().seq(100).bytes();
    let (event, packet) = traced(&mut lab, &syn);
    assert_eq!((event.client, event.vip), (Some(client), Some(vip)));
    assert!(event.frontend.is_some() && event.server.is_some());
    let came = packet.received.unwrap();
    assert_eq!((came.from, came.to, came.flags, packet.state), (client, vip, 2, Some("syn_sent")));
    let TracedOutcome::Forwarded { from, to, role, is_cut, .. } = packet.outcome else {
        panic!("{packet:?}")
    };
    assert_eq!((role, is_cut), (TracedRole::First, false));
    let flow = lab.forwarder.flow_of(&client_key(&lab, 1)).unwrap().server();
    assert_eq!((from, to), (flow.destination(), flow.source()));

    let strange = lab.client(2).seq(7).ack(8).bytes();
    let (event, packet) = traced(&mut lab, &strange);
    assert_eq!(packet.outcome, TracedOutcome::Answered { reason: "no_flow", by: TracedAnswer::Reset });
    assert_eq!((event.client, event.server), (Some(client_key(&lab, 2).source()), None));
    assert!(event.frontend.is_some(), "it has asked for one");

    let (event, packet) = traced(&mut lab, &syn[..20]);
    assert_eq!((packet.outcome, packet.received), (TracedOutcome::Dropped { reason: "truncated" }, None));
    assert_eq!((event.client, packet.frame_len), (None, 20));
}

/// Handles a frame, and returns the trace event.
fn traced(lab: &mut Lab, bytes: &[u8]) -> (convey_trace::TraceEvent, PacketStep) {
    let mut bytes = bytes.to_vec();
    let headers = convey_wire::parse(&bytes);
    let mut frame = crate::Frame::new(&mut bytes, &headers);
    frame.interface = Some(WAN);
    let Lab { forwarder, plan, now, .. } = lab;
    let verdict = forwarder.handle_frame(&mut frame, plan, *now);
    let event = forwarder.traced(&frame, verdict, (plan, *now), None).unwrap();
    let TraceStep::Packet(packet) = event.step.clone() else { panic!("{event:?}") };
    (event, packet)
}

/// Starts a trace; the forwarder then scans all flows.
fn watch(lab: &mut Lab, filter: TraceFilter) {
    lab.forwarder.watch_flows(vec![filter]);
    lab.tick();
}
