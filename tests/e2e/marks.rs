//! ECN marks, which routers write into datagrams on their way, pass the proxy (RFC 3168).

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use convey_testkit::{BalancerProcess, Loopback, Need, PATIENCE, Setup, tests};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use socket2::SockRef;

tests!("marks":
    datagrams_keep_their_marks_both_ways,
    datagrams_over_ipv6_keep_their_marks_both_ways [Need::Ipv6],
);

/// Not capable, ECN-capable, congestion experienced.
const MARKS: [u8; 3] = [0, 2, 3];

fn datagrams_keep_their_marks_both_ways() {
    let lab = Loopback::new();
    keep_their_marks(
        &lab,
        IpAddr::from([0; 4]),
        SocketAddr::new(lab.ip(77), lab.v6(0).port()),
        lab.server(1),
    );
}

fn datagrams_over_ipv6_keep_their_marks_both_ways() {
    let lab = Loopback::new();
    keep_their_marks(&lab, IpAddr::from([0; 16]), lab.v6(0), lab.v6(1));
}

/// The balancer listens on every address, so each answer has its source address in ancillary data,
/// beside its mark.
fn keep_their_marks(lab: &Loopback, any: IpAddr, asked: SocketAddr, server: SocketAddr) {
    let (service, client) = (Marking::bind(server), Marking::bind(SocketAddr::new(any, 0)));
    let listen = [SocketAddr::new(any, asked.port())];
    let setup = Setup::new(lab).frontend("protocol = \"udp\"").health("kind = \"none\"").listen(&listen);
    let _balancer = BalancerProcess::start(lab, &setup.server("a", server, ""));
    for mark in MARKS {
        client.send(asked, mark);
        let (session, heard) = service.receive();
        assert_eq!(heard, mark, "to the server");
        for mark in MARKS {
            service.send(session, mark);
            assert_eq!(client.receive(), (asked, mark), "to the client");
        }
    }
}

/// A socket that marks its packets, and receives marks.
struct Marking(UdpSocket);

impl Marking {
    fn bind(addr: SocketAddr) -> Marking {
        let socket = UdpSocket::bind(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let options = SockRef::from(&socket);
        match addr {
            SocketAddr::V4(_) => options.set_recv_tos_v4(true).unwrap(),
            SocketAddr::V6(_) => options.set_recv_tclass_v6(true).unwrap(),
        }
        Marking(socket)
    }

    fn send(&self, to: SocketAddr, mark: u8) {
        let options = SockRef::from(&self.0);
        match to {
            SocketAddr::V4(_) => options.set_tos_v4(mark.into()).unwrap(),
            SocketAddr::V6(_) => options.set_tclass_v6(mark.into()).unwrap(),
        }
        self.0.send_to(b"marked", to).unwrap();
    }

    /// Returns the source of the next datagram, and its mark.
    fn receive(&self) -> (SocketAddr, u8) {
        let (mut bytes, mut control) = ([0; 64], nix::cmsg_space!(i32));
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let fd = self.0.as_raw_fd();
        let got = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::empty()).unwrap();
        let mark = got.cmsgs().unwrap().find_map(|message| match message {
            ControlMessageOwned::Ipv4Tos(mark) => Some(mark),
            ControlMessageOwned::Ipv6TClass(mark) => u8::try_from(mark).ok(),
            _ => None,
        });
        let from = got.address.unwrap();
        let from = from
            .as_sockaddr_in()
            .map(|from| SocketAddr::V4((*from).into()))
            .or_else(|| from.as_sockaddr_in6().map(|from| SocketAddr::V6((*from).into())));
        (from.unwrap(), mark.expect("a mark"))
    }
}
