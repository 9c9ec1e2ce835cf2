//! Benchmark of the kernel's flow cache: cost in nanoseconds of a packet of a known flow, with one
//! flow to a million flows. The kernel runs the programs itself (`BPF_PROG_TEST_RUN`), so the
//! figures include neither the path from the driver to the program nor the transmission. `no hit`
//! is the cost of a packet that is not addressed to this host, for which the program does nothing.
//!
//! Each flow rewrites its packets to packets of another flow, chosen at random. So each run of the
//! program handles a packet of a different flow, until the hop limit is used up. (The filter of
//! packet sockets gets the same packet each time.) XDP is measured with only one flow: the kernel
//! waits before a test run of XDP, and meanwhile the flows leave the processor's caches.
//!
//! As root: `cargo bench --bench cache`.

use std::fmt::Display;

use aya::programs::{TestRun, TestRunOptions, TestRunResult};
use convey_dataplane::testing::{FlowEntry, KernelCache};
use convey_dataplane::{CacheError, Sizes};
use convey_forward::Direction;
use convey_model::{FlowKey, NextHop, Protocol, Rewrite};
use convey_wire::TestPacket;

/// Runs of a program in one call: below the packet's initial hop limit of 255.
const HOPS: u32 = 250;
/// Calls for each figure, which is the median of the calls.
const CALLS: usize = 801;
/// Calls for each figure of XDP.
const FEW: usize = 51;
/// MAC address of the loopback interface.
const US: [u8; 6] = [0; 6];

fn main() -> Result<(), CacheError> {
    let smoke = std::env::args().any(|argument| argument == "--test");
    if let Err(error) = KernelCache::load(&Sizes { entries: 1, next_hops: 1, counter_ids: 1 }) {
        println!("not measured: {error}");
        return Ok(());
    }
    println!("{:10} {:>9}  {:>6} {:>6} {:>6}", "", "flows", "tc", "filter", "xdp");
    for flows in if smoke { &[1][..] } else { &[1, 1_000, 100_000, 1_000_000] } {
        for (name, lane) in lanes() {
            let mut ring = Ring::new(lane, *flows)?;
            let calls = if smoke { 1 } else { CALLS };
            let tc = median(calls, || ring.run(|cache| cache.tc(), HOPS))?;
            let filter = median(calls, || ring.run_filter(HOPS))?;
            let xdp = (*flows == 1).then(|| median(calls.min(FEW), || ring.run(|cache| cache.xdp(), HOPS)));
            row(name, flows, tc, filter, xdp.transpose()?);
        }
    }
    let mut ring = Ring::new(lanes()[0].1, 1)?;
    ring.to = [2; 6];
    let tc = median(CALLS, || ring.run(|cache| cache.tc(), HOPS))?;
    let filter = median(CALLS, || ring.run_filter(HOPS))?;
    let xdp = median(FEW, || ring.run(|cache| cache.xdp(), HOPS))?;
    row("no hit", &"", tc, filter, Some(xdp));
    Ok(())
}

fn row(name: &str, flows: &dyn Display, tc: u64, filter: u64, xdp: Option<u64>) {
    let xdp = xdp.map_or_else(String::new, |ns| ns.to_string());
    println!("{name:10} {flows:>9}  {tc:>6} {filter:>6} {xdp:>6}");
}

fn median(calls: usize, run: impl FnMut() -> Result<u64, CacheError>) -> Result<u64, CacheError> {
    let mut times = std::iter::repeat_with(run).take(calls).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[derive(Clone, Copy)]
struct Lane {
    is_v6: bool,
    protocol: Protocol,
}

fn lanes() -> [(&'static str, Lane); 4] {
    let lane = |is_v6, protocol| Lane { is_v6, protocol };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    [
        ("tcp", lane(false, tcp)),
        ("udp", lane(false, udp)),
        ("tcp ipv6", lane(true, tcp)),
        ("udp ipv6", lane(true, udp)),
    ]
}

impl Lane {
    /// Address and port of client `n`, and of the VIP. Clients are distinct up to a million.
    fn ends(self, n: u32) -> [String; 2] {
        let (high, low, port) = (n >> 8 & 0xff, n & 0xff, 1024 + n % 60_000);
        match self.is_v6 {
            true => [format!("[2001:db8:{:x}:{high:x}::{low:x}]:{port}", n >> 16), "[2001:db8::1]:80".into()],
            false => [format!("20.{}.{high}.{low}:{port}", n >> 16), "203.0.113.1:80".into()],
        }
    }

    fn key(self, n: u32) -> FlowKey {
        let [client, vip] = self.ends(n).map(|end| end.parse().expect("an address"));
        FlowKey::new(self.protocol, client, vip)
    }
}

/// Ring of flows: each flow rewrites its packets to packets of the next flow.
struct Ring {
    cache: KernelCache,
    lane: Lane,
    flows: u32,
    /// Destination MAC address of the frames.
    to: [u8; 6],
    random: fastrand::Rng,
}

impl Ring {
    fn new(lane: Lane, flows: u32) -> Result<Ring, CacheError> {
        let mut cache = KernelCache::load(&Sizes { entries: flows, next_hops: 1, counter_ids: 1 })?;
        // The next hop has this host's MAC address, so that a rewritten frame hits the cache again.
        let hop = NextHop {
            interface: 2,
            src_mac: [2, 0, 0, 0, 0, 9],
            dst_mac: US,
            mtu: 1500,
            redirect_peer: false,
        };
        cache.set_next_hop(0, Some(&hop))?;
        cache.set_interface(1, US)?;
        let mut random = fastrand::Rng::with_seed(7);
        let mut order: Vec<u32> = (0..flows).collect();
        random.shuffle(&mut order);
        let map = cache.flows()?;
        let next = order.iter().cycle().skip(1);
        for batch in order.iter().zip(next).collect::<Vec<_>>().chunks(1024) {
            let entry = |(from, to): &(&u32, &u32)| {
                let FlowKey { src, dst, src_port, dst_port, .. } = lane.key(**to);
                let rewrite = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
                let key = lane.key(**from);
                (key, FlowEntry::new(&key, &rewrite, Direction::ToServer, 0))
            };
            let (keys, entries): (Vec<_>, Vec<_>) = batch.iter().map(entry).unzip();
            assert_eq!(map.put(&keys, &entries)?, keys.len());
        }
        Ok(Ring { cache, lane, flows, to: US, random })
    }

    /// Runs a program `times` times on a frame of a random flow. Returns nanoseconds per run.
    fn run<'a, P>(
        &'a mut self,
        program: impl FnOnce(&'a mut KernelCache) -> Result<&'a mut P, CacheError>,
        times: u32,
    ) -> Result<u64, CacheError>
    where
        P: for<'b> TestRun<Opts<'b> = TestRunOptions<'b>, Result = TestRunResult> + 'a,
    {
        let frame = self.frame();
        time(program(&mut self.cache)?, &frame, times)
    }

    /// Runs the packet sockets' filter `times` times. The frame is prefixed with another Ethernet
    /// header, because a test run passes the data after the Ethernet header, and a packet socket
    /// passes the whole frame.
    fn run_filter(&mut self, times: u32) -> Result<u64, CacheError> {
        let frame = self.frame();
        time(self.cache.filter()?, &[&frame[..14], &frame].concat(), times)
    }

    /// Frame of a random flow.
    fn frame(&mut self) -> Vec<u8> {
        let [client, vip] = self.lane.ends(self.random.u32(..self.flows));
        let packet = TestPacket::from(client).to(vip).macs([2; 6], self.to).ttl(255).ack(1);
        let packet = if self.lane.protocol == Protocol::Udp { packet.udp() } else { packet };
        [packet.bytes(), vec![0; 4]].concat()
    }
}

fn time<P>(program: &P, frame: &[u8], times: u32) -> Result<u64, CacheError>
where
    P: for<'b> TestRun<Opts<'b> = TestRunOptions<'b>, Result = TestRunResult>,
{
    let options = TestRunOptions { data_in: Some(frame), repeat: times, ..TestRunOptions::default() };
    Ok(program.test_run(options)?.duration.as_nanos() as u64)
}
