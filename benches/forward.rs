//! What a packet costs from its parsing to its rewriting, at one thousand to ten million flows, the flows in
//! random order. Packets come one by one, each chosen by what became of the last, so that the waits for memory
//! add up; `batch` has those of 32 packets overlap, as a worker does.

use std::time::Duration;

use convey::forward::Verdict;
use convey::wire::TcpPacket;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use balancer::{Balancer, Setup, VIP};

#[path = "../tests/balancer/mod.rs"]
mod balancer;

const SERVERS: u8 = 100;

/// Half-open flows that the table has room for besides.
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

fn forward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("forward");
    for flows in [1_000, 100_000, 1_000_000] {
        let mut balancer = Balancer::new(Setup::passthrough(SERVERS, flows + ROOM));
        let snat: Vec<Server> = (0..flows).map(|n| establish(&mut balancer, n)).collect();
        let mut random = Walk { state: 1, flows };
        group.bench_function(BenchmarkId::new("to_server", flows), |bencher| {
            let mut frame = Client::new(TcpPacket::from("1.1.1.1:1").ack(1));
            bencher.iter(|| random.after(forwarded(&mut balancer, frame.of(random.next()))));
        });
        group.bench_function(BenchmarkId::new("to_client", flows), |bencher| {
            let mut frame = Reply::new();
            bencher.iter(|| {
                let server = snat[random.next() as usize];
                random.after(forwarded(&mut balancer, frame.of(server)));
            });
        });
        group.bench_function(BenchmarkId::new("new_flow", flows), |bencher| {
            begin(bencher, &mut balancer, flows)
        });
    }
    for flows in [1_000, 100_000, 1_000_000, 10_000_000] {
        let mut balancer = Balancer::new(Setup::dsr(SERVERS, flows + ROOM));
        let mut frame = Client::new(TcpPacket::from("1.1.1.1:1").ack(1));
        for n in 0..flows {
            balancer.now.0 += 1_000;
            // A flow met under way is believed in at its second packet.
            forwarded(&mut balancer, frame.of(n));
            forwarded(&mut balancer, frame.of(n));
        }
        let mut random = Walk { state: 1, flows };
        group.bench_function(BenchmarkId::new("dsr_to_server", flows), |bencher| {
            bencher.iter(|| random.after(forwarded(&mut balancer, frame.of(random.next()))));
        });
        group.bench_function(BenchmarkId::new("dsr_to_server_batch", flows), |bencher| {
            let mut batch = vec![frame.clone(); 32];
            let mut left = 0;
            bencher.iter(|| {
                if left == 0 {
                    for frame in &mut batch {
                        frame.of(random.next());
                        random.after(0);
                    }
                    balancer.forwarder.prefetch(batch.iter().map(|frame| frame.bytes.as_slice()));
                    left = batch.len();
                }
                left -= 1;
                forwarded(&mut balancer, &mut batch[left].bytes)
            });
        });
        group.bench_function(BenchmarkId::new("dsr_new_flow", flows), |bencher| {
            begin(bencher, &mut balancer, flows);
        });
        assert!(balancer.forwarder.flows().len() >= flows);
    }
    group.finish();
}

/// SYNs of clients never seen before. Soon each takes the place of the oldest that is half-open.
fn begin(bencher: &mut criterion::Bencher<'_>, balancer: &mut Balancer, flows: u32) {
    let mut frame = Client::new(TcpPacket::from("1.1.1.1:1").syn());
    let mut n = flows;
    bencher.iter(|| {
        n += 1;
        let sent = forwarded(balancer, frame.of(n));
        balancer.forwarder.news().ended.clear();
        sent
    });
}

/// The last byte of where the frame went.
#[inline]
fn forwarded(balancer: &mut Balancer, frame: &mut [u8]) -> u8 {
    balancer.now.0 += 100;
    match balancer.handle(frame) {
        Verdict::Transmit(_) => frame[33],
        other => panic!("{other:?}"),
    }
}

/// Where a reply comes from, and the port of ours it goes to.
type Server = (u8, u16);

/// Client `n` connects. Returns who answers it.
fn establish(balancer: &mut Balancer, n: u32) -> Server {
    let mut syn = Client::new(TcpPacket::from("1.1.1.1:1").syn());
    let server = forwarded(balancer, syn.of(n));
    let port = u16::from_be_bytes([syn.bytes[34], syn.bytes[35]]);
    let mut reply = Reply::of_segment(|packet| packet.syn());
    balancer.handle(reply.of((server, port)));
    forwarded(balancer, Client::new(TcpPacket::from("1.1.1.1:1").ack(1)).of(n));
    (server, port)
}

/// A client's frame, made anew for each packet as a network card writes it. Its checksums are left as they
/// are: they are carried along, not verified.
#[derive(Clone)]
struct Client {
    fresh: [u8; 54],
    bytes: Vec<u8>,
}

impl Client {
    fn new(packet: TcpPacket) -> Client {
        let bytes = packet.to(VIP).bytes();
        Client { fresh: bytes.as_slice().try_into().expect("no options, no payload"), bytes }
    }

    #[inline]
    fn of(&mut self, n: u32) -> &mut [u8] {
        self.bytes.copy_from_slice(&self.fresh);
        self.bytes[26..30].copy_from_slice(&(0x1400_0000 + n).to_be_bytes());
        self.bytes[34..36].copy_from_slice(&(1_024 + n as u16 % 50_000).to_be_bytes());
        &mut self.bytes
    }
}

/// A server's frame, likewise.
struct Reply(Client);

impl Reply {
    fn new() -> Reply {
        Reply::of_segment(|packet| packet)
    }

    fn of_segment(flags: impl FnOnce(TcpPacket) -> TcpPacket) -> Reply {
        let packet = flags(TcpPacket::from("10.0.0.1:8080").to("10.0.0.254:1").ack(1));
        let bytes = packet.bytes();
        Reply(Client { fresh: bytes.as_slice().try_into().expect("no options, no payload"), bytes })
    }

    #[inline]
    fn of(&mut self, (server, port): Server) -> &mut [u8] {
        self.0.bytes.copy_from_slice(&self.0.fresh);
        self.0.bytes[29] = server;
        self.0.bytes[36..38].copy_from_slice(&port.to_be_bytes());
        &mut self.0.bytes
    }
}

/// Numbers of flows in random order, each after the last one's use.
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
