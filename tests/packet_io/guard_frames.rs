//! Frames that the guard's program drops, one after another, malformed ones included.

use std::fmt;

use aya::Ebpf;
use aya::maps::HashMap;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};

use super::packet::{ETHERNET, IPV6, TestFrame, icmp, packet};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        guard_drops_frames_to_a_frontend_and_passes_all_others,
        extension_headers_are_stepped_over_up_to_the_eighth,
    ]
}

/// Tried, a program is given a frame as from the loopback interface.
pub(crate) const LOOPBACK: [u8; 6] = [0; 6];

/// IPv6 extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const ATOMIC: u8 = 44;
const OPTIONS: u8 = 60;

/// The program, with TCP port 80 and UDP port 53 of 10.78.0.1 and fd78::1 as frontends.
pub(crate) struct Program(Ebpf);

impl Program {
    fn committed() -> Program {
        Program::load(aya::include_bytes_aligned!("../../bpf/guard.bpf.o"))
    }

    pub(crate) fn load(object: &[u8]) -> Program {
        let mut program = Program(Ebpf::load(object).unwrap());
        program.program().load().unwrap();
        let mut frontends: HashMap<_, [u8; 20], u8> =
            HashMap::try_from(program.0.map_mut("frontends").unwrap()).unwrap();
        let v4 = [[0; 10].as_slice(), &[0xff, 0xff, 10, 78, 0, 1]].concat();
        let v6 = [[0xfd, 0x78].as_slice(), &[0; 13], &[1]].concat();
        for ip in [v4, v6] {
            for (port, protocol) in [(80_u16, 6), (53, 17), (0, 0)] {
                let key = [&ip[..], &port.to_ne_bytes(), &[protocol, 0]].concat();
                frontends.insert(<[u8; 20]>::try_from(key).unwrap(), 1, 0).unwrap();
            }
        }
        program
    }

    fn program(&mut self) -> &mut SchedClassifier {
        self.0.program_mut("guard").unwrap().try_into().unwrap()
    }

    /// Whether the guard drops a frame; otherwise it leaves the frame to the next program.
    pub(crate) fn drops(&mut self, frame: &TestFrame) -> bool {
        let mut out = vec![0; frame.0.len() + 256];
        let options =
            TestRunOptions { data_in: Some(&frame.0), data_out: Some(&mut out), ..Default::default() };
        match self.program().test_run(options).unwrap().return_value as i32 {
            -1 => false,
            2 => true,
            other => panic!("the guard says {other} of {frame:?}"),
        }
    }

    /// Asserts of each frame, in this order, whether it is dropped.
    #[track_caller]
    fn assert_dropped(&mut self, frames: &[TestFrame], dropped: &[bool]) {
        let found: Vec<_> = frames.iter().map(|frame| self.drops(frame)).collect();
        assert_eq!(found, dropped, "{frames:?}");
    }
}

impl fmt::Debug for TestFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn client(dst: &str) -> TestFrame {
    packet(LOOPBACK, if dst.starts_with('[') { "[fd78::2]:4000" } else { "10.78.0.2:4000" }, dst)
}

/// Headers in the order in which they come.
fn behind(packet: TestFrame, headers: &[u8]) -> TestFrame {
    headers.iter().rev().fold(packet, |packet, header| packet.extension(*header))
}

/// A packet that another host is to see first.
fn on_its_way(mut packet: TestFrame) -> TestFrame {
    const SEGMENTS_LEFT: usize = 3;
    packet = packet.extension(ROUTING);
    packet.0[ETHERNET + IPV6 + SEGMENTS_LEFT] = 1;
    packet
}

fn guard_drops_frames_to_a_frontend_and_passes_all_others() {
    for dst in ["10.78.0.1:80", "10.78.0.1:53/udp", "[fd78::1]:80", "[fd78::1]:53/udp"] {
        let (mut guard, packet) = (Program::committed(), || client(dst));
        guard.assert_dropped(&[packet()], &[true]);
        let [first, later] = packet().in_two();
        guard.assert_dropped(&[later.clone(), first, later], &[false, true, true]);
        let other_host = TestFrame([[2; 6].as_slice(), &packet().0[6..]].concat());
        let tagged = TestFrame([&packet().0[..12], &[0x81, 0, 0, 7], &packet().0[12..]].concat());
        let short = TestFrame(packet().0[..ETHERNET + if dst.starts_with('[') { 43 } else { 23 }].to_vec());
        guard.assert_dropped(&[other_host, tagged, short], &[false; 3]);
    }
    let mut guard = Program::committed();
    for dst in ["10.78.0.1:80/udp", "10.78.0.1:53", "[fd78::1]:80/udp", "[fd78::1]:53"] {
        // The host's have the number of ours before them.
        let ours = if dst.starts_with('[') { "[fd78::1]:53/udp" } else { "10.78.0.1:53/udp" };
        let [of_ours, _] = client(ours).in_two();
        let [first, later] = client(dst).in_two();
        guard.assert_dropped(&[of_ours, client(dst), first, later], &[true, false, false, false]);
    }
    guard.assert_dropped(
        &[client("10.78.0.1:80").options(), client("10.78.0.1:53/udp").options()],
        &[true; 2],
    );
    let pings = [icmp(LOOPBACK, "10.78.0.2", "10.78.0.1", 8), icmp(LOOPBACK, "fd78::2", "fd78::1", 128)];
    guard.assert_dropped(&pings, &[false; 2]);
}

fn extension_headers_are_stepped_over_up_to_the_eighth() {
    let mut guard = Program::committed();
    for dst in ["[fd78::1]:80", "[fd78::1]:53/udp"] {
        let packet = || client(dst);
        for headers in [&[HOP_BY_HOP][..], &[ROUTING], &[ATOMIC], &[HOP_BY_HOP, ROUTING, ATOMIC, OPTIONS]] {
            guard.assert_dropped(&[behind(packet(), headers)], &[true]);
            // No host reassembles a packet with two fragment headers: the guard uses the first.
            let is_put_together = !headers.contains(&ATOMIC);
            let [first, later] = packet().in_two().map(|fragment| behind(fragment, headers));
            guard.assert_dropped(&[first, later], &[true, is_put_together]);
        }
        let [first, later] = behind(packet(), &[OPTIONS]).in_two();
        guard.assert_dropped(&[first, later], &[true; 2]);
        // The guard reads no more than nine headers: it drops packets with more to an address of a
        // frontend.
        guard.assert_dropped(&[behind(packet(), &[OPTIONS; 8]), behind(packet(), &[OPTIONS; 9])], &[true; 2]);
        let [first, later] = packet().in_two().map(|fragment| behind(fragment, &[OPTIONS; 8]));
        guard.assert_dropped(&[first, later], &[true; 2]);
        let elsewhere = |n| behind(client("[fd78::3]:80"), &[OPTIONS; 9][..n]);
        guard.assert_dropped(&[elsewhere(8), elsewhere(9)], &[false; 2]);
        let [first, later] = packet().in_two().map(on_its_way);
        guard.assert_dropped(&[on_its_way(packet()), first, later], &[false; 3]);
    }
}
