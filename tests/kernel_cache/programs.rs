//! The kernel's programs, held against the cases of any flow cache (`tests/flow_cache`).

use convey_dataplane::Offloader;
use convey_dataplane::testing::{CounterReader, SegmentEvents, counter_reader, events};
use convey_forward::{CacheEvent, FlowCache};
use convey_model::{FlowKey, Layer};
use convey_snapshot::stats::{Counter, PacketStats};

use super::balancer::{BalancerSetup, TestBalancer};
use super::cases::{self, HERE};
use super::ends::US;
use super::kernel::{self, SIZES};
use super::twin::{TC_REDIRECT, XDP_PASS, XDP_REDIRECT, XDP_TX, lead_by, selection};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        tc_makes_of_packets_what_the_cases_say,
        xdp_makes_of_packets_what_the_cases_say,
        tc_sends_nothing_on_that_the_core_would_not_send_just_so,
        xdp_sends_nothing_on_that_the_core_would_not_send_just_so,
    ]
}

fn tc_makes_of_packets_what_the_cases_say() {
    cases::run::<Program<false>>();
}

fn xdp_makes_of_packets_what_the_cases_say() {
    cases::run::<Program<true>>();
}

fn tc_sends_nothing_on_that_the_core_would_not_send_just_so() {
    cases::run_on_damaged_headers::<Program<false>>();
}

fn xdp_sends_nothing_on_that_the_core_would_not_send_just_so() {
    cases::run_on_damaged_headers::<Program<true>>();
}

/// The program for tc, with the filter of the packet sockets; or the one for XDP.
struct Program<const IS_XDP: bool> {
    offloader: Offloader,
    events: SegmentEvents,
    reader: CounterReader,
    counted: [u64; 2],
    /// Whether the packet sockets' filter let the last frame in.
    is_accepted: bool,
}

impl<const IS_XDP: bool> cases::Cache for Program<IS_XDP> {
    fn new(setup: &BalancerSetup, balancer: &TestBalancer) -> Program<IS_XDP> {
        let offloader = Offloader::load(Layer::Tc, SIZES, &selection(setup), 1).unwrap();
        lead_by(&mut offloader.kernel_cache(), balancer, HERE);
        offloader.kernel_cache().set_interface(HERE, US).unwrap();
        let (events, reader) = (events(&offloader).unwrap(), counter_reader(&offloader));
        Program { offloader, events, reader, counted: [0; 2], is_accepted: true }
    }

    fn writer(&self) -> Box<dyn FlowCache> {
        self.offloader.writer(0).unwrap()
    }

    fn forward(&mut self, frame: &[u8], _: &TestBalancer) -> Option<Vec<u8>> {
        let mut cache = self.offloader.kernel_cache();
        let (run, is_sent) = if IS_XDP {
            let run = kernel::run(cache.xdp().unwrap(), frame);
            assert!([XDP_PASS, XDP_REDIRECT, XDP_TX].contains(&run.verdict), "{}", run.verdict);
            let is_sent = run.verdict != XDP_PASS;
            (run, is_sent)
        } else {
            self.is_accepted = kernel::passes_filter(cache.filter().unwrap(), frame);
            let run = kernel::run(cache.tc().unwrap(), frame);
            let is_sent = run.verdict == TC_REDIRECT;
            assert!(!(is_sent && self.is_accepted), "sent on and copied to userspace");
            (run, is_sent)
        };
        if !is_sent {
            assert_eq!(run.frame, frame, "what is left is left as it is");
        }
        is_sent.then_some(run.frame)
    }

    fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    fn events(&mut self) -> Vec<CacheEvent> {
        std::iter::from_fn(|| self.events.take()).collect()
    }

    fn counted(&mut self, _: &[FlowKey; 2]) -> [u64; 2] {
        self.reader.read(&PacketStats::new(1), |_, counter, n| match counter {
            Counter::PacketsRx => self.counted[0] += n,
            Counter::PacketsTx => self.counted[1] += n,
            _ => {}
        });
        self.counted
    }
}
