//! A forwarding core and a kernel cache with the same flows.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use convey_dataplane::Selection;
use convey_dataplane::testing::{FlowEntry, FlowMap, KernelCache, Outcome, Replies};
use convey_forward::{Direction, Frame, Verdict, View};
use convey_model::{Endpoint, Mode, NextHop};

use super::balancer::{BalancerSetup, TestBalancer};
use super::cases::HERE;
pub(crate) use super::cases::{client, is_tcp, setups};
pub(crate) use super::ends::{Ends, US};
use super::kernel::{self, Run, SIZES};
use super::tunnels::{envelope, within};

/// Return values of a tc program for frames that it redirects, and for frames that pass.
pub(crate) const TC_REDIRECT: i32 = 7;
pub(crate) const TCX_NEXT: i32 = -1;
/// Its return value for the beginning of a connection, which the packet sockets have already
/// received.
pub(crate) const TCX_DROP: i32 = 2;
/// Return values of XDP, and its return value for a frame that goes back to its interface.
pub(crate) const XDP_REDIRECT: i32 = 4;
pub(crate) const XDP_PASS: i32 = 2;
pub(crate) const XDP_DROP: i32 = 1;
pub(crate) const XDP_TX: i32 = 3;

/// The party that everything is counted for.
pub(crate) const COUNTER_ID: u16 = 3;

pub(crate) struct Twin {
    pub(crate) balancer: TestBalancer,
    pub(crate) cache: KernelCache,
    pub(crate) flows: FlowMap,
    setup: BalancerSetup,
}

/// Verdict of the cache on a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheVerdict {
    /// The cache sends this frame.
    Sent(Vec<u8>),
    /// The frame is left to userspace; the reason is set if it is counted.
    Left(Option<Outcome>),
}

impl Twin {
    pub(crate) fn new(setup: BalancerSetup) -> Twin {
        let (balancer, mut cache) = (TestBalancer::new(setup), KernelCache::load(&SIZES).unwrap());
        lead_by(&mut cache, &balancer, HERE);
        cache.set_interface(HERE, US).unwrap();
        cache.select(&selection(&setup)).unwrap();
        let flows = cache.flows().unwrap();
        Twin { balancer, cache, flows, setup }
    }

    /// Lets a client open a flow with the core, and puts the flow into the cache.
    pub(crate) fn establish(&mut self, client: &str) -> Ends {
        let ends = Ends::begin(&mut self.balancer, &self.setup, client);
        if self.setup.mode == Mode::Passthrough {
            self.balancer.handle(&mut ends.to_client().syn().ack(1).bytes());
        }
        self.balancer.handle(&mut ends.to_server().ack(1).bytes());
        self.put(&ends, |entry, view, _| entry.seen_from(view));
        ends
    }

    /// Lets a client begin a flow with the core by a SYN with the number 0, and puts the flow into
    /// the cache.
    pub(crate) fn begin(&mut self, client: &str) -> Ends {
        let ends = Ends::begin(&mut self.balancer, &self.setup, client);
        self.put(&ends, |mut entry, view, direction| {
            match direction {
                Direction::ToServer => entry.sent = 1,
                Direction::ToClient => entry.ack = 1,
            }
            entry.opening(view)
        });
        ends
    }

    /// Puts a flow into the cache.
    fn put(&self, ends: &Ends, made: impl Fn(FlowEntry, View, Direction) -> FlowEntry) {
        let table = self.balancer.forwarder.flows();
        let (id, _) = table.lookup(&convey_wire::parse(&ends.to_server().bytes()).unwrap().key).unwrap();
        let flow = table.get(id);
        let mut ways = vec![(flow.client(), Direction::ToServer)];
        if flow.view() == View::BothSides {
            ways.push((flow.server(), Direction::ToClient));
        }
        for (key, direction) in ways {
            let mut entry = FlowEntry::new(&key, &flow.rewrite(direction), direction, COUNTER_ID);
            if direction == Direction::ToClient {
                entry = entry.coming_from(HERE);
            } else if let Some(envelope) = envelope(&self.balancer, flow) {
                entry = entry.within(&envelope);
            }
            assert_eq!(self.flows.put(&[key], &[made(entry, flow.view(), direction)]).unwrap(), 1);
        }
    }

    /// Verdict of the cache on a frame. Checks that tc and XDP agree, and that the filter of the
    /// packet sockets accepts exactly the frames that are left to userspace.
    #[track_caller]
    pub(crate) fn see(&mut self, frame: &[u8]) -> CacheVerdict {
        let tc = self.run(|cache| kernel::run(cache.tc().unwrap(), frame));
        let mut xdp = self.run(|cache| kernel::run(cache.xdp().unwrap(), frame));
        if tc.0.verdict == TC_REDIRECT && xdp.1 == Some(Outcome::Repeated) {
            // The result came late, because the machine is busy.
            xdp = self.run(|cache| kernel::run(cache.xdp().unwrap(), frame));
        }
        let is_accepted = self.passes_filter(frame);
        match tc.0.verdict {
            TC_REDIRECT => {
                assert!(
                    [XDP_REDIRECT, XDP_TX].contains(&xdp.0.verdict),
                    "tc forwards, XDP says {}",
                    xdp.0.verdict
                );
                assert_eq!((tc.1, xdp.1), (Some(Outcome::Forwarded), Some(Outcome::Forwarded)));
                assert!(!is_accepted, "forwarded and copied to userspace");
                assert_eq!(tc.0.frame, xdp.0.frame, "tc and XDP forward it differently");
                CacheVerdict::Sent(tc.0.frame)
            }
            TCX_NEXT | TCX_DROP => {
                assert_eq!(tc.0.verdict == TCX_DROP, self.begins(frame), "left to the host");
                assert_eq!((xdp.0.verdict, tc.1), (XDP_PASS, xdp.1), "tc leaves it");
                assert_eq!(
                    (&tc.0.frame[..], &xdp.0.frame[..]),
                    (frame, frame),
                    "what is left is left as it is"
                );
                CacheVerdict::Left(tc.1)
            }
            other => panic!("tc says {other}"),
        }
    }

    /// Verdict of the tc program on a frame that is not for the host.
    pub(crate) fn tc(&mut self, frame: &[u8]) -> CacheVerdict {
        let (run, counted) = self.run(|cache| kernel::run(cache.tc().unwrap(), frame));
        if run.verdict == TC_REDIRECT { CacheVerdict::Sent(run.frame) } else { CacheVerdict::Left(counted) }
    }

    /// Sets the time of the last packet like this one to long ago.
    pub(crate) fn pause(&mut self, frame: &[u8]) {
        self.passed_at(frame, 1);
    }

    /// Sets the time of the last packet like this one.
    pub(crate) fn passed_at(&mut self, frame: &[u8], at: u64) {
        let key = convey_wire::parse(frame).unwrap().key;
        let mut entry = self.flows.get(&key).unwrap().unwrap();
        entry.last_seen = at;
        assert_eq!(self.flows.put(&[key], &[entry]).unwrap(), 1);
    }

    /// Whether a frame begins a connection.
    fn begins(&self, frame: &[u8]) -> bool {
        let headers = convey_wire::parse(frame).ok();
        headers.is_some_and(|headers| {
            let flags = headers.flags;
            let is_opening = flags.syn() && !flags.ack() && !flags.rst();
            is_opening && headers.is_tcp() && headers.key.destination() == self.setup.vip().parse().unwrap()
        })
    }

    /// Whether XDP lets a frame go its way, as it is.
    pub(crate) fn xdp_passes(&mut self, frame: &[u8]) -> bool {
        let run = kernel::run(self.cache.xdp().unwrap(), frame);
        run == Run { verdict: XDP_PASS, frame: frame.to_vec() }
    }

    /// Whether the filter of the packet sockets lets a frame in.
    pub(crate) fn passes_filter(&mut self, frame: &[u8]) -> bool {
        kernel::passes_filter(self.cache.filter().unwrap(), frame)
    }

    /// The frame as the core sends it; `None` if the core does not send it.
    pub(crate) fn core(&mut self, frame: &[u8], segment_size: Option<u16>) -> Option<Vec<u8>> {
        let mut bytes = frame.to_vec();
        let headers = convey_wire::parse(&bytes);
        let mut frame = Frame { segment_size, ..Frame::new(&mut bytes, &headers) };
        let verdict = self.balancer.handle_frame(&mut frame);
        let Verdict::Transmit(forwarded) = verdict else { return None };
        Some(within(bytes, forwarded.envelope))
    }

    /// Runs a program. Returns its result and the outcome that it counted.
    fn run(&mut self, program: impl FnOnce(&mut KernelCache) -> Run) -> (Run, Option<Outcome>) {
        let counts = |cache: &KernelCache| Outcome::ALL.map(|outcome| cache.count(outcome).unwrap());
        let before = counts(&self.cache);
        let run = program(&mut self.cache);
        let after = counts(&self.cache);
        let counted =
            Outcome::ALL.into_iter().filter(|outcome| after[*outcome as usize] > before[*outcome as usize]);
        let counted: Vec<_> = counted.collect();
        assert!(counted.len() <= 1, "counted more than once: {counted:?}");
        (run, counted.first().copied())
    }
}

/// Lets all next hops use an interface.
pub(crate) fn lead_by(cache: &mut KernelCache, balancer: &TestBalancer, interface: u32) {
    for index in 0..SIZES.next_hops {
        let hop = balancer.snapshot.network.get(index).map(|hop| NextHop { interface, ..*hop });
        cache.set_next_hop(index, hop.as_ref()).unwrap();
    }
}

/// Addresses that are forwarded.
pub(crate) fn selection(setup: &BalancerSetup) -> Selection {
    let endpoint = |addr| Endpoint { protocol: setup.protocol, addr };
    let (servers, snat): (Vec<SocketAddr>, IpAddr) = match setup.is_v6 {
        true => (vec!["[fd00::1]:8080".parse().unwrap()], "fd00::fe".parse().unwrap()),
        false => (vec!["10.0.0.1:8080".parse().unwrap()], "10.0.0.254".parse().unwrap()),
    };
    let replies = Replies {
        servers: servers.into_iter().map(endpoint).collect(),
        snat_addresses: BTreeSet::from([snat]),
        snat_ports: 33_768..=61_000,
    };
    Selection {
        frontends: [endpoint(setup.vip().parse().unwrap())].into(),
        draining: BTreeSet::new(),
        replies: (setup.mode == Mode::Passthrough).then_some(replies),
    }
}
