//! Listening sockets with the options that the proxy needs.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use thiserror::Error;
use tokio::net::TcpStream;

use convey_model::Endpoint;

/// Error of a failed bind: convey cannot listen on an address.
#[derive(Debug, Error)]
#[error("cannot listen on {at}: {cause}{}", remedy(*at, cause))]
pub struct BindError {
    pub(super) at: Endpoint,
    pub(super) cause: io::Error,
}

impl BindError {
    /// Address and protocol of the failed bind.
    pub fn at(&self) -> Endpoint {
        self.at
    }

    /// Whether another socket has bound the address.
    pub fn is_taken(&self) -> bool {
        self.cause.kind() == io::ErrorKind::AddrInUse
    }
}

/// Tries to bind each of these endpoints, as convey does at its start, and closes the sockets
/// again. Returns the failures.
pub fn try_to_bind<'a>(places: impl IntoIterator<Item = &'a Endpoint>) -> Vec<BindError> {
    let refused = |at: &Endpoint| {
        let kind = match at.protocol {
            convey_model::Protocol::Tcp => Type::STREAM,
            convey_model::Protocol::Udp => Type::DGRAM,
        };
        check_is_free(at.addr, kind, []).err().map(|cause| BindError { at: *at, cause })
    };
    places.into_iter().filter_map(refused).collect()
}

/// Advice for operators after a failed bind. Empty if the cause needs no explanation.
pub fn remedy(at: Endpoint, cause: &io::Error) -> String {
    let port = at.addr.port();
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            let kind = if at.protocol == convey_model::Protocol::Tcp { "t" } else { "u" };
            format!(" (`sudo ss -{kind}lnp 'sport = :{port}'` shows by which process)")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("; no interface has this address: add it (`{}`)", adding(at.addr.ip()))
        }
        io::ErrorKind::PermissionDenied if port < 1024 => {
            let binary = std::env::current_exe().unwrap_or_else(|_| "convey".into());
            format!(
                "; ports below 1024 need root or CAP_NET_BIND_SERVICE (systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE; by \
                 hand: `sudo setcap cap_net_bind_service=+ep {}`)",
                binary.display()
            )
        }
        _ => String::new(),
    }
}

/// Limits the TTL of a connection to one hop, so that the reset at its end does not reach the
/// client.
pub(super) fn limit_reset_ttl(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // Each option is for one address family, so the call for the other family may fail.
    let _ = (socket.set_ttl_v4(1), socket.set_unicast_hops_v6(1));
}

/// Requested length of the accept queue. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;

/// Creates `count` listening sockets at `addr`; the kernel distributes new connections over them.
/// Uses all sockets in `handed`, which another process has handed over, because clients may wait in
/// their accept queues. `ours` are the addresses that this process has bound already.
pub(super) fn listen(
    addr: SocketAddr,
    count: usize,
    handed: Vec<OwnedFd>,
    ours: impl IntoIterator<Item = SocketAddr>,
) -> io::Result<Vec<std::net::TcpListener>> {
    if handed.is_empty() {
        check_is_free(addr, Type::STREAM, ours)?;
    }
    let socket = || {
        let socket = bound(addr, Type::STREAM)?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    let missing = count.saturating_sub(handed.len());
    let handed = handed.into_iter().map(|socket| Ok(socket.into()));
    handed.chain((0..missing).map(|_| socket())).collect()
}

/// Returns an error if another process has bound `addr`. Without this check, a second load balancer
/// could share the port unnoticed through SO_REUSEPORT.
///
/// The check binds without SO_REUSEPORT, which also fails if a socket of this process has the
/// address. So the check is skipped if an address in `ours` overlaps with `addr`.
pub(super) fn check_is_free(
    addr: SocketAddr,
    kind: Type,
    ours: impl IntoIterator<Item = SocketAddr>,
) -> io::Result<()> {
    if !ours.into_iter().any(|bound| convey_model::overlap(bound, addr)) {
        bind(addr, kind, false)?;
    }
    Ok(())
}

/// Creates a socket at `addr` that shares the address with other sockets of this process
/// (SO_REUSEPORT).
pub(super) fn bound(addr: SocketAddr, kind: Type) -> io::Result<Socket> {
    bind(addr, kind, true)
}

/// Creates a UDP socket at `addr` that shares the address, with a receive buffer of this many
/// bytes. Without privileges, the kernel limits the buffer to `net.core.rmem_max`.
pub(super) fn bound_for_datagrams(addr: SocketAddr, receive_buffer: usize) -> io::Result<UdpSocket> {
    let socket = bound(addr, Type::DGRAM)?;
    if set_socket_recv_buffer_size_force(&socket, receive_buffer).is_err() {
        socket.set_recv_buffer_size(receive_buffer)?;
    }
    Ok(socket.into())
}

/// Original destination of a client's connection, before NAT on this host changed it; `None`
/// without NAT.
pub(super) fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let asked = match stream.local_addr().ok()?.is_ipv4() {
        true => socket.original_dst_v4(),
        false => socket.original_dst_v6(),
    };
    asked.ok()?.as_socket()
}

/// Reduces the accept queue to the kernel's minimum (one connection). convey then empties the queue
/// for the last time.
pub(super) fn queue_no_more(listener: &tokio::net::TcpListener) {
    let _ = SockRef::from(listener).listen(0);
}

/// Enables keep-alive probes, so that convey notices a vanished peer within two and a half minutes.
pub(super) fn keep_alive(socket: &SockRef<'_>) -> io::Result<()> {
    let probes =
        TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));
    socket.set_tcp_keepalive(&probes)
}

fn bind(addr: SocketAddr, kind: Type, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), kind.nonblocking(), None)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // SO_REUSEADDR is only for TCP, which has TIME-WAIT. For UDP, the option would let other
    // programs share the port.
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
        // TCP_NODELAY: the kernel sends small writes immediately. Accepted connections inherit this
        // option and keep-alive from their listener (tcp(7)).
        socket.set_tcp_nodelay(true)?;
        keep_alive(&SockRef::from(&socket))?;
    }
    socket.set_reuse_port(reuse_port)?;
    // IP_FREEBIND: a standby node listens before it has the address.
    match addr.is_ipv4() {
        true => socket.set_freebind_v4(true)?,
        false => socket.set_freebind_v6(true)?,
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Warning for operators if no interface of this host has an address, so that clients cannot reach
/// it yet. `None` if an interface has the address.
pub fn missing_address(ip: IpAddr) -> Option<String> {
    missing(ip, "clients can connect")
}

/// Warning for operators if no interface of this host has the source address of connections to
/// servers. `None` if an interface has it.
pub fn missing_source(ip: IpAddr) -> Option<String> {
    missing(ip, "connections to servers can come from it")
}

fn missing(ip: IpAddr, what: &str) -> Option<String> {
    // A bind is the best check: the kernel accepts all addresses of the host, including those that
    // are local only because of a route.
    let bound = std::net::UdpSocket::bind((ip, 0));
    if !bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable) {
        return None;
    }
    let add = adding(ip);
    Some(format!(
        "no interface has {ip} yet: {what} after an interface gets the address (on a standby node at the \
         takeover, otherwise by `{add}`)"
    ))
}

/// Command that adds an address to an interface.
fn adding(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("ip addr add {ip}/32 dev INTERFACE"),
        IpAddr::V6(ip) => format!("ip -6 addr add {ip}/128 dev INTERFACE nodad"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use rustix::io::Errno;

    use super::*;

    fn free_port(ip: &str) -> SocketAddr {
        let listener = std::net::TcpListener::bind((ip, 0)).unwrap();
        listener.local_addr().unwrap()
    }

    #[test]
    fn every_worker_gets_a_socket_on_the_same_address() {
        let addr = free_port("127.0.0.1");
        assert_eq!(listen(addr, 3, Vec::new(), []).unwrap().len(), 3);
    }

    #[test]
    fn inherited_sockets_are_all_used_and_missing_ones_are_added() {
        let addr = free_port("127.0.0.1");
        let before = listen(addr, 2, Vec::new(), []).unwrap();
        let handed = || before.iter().map(|socket| socket.try_clone().unwrap().into()).collect();
        for (workers, sockets) in [(1, 2), (2, 2), (3, 3)] {
            assert_eq!(listen(addr, workers, handed(), []).unwrap().len(), sockets, "{workers} workers");
        }
    }

    #[test]
    fn an_address_somebody_listens_on_is_refused_by_name() {
        let addr = free_port("127.0.0.1");
        let _other_balancer = listen(addr, 1, Vec::new(), []).unwrap();
        let cause = listen(addr, 1, Vec::new(), []).unwrap_err();
        let error = BindError { at: Endpoint::tcp(addr), cause }.to_string();
        let port = addr.port();
        assert_eq!(
            error,
            format!(
                "cannot listen on {addr}: Address already in use (os error 98) (`sudo ss -tlnp 'sport = :{port}'` shows by \
                 which process)"
            )
        );
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let said = |at: &str, cause: Errno| {
            let error = BindError { at: Endpoint::tcp(at.parse().unwrap()), cause: cause.into() };
            error.to_string()
        };
        let below = said("0.0.0.0:80", Errno::ACCESS);
        assert!(below.contains("; ports below 1024 need root or CAP_NET_BIND_SERVICE"), "{below}");
        let binary = std::env::current_exe().unwrap();
        assert!(
            below.ends_with(&format!("setcap cap_net_bind_service=+ep {}`)", binary.display())),
            "{below}"
        );
        assert!(said("0.0.0.0:8080", Errno::ACCESS).ends_with("(os error 13)"));
    }

    #[test]
    fn address_of_no_interface_is_reported_and_can_be_bound() {
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert!(missing_address(ip).unwrap().starts_with(&format!("no interface has {ip} yet")));
            // Listens on IPv6 only if the kernel supports it.
            if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() || ip.is_ipv4() {
                listen(SocketAddr::new(ip, 45_678), 1, Vec::new(), []).unwrap();
            }
        }
        for ip in ["127.0.0.1", "127.9.9.9", "0.0.0.0"] {
            assert_eq!(missing_address(ip.parse().unwrap()), None);
        }
    }

    #[test]
    fn a_wildcard_may_stand_beside_an_address_of_ours() {
        let narrow = free_port("127.0.0.1");
        let wide = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), narrow.port());
        let _narrow = listen(narrow, 2, Vec::new(), []).unwrap();
        assert!(listen(wide, 2, Vec::new(), []).is_err(), "somebody else's");
        assert!(listen(wide, 2, Vec::new(), [narrow]).is_ok());
    }
}
