//! Network namespaces joined by veth pairs.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Longest that anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// How often is looked meanwhile.
const TRIES: u32 = 2_000;

/// What of the tools is missing, or of the right to make namespaces.
pub(crate) fn missing(tools: &[&str]) -> Option<String> {
    let absent = |tool: &&&str| Command::new(tool).arg("-V").output().is_err();
    if let Some(tool) = tools.iter().find(absent) {
        return Some(format!("{tool} is not installed"));
    }
    let name = format!("cv-{}-try", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).output().is_ok_and(|o| o.status.success());
    if made {
        Namespace(name);
        return None;
    }
    Some("no right to make network namespaces (run as root)".into())
}

/// Whether the kernel is too old for what a later one has.
pub(crate) fn older_than(major: u32, minor: u32, what: &str) -> Option<String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version < (major, minor)).then(|| format!("Linux {release} has no {what} ({major}.{minor} has)"))
}

/// The stories as trials; ignored, with the reason, if something they need is missing.
pub(crate) fn trials_of<N: Into<String>, F: FnOnce() + Send + 'static>(
    stories: impl IntoIterator<Item = (N, F)>,
    missing: Option<&str>,
) -> impl Iterator<Item = Trial> {
    stories.into_iter().map(move |(name, story)| {
        let trial = Trial::test(name, move || {
            story();
            Ok(())
        });
        match missing {
            Some(reason) => trial.with_kind(reason).with_ignored_flag(true),
            None => trial,
        }
    })
}

/// A network namespace that is gone when dropped, with its links.
pub(crate) struct Namespace(String);

impl Namespace {
    /// An empty one; its loopback interface is up, and IPv6 addresses can be used as soon as they are there.
    pub(crate) fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cv-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run("ip", &format!("netns add {name}"));
        let namespace = Namespace(name);
        namespace.ip("link set lo up");
        namespace.exec("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Runs `ip` on it; what it prints.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        run("ip", &format!("-n {} {arguments}", self.0))
    }

    /// Runs a program in it; what it prints.
    pub(crate) fn exec(&self, command: &str) -> String {
        run("ip", &format!("netns exec {} {command}", self.0))
    }

    /// Joins it to another: each end gets a name and a MAC, and is up.
    pub(crate) fn link(&self, (name, mac): (&str, &str), other: &Namespace, (peer, peer_mac): (&str, &str)) {
        let (a, b) = (&self.0, &other.0);
        run(
            "ip",
            &format!(
                "link add {name} address {mac} netns {a} type veth peer name {peer} address {peer_mac} netns {b}"
            ),
        );
        self.ip(&format!("link set {name} up"));
        other.ip(&format!("link set {peer} up"));
    }

    /// Turns off what a veth leaves undone because its peer needs it not: checksums and cutting.
    pub(crate) fn no_offloads(&self, interface: &str) {
        self.exec(&format!("ethtool -K {interface} tx off tso off gso off"));
    }

    /// Does `f` on a thread that is in it.
    pub(crate) fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            enter(&self.0);
            f()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap()
    }

    /// Index of an interface of it.
    pub(crate) fn index(&self, interface: &str) -> u32 {
        self.enter(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            rustix::net::netdevice::name_to_index(&socket, interface).unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Moves this thread into a namespace for good.
pub(crate) fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// A connection that is being opened; nobody waits for it. `from` may be port 0.
pub(crate) fn connecting(from: &str, to: &str) -> Socket {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let socket = Socket::new(Domain::for_address(address(to)), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address(from).into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let error = socket.connect(&address(to).into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INPROGRESS.raw_os_error()));
    socket
}

/// The connection that has come; it is waited for.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    SockRef::from(listener).set_read_timeout(Some(DEADLINE)).unwrap();
    listener.accept().unwrap().0
}

/// Whether the other side answers with a reset. Its stack is waited for.
pub(crate) fn refused(to: &str) -> bool {
    let to = to.parse().unwrap();
    match TcpStream::connect_timeout(&to, DEADLINE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => true,
        Err(error) => panic!("{to}: {error}"),
        Ok(_) => false,
    }
}

/// What `f` finds, asked until it does. A socket that was closed is gone late when another trial starts a process
/// just then: the process has a copy of every open file until it executes its program.
pub(crate) fn eventually<T>(f: impl Fn() -> Option<T>) -> T {
    for _ in 0..TRIES {
        if let Some(found) = f() {
            return found;
        }
        thread::sleep(DEADLINE / TRIES);
    }
    panic!("not within {DEADLINE:?}");
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
