//! Benchmark of forwarding a packet, from parsing to rewriting, with one thousand to ten million
//! flows in random order. The choice of each packet depends on the result of the last one, so waits
//! for memory add up. `batch` overlaps the waits of 32 packets, as a worker does.

use std::time::Duration;

use convey_forward::{Frame, Verdict};
use convey_model::{DropReason, Protocol};
use convey_wire::{Headers, ParseError, TestPacket, parse};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use balancer::{BalancerSetup, TestBalancer};

#[path = "../../../tests/balancer/mod.rs"]
mod balancer;

const SERVERS: u8 = 100;

/// Extra capacity of the flow table, for half-open flows.
const ROOM: u32 = 1_000;

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .nresamples(1_000)
        .without_plots()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = forward
}
criterion_main!(benches);

/// Compared setups: IPv4 and IPv6, TCP and UDP.
fn lanes(setup: BalancerSetup) -> [(&'static str, BalancerSetup); 4] {
    [("", setup), ("_v6", setup.over_ipv6()), ("_udp", setup.udp()), ("_v6_udp", setup.over_ipv6().udp())]
}

/// Numbers of flows to measure. With `--test`, only up to 100,000, since opening millions of flows
/// takes minutes.
fn tried<const N: usize>(flows: [u32; N]) -> impl Iterator<Item = u32> {
    let is_one_pass = std::env::args().any(|argument| argument == "--test");
    flows.into_iter().filter(move |flows| !is_one_pass || *flows <= 100_000)
}

fn forward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forward");
    for flows in tried([1_000, 100_000, 1_000_000]) {
        for (lane, setup) in lanes(BalancerSetup::passthrough(SERVERS, flows + ROOM)) {
            let mut balancer = TestBalancer::new(setup);
            let snat: Vec<ReplySource> = (0..flows).map(|n| establish(&mut balancer, &setup, n)).collect();
            let mut random = Walk { state: 1, flows };
            group.bench_function(BenchmarkId::new(format!("to_server{lane}"), flows), |bencher| {
                let mut frame = Client::new(&setup, |packet| packet.seq(1).ack(1));
                bencher.iter(|| {
                    frame.of(random.next());
                    random.after(forwarded(&mut balancer, &mut frame.0));
                });
            });
            group.bench_function(BenchmarkId::new(format!("to_client{lane}"), flows), |bencher| {
                let mut frame = Reply::new(&setup, |packet| packet.seq(1).ack(1));
                bencher.iter(|| {
                    frame.of(snat[random.next() as usize]);
                    random.after(forwarded(&mut balancer, &mut frame.0));
                });
            });
            group.bench_function(BenchmarkId::new(format!("new_flow{lane}"), flows), |bencher| {
                begin(bencher, &mut balancer, &setup, flows)
            });
        }
    }
    for flows in tried([1_000, 100_000, 1_000_000, 10_000_000]) {
        for (lane, setup) in &lanes(BalancerSetup::dsr(SERVERS, flows + ROOM))[..2] {
            let mut balancer = TestBalancer::new(*setup);
            let mut frame = Client::new(setup, |packet| packet.seq(1).ack(1));
            for n in 0..flows {
                balancer.now.0 += 1_000;
                frame.of(n);
                forwarded(&mut balancer, &mut frame.0);
            }
            let mut random = Walk { state: 1, flows };
            group.bench_function(BenchmarkId::new(format!("dsr_to_server{lane}"), flows), |bencher| {
                bencher.iter(|| {
                    frame.of(random.next());
                    random.after(forwarded(&mut balancer, &mut frame.0));
                });
            });
            group.bench_function(BenchmarkId::new(format!("dsr_to_server_batch{lane}"), flows), |bencher| {
                let mut batch = vec![frame.clone(); 32];
                let (mut parsed, mut left) = (Vec::with_capacity(batch.len()), 0);
                bencher.iter(|| {
                    if left == 0 {
                        for frame in &mut batch {
                            frame.of(random.next());
                            random.after(0);
                        }
                        parsed.clear();
                        parsed.extend(batch.iter().map(|frame| parse(&frame.0.bytes)));
                        let keys = parsed.iter().flatten().map(|headers| &headers.key);
                        balancer.forwarder.prefetch(keys);
                        left = batch.len();
                    }
                    left -= 1;
                    forwarded_as(&mut balancer, &mut batch[left].0, &parsed[left])
                });
            });
            group.bench_function(BenchmarkId::new(format!("dsr_new_flow{lane}"), flows), |bencher| {
                begin(bencher, &mut balancer, setup, flows);
            });
            assert!(balancer.forwarder.flows().len() >= flows);
        }
    }
    group.finish();
}

/// Measures packets of new clients. Soon each new flow evicts the oldest half-open flow. In a full
/// table, a few packets in 100,000 collide with other clients in both counters of their quota, and
/// are refused as if their client had used up its quota.
fn begin(
    bencher: &mut criterion::Bencher<'_>,
    balancer: &mut TestBalancer,
    setup: &BalancerSetup,
    flows: u32,
) {
    let mut frame = Client::new(setup, |packet| packet.syn());
    let (mut n, mut refused) = (flows, 0);
    bencher.iter(|| {
        n += 1;
        frame.of(n);
        let headers = parse(&frame.0.bytes);
        let verdict = handle(balancer, &mut frame.0, &headers);
        refused += u32::from(matches!(verdict, Verdict::Reply(DropReason::ClientLimit)));
        balancer.forwarder.events().ended.clear();
        verdict
    });
    assert!(refused <= (n - flows) / 1_000 + 1, "{refused} of {} were refused", n - flows);
}

/// Forwards a frame; returns the last byte of its new destination address.
#[inline]
fn forwarded(balancer: &mut TestBalancer, frame: &mut Template) -> u8 {
    let headers = parse(&frame.bytes);
    forwarded_as(balancer, frame, &headers)
}

/// Like `forwarded`, with headers that were parsed before.
#[inline]
fn forwarded_as(
    balancer: &mut TestBalancer,
    frame: &mut Template,
    headers: &Result<Headers, ParseError>,
) -> u8 {
    match handle(balancer, frame, headers) {
        Verdict::Transmit(_) => frame.bytes[frame.ports - 1],
        other => panic!("{other:?}"),
    }
}

#[inline]
fn handle(
    balancer: &mut TestBalancer,
    frame: &mut Template,
    headers: &Result<Headers, ParseError>,
) -> Verdict {
    balancer.now.0 += 100;
    balancer.handle_frame(&mut Frame::new(&mut frame.bytes, headers))
}

/// Server (last byte of its address) and SNAT port of a reply.
type ReplySource = (u8, u16);

/// Opens the flow of client `n`: its SYN or datagram, a reply, and a second packet. Returns the
/// source of the reply.
fn establish(balancer: &mut TestBalancer, setup: &BalancerSetup, n: u32) -> ReplySource {
    let mut syn = Client::new(setup, |packet| packet.syn());
    syn.of(n);
    let server = forwarded(balancer, &mut syn.0);
    let port = u16::from_be_bytes([syn.0.bytes[syn.0.ports], syn.0.bytes[syn.0.ports + 1]]);
    let mut reply = Reply::new(setup, |packet| packet.syn().ack(1));
    reply.of((server, port));
    forwarded(balancer, &mut reply.0);
    let mut next = Client::new(setup, |packet| packet.seq(1).ack(1));
    next.of(n);
    forwarded(balancer, &mut next.0);
    (server, port)
}

/// Frame that is written anew for each packet, as by a network card.
#[derive(Clone)]
struct Template {
    fresh: Vec<u8>,
    bytes: Vec<u8>,
    /// Offset of the ports in the frame.
    ports: usize,
    src_end: usize,
    /// Offset of the TCP or UDP checksum in the frame.
    checksum: usize,
}

impl Template {
    fn new(setup: &BalancerSetup, packet: TestPacket) -> Template {
        let fresh = packet.bytes();
        let (ports, src_end) = if setup.is_v6 { (PORTS_V6, 38) } else { (34, 30) };
        let checksum = ports + if setup.protocol == Protocol::Tcp { 16 } else { 6 };
        Template { bytes: fresh.clone(), fresh, ports, src_end, checksum }
    }

    /// Writes two bytes of an address, or a port, and updates the checksums incrementally (RFC
    /// 1624).
    #[inline]
    fn put(&mut self, at: usize, word: [u8; 2]) {
        let is_in_header = self.ports != PORTS_V6 && at < self.ports;
        let checksums = [is_in_header.then_some(HEADER_CHECKSUM), Some(self.checksum)];
        let bytes = &mut self.bytes;
        let read = |bytes: &[u8], at| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let change = u32::from(!read(bytes, at)) + u32::from(u16::from_be_bytes(word));
        for checksum in checksums.into_iter().flatten() {
            let sum = change + u32::from(!read(bytes, checksum));
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            bytes[checksum..checksum + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        bytes[at..at + 2].copy_from_slice(&word);
    }
}

/// Offset of the ports in an IPv6 frame.
const PORTS_V6: usize = 54;

/// Offset of the header checksum in an IPv4 frame.
const HEADER_CHECKSUM: usize = 24;

#[derive(Clone)]
struct Client(Template);

impl Client {
    fn new(setup: &BalancerSetup, flags: impl FnOnce(TestPacket) -> TestPacket) -> Client {
        let from = if setup.is_v6 { "[2001:db8:9::1]:1" } else { "1.1.1.1:1" };
        Client(Template::new(setup, flags(setup.packet(from))))
    }

    /// Turns the frame into a frame of client `n`.
    #[inline]
    fn of(&mut self, n: u32) {
        let frame = &mut self.0;
        frame.bytes.copy_from_slice(&frame.fresh);
        // Change the /64: all addresses of one /64 share one client's quota, which would soon be
        // used up.
        let network_end = if frame.ports == PORTS_V6 { frame.src_end - 8 } else { frame.src_end };
        let [a, b, c, d] = (0x1400_0000 + n).to_be_bytes();
        frame.put(network_end - 4, [a, b]);
        frame.put(network_end - 2, [c, d]);
        frame.put(frame.ports, (1_024 + n as u16 % 50_000).to_be_bytes());
    }
}

struct Reply(Template);

impl Reply {
    fn new(setup: &BalancerSetup, flags: impl FnOnce(TestPacket) -> TestPacket) -> Reply {
        let [server, snat] = match setup.is_v6 {
            true => ["[fd00::1]:8080", "[fd00::fe]:1"],
            false => ["10.0.0.1:8080", "10.0.0.254:1"],
        };
        Reply(Template::new(setup, setup.speak(flags(TestPacket::from(server).to(snat)))))
    }

    /// Turns the frame into a reply of this server to this SNAT port.
    #[inline]
    fn of(&mut self, (server, port): ReplySource) {
        let frame = &mut self.0;
        frame.bytes.copy_from_slice(&frame.fresh);
        frame.put(frame.src_end - 2, [frame.fresh[frame.src_end - 2], server]);
        frame.put(frame.ports + 2, port.to_be_bytes());
    }
}

/// Flow numbers in random order; each number depends on the result of the last packet.
struct Walk {
    state: u64,
    flows: u32,
}

impl Walk {
    #[inline]
    fn next(&self) -> u32 {
        let mixed = (self.state ^ self.state >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * u64::from(self.flows)) >> 32) as u32
    }

    #[inline]
    fn after(&mut self, read: u8) {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(read) * 2 + 1);
    }
}
