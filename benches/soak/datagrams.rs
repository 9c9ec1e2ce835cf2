//! UDP clients and servers.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use convey_testkit::UdpServer;
use fastrand::Rng;

use crate::act::Tally;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_millis(500);

/// Attempts in a row without all answers after which the test fails.
const ATTEMPTS: u32 = 60;

/// Number and length of the answers that a client wants.
#[derive(Clone, Copy)]
struct Question {
    number: u64,
    answers: u8,
    bytes: u16,
}

impl Question {
    fn encode(self) -> [u8; 11] {
        let mut wire = [self.answers; 11];
        wire[..8].copy_from_slice(&self.number.to_be_bytes());
        wire[9..].copy_from_slice(&self.bytes.to_be_bytes());
        wire
    }

    fn decode(wire: &[u8]) -> Option<Question> {
        let (number, rest) = wire.split_first_chunk()?;
        let &[answers, high, low] = rest else { return None };
        let bytes = u16::from_be_bytes([high, low]);
        Some(Question { number: u64::from_be_bytes(*number), answers, bytes })
    }

    /// Content of the `n`th answer.
    fn answer(self, n: u8) -> Vec<u8> {
        let mut wire = vec![n; 8 + usize::from(self.bytes)];
        wire[..8].copy_from_slice(&self.number.to_be_bytes());
        wire
    }
}

/// Starts a server that sends as many answers as each question wants.
pub(crate) fn start(addr: SocketAddr) -> UdpServer {
    UdpServer::start(addr, |wire, answer| {
        if let Some(question) = Question::decode(wire) {
            (0..question.answers).for_each(|n| answer(&question.answer(n)));
        }
    })
}

/// Runs a client that sends some questions, and leaves without notice.
pub(crate) fn ask_some(vip: SocketAddr, random: &mut Rng, tally: &mut Tally) {
    // Any of 16 million addresses: a client with the address and port of an earlier one would count
    // as that one.
    let ip = IpAddr::from([127, random.u8(..), random.u8(..), random.u8(1..255)]);
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    socket.connect(vip).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time above 0");
    tally.udp_clients += 1;
    for _ in 0..random.u8(1..8) {
        let (answers, bytes) = (random.u8(1..20), random.u16(1..1_400));
        let is_answered = |_| {
            let question = Question { number: random.u64(..), answers, bytes };
            socket.send(&question.encode()).expect("room");
            tally.asked += 1;
            hear(&socket, question)
        };
        assert!((0..ATTEMPTS).any(is_answered), "nobody answers");
        tally.answered += u64::from(answers);
        thread::sleep(Duration::from_millis(random.u64(..20)));
    }
}

/// Whether all answers come, in order. Datagrams may get lost, for example if the server has just
/// stopped; late answers to another question do not count.
fn hear(socket: &UdpSocket, question: Question) -> bool {
    let mut buffer = [0; 2_000];
    let mut heard = 0;
    while heard < question.answers {
        match socket.recv(&mut buffer) {
            Ok(n) if buffer[..n] == question.answer(heard) => heard += 1,
            Ok(n) => assert!(buffer[..8] != question.number.to_be_bytes(), "a wrong answer of {n} bytes"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return false;
            }
        }
    }
    true
}
