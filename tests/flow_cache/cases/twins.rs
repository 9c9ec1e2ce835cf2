//! Twins: a forwarding core, and a flow cache that must do the same.

use super::*;

/// A core and a cache with the same flow.
pub(super) struct Twins<C> {
    pub(super) core: TestBalancer,
    pub(super) cache: C,
    setup: BalancerSetup,
    pub(super) writer: Box<dyn FlowCache>,
    pub(super) ends: Ends,
    pub(super) keys: [FlowKey; 2],
    owners: FlowOwners,
    /// Forwarded packets in each direction.
    pub(super) sent: [u64; 2],
}

impl<C: Cache> Twins<C> {
    pub(super) fn new(setup: &BalancerSetup, begin: Begin) -> Twins<C> {
        let mut core = TestBalancer::new(*setup);
        let cache = C::new(setup, &core);
        let (mut writer, ends) = (cache.writer(), Ends::begin(&mut core, setup, client(setup)));
        let is_opening = matches!(begin, Begin::Opening | Begin::OpeningElsewhere);
        if !is_opening {
            if is_passthrough(setup) {
                core.handle(&mut ends.to_client().syn().ack(1).bytes());
            }
            core.handle(&mut ends.to_server().ack(1).bytes());
        }
        let server_side = match begin {
            Begin::Open | Begin::Opening | Begin::Restored => Some(HERE),
            Begin::OpenElsewhere | Begin::OpeningElsewhere => Some(ELSEWHERE),
            Begin::OpenOnRoundIndex => Some(ROUND_INDEX),
            Begin::OpenWithoutRoute => None,
        };
        let table = core.forwarder.flows();
        let (id, _) = table.lookup(&convey_wire::parse(&ends.to_server().bytes()).unwrap().key).unwrap();
        let flow = table.get(id);
        let keys = [flow.client(), flow.server()];
        let owners = FlowOwners { server: flow.server_id(), frontend: flow.frontend_id() };
        let directions = [Direction::ToServer, Direction::ToClient];
        for (direction, key) in directions.into_iter().zip(cached(&keys, setup)) {
            let to_server = direction == Direction::ToServer;
            let progress = match (is_opening, to_server) {
                (false, _) => Progress::default(),
                (true, true) => Progress { sent: 1, acked: 0 },
                (true, false) => Progress { sent: 0, acked: 1 },
            };
            let mut rewrite = flow.rewrite(direction);
            if !to_server && begin == Begin::OpenWithoutRoute {
                rewrite.next_hop = u32::MAX;
            }
            let route = CachedRoute {
                rewrite,
                envelope: envelope(&core, flow),
                direction,
                view: flow.view(),
                from: server_side.filter(|_| !to_server),
                owners,
                is_new: true,
                last: None,
                progress,
                opening: is_opening.then_some(flow.view()),
                is_restored: begin == Begin::Restored,
            };
            writer.put(key, &route);
        }
        writer.flush();
        Twins { core, cache, setup: *setup, writer, ends, keys, owners, sent: [0; 2] }
    }

    /// Ends a case that has passed: removes its flow from the cache.
    pub(super) fn end(mut self) {
        for key in cached(&self.keys, &self.setup) {
            self.writer.remove(key, self.owners);
        }
        self.writer.flush();
        self.cache.end();
    }

    /// The frame as the core forwards it.
    pub(super) fn core(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (mut bytes, headers) = (frame.to_vec(), convey_wire::parse(frame));
        let verdict = self.core.handle_frame(&mut Frame::new(&mut bytes, &headers));
        let Verdict::Transmit(forwarded) = verdict else { return None };
        Some(within(bytes, forwarded.envelope))
    }

    pub(super) fn step(&mut self, step: &Step, what: &str) {
        let is_sent = step.then != Then::Left;
        let expected = if is_sent { Some(self.core(&step.frame).expect(what)) } else { None };
        assert_eq!(self.cache.forward(&step.frame, &self.core), expected, "{what}");
        let headers = convey_wire::parse(&step.frame);
        let is_known = headers.as_ref().is_ok_and(|headers| self.keys.contains(&headers.key));
        assert!(is_sent || !is_known || self.cache.is_accepted(), "workers do not see it: {what}");
        let event = || {
            let headers = headers.as_ref().unwrap();
            let len = u32::from(headers.payload_len) + u32::from(headers.flags.fin());
            let segment = Segment { flags: headers.flags.0, seq: headers.seq, ack: headers.ack, len };
            CacheEvent { key: headers.key, segment }
        };
        let events = Vec::from_iter((step.then == Then::SentWithEvent).then(event));
        assert_eq!(self.cache.events(), events, "{what}");
        if is_sent {
            let key = headers.as_ref().unwrap().key;
            self.sent[self.keys.iter().position(|of| *of == key).unwrap()] += 1;
        }
        if let Some((sent, acked)) = step.progress {
            let seen = self.writer.seen(&headers.unwrap().key).expect(what);
            assert_eq!(seen.progress, Some(Progress { sent, acked }), "{what}");
        }
    }
}

/// Keys of the directions that pass the balancer.
fn cached<'a>(keys: &'a [FlowKey; 2], setup: &BalancerSetup) -> &'a [FlowKey] {
    if is_passthrough(setup) { keys } else { &keys[..1] }
}
