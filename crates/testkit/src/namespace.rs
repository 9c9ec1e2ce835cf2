//! Network namespaces for tests, without a lab.

use std::ffi::OsStr;
use std::process::Command;

use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Socket, Type};

use super::PATIENCE;
use super::process::run_up_to;

/// Network namespace. Dropping it removes the namespace and its links. Failures panic.
pub struct TestNamespace(convey_lab::Namespace);

impl TestNamespace {
    /// Creates a namespace without links. Its loopback interface is up, and new IPv6 addresses are
    /// usable immediately.
    #[allow(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> TestNamespace {
        let namespace = TestNamespace(convey_lab::Namespace::new().unwrap());
        namespace.ip("link set lo up");
        namespace.exec("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        namespace
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Runs `ip` with the arguments in `line` in the namespace, and returns its output.
    pub fn ip(&self, line: &str) -> String {
        self.0.ip([line.to_owned()]).unwrap()
    }

    /// Runs a program in the namespace, and returns its output.
    pub fn exec(&self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        self.0.run(words[0], &words[1..]).unwrap()
    }

    /// Creates a command that runs a program in the namespace. Use this for programs that must
    /// outlive a call of [`TestNamespace::enter`], whose thread ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program);
        command
    }

    /// Links two namespaces by a veth pair. Each end gets a name and a MAC address, and is set up.
    pub fn link(&self, (name, mac): (&str, &str), other: &TestNamespace, (peer, peer_mac): (&str, &str)) {
        let to = other.name();
        self.ip(&format!(
            "link add {name} address {mac} type veth peer name {peer} address {peer_mac} netns {to}"
        ));
        self.ip(&format!("link set {name} up"));
        other.ip(&format!("link set {peer} up"));
    }

    /// Turns off the offloads of a veth interface. With offloads, the interface would pass packets
    /// to its peer without checksums and without segmentation.
    pub fn no_offloads(&self, interface: &str) {
        self.exec(&format!("ethtool -K {interface} tx off tso off gso off"));
    }

    /// Runs `f` on a thread in the namespace, and returns the result.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.0.enter(f).unwrap()
    }

    /// Index of an interface of the namespace.
    pub fn index(&self, interface: &str) -> u32 {
        self.enter(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            name_to_index(&socket, interface).unwrap()
        })
    }
}

/// Environment variable that is set while a test runs in its namespace.
const INSIDE: &str = "CONVEY_TEST_IN_NAMESPACE";

/// Runs the test with this name in a network namespace with a loopback interface, after the shell
/// commands in `set_up`. The test runs in a process of its own, because tests in threads of one
/// process would share the namespace.
pub fn in_namespace(name: &str, set_up: &str, tell: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return tell();
    }
    let script = format!("set -e\nip link set lo up\n{set_up}\nexec \"$0\" --exact \"$1\"");
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", &script]).arg(std::env::current_exe().unwrap()).arg(name);
    // A test may wait for several things, each for up to `PATIENCE`.
    let ran = run_up_to(3 * PATIENCE, command.env(INSIDE, "1"));
    let told = ran.code == Some(0) && ran.stdout.contains("1 passed");
    assert!(told, "\n{}\n{}", indented(&ran.stdout), indented(&ran.stderr));
}

/// Indents the report of the inner test. Tools that count test reports by their lines then find
/// only the report of the outer test.
fn indented(report: &str) -> String {
    report.lines().map(|line| format!("    {line}\n")).collect()
}
