//! Requirements that tests have on the machine.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::pace;

/// Environment variable that selects long tests. Unset: no long tests run. `1`: long tests run,
/// too. `only`: only long tests run. `all`: long tests run, too, and packet tests run in every
/// variant.
const LONG: &str = "CONVEY_LONG";

/// Requirement that not every machine meets.
#[derive(Clone, Copy)]
pub enum Need {
    /// A program, and the Debian package that contains it.
    Tool(&'static str, &'static str),
    /// Long tests must be selected, because the test takes longer than a newcomer would wait.
    Long,
    /// All tests must be selected, because the test takes long, and other tests cover the same case
    /// in another way.
    All,
    /// Privileges and tools for network namespaces.
    Namespaces,
    /// The address `::1`.
    Ipv6,
    /// A hard limit on open files of at least this number.
    OpenFiles(u64),
    /// A kernel of at least this version. The text names the feature that needs it.
    Kernel(u32, u32, &'static str),
    /// Another requirement. The function returns the reason why the requirement is not met, or
    /// `None`.
    Other(fn() -> Option<String>),
}

/// Requirements for common tools.
#[allow(missing_docs, reason = "a tool by its name")]
impl Need {
    pub const ARPING: Need = Need::Tool("arping", "iputils-arping");
    pub const CHROMIUM: Need = Need::Tool("chromium", "chromium");
    pub const CONNTRACK: Need = Need::Other(missing_conntrack_list);
    pub const CURL: Need = Need::Tool("curl", "curl");
    pub const DIG: Need = Need::Tool("dig", "bind9-dnsutils");
    pub const DNSMASQ: Need = Need::Tool("dnsmasq", "dnsmasq-base");
    pub const ETCD: Need = Need::Tool("etcd", "etcd-server");
    pub const ETCDCTL: Need = Need::Tool("etcdctl", "etcd-client");
    pub const ETHTOOL: Need = Need::Tool("ethtool", "ethtool");
    pub const HAPROXY: Need = Need::Tool("haproxy", "haproxy");
    pub const IPERF3: Need = Need::Tool("iperf3", "iperf3");
    pub const IPTABLES: Need = Need::Tool("iptables", "iptables");
    pub const MEMORY_GROUP: Need = Need::Other(missing_memory_group);
    pub const NFT: Need = Need::Tool("nft", "nftables");
    pub const NGINX: Need = Need::Tool("nginx", "nginx-light");
    pub const NODE: Need = Need::Tool("node", "nodejs");
    pub const OPENSSL: Need = Need::Tool("openssl", "openssl");
    pub const PING: Need = Need::Tool("ping", "iputils-ping");
    pub const PRLIMIT: Need = Need::Tool("prlimit", "util-linux");
    pub const PROMETHEUS: Need = Need::Tool("prometheus", "prometheus");
    pub const PROMTOOL: Need = Need::Tool("promtool", "prometheus");
    pub const PYTHON: Need = Need::Tool("python3", "python3");
    pub const TC: Need = Need::Tool("tc", "iproute2");
    pub const TCPDUMP: Need = Need::Tool("tcpdump", "tcpdump");
    pub const TRACEROUTE: Need = Need::Tool("traceroute", "traceroute");
    pub const WRK: Need = Need::Tool("wrk", "wrk");
}

impl Need {
    /// Returns the reason why the requirement is not met, or `None` if it is met.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Tool(name, package) => {
                tool(name).is_none().then(|| format!("{name} is not installed (Debian package {package})"))
            }
            Need::Long => {
                let reason = || "takes long; CONVEY_LONG=1 runs it".to_owned();
                long().is_none().then(reason)
            }
            Need::All => {
                let reason = || "another variant of it runs; CONVEY_LONG=all runs this one, too".to_owned();
                (long().as_deref() != Some("all")).then(reason)
            }
            Need::Namespaces => {
                static MISSING: LazyLock<Option<String>> = LazyLock::new(missing_namespaces);
                MISSING.clone()
            }
            Need::Ipv6 => {
                TcpListener::bind("[::1]:0").err().map(|error| format!("no IPv6 loopback: {error}"))
            }
            Need::OpenFiles(needed) => {
                let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
                let reason = format!("needs {needed} open files, the hard limit is {allowed}");
                (allowed < needed).then_some(reason)
            }
            Need::Kernel(major, minor, what) => {
                let release = rustix::system::uname().release().to_string_lossy().into_owned();
                let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
                let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                let too_old = || format!("Linux {release} has no {what} ({major}.{minor} has)");
                (version < (major, minor)).then(too_old)
            }
            Need::Other(missing) => missing(),
        }
    }
}

/// Reason if the kernel does not list connections of conntrack. The list exists only once the
/// conntrack module is loaded, which may happen later.
fn missing_conntrack_list() -> Option<String> {
    let [has_module, has_list] = ["/proc/sys/net/netfilter/nf_conntrack_max", "/proc/net/nf_conntrack"]
        .map(|file| std::path::Path::new(file).exists());
    (has_module && !has_list).then(|| "the kernel lists no connections in /proc/net/nf_conntrack".to_owned())
}

fn missing_namespaces() -> Option<String> {
    let tools = [Need::Tool("unshare", "util-linux"), Need::Tool("ip", "iproute2")];
    tools.iter().find_map(|tool| tool.missing()).or_else(|| {
        let made = Command::new("unshare").args(["--net", "true"]).output();
        let cannot = || "cannot create a network namespace (takes root)".to_owned();
        (!made.is_ok_and(|ran| ran.status.success())).then(cannot)
    })
}

/// Directory for control groups with memory limits, and the name of the limit file in a group.
/// `None` if this machine has neither cgroup version 2 nor version 1 with memory limits.
pub fn memory_groups() -> Option<(&'static str, &'static str)> {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    let has_v2 = controllers.split_whitespace().any(|name| name == "memory");
    let v1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");
    let of_v1 = || Path::new(v1.0).join(v1.1).exists().then_some(v1);
    has_v2.then_some(("/sys/fs/cgroup", "memory.max")).or_else(of_v1)
}

fn missing_memory_group() -> Option<String> {
    let Some((root, limit)) = memory_groups() else {
        return Some("control groups have no memory controller here".to_owned());
    };
    let group = Path::new(root).join(format!("convey-need-{}", std::process::id()));
    let made = std::fs::create_dir(&group).and_then(|()| std::fs::write(group.join(limit), "1000000000"));
    let _ = std::fs::remove_dir(&group);
    made.err().map(|error| format!("cannot create a control group with a memory limit: {error} (takes root)"))
}

/// Creates a trial. If a requirement is not met, the trial is ignored with a reason.
pub fn trial(
    name: impl Into<String>,
    needs: impl Into<Vec<Need>>,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    trial_in_turn(name, needs, || (), test)
}

/// Creates a trial like [`trial`]. Before it runs, `turn` waits for its turn; the trial keeps the
/// returned value until it ends.
pub fn trial_in_turn<T>(
    name: impl Into<String>,
    needs: impl Into<Vec<Need>>,
    turn: impl FnOnce() -> T + Send + 'static,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let mut needs = needs.into();
    if !needs.iter().any(|need| matches!(need, Need::Long | Need::All)) {
        needs.push(Need::Other(is_short_among_long));
    }
    Trial::ignorable_test(name, move || {
        if let Some(reason) = reason_to_ignore(&needs) {
            return Ok(Completion::ignored_with(reason));
        }
        let _turn = turn();
        let _running = pace::begin();
        test();
        Ok(Completion::Completed)
    })
}

/// Returns the reason why the test is not selected. If the test is selected, returns all
/// requirements that are not met, or `None` if the test can run.
fn reason_to_ignore(needs: &[Need]) -> Option<String> {
    let (of_patience, others): (Vec<&Need>, Vec<&Need>) =
        needs.iter().partition(|need| matches!(need, Need::Long | Need::All));
    let unwanted = of_patience.iter().find_map(|need| need.missing());
    unwanted.or_else(|| {
        let missing: Vec<String> = others.iter().filter_map(|need| need.missing()).collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    })
}

/// Creates trials with the same requirements.
pub fn trials<N: Into<String>, F: FnOnce() + Send + 'static>(
    tests: impl IntoIterator<Item = (N, F)>,
    needs: &[Need],
) -> Vec<Trial> {
    tests.into_iter().map(|(name, test)| trial(name, needs, test)).collect()
}

/// Lists the tests of a module: names of functions, each with its requirements in brackets.
#[macro_export]
macro_rules! tests {
    ($group:literal: $($test:ident $([$($need:expr),+])?),+ $(,)?) => {
        pub(crate) fn tests() -> Vec<libtest_mimic::Trial> {
            vec![$(
                $crate::trial(concat!($group, "::", stringify!($test)), [$($($need),+)?], $test)
            ),+]
        }
    };
}

/// Selection of long tests: the value of `CONVEY_LONG`.
fn long() -> Option<String> {
    std::env::var(LONG).ok()
}

fn is_short_among_long() -> Option<String> {
    let reason = || "is left out with CONVEY_LONG=only".to_owned();
    (long().as_deref() == Some("only")).then(reason)
}

/// Runs the trials that the command line selects, at most as many at once as it allows: several per
/// core, by `pace`, or one per core if long tests are selected.
pub fn run_trials(trials: Vec<Trial>) -> ExitCode {
    run(trials, 1, 0)
}

/// Runs trials that coordinate their use of cores themselves: two per core if long tests are
/// selected. Up to `waiting` more wait for their turn.
pub fn run_trials_in_turns(trials: Vec<Trial>, waiting: usize) -> ExitCode {
    run(trials, 2, waiting)
}

fn run(trials: Vec<Trial>, long_a_core: usize, waiting: usize) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let at_once = pace::set(long().map(|_| long_a_core));
    arguments.test_threads.get_or_insert(at_once + waiting);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Path of a tool. Also searches the sbin directories, which the `PATH` of some users lacks.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    directories.map(|directory| directory.join(name)).find(|file| Path::is_file(file))
}

/// Raises the limit on open files to its maximum, for this process and its children.
pub fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}
