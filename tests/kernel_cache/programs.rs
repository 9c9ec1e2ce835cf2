//! The kernel's programs, held against the cases of any flow cache (`tests/flow_cache`).

use std::cell::RefCell;

use convey_dataplane::testing::{CounterReader, SegmentEvents, counter_reader, events};
use convey_dataplane::{Offloader, Selection};
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
    loaded: Loaded,
    counted: [u64; 2],
    /// Whether the packet sockets' filter let the last frame in.
    is_accepted: bool,
}

impl<const IS_XDP: bool> cases::Cache for Program<IS_XDP> {
    fn new(setup: &BalancerSetup, balancer: &TestBalancer) -> Program<IS_XDP> {
        let selection = selection(setup);
        let loaded = match SPARE.take() {
            Some(last) => last.reuse(&selection),
            None => Loaded::load(&selection),
        };
        lead_by(&mut loaded.offloader.kernel_cache(), balancer, HERE);
        loaded.offloader.kernel_cache().set_interface(HERE, US).unwrap();
        Program { loaded, counted: [0; 2], is_accepted: true }
    }

    fn writer(&self) -> Box<dyn FlowCache> {
        self.loaded.offloader.writer(0).unwrap()
    }

    fn forward(&mut self, frame: &[u8], _: &TestBalancer) -> Option<Vec<u8>> {
        let mut cache = self.loaded.offloader.kernel_cache();
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
        std::iter::from_fn(|| self.loaded.events.take()).collect()
    }

    fn counted(&mut self, _: &[FlowKey; 2]) -> [u64; 2] {
        self.loaded.reader.read(&PacketStats::new(1), |_, counter, n| match counter {
            Counter::PacketsRx => self.counted[0] += n,
            Counter::PacketsTx => self.counted[1] += n,
            _ => {}
        });
        self.counted
    }

    fn end(self) {
        SPARE.set(Some(self.loaded));
    }
}

/// Loaded programs, with the readers of their events and counters.
struct Loaded {
    offloader: Offloader,
    events: SegmentEvents,
    reader: CounterReader,
}

thread_local! {
    /// Programs that the last case has left without flows: the kernel takes much longer to verify
    /// programs than to run a case.
    static SPARE: RefCell<Option<Loaded>> = const { RefCell::new(None) };
}

impl Loaded {
    fn load(selection: &Selection) -> Loaded {
        let offloader = Offloader::load(Layer::Tc, SIZES, selection, 1).unwrap();
        let (events, reader) = (events(&offloader).unwrap(), counter_reader(&offloader));
        Loaded { offloader, events, reader }
    }

    /// The programs of the last case, for another selection.
    fn reuse(mut self, selection: &Selection) -> Loaded {
        self.offloader.select(selection).unwrap();
        // The last case may have left some unread.
        while self.events.take().is_some() {}
        self.reader.read(&PacketStats::new(1), |_, _, _| ());
        self
    }
}
