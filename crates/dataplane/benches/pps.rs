//! Benchmark of the flow cache on XDP in packets a second, compared with a program that only sends
//! packets back (`XDP_TX`). It uses 60-byte frames of open flows in random order, with one thousand
//! to a million flows.
//!
//! The kernel itself sends the frames (`BPF_PROG_TEST_RUN`, live frames) from the interface of a
//! lab's balancer, one end of a veth pair, to the other end, which drops them. Each figure includes
//! writing, sending and dropping the frames on one core; both programs get frames that are written
//! in the same way (`bpf/bench.bpf.c`). The two programs take turns.
//!
//! As root: `cargo bench --bench pps`.

use std::error::Error;
use std::time::Instant;

use aya::maps::{Array, ProgramArray};
use aya::programs::{ProgramFd, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use convey_dataplane::Sizes;
use convey_dataplane::testing::{FlowEntry, KernelCache, Outcome};
use convey_forward::Direction;
use convey_lab::{INTERFACE, Lab, Role};
use convey_model::{FlowKey, NextHop, Protocol, Rewrite};
use convey_wire::TestPacket;

static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/bench.bpf.o"));

/// Length of a frame in bytes: the minimum of Ethernet, without the frame check sequence.
const FRAME: usize = 60;
/// Frames in one turn.
const FRAMES: u32 = 500_000;
/// Turns of each program for each figure, which is the median of the turns.
const TURNS: usize = 15;
/// Number of frames that the kernel passes on in one batch, as drivers do.
const BATCH: u32 = 64;

const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const VIP: &str = "203.0.113.1:80";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// `struct writer` of `bpf/bench.bpf.c`.
type Writer = [u32; 2 + FRAME / 4];

fn main() -> Result<()> {
    let smoke = std::env::args().any(|argument| argument == "--test");
    if let Err(error) = KernelCache::load(&sizes(1)) {
        println!("not measured: {error}");
        return Ok(());
    }
    let lab = Lab::new(1, 1)?;
    let (turns, frames) = if smoke { (1, BATCH) } else { (TURNS, FRAMES) };
    println!("{:4} {:>9}  {:>10} {:>10} {:>6}", "", "flows", "echo Mpps", "cache Mpps", "ratio");
    for flows in if smoke { &[1_000][..] } else { &[1_000, 100_000, 1_000_000] } {
        for (name, protocol) in [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)] {
            let mut bench = Bench::new(&lab, protocol, *flows)?;
            let [echo, cache] = lab.enter(Role::Balancer, || bench.compare(turns, frames))??;
            println!("{name:4} {flows:>9}  {echo:>10.2} {cache:>10.2} {:>5.0}%", 100.0 * cache / echo);
        }
    }
    Ok(())
}

fn sizes(entries: u32) -> Sizes {
    Sizes { entries, next_hops: 1, counter_ids: 1 }
}

/// Flow cache with open flows, and the programs that generate their packets.
struct Bench {
    cache: KernelCache,
    programs: Ebpf,
    /// Index of the interface that sends and receives the frames.
    index: u32,
}

impl Bench {
    fn new(lab: &Lab, protocol: Protocol, flows: u32) -> Result<Bench> {
        let index = lab.enter(Role::Balancer, || nix::net::if_::if_nametoindex(INTERFACE))??;
        let mut cache = KernelCache::load(&sizes(flows))?;
        cache.set_interface(index, US)?;
        cache.set_next_hop(
            0,
            Some(&NextHop { interface: index, src_mac: US, dst_mac: PEER, mtu: 1500, redirect_peer: false }),
        )?;
        fill(&cache, protocol, flows)?;

        let mut programs = EbpfLoader::new().load(OBJECT)?;
        for name in ["bench_write", "bench_echo", "bench_drop"] {
            program(&mut programs, name)?.load()?;
        }
        let packet = TestPacket::from(client(0)).to(VIP).macs(PEER, US).ack(1);
        let packet = if protocol == Protocol::Udp { packet.udp() } else { packet };
        let mut writer: Writer = [0; 2 + FRAME / 4];
        (writer[0], writer[1]) = (flows, 7);
        let frame = [packet.bytes(), vec![0; FRAME]].concat();
        for (word, bytes) in writer[2..].iter_mut().zip(frame.as_chunks().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        let map = programs.map_mut("writer").ok_or("no map of frames")?;
        Array::<_, Writer>::try_from(map)?.set(0, writer, 0)?;

        // A veth sends frames by XDP only if its peer has an XDP program, and receives such frames
        // only if it has a program itself.
        let drop = program(&mut programs, "bench_drop")?;
        lab.enter(Role::Switch, || drop.attach(&Role::Balancer.to_string(), XdpMode::Driver).map(|_| ()))??;
        let xdp = cache.xdp()?;
        lab.enter(Role::Balancer, || xdp.attach_to_if_index(index, XdpMode::Driver).map(|_| ()))??;
        Ok(Bench { cache, programs, index })
    }

    /// Measures the echo program and the cache, in millions of packets a second.
    fn compare(&mut self, turns: usize, frames: u32) -> Result<[f64; 2]> {
        let echo = program(&mut self.programs, "bench_echo")?.fd()?.try_clone()?;
        let cache = self.cache.xdp()?.fd()?.try_clone()?;
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..turns {
            rates[0].push(self.run(&echo, frames)?);
            let before = self.cache.count(Outcome::Forwarded)?;
            rates[1].push(self.run(&cache, frames)?);
            let forwarded = self.cache.count(Outcome::Forwarded)? - before;
            assert_eq!(forwarded, u64::from(frames), "all are of open flows");
        }
        Ok(rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        }))
    }

    /// Runs a program on `frames` generated frames; returns millions of packets a second.
    fn run(&mut self, program_fd: &ProgramFd, frames: u32) -> Result<f64> {
        let map = self.programs.map_mut("next").ok_or("no map of programs")?;
        ProgramArray::try_from(map)?.set(0, program_fd, 0)?;
        // Context as `struct xdp_md`: data from 0 to the end of the frame, no metadata, ingress
        // interface, first queue, no egress interface.
        let context: Vec<u8> =
            [0, FRAME as u32, 0, self.index, 0, 0u32].into_iter().flat_map(u32::to_ne_bytes).collect();
        let options = TestRunOptions {
            data_in: Some(&[0; FRAME]),
            ctx_in: Some(&context),
            repeat: frames,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        let write = program(&mut self.programs, "bench_write")?;
        #[expect(clippy::disallowed_methods, reason = "it measures time")]
        let begin = Instant::now();
        write.test_run(options)?;
        Ok(f64::from(frames) / begin.elapsed().as_secs_f64() / 1e6)
    }
}

fn program<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    Ok(programs.program_mut(name).ok_or("no such program")?.try_into()?)
}

/// Address and port of client `n`, as `bench_write` computes them.
fn client(n: u32) -> String {
    let [_, a, b, c] = n.to_be_bytes();
    format!("20.{a}.{b}.{c}:{}", 1024 + n % 60_000)
}

/// Writes the entries of `flows` flows, one for each client.
fn fill(cache: &KernelCache, protocol: Protocol, flows: u32) -> Result<()> {
    let map = cache.flows()?;
    let FlowKey { src, dst, src_port, dst_port, .. } =
        FlowKey::new(protocol, "203.0.113.2:40000".parse()?, "192.0.2.1:80".parse()?);
    let to = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
    let vip = VIP.parse()?;
    for batch in (0..flows).collect::<Vec<_>>().chunks(1024) {
        let keys: Vec<FlowKey> = batch
            .iter()
            .map(|n| FlowKey::new(protocol, client(*n).parse().expect("an address"), vip))
            .collect();
        let entries: Vec<FlowEntry> =
            keys.iter().map(|key| FlowEntry::new(key, &to, Direction::ToServer, 0)).collect();
        assert_eq!(map.put(&keys, &entries)?, keys.len());
    }
    Ok(())
}
